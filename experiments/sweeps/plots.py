"""Faceted plots of a sweep: one axis along x, one in colours, up to two in facets, the best over what is left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.errors import QuantityError
from hdpsim.experiments.output.document import OutputFile
from hdpsim.experiments.output.plots.style import (
    GRID,
    base2_ticks,
    colours_of,
    count_axis,
    figure_and_axes,
    marker_of,
)
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.scenario.values import Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hdpsim.experiments.sweeps.axes import Sweep


Row = Mapping[str, Any]

MOST_COLOURS, MOST_FACETS = 8, 6
_CANNOT_RUN = ("infeasible", "invalid", "failed")
_BELOW_PT = 9.0
"""From the axis to the crosses of the first series, and on to those of the next."""

_MEASURES = (
    ("throughput", "tokens_per_s", "throughput (tokens/s)", 1.0),
    ("mfu", "mfu", "model FLOP utilisation (%)", 100.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """What one axis of the sweep is in a plot.

    Attributes:
        key: the key that names it (of keys that move together, the first or the one `plot` asks for).
        keys: all keys of the axis.
        labels: what its points are called, in order, each once.
        numbers: the points as numbers; None when they are names.
    """

    key: str
    keys: tuple[str, ...]
    labels: tuple[str, ...]
    numbers: tuple[float, ...] | None

    def label(self, row: Row) -> str:
        """The name of the point a row belongs to."""
        return _label(self.key, self.keys, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Which dimension goes where; `rest` are those over which the best is shown."""

    x: Dimension
    colour: Dimension | None
    column: Dimension | None
    row: Dimension | None
    rest: tuple[Dimension, ...]


def arrange(sweep: Sweep, rows: Sequence[Row]) -> Arrangement | None:
    """What `plot` of the sweep file says, and for the rest a good guess; None when nothing varies."""
    left = [_dimension(axis.keys, rows, sweep.plot) for axis in sweep.axes]
    left = [dimension for dimension in left if len(dimension.labels) > 1]
    chosen: dict[str, Dimension] = {}
    for place, key in sweep.plot.items():
        for dimension in left:
            if key in dimension.keys:
                chosen[place] = dimension
                left.remove(dimension)
                break
    if "x" not in chosen:
        if not left:
            return None
        best = max(left, key=lambda d: (d.numbers is not None, len(d.labels)))
        chosen["x"] = best
        left.remove(best)
    for place, most in (("colour", MOST_COLOURS), ("column", MOST_FACETS), ("row", MOST_FACETS)):
        fitting = [dimension for dimension in left if len(dimension.labels) <= most]
        if place not in chosen and fitting:
            best = max(fitting, key=lambda d: d.key == "strategy.name" if place == "colour" else 0)
            chosen[place] = best
            left.remove(best)
    return Arrangement(
        x=chosen["x"],
        colour=chosen.get("colour"),
        column=chosen.get("column"),
        row=chosen.get("row"),
        rest=tuple(left),
    )


def sweep_plots(sweep: Sweep, rows: Sequence[Row]) -> Iterator[OutputFile]:
    """One plot for every measure; none when no cell ran or nothing varies."""
    arrangement = arrange(sweep, rows)
    if arrangement is None or not any(row["status"] == "ok" for row in rows):
        return
    rest = ", ".join(dimension.key for dimension in arrangement.rest)
    best = f"; the best over {rest}" if rest else ""
    for name, column, what, scale in _MEASURES:
        figure = partial(_facets, rows, arrangement, column, what, scale)
        description = f"{what} against {arrangement.x.key}{best}. Crosses: cells that cannot run."
        yield OutputFile(name, figure, description)


