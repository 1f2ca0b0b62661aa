"""Keys that become no field of a setup, as the YAML of that name in data says: what each takes, default, meaning."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.cost_models.reading.values import (
    Parser,
    boolean,
    choice,
    integer,
    number,
    or_word,
    quantity,
    some_of,
    text,
    tokens,
)
from hdpsim.cost_models.reliability.checkpoint import Readers
from hdpsim.cost_models.reliability.startup import StartupMethod
from hdpsim.experiments.scenario.values import REQUIRED, Key, batch, interval, lengths, reference
from hdpsim.ranges import RANGES
from hdpsim.simulator.campaign.diagnosis import TESTS
from hdpsim.traces import LongSequencePolicy
from hdpsim.yaml_loader import load_yaml

_KINDS: Mapping[str, Parser] = {
    "text": text,
    "reference": reference,
    "lengths": lengths,
    "batch": batch,
    "true or false": boolean,
    "interval": interval,
    "time": quantity("time"),
    "time or zero": quantity("time", zero=True),
    "bandwidth": quantity("bandwidth"),
    "policy": choice(get_args(LongSequencePolicy)),
    "startup": choice(get_args(StartupMethod)),
    "readers": choice(get_args(Readers)),
    "tests": some_of(TESTS),
}
_NUMBERS = {"whole": integer, "number": number, "tokens": tokens}
"""Kinds that go on with the name of a range."""


def keys_without_field(part: str) -> dict[str, Key]:
    """The keys of a part of the file, in its order."""
    return {name: _key(row) for name, row in _rows()[part].items()}


@cache
def _rows() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = load_yaml(
        shipped("experiments/scenario/data/keys_without_field.yaml")
    )
    return rows


def _key(row: Mapping[str, Any]) -> Key:
    kind, _, limits = row["takes"].partition(" ")
    if kind in _NUMBERS:
        allowed = RANGES[limits]
        parse = _NUMBERS[kind](allowed.from_least(row.get("least", allowed.low)))
    else:
        parse = _KINDS[row["takes"]]
    if "or" in row:
        parse = or_word(row["or"], parse)
    default = row.get("default")
    if default:
        default = parse(default)
    return Key(
        parse=parse,
        default=REQUIRED if row.get("required") else default,
        meaning=row["means"],
        basic=row.get("basic", False),
    )
