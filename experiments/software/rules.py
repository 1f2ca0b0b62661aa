"""The rules of software stacks: which switch a stack sets, when, since when, and who says so.

Rules are data (cost_models/data/software, a file a stack; experiments/data/records/sources.yaml for what single sources
of published runs mean). The first rule of a switch whose condition holds decides; stacks with a lower `precedence` are
asked first. A condition is a mapping that holds when all of its parts do:

    framework, notes, attention, model, gpu, gpu_as_written   a regular expression (or several) that the text must hold
    text, texts                          the same of framework and notes; of framework, notes and attention
    tp, pp, year, n_experts, ...         a number: ">1", "<2024", "==8", "known" or "unknown"
    zero_stage, precision, task, ...     one word of a column, or a list of which one must be it (null: not stated)
    release, mentions                    "MLPerf >= 5.1": the number behind that name in the framework (or the notes);
                                         for release, where a stack is named without one, the usual one of its year
    generation                           of the GPU: "hopper"
    switch                               what other rules decided: {cuda_graph_scope: iteration}; "set": anything
    is                                   terms (terms.yaml) or facts that are computed (experiments/software/facts.py)
    any, unless                          one of these conditions holds; none of these holds

A value is what the switch becomes, `default` (leave it alone, ask no further rule), `=tp` (that column), `$1` (the
number that a regular expression caught) or {compute: NAME} of facts.py.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from hdpsim.cost_models.layout.layout import SWITCHES, Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.errors import CatalogError, UserInputError
from hdpsim.experiments.software.facts import COMPUTED, FACTS, Run
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.yaml_loader import load_document

Kind = Literal["stated", "release", "inferred"]
"""Who says so: the record itself, the documentation of a release, or a guess from one of these."""

KINDS: tuple[Kind, ...] = get_args(Kind)
Captured = tuple[str, ...]
Test = Callable[[Run], Captured | None]
"""What regular expressions caught where the condition holds; None where it does not."""

_TEXTS: dict[str, Callable[[Run], str]] = {
    "framework": lambda run: _framework(run),
    "notes": lambda run: run.config.words,
    "attention": lambda run: run.config.attention,
    "model": lambda run: re.sub(r"[\s_]+", "-", run.config.model_name.lower()),
    "gpu_as_written": lambda run: run.config.gpu,
    "gpu": lambda run: run.gpu,
    "text": lambda run: f"{_framework(run)} {run.config.words}",
    "texts": lambda run: f"{_framework(run)} {run.config.words} {run.config.attention}",
}
_ONE_OF_NONE = ("tp", "pp", "cp", "ep")  # a degree that nobody states is 1
_NUMBERS = (
    *_ONE_OF_NONE, "year", "n_experts", "topk", "kv_heads", "micro_batch", "vpp", "dp",
    "sequences_per_replica",
)  # fmt: skip
_WORDS = ("zero_stage", "precision", "recompute", "task", "gated_mlp", "family", "sp")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"(>=|<=|==|>|<) ?([\d.]+)")
_RELEASE = re.compile(r"(.+?) (>=|<=|==|>|<) (\d+(?:\.\d+)*)")
_FOLDER = shipped("cost_models/data/software")
_SHARED = "terms"
_SOURCES = shipped("experiments/data/records/sources.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a stack does with one switch, when, and who says so.

    Attributes:
        switch: a switch of Layout, a field of Model or MemoryOverheads, or a reading that other code asks for by name.
        value: see the module.
        holds: the condition.
        condition: the same as it is written.
        words: how an assumption is told to people; empty where the record states it.
        place: its number in the stack's file.
    """

    switch: str
    value: object
    holds: Test
    condition: Mapping[str, object]
    words: str
    kind: Kind
    source: str
    stack: str
    place: int

    @property
    def name(self) -> str:
        """Which of all rules it is: stack, switch and its place in the stack's file."""
        return f"{self.stack}.{self.switch}.{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A training stack of the catalog.

    Attributes:
        frameworks: name -> how records write it, with {release}; empty for what belongs to no stack.
        releases: release -> year in which it came out.
    """

    name: str
    about: str
    frameworks: Mapping[str, str]
    releases: Mapping[str, int]
    precedence: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of a switch and who says so: by default the record itself, without a word of assumption."""

    switch: str
    value: object
    words: str = ""
    kind: Kind = "stated"
    stack: str = "record"
    source: str = ""


