"""Variants of a strategy in one comparison: `static(cp=32,packing=concatenate)` is static with some keys changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdpsim.errors import ScenarioError, UserInputError
from hdpsim.experiments.scenario.schema import KEYS, strategy_name
from hdpsim.quoting import did_you_mean, quoted

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.simulator.setup import Setup

_VARIANT = re.compile(r"(?P<name>[^()=]+?)\s*(?:\((?P<changes>.*)\))?")
_SECTIONS = ("layout", "strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyVariant:
    """A strategy and the keys that it changes in the scenario.

    Attributes:
        label: as it was written, without blanks: the name of its row.
        changes: of the scenario, `layout.cp=32`.
    """

    label: str
    strategy: str
    changes: tuple[str, ...]

    def setup(self, scenario: Scenario) -> Setup:
        """What is simulated.

        Raises:
            UserInputError: values that are not allowed, with the variant they belong to.
            InfeasibleError: degrees that cannot run.
        """
        if not self.changes:
            return scenario.setup(self.strategy)
        try:
            return scenario.with_changes(self.changes).setup(self.strategy)
        except ScenarioError as error:
            raise ScenarioError(error.problems, f"--strategies {self.label}") from None


def split_variants(text: str) -> tuple[str, ...]:
    """The parts of a list whose commas inside brackets belong to a part."""
    parts, depth, begin = [], 0, 0
    for place, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if depth < 0 or depth > 1:
            raise UserInputError(f"--strategies: brackets do not match in {quoted(text)}")
        if mark == "," and not depth:
            parts.append(text[begin:place])
            begin = place + 1
    if depth:
        raise UserInputError(f"--strategies: brackets do not match in {quoted(text)}")
    return tuple(part.strip() for part in (*parts, text[begin:]))


def read_variants(parts: Sequence[str]) -> tuple[StrategyVariant, ...]:
    """Every part as a variant.

    Raises:
        ScenarioError: unknown strategies or keys, with what is allowed.
        UserInputError: an empty part, or the same one twice.
    """
    problems: list[tuple[str, str]] = []
    read = [_variant(part, problems) for part in parts]
    if problems:
        raise ScenarioError(tuple(problems), "--strategies")
    variants = tuple(variant for variant in read if variant is not None)
    labels = [variant.label for variant in variants]
    meanings = [(variant.strategy, frozenset(variant.changes)) for variant in variants]
    if len(set(labels)) != len(labels) or len(set(meanings)) != len(meanings):
        raise UserInputError(f"--strategies: expected different names, got {quoted(', '.join(labels))}")
    return variants


def _variant(part: str, problems: list[tuple[str, str]]) -> StrategyVariant | None:
    matched = _VARIANT.fullmatch(part)
    if matched is None:
        problems.append(
            ("", f"{quoted(part)} is no strategy such as static or static(cp=32,packing=concatenate)")
        )
        return None
    name = matched["name"].strip()
    try:
        strategy_name(name)
    except ValueError as error:
        problems.append(("", str(error)))
        return None
    if matched["changes"] is None:
        return StrategyVariant(label=name, strategy=name, changes=())
    pairs: list[str] = []
    changes: list[str] = []
    before = len(problems)
    for text in matched["changes"].split(","):
        key, equals, value = (piece.strip() for piece in text.partition("="))
        dotted = _dotted(key)
        if not equals or not value:
            problems.append((part, f"expected key=value, got {quoted(text.strip())}"))
        elif dotted is None:
            problems.append(
                (part, f"{quoted(key)} is no key of layout or strategy{did_you_mean(key, _LEAVES)}")
            )
        elif dotted in (change.partition("=")[0] for change in changes):
            problems.append((part, f"{key} is given twice"))
        else:
            pairs.append(f"{key}={value}")
            changes.append(f"{dotted}={value}")
    if len(problems) > before:
        return None
    return StrategyVariant(label=f"{name}({','.join(pairs)})", strategy=name, changes=tuple(changes))


_LEAVES = tuple(
    key.partition(".")[2] for key in KEYS if key.partition(".")[0] in _SECTIONS and key != "strategy.name"
)


def _dotted(key: str) -> str | None:
    """`cp` or `layout.cp` as the scenario's key; None for a key that a variant cannot change."""
    for dotted in (key, *(f"{section}.{key}" for section in _SECTIONS)):
        if dotted in KEYS and dotted.partition(".")[0] in _SECTIONS and dotted != "strategy.name":
            return dotted
    return None
