"""What the software stack that a scenario names decides of it, and what the scenario leaves to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.experiments.scenario.references import Found
from hdpsim.experiments.scenario.schema import KEYS, section_of
from hdpsim.experiments.software.choice import (
    names_a_release,
    read_software,
    run_of,
    settings_of,
    software_notes,
)
from hdpsim.experiments.software.rules import Setting, switches
from hdpsim.simulator.settings import FIELDS

_CHANGES_NOTHING = "changes nothing: the scenario writes every key that it sets"
_DECIDED_SECTIONS = ("layout", "memory")
_SHAPES_OF_A_RUN = frozenset({"recompute", "shard_ranks", "embedding_layers", "pipeline_layout"})
"""Keys that stacks set too, but that say how a run is cut, not what its software does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDecisions:
    """What the software of a scenario decides.

    Attributes:
        settings: switches that it sets, each with who says so; none without a stack.
        left_open: keys that stay unwritten in the resolved document, so that another stack still decides them.
        notes: what the user should know of it.
    """

    settings: tuple[Setting, ...] = ()
    left_open: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The value of every switch that it sets."""
        return {setting.switch: setting.value for setting in self.settings}


def decided_by_stack(
    document: Mapping[str, object], values: Mapping[str, Any], found: Found, problems: Problems
) -> StackDecisions:
    """What `software` decides of a *document*, whose checked *values* name what was *found*."""
    if not values["software"]:
        return StackDecisions()
    try:
        software = read_software(values["software"])
    except ValueError as error:
        problems.add("software", str(error))
        return StackDecisions()
    layout = section_of(values, "layout")
    run = run_of(software, found.model, found.cluster, layout, int(values["data.context"]))
    written = _keys_written(document)
    names = {key.partition(".")[2] for key in written}
    settings = settings_of(run, frozenset(names | {FIELDS.get(name, name) for name in names}))
    return StackDecisions(
        settings=settings,
        left_open=_keys_of_stacks() - written,
        notes=(
            *_memory_notes(settings),
            *software_notes(software, run),
            *(() if settings else (f"software = {values['software']} {_CHANGES_NOTHING}",)),
        ),
    )


def software_stated(values: Mapping[str, object]) -> bool:
    """Whether a release is named, or a switch of the stack has a value that is not the default.

    A switch at its default says nothing: files with all defaults filled in have every switch.
    """
    return names_a_release(str(values["software"])) or any(
        values[key] != KEYS[key].default for key in _switches_of_stacks()
    )


def _keys_written(document: Mapping[str, object]) -> frozenset[str]:
    """Dotted keys that the scenario writes itself where a stack might set them."""
    sections = {section: document.get(section) for section in ("model", *_DECIDED_SECTIONS)}
    return frozenset(
        f"{section}.{key}" for section, keys in sections.items() if isinstance(keys, Mapping) for key in keys
    )


def _memory_notes(settings: tuple[Setting, ...]) -> tuple[str, ...]:
    """What a software stack keeps in memory that a lean one does not."""
    known = {item.name for item in fields(MemoryOverheads)}
    changed = [f"{setting.switch} {setting.value}" for setting in settings if setting.switch in known]
    return ("memory of the software: " + ", ".join(changed),) if changed else ()


@cache
def _keys_of_stacks() -> frozenset[str]:
    """Keys that a stack may decide."""
    return frozenset(
        key for key in KEYS if key.partition(".")[0] in _DECIDED_SECTIONS and key != "memory.must_fit"
    )


@cache
def _switches_of_stacks() -> tuple[str, ...]:
    """Keys of the layout that say what a stack does."""
    decided = frozenset(switches()) - _SHAPES_OF_A_RUN
    prefix = "layout."
    leaves = {key: key.removeprefix(prefix) for key in KEYS if key.startswith(prefix)}
    return tuple(key for key, leaf in leaves.items() if FIELDS.get(leaf, leaf) in decided)
