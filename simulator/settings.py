"""The settings of a setup by their dotted keys, as scenario files have them: `layout.tp`, `memory.logit_bytes`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any

from hdpsim.cost_models.layout.layout import GROUPS
from hdpsim.cost_models.layout.switch_metadata import about
from hdpsim.simulator.setup import Setup

FIELDS: Mapping[str, str] = {
    "rank_capacity": "rank_capacity_tokens", "gc_pause": "gc_pause_s", "launch_skew": "launch_skew_s",
    "link_flap_mean": "link_flap_mean_s", "cuda_context": "cuda_context_bytes", "libraries": "library_bytes",
    "nccl_per_group": "nccl_bytes_per_group", "fragmentation": "fragmentation_share",
    "asynchronous_loading": "asynchronous", "planning_time": "planning_s", "price": "usd_per_hour",
    "network_power": "network_w", "co2": "co2_kg_per_kwh",
}  # fmt: skip
"""Keys whose field has another name, mostly because it carries its unit."""

_KEYS = {field: key for key, field in FIELDS.items()}
_HOMES: Mapping[str, tuple[str, ...]] = {
    "model": ("model",), "layout": tuple(f"layout.{group}" for group in GROUPS), "data": ("data_pipeline",),
    "strategy": ("strategy",), "memory": ("memory", "memory.overheads"), "execution": ("execution",),
}  # fmt: skip
"""Section of a scenario -> the parts of a setup that hold its keys, as paths of attributes."""
_NO_KEYS = frozenset({"overheads", "spans", "record_links", "step", "replication"})


def settings(setup: Setup) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value, default) of everything that has a default."""
    return {
        key: (getattr(part, name), default)
        for section, homes in _HOMES.items()
        for home in homes
        for part in (_part(setup, home),)
        for key, name, default in _with_defaults(section, part.__class__)
    }


@cache
def _with_defaults(section: str, part: type) -> tuple[tuple[str, str, Any], ...]:
    """Key, name and default of the fields that have one: those of a class never change."""
    return tuple(
        (f"{section}.{key_name(field)}", field.name, field.default)
        for field in fields(part)
        if field.default is not MISSING and field.name not in _NO_KEYS
    )


def key_name(field: Field[Any]) -> str:
    """What scenarios call a field."""
    name = about(field).name or field.name
    return _KEYS.get(name, name)


def changed_settings(setup: Setup) -> dict[str, Any]:
    """Dotted key -> value of what is not the default."""
    return {key: value for key, (value, default) in settings(setup).items() if value != default}


def with_default(setup: Setup, key: str) -> Setup:
    """*setup* with one setting at its default.

    Raises:
        UserInputError: the other settings contradict the default.
    """
    section, _, leaf = key.partition(".")
    name = FIELDS.get(leaf, leaf)
    if section == "layout":
        return replace(setup, layout=setup.layout.changed(**{name: settings(setup)[key][1]}))
    home = next(home for home in _HOMES[section] if hasattr(_part(setup, home), name))
    changed: Any = replace(_part(setup, home), **{name: settings(setup)[key][1]})
    while home:  # up to the setup itself
        home, _, attribute = home.rpartition(".")
        changed = replace(_part(setup, home), **{attribute: changed})
    defaulted: Setup = changed
    return defaulted


CHANGES_NOTHING = "changes nothing"
"""What every note on a setting without effect says."""


def note_on(key: str, value: object, why: str, set_by_software: Collection[str] = ()) -> str:
    """The note on a setting without effect; of fields that the software stack set, it says so."""
    leaf = key.rpartition(".")[2]
    by = " (set by software)" if FIELDS.get(leaf, leaf) in set_by_software else ""
    return f"{key} = {_written(value)}{by} {CHANGES_NOTHING}{why}"


def _written(value: object) -> str:
    """A value as a scenario file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _part(setup: Setup, home: str) -> Any:
    return attrgetter(home)(setup) if home else setup
