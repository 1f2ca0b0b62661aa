"""Whether a scenario says what its training stack does, or leaves it to be guessed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.software.choice import names_a_release
from hdpsim.experiments.software.rules import switches
from hdpsim.simulator.settings import FIELDS

_SHAPES_OF_A_RUN = frozenset({"recompute", "shard_ranks", "embedding_layers"})
"""Keys that stacks set too, but that say how a run is cut, not what its software does."""


def software_stated(values: Mapping[str, object]) -> bool:
    """Whether a release is named, or a switch of the stack has a value that is not the default.

    A switch at its default says nothing: files with all defaults filled in have every switch.
    """
    return names_a_release(str(values["software"])) or any(
        values[key] != KEYS[key].default for key in _of_stacks()
    )


@cache
def _of_stacks() -> tuple[str, ...]:
    """Keys of the layout that stacks decide."""
    decided = frozenset(switches()) - _SHAPES_OF_A_RUN
    prefix = "layout."
    leaves = {key: key.removeprefix(prefix) for key in KEYS if key.startswith(prefix)}
    return tuple(key for key, leaf in leaves.items() if FIELDS.get(leaf, leaf) in decided)