@cache
def stacks() -> tuple[Stack, ...]:
    """All stacks of the catalog in the order in which their rules are asked."""
    reader = _Conditions(_terms())
    files = [*(path for path in sorted(_FOLDER.glob("*.yaml")) if path.stem != _SHARED), _SOURCES]
    read = [reader.stack(path) for path in files]
    return tuple(sorted(read, key=lambda stack: (stack.precedence, stack.name)))


def _framework(run: Run) -> str:
    return _as_rules_write(run.config.framework)


@lru_cache(maxsize=1024)
def _as_rules_write(framework: str) -> str:
    """The text with the names of stacks in the spelling of the catalog: "megatron core" is Megatron-Core."""
    pattern, spellings = _spellings()
    return pattern.sub(lambda named: spellings[re.sub("[ _]", "-", named[0].lower())], framework)


def name_of_stack(framework: str) -> str:
    """What a framework begins with: its first word, or the words that are a stack of the catalog (NeMo AutoModel)."""
    beginning = re.match(rf"(?:{_spellings()[0].pattern})?\S*", framework.strip(), re.IGNORECASE)
    return beginning[0] if beginning else ""


@cache
def _spellings() -> tuple[re.Pattern[str], Mapping[str, str]]:
    """What matches the name of a stack in any spelling, and each name as frameworks of records are written."""
    first = {
        name: re.split(r" \{|[/(]", text)[0] for stack in stacks() for name, text in stack.frameworks.items()
    }
    same = {name: written for name, written in first.items() if re.sub("[ _]", "-", written.lower()) == name}
    longest_first = sorted(same, key=len, reverse=True)
    names = "|".join(re.escape(name).replace(r"\-", "[-_ ]") for name in longest_first)
    return re.compile(rf"\b(?:{names})\b", re.IGNORECASE), same


@cache
def _by_switch() -> dict[str, tuple[Rule, ...]]:
    by_switch: dict[str, list[Rule]] = {}
    for stack in stacks():
        for rule in stack.rules:
            by_switch.setdefault(rule.switch, []).append(rule)
    return {switch: tuple(rules) for switch, rules in by_switch.items()}


def left_out(names: Iterable[str]) -> frozenset[str]:
    """The rules that `--without` leaves out: classes, and switches of stacks such as nemo.tp_overlap.

    Raises:
        UserInputError: there is no such class or switch.
    """
    known = (*KINDS, *(f"{stack.name}.{rule.switch}" for stack in stacks() for rule in stack.rules))
    for name in names:
        if name not in known:
            raise UserInputError(
                f"--without: there are no rules {quoted(name)}{did_you_mean(name, known)}; name a class "
                f"({', '.join(KINDS)}) or a switch of a stack, such as nemo.tp_overlap"
            )
    return frozenset(names)


def switches() -> tuple[str, ...]:
    """Every switch that some rule sets."""
    return tuple(_by_switch())


def fields_set(run: Run, *owners: type) -> tuple[Setting, ...]:
    """What the rules set of Layout, or of the fields of some dataclasses."""
    known = {name for owner in owners for name in settable(owner)}
    asked = dict.fromkeys((*switches(), *dict(run.config.switches)))
    settings = (setting_of(run, switch) for switch in asked if switch in known)
    return tuple(setting for setting in settings if setting is not None)


def overheads_of(run: Run) -> MemoryOverheads:
    """What the run's stack keeps in memory: a lean one, but for what its rules say."""
    said: dict[str, Any] = {setting.switch: setting.value for setting in fields_set(run, MemoryOverheads)}
    return MemoryOverheads(**said)


def settable(owner: type) -> frozenset[str]:
    """The names under which rules set parts of *owner*."""
    return frozenset(SWITCHES if owner is Layout else (field.name for field in fields(owner)))


def words_of(run: Run, switch: str) -> tuple[str, ...]:
    """The words of every rule of a switch that holds, where the switch is a list of remarks."""
    return tuple(rule.words for rule in _by_switch().get(switch, ()) if rule.holds(run) is not None)


def setting_of(run: Run, switch: str) -> Setting | None:
    """What the rules make of a switch for a run; None leaves it at its default."""
    if switch not in run.settings:
        run.settings[switch] = None  # a switch that depends on itself is not set
        run.settings[switch] = _first_setting(run, switch)
    setting = run.settings[switch]
    assert setting is None or isinstance(setting, Setting)
    return setting