def _facets(rows: Sequence[Row], arrangement: Arrangement, measure: str, what: str, scale: float) -> Figure:
    columns, no_columns = _with_runs(arrangement.column, rows)
    lines, no_lines = _with_runs(arrangement.row, rows)
    series = arrangement.colour.labels if arrangement.colour else ("",)
    colours = colours_of(dict.fromkeys(series))
    values = [scale * row[measure] for row in rows if row[measure] is not None]
    top = max((scale * _ends(row, measure)[1] for row in rows if row[measure] is not None), default=1)
    rest = ", ".join(dimension.key for dimension in arrangement.rest)
    quantity = what.partition(" (")[0]
    title = quantity[0].upper() + quantity[1:] + (f", the best over {rest}" if rest else "")
    title += "".join(f"; {facet} cannot run" for facet in (*no_columns, *no_lines))
    below = any(row["status"] in _CANNOT_RUN for row in rows)
    # all facets share one y scale, and only the first column labels it
    width, height = max(1.6 + 3.6 * len(columns), 6.5), max(0.9 + 2.9 * len(lines), 3.8)
    with figure_and_axes(width, height, len(lines), len(columns), share_y=True) as (figure, grid):
        for place, axes in enumerate(grid):
            line, column = lines[place // len(columns)], columns[place % len(columns)]
            inside = [
                row
                for row in rows
                if _in(arrangement.column, column, row) and _in(arrangement.row, line, row)
            ]
            for number, name in enumerate(series):
                coloured = [row for row in inside if _in(arrangement.colour, name, row)]
                offset = 0.16 * (number - (len(series) - 1) / 2)
                _series(axes, arrangement.x, coloured, measure, scale, colours[name], number, offset)
            _dress(axes, arrangement.x, values, top)
            if below:
                axes.tick_params(axis="x", pad=4 + _BELOW_PT * len(series))
            head = [
                f"{dimension.key} = {label}"
                for dimension, label in ((arrangement.column, column), (arrangement.row, line))
                if dimension is not None
            ]
            axes.set_title("\n".join(head), fontsize=9)
            if place % len(columns) == 0:
                axes.set_ylabel(what)
            if place // len(columns) == len(lines) - 1:
                axes.set_xlabel(arrangement.x.key)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        named = enumerate(series if arrangement.colour else ())
        handles = [_handle(name, colours[name], marker_of(number)) for number, name in named]
        if below:
            handles.append(_handle("cannot run (below the axis)", "#555555", "x"))
        if handles:
            legend_title = arrangement.colour.key if arrangement.colour else None
            figure.legend(handles=handles, loc="outside right lower", title=legend_title)
    return figure


def _with_runs(dimension: Dimension | None, rows: Sequence[Row]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels of the facets in which a cell ran, and the others in words: an empty panel shows nothing."""
    if dimension is None:
        return ("",), ()
    ran = {dimension.label(row) for row in rows if row["status"] == "ok"}
    kept = tuple(label for label in dimension.labels if label in ran)
    return kept, tuple(f"{dimension.key} = {label}" for label in dimension.labels if label not in ran)


def _series(
    axes: Axes,
    x: Dimension,
    rows: Sequence[Row],
    measure: str,
    scale: float,
    colour: str,
    number: int,
    offset: float,
) -> None:
    """One line: the best cell at every x, its interval or range, crosses below the axis where none can run."""
    from matplotlib.transforms import offset_copy

    positions = x.numbers if x.numbers is not None else tuple(float(i) for i in range(len(x.labels)))
    places, heights, reach, missing = [], [], [], []
    for label, position in sorted(zip(x.labels, positions, strict=True), key=lambda pair: pair[1]):
        rows_at_x = [row for row in rows if x.label(row) == label]
        best = max(
            (row for row in rows_at_x if row[measure] is not None), key=lambda r: r[measure], default=None
        )
        if best is not None:
            places.append(position)
            heights.append(scale * best[measure])
            reach.append(scale * np.abs(np.subtract(_ends(best, measure), best[measure])))
        elif any(row["status"] in _CANNOT_RUN for row in rows_at_x):
            missing.append(position)
    named = x.numbers is None
    shift = offset if named else 0.0
    spots = [place + shift for place in places]
    axes.errorbar(
        spots, heights, yerr=np.transpose(reach) if np.any(reach) else None, color=colour, marker=marker_of(number),
        markersize=5, linestyle="none" if named else "-", linewidth=1.6, elinewidth=0.9, capsize=2.5,
    )  # fmt: skip
    if missing:
        below = offset_copy(
            axes.get_xaxis_transform(),
            axes.get_figure(root=True),
            y=-_BELOW_PT * (number + 1),
            units="points",
        )
        places = [place + shift for place in missing]
        axes.plot(
            places, np.zeros(len(places)), "x", color=colour, markersize=6, transform=below, clip_on=False
        )


def _ends(row: Row, measure: str) -> tuple[float, float]:
    """Of the bar: the interval of a mean, or the range of its batches; the value itself where neither is known."""
    value = float(row[measure])
    half = row.get(f"{measure}_ci95")
    if half is not None:
        return max(value - half, 0.0), value + half
    lowest, highest = (row.get(f"{measure}_{end}") for end in ("lowest", "highest"))
    return (value, value) if lowest is None or highest is None else (lowest, highest)


def _dress(axes: Axes, x: Dimension, values: Sequence[float], top: float) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    if values and min(values) > 0 and max(values) > 30 * min(values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max(1.1 * max(values, default=1.0), 1.03 * top))
    count_axis(axes.yaxis)
    if x.numbers is None:
        axes.set_xticks(range(len(x.labels)), list(x.labels))
        axes.set_xlim(-0.6, len(x.labels) - 0.4)
        if max(map(len, x.labels)) * len(x.labels) > 36:
            axes.tick_params(axis="x", rotation=30)
    elif min(x.numbers) > 0 and max(x.numbers) >= 4 * min(x.numbers):
        base2_ticks(axes, list(x.numbers), list(x.labels))
        edge = (max(x.numbers) / min(x.numbers)) ** 0.08  # labels stay away from those of the panels beside
        axes.set_xlim(min(x.numbers) / edge, max(x.numbers) * edge)
    else:
        axes.set_xticks(x.numbers, list(x.labels))


def _handle(label: str, colour: str, marker: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=6, label=label)


def _in(dimension: Dimension | None, label: str, row: Row) -> bool:
    return dimension is None or dimension.label(row) == label


def _dimension(keys: tuple[str, ...], rows: Sequence[Row], plot: Mapping[str, str]) -> Dimension:
    key = next((key for key in plot.values() if key in keys), keys[0])
    if len({row[key] for row in rows}) < len({tuple(row[k] for k in keys) for row in rows}):
        key = ", ".join(keys)  # no single key tells the points apart
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(_label(key, keys, row), row)
    numbers = [_number(key, row[key]) if key in row else None for row in first.values()]
    known = tuple(number for number in numbers if number is not None)
    complete = len(known) == len(numbers) and len(set(known)) == len(known)
    return Dimension(key=key, keys=keys, labels=tuple(first), numbers=known if complete else None)


def _label(key: str, keys: tuple[str, ...], row: Row) -> str:
    if key in keys:
        return _value_words(row[key])
    return ", ".join(f"{k.rpartition('.')[2]} {_value_words(row[k])}" for k in keys if row[k] is not None)


def _value_words(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:,}"
    return "-" if value is None else str(value).removesuffix(" tokens")


def _number(key: str, value: object) -> float | None:
    """What the scenario makes of a value, when that is a number."""
    if key not in KEYS:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    try:
        parsed = KEYS[key].parse(value)
    except (ValueError, QuantityError):
        return None
    if isinstance(parsed, Batch):
        parsed = parsed.tokens if parsed.tokens is not None else parsed.sequences
    if isinstance(parsed, bool) or not isinstance(parsed, int | float):
        return None
    return float(parsed) if math.isfinite(parsed) else None
