"""The tables that say which option of another tool is which key of a scenario, read and written from the same rows.

    numbers:                       # a value that is the same in both
      layout.tp: {option: tensor-model-parallel-size, absent: 1}
    choices:                       # words, flags and their combinations
      - when: {layout.tp: ">1"}
        cases:
          - {set: {layout.sequence_parallel: true}, options: {sequence-parallel: true}}
          - {set: {layout.sequence_parallel: false}, options: {}}

To read, the first case counts whose options the file has; to write, the first whose keys the scenario has (`read_only`
cases are never written). A number's `also` are other names that the tool had for it, `absent` is what the tool takes
without it, `as` a change of notation, `least` the least fact about a run. `says`, `remark` and `refuse` are words for
people, `when` is what must hold. In options `any` is whatever value, a list any of its members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.yaml_loader import load_yaml

_FOLDER = shipped("experiments/other_tools/data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A key of a scenario, or a fact about a run, and the option that has its value."""

    key: str
    option: str
    also: tuple[str, ...] = ()
    absent: object = None
    notation: str = ""
    when: Mapping[str, object] = field(default_factory=dict)
    read_only: bool = False
    least: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """What the tool calls it, or called it."""
        return (self.option, *self.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Values of keys, and the options that mean them.

    Attributes:
        remark: what the scenario cannot say of it.
        refuse: why it cannot be simulated.
        read_only: another case writes these keys.
        spelling: of which release it is, where that is not the newest.
    """

    sets: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    when: Mapping[str, object] = field(default_factory=dict)
    remark: str = ""
    refuse: str = ""
    read_only: bool = False
    spelling: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Keys and options that belong together, with the cases in the order in which they are tried."""

    cases: tuple[Case, ...]
    when: Mapping[str, object]

    @property
    def names(self) -> frozenset[str]:
        """The options of all cases."""
        return frozenset(name for case in self.cases for name in case.options)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all cases."""
        return tuple(dict.fromkeys(key for case in self.cases for key in case.sets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Options that the tool itself refuses together."""

    given: Mapping[str, object]
    without: Mapping[str, object]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool's table.

    Attributes:
        title: what people call its configuration.
        software: the stack of a scenario.
        style: how options are written: `flags`, `yaml` or `toml`.
        complete: whether an option that the file does not name has the tool's default (else: a recipe's).
        lists: options that are lists.
        rename: options, and sections of them, that other releases call otherwise.
        without_effect: options that change neither time nor memory; `*` stands for any letters.
        not_modelled: options that do, and that a scenario has no key for.
        yours: what a run needs and a scenario does not know.
    """

    name: str
    title: str
    software: str
    style: str
    complete: bool
    source: str
    lists: tuple[str, ...]
    rename: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[Number, ...]
    choices: tuple[Choice, ...]
    contradictions: tuple[Contradiction, ...]
    without_effect: tuple[str, ...]
    not_modelled: Mapping[str, str]
    yours: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """Every option that means something to a scenario."""
        numbers = {name for number in self.numbers for name in number.names}
        return frozenset(numbers.union(*(choice.names for choice in self.choices)))

    @property
    def keys(self) -> frozenset[str]:
        """Every key that some option says."""
        return frozenset(number.key for number in self.numbers).union(
            *(choice.keys for choice in self.choices)
        )

    @property
    def spellings(self) -> tuple[str, ...]:
        """Releases whose options are called otherwise."""
        cases = (case for choice in self.choices for case in choice.cases)
        return tuple(dict.fromkeys(case.spelling for case in cases if case.spelling))


@cache
def tool(name: str) -> Tool:
    """The table of a tool."""
    data = load_yaml(_FOLDER / f"{name}.yaml")
    made: dict[str, Any] = {
        "numbers": tuple(_number(key, row) for key, row in data["numbers"].items()),
        "choices": tuple(_choice(row) for row in data["choices"]),
        "contradictions": tuple(Contradiction(**row) for row in data.get("contradictions", ())),
        "lists": tuple(data.get("lists", ())),
        "without_effect": tuple(data["without_effect"]),
    }
    return Tool(**{**data, **made})


def _number(key: str, row: Any) -> Number:
    row = {"option": row} if isinstance(row, str) else dict(row)
    row["also"], row["notation"] = tuple(row.get("also", ())), row.pop("as", "")
    return Number(key=key, **row)


def _choice(row: Mapping[str, Any]) -> Choice:
    cases = ({"sets" if key == "set" else key: value for key, value in case.items()} for case in row["cases"])
    return Choice(cases=tuple(Case(**case) for case in cases), when=row.get("when", {}))


def holds(when: Mapping[str, object], facts: Mapping[str, object]) -> bool:
    """Whether the facts are such: equal, one of a list, or above a number (">1"); what is not known is not."""
    return all(_fits(condition, facts.get(key)) for key, condition in when.items())


def _fits(condition: object, value: object) -> bool:
    if isinstance(condition, str) and condition.startswith(">"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and float(str(value)) > float(condition[1:])
    return value in condition if isinstance(condition, list) else value == condition