def _first_setting(run: Run, switch: str) -> Setting | None:
    stated = dict(run.config.switches)
    if switch in stated:
        return Setting(switch=switch, value=stated[switch])
    decision = _deciding(run, switch)
    if decision is None:
        return None
    rule, value, caught = decision
    if value == "default":
        return None
    words = rule.words.replace("$1", caught[0]) if caught else rule.words
    return Setting(
        switch=switch, value=value, words=words, kind=rule.kind, stack=rule.stack, source=rule.source
    )


def _deciding(run: Run, switch: str) -> tuple[Rule, object, Captured] | None:
    """The first rule of a switch that holds, the value it gives and what it caught."""
    for rule in _by_switch().get(switch, ()):
        if run.without and run.without & {rule.kind, f"{rule.stack}.{rule.switch}", rule.name}:
            continue
        caught = rule.holds(run)
        if caught is None:
            continue
        value = _value(run, rule.value, caught)
        if value is not None:
            return rule, value, caught
    return None


def deciding_rules(run: Run) -> tuple[Rule, ...]:
    """Every rule that decides a switch of the run, those that leave it at its default too."""
    decisions = (_deciding(run, switch) for switch in switches())
    return tuple(decision[0] for decision in decisions if decision is not None)


def _value(run: Run, value: object, caught: Captured) -> object:
    if isinstance(value, Mapping):
        return COMPUTED[value["compute"]](run.config)
    if value == "$1":
        return _number_or_text(caught[0])
    if isinstance(value, str) and value.startswith("="):
        return getattr(run.config, value[1:]) or 1
    return value


def _number_or_text(caught: str) -> float | int | str:
    """What a rule caught: a number where it is one, else the words themselves (how a pipeline is cut)."""
    for number in (int, float):
        try:
            return number(caught)
        except ValueError:
            continue
    return caught


@cache
def _terms() -> Mapping[str, object]:
    terms: Mapping[str, object] = load_document(_FOLDER / f"{_SHARED}.yaml").data["terms"]
    return terms


class _Conditions:
    """Compiles conditions, with the terms that all stacks share."""

    def __init__(self, terms: Mapping[str, object]) -> None:
        self._terms = terms
        self._compiled: dict[str, Test] = {}

    def stack(self, path: Path) -> Stack:
        data = load_document(path).data
        unknown = data.keys() - {"name", "about", "frameworks", "precedence", "releases", "rules"}
        if unknown:
            raise CatalogError(f"{path.name}: unknown keys {', '.join(sorted(unknown))}")
        name = str(data["name"])
        rules = tuple(
            self._rule(entry, f"{path.name}, rule {n}", name, n) for n, entry in enumerate(data["rules"], 1)
        )
        return Stack(
            name=name,
            about=str(data["about"]),
            frameworks={str(key): str(text) for key, text in data.get("frameworks", {}).items()},
            releases={str(release): int(year) for release, year in data.get("releases", {}).items()},
            precedence=int(data["precedence"]),
            rules=rules,
        )

    def _rule(self, entry: Mapping[str, Any], where: str, stack: str, place: int) -> Rule:
        unknown = entry.keys() - {"switch", "value", "when", "words", "class", "source"}
        if unknown or "switch" not in entry or "value" not in entry or entry.get("class") not in KINDS:
            raise CatalogError(f"{where}: needs switch, value and a class of {', '.join(KINDS)}; got {entry}")
        value = tuple(entry["value"]) if isinstance(entry["value"], list) else entry["value"]
        if isinstance(value, Mapping) and value.get("compute") not in COMPUTED:
            raise CatalogError(f"{where}: computes {value}; known: {', '.join(COMPUTED)}")
        condition = entry.get("when", {})
        return Rule(
            switch=entry["switch"],
            value=value,
            holds=self.compile(condition, where),
            condition=condition,
            words=entry.get("words", ""),
            kind=entry["class"],
            source=entry.get("source", ""),
            stack=stack,
            place=place,
        )

    def compile(self, spec: Mapping[str, object], where: str) -> Test:
        """The test of a condition: all its parts must hold."""
        parts = [part for key, value in spec.items() for part in self._parts(key, value, where)]

        def test(run: Run) -> Captured | None:
            caught: Captured = ()
            for part in parts:
                part_caught = part(run)
                if part_caught is None:
                    return None
                caught += part_caught
            return caught

        return test

    def _parts(self, key: str, value: Any, where: str) -> Iterable[Test]:
        if key in _TEXTS:
            return [_matches(_TEXTS[key], pattern) for pattern in _listed(value)]
        if key in _NUMBERS:
            return [_number(key, str(value), where)]
        if key in _WORDS:
            return [_word(key, () if value == "unknown" else tuple(_listed(value)))]
        if key in ("release", "mentions"):
            return [_release(str(value), "framework" if key == "release" else "text", where)]
        if key == "generation":
            return [_plain(lambda run: run.generation in _listed(value))]
        if key == "switch":
            return [_switch(switch, wanted) for switch, wanted in value.items()]
        if key == "is":
            return [self._named(name, where) for name in _listed(value)]
        if key in ("any", "unless"):
            inner = [self.compile(spec, where) for spec in _listed(value)]
            return [_any(inner) if key == "any" else _none(inner)]
        raise CatalogError(f"{where}: unknown condition {key!r}")

    def _named(self, name: str, where: str) -> Test:
        if name in FACTS:
            return _plain(FACTS[name])
        if name not in self._terms:
            raise CatalogError(f"{where}: no term or fact is called {name!r}")
        if name not in self._compiled:
            spec = self._terms[name]
            assert isinstance(spec, Mapping)
            self._compiled[name] = self.compile(spec, f"terms.yaml, {name}")
        return self._compiled[name]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(test: Callable[[Run], bool]) -> Test:
    return lambda run: () if test(run) else None


