"""A sweep file: a base scenario and the axes along which it changes.

    base: llama-7b-1k-byted          # a shipped scenario, a path, or a mapping
    set: {execution.batches: 2}      # changes of every cell
    grid:                            # every value with every other
      strategy.name: [static, hdp-opt]
      data.context: [64K, 256K]
    zip:                             # keys that move together; a list of such mappings gives several axes
      gpus: [1024, 2048]
      data.batch: [16M tokens, 32M tokens]
    list:                            # points written out, each with its own keys
      - {layout.tp: 2}
      - {layout.tp: 4, layout.pp: 2}
    plot: {x: data.context, colour: strategy.name}

The cells are the product of all axes, in the order of the file, the last axis changing fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hdpsim.cost_models.reading.fields import Fields, Problems
from hdpsim.cost_models.reading.shipped import given_or_shipped, shipped
from hdpsim.cost_models.reading.values import choice, shown
from hdpsim.experiments.scenario.overrides import rivals
from hdpsim.experiments.scenario.schema import KEYS, read_keys
from hdpsim.yaml_loader import load_document

MOST_CELLS = 50_000
"""More cells than this are taken for a mistake."""

Value = tuple[str, object]
Point = tuple[Value, ...]

_TOP = ("name", "description", "base", "set", "grid", "zip", "list", "plot")
_PLOT = ("x", "colour", "column", "row")
_FILES = ("model", "cluster", "calibration", "data.trace", "data.distribution")
_NO_EFFECT = ("name", "description")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis: its keys, and for each of its points the value of every key it sets."""

    keys: tuple[str, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A checked sweep file.

    Attributes:
        base: name or path of a scenario, or a scenario document.
        fixed: changes of every cell.
        plot: which key goes where in the plots ("x", "colour", "column", "row").
        folder: where relative paths start.
        document: as it was given, where it is no file.
    """

    name: str
    description: str
    base: str | Mapping[str, object]
    fixed: Point
    axes: tuple[Axis, ...]
    plot: Mapping[str, str]
    source: str
    folder: Path
    document: Mapping[str, object] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that change, in order."""
        return tuple(key for axis in self.axes for key in axis.keys)

    @property
    def cells(self) -> int:
        """How many combinations the axes have."""
        return math.prod(len(axis.points) for axis in self.axes)

    def combinations(self) -> Iterator[Point]:
        """The changes of every cell, without the fixed ones."""
        for points in product(*(axis.points for axis in self.axes)):
            yield tuple(value for point in points for value in point)


_SHIPPED = shipped("experiments/data/sweeps")


def load_sweep(source: str | Path | Mapping[str, object]) -> Sweep:
    """Read and check a sweep file, a shipped sweep, or the document of one.

    Raises:
        UserInputError: unreadable, or a ScenarioError with every problem of the file. Problems that only show when a
            cell is put together come from `cells.expand`.
    """
    if isinstance(source, Mapping):
        return replace(_read_sweep(source, Problems("sweep"), Path(), "sweep", "sweep"), document=source)
    path = given_or_shipped(source, _SHIPPED, "sweep")
    document = load_document(path)
    return _read_sweep(document.data, Problems(str(path), document.where), path.parent, path.stem, str(path))


def _read_sweep(document: object, problems: Problems, folder: Path, name: str, source: str) -> Sweep:
    data: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
    fields = Fields(document, problems)
    fields.take(*_TOP)
    fields.finish()
    reader = _Reader(problems, folder)
    base = data.get("base")
    if isinstance(document, Mapping) and not (isinstance(base, str | Mapping) and base):
        problems.add("base", "is required: the name or path of a scenario, or a scenario written out")
    fixed = reader.point(data.get("set") or {}, "set")
    kinds = {"grid": reader.grid, "zip": reader.zips, "list": reader.points}
    axes = tuple(axis for key, value in data.items() if key in kinds for axis in kinds[key](value))
    if isinstance(document, Mapping) and not axes and not problems.found:
        problems.add("", "there is nothing to sweep: give grid, zip or list")
    _check_overlap(fixed, axes, problems)
    plot = _read_plot(data.get("plot"), axes, problems)
    sweep = Sweep(
        name=fields.text("name", default=name),
        description=fields.text("description", default=""),
        base=base if isinstance(base, str | Mapping) else "",
        fixed=fixed,
        axes=axes,
        plot=plot,
        source=source,
        folder=folder,
    )
    if sweep.cells > MOST_CELLS:
        problems.add("", f"the axes multiply to {sweep.cells:,} cells; at most {MOST_CELLS:,} are allowed")
    problems.found = list(dict.fromkeys(problems.found))
    problems.raise_if_any()
    return sweep


class _Reader:
    """A reader of axes, which notes what is wrong with them."""

    def __init__(self, problems: Problems, folder: Path) -> None:
        self._problems, self._folder = problems, folder

    def grid(self, data: object) -> Iterator[Axis]:
        """One axis for each key."""
        for key, values in self._mapping(data, "grid", "a key and a list of its values"):
            yield from self._axis(
                [(value,) for value in self._values(key, values, f"grid.{key}")], f"grid.{key}"
            )

    def zips(self, data: object) -> Iterator[Axis]:
        """One axis for each mapping."""
        if isinstance(data, list):
            if not data:
                self._problems.add("zip", "is empty")
            for number, part in enumerate(data):
                yield from self._zip(part, f"zip[{number}]")
        else:
            yield from self._zip(data, "zip")

    def points(self, data: object) -> Iterator[Axis]:
        """One axis with the points as they are written."""
        if data is None:
            return
        if not isinstance(data, list) or not data:
            self._problems.add("list", "expected a list of mappings, each a point: - {layout.tp: 2}")
            return
        yield from self._axis(
            [self.point(part, f"list[{number}]") for number, part in enumerate(data)], "list"
        )

    def point(self, data: object, where: str) -> Point:
        """The changes of one mapping."""
        pairs = self._mapping(data, where, "a key and its value", may_be_empty=where != "list")
        return tuple(self._value(key, value, f"{where}.{key}") for key, value in pairs)

    def _zip(self, data: object, where: str) -> Iterator[Axis]:
        columns = {
            key: self._values(key, values, f"{where}.{key}")
            for key, values in self._mapping(data, where, "a key and a list of its values")
        }
        lengths = {key: len(values) for key, values in columns.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            self._problems.add(where, f"keys that move together need equally many values; {counts}")
        else:
            yield from self._axis(list(zip(*columns.values(), strict=True)), where)

    def _mapping(
        self, data: object, where: str, of: str, *, may_be_empty: bool = False
    ) -> Sequence[tuple[str, object]]:
        if data is None:
            return ()
        if not isinstance(data, Mapping) or not (data or may_be_empty):
            self._problems.add(where, f"expected a mapping, each line {of}")
            return ()
        return tuple((str(key), value) for key, value in data.items())

    def _values(self, key: str, data: object, where: str) -> Sequence[Value]:
        if not isinstance(data, list) or not data:
            self._problems.add(where, f"expected a list of values such as [1, 2, 4], got {shown(data)}")
            return ()
        return [self._value(key, value, where) for value in data]

    def _axis(self, points: Sequence[Point], where: str) -> Iterator[Axis]:
        """The axis of these points, none of which may be there twice; None without keys."""
        seen: list[Point] = []
        for point in points:
            if point in seen and all(type(a) is type(b) for a, b in zip(point, point, strict=True)):
                shown = ", ".join(f"{key} = {value}" for key, value in point)
                self._problems.add(where, f"{shown or 'an empty point'} is given twice")
            seen.append(point)
        keys = tuple(dict.fromkeys(key for point in points for key, _ in point))
        if keys:
            yield Axis(keys=keys, points=tuple(points))

    def _value(self, key: str, value: object, where: str) -> Value:
        """One change, checked on its own as in a scenario file."""
        if isinstance(value, Mapping | list):
            self._problems.add(where, f"expected one value, got {shown(value)}; write dotted keys")
            return key, None
        text = _complaint(key, value)
        if text:
            self._problems.add(where, text)
        if isinstance(value, str) and key in _FILES and (self._folder / value).is_file():
            return key, str((self._folder / value).resolve())
        return key, value


def _complaint(key: str, value: object) -> str:
    """What a scenario file would say about this key and value; empty when nothing."""
    if key in _NO_EFFECT or key.startswith("campaign"):
        return "has no influence on a simulated step"
    if key.startswith(("model.", "cluster.", "data.trace.")):
        return ""  # part of something named: checked when a cell is put together
    section, dot, leaf = key.rpartition(".")
    alone = Problems("")
    read_keys({section: {leaf: value}} if dot else {key: value}, alone)
    complaints = [
        text for name, text in alone.found if name == key or (section not in KEYS and name == section)
    ]
    return complaints[0] if complaints else ""


def _check_overlap(fixed: Point, axes: Sequence[Axis], problems: Problems) -> None:
    """Note keys that are set in two places."""
    homes: dict[str, int] = {}
    for number, keys in enumerate((tuple(key for key, _ in fixed), *(axis.keys for axis in axes))):
        for key in keys:
            others = [other for other in rivals(key) if homes.get(other, number) != number]
            if key in homes:
                problems.add(key, "is set in two places: it can be on one axis only, or in set")
            for other in others:
                problems.add(key, f"replaces {other}: they can be alternatives of a list, not two axes")
            homes.setdefault(key, number)


def _read_plot(data: object, axes: Sequence[Axis], problems: Problems) -> dict[str, str]:
    fields, keys = Fields(data or {}, problems, "plot"), tuple(key for axis in axes for key in axis.keys)
    given = {place: fields.value(place, choice(keys), None) for place in _PLOT}
    fields.finish()
    chosen = {place: key for place, key in given.items() if key}
    for place, key in chosen.items():
        if list(chosen.values()).count(key) > 1:
            problems.add(f"plot.{place}", f"{key} is used twice")
    return chosen