def _matches(text_of: Callable[[Run], str], pattern: str) -> Test:
    compiled = re.compile(pattern)

    def test(run: Run) -> Captured | None:
        match = compiled.search(text_of(run))
        return None if match is None else tuple(group for group in match.groups() if group is not None)

    return test


def _number(column: str, text: str, where: str) -> Test:
    if text in ("known", "unknown"):
        return _plain(lambda run: (run.number(column) is not None) == (text == "known"))
    comparison = _COMPARISON.fullmatch(text)
    if comparison is None:
        raise CatalogError(f"{where}: {column}: {text!r} is no comparison such as '>1'")
    compare, bound = _COMPARE[comparison[1]], float(comparison[2])

    def test(run: Run) -> bool:
        number = run.number(column)
        return number is not None and compare(number, bound)

    return _plain(test)


def _word(column: str, allowed: tuple[object, ...]) -> Test:
    wanted = allowed or (None,)
    return _plain(lambda run: getattr(run.config, column) in wanted)


def _release(text: str, where_found: str, where: str) -> Test:
    comparison = _RELEASE.fullmatch(text)
    if comparison is None:
        raise CatalogError(f"{where}: {text!r} is no release such as 'MLPerf >= 5.1'")
    named = re.compile(rf"\b{re.escape(comparison[1])} ?v?(\d+(?:\.\d+)+)")
    compare, bound = _COMPARE[comparison[2]], release_number(comparison[3])

    def test(run: Run) -> bool:
        stated = named.search(_TEXTS[where_found](run))
        release = stated[1] if stated else None
        if release is None and where_found == "framework":
            release = usual_release(run, comparison[1])
        return release is not None and compare(release_number(release)[: len(bound)], bound)

    return _plain(test)


def usual_release(run: Run, name: str) -> str | None:
    """The release of a stack that a run is taken to have used where its framework is *name* and nothing else.

    None: no stack has that name, or more than the name is said.
    """
    if _framework(run).strip().lower() != name.lower():
        return None
    stack = next((stack for stack in stacks() if name.lower() in stack.frameworks), None)
    return None if stack is None else release_of_year(stack, run.config.year)


def release_of_year(stack: Stack, year: int | None) -> str:
    """The middle release of a year, of two the newer; the newest known one where the year has none.

    Whoever states a year only may have had any of them, and the older only until the newer came.
    """
    known = sorted(stack.releases, key=release_number)
    of_year = [release for release in known if stack.releases[release] == year]
    return of_year[len(of_year) // 2] if of_year else known[-1]


def release_number(text: str) -> tuple[int, ...]:
    """The parts of a release, which sort as releases do."""
    return tuple(int(part) for part in text.split("."))


def _switch(switch: str, wanted: object) -> Test:
    def test(run: Run) -> bool:
        setting = setting_of(run, switch)
        return setting is not None and (wanted == "set" or setting.value == wanted)

    return _plain(test)


def _any(tests: list[Test]) -> Test:
    def test(run: Run) -> Captured | None:
        return next((caught for caught in (inner(run) for inner in tests) if caught is not None), None)

    return test


def _none(tests: list[Test]) -> Test:
    return _plain(lambda run: all(inner(run) is None for inner in tests))
