"""Plots of a campaign: lost tokens against wall-clock time, where the lost hours went, what stopped the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.reading.units import DAY_S, HOUR_S

from .style import GRID, INK, PALETTE, beside, count_axis, figure_and_axes, format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Curve = tuple[Sequence[float], Sequence[float]]
Bars = Mapping[str, tuple[float, float | None]]
"""Name -> mean and half width of its interval (None: no interval)."""

_MOST_BARS = 20
UNDISTURBED_POINTS = 3  # of a curve: the begin, the first step's, and the end
ZOOM_FAILURES = 12  # restarts in the window of the right panel: enough to see the teeth one by one


def plot_lost_tokens(curves: Sequence[Curve], tokens_per_s: float) -> Figure:
    """Tokens that an undisturbed run would have more, over time: all runs; right: first restarts of the one with most.

    *curves* are seconds and tokens of each run; tokens fall back where work was lost, and stand still until it goes on.
    """
    with figure_and_axes(10.5, 4.4, 1, 2) as (figure, (left, right)):
        for i, curve in enumerate(curves):
            at, lost = _lost(curve, tokens_per_s)
            label = f"simulated, {len(curves)} run{'s' if len(curves) > 1 else ''}" if i == 0 else None
            left.plot(at / DAY_S, lost, color=PALETTE[3], linewidth=1, alpha=1.0 if len(curves) == 1 else 0.5,
                      label=label)  # fmt: skip
        left.set(xlabel="wall-clock time (days)", title="Tokens lost against an undisturbed run")
        left.legend(loc="upper left")
        run = max(range(len(curves)), key=lambda number: len(curves[number][0]))  # a restart adds points
        at, lost = _lost(curves[run], tokens_per_s)
        first = slice(0, 2 * ZOOM_FAILURES + 1)
        right.plot(at[first] / HOUR_S, lost[first], color=PALETTE[3], linewidth=1.2)
        title = f"Run {run}: its first restarts" if len(at) > UNDISTURBED_POINTS else "No run was interrupted"
        right.set(xlabel="wall-clock time (hours)", title=title)
        for axes in (left, right):
            axes.set(xlim=(0, None), ylim=(0, None))
            count_axis(axes.yaxis)
            axes.set_ylabel("tokens lost")
            axes.grid(axis="y", color=GRID, linewidth=0.7)
    return figure


def _lost(curve: Curve, tokens_per_s: float) -> tuple[Floats, Floats]:
    at = np.asarray(curve[0], dtype=np.float64)
    return at, np.maximum(at * tokens_per_s - np.asarray(curve[1]), 0.0)


def plot_bars(values: Bars, *, axis: str, title: str, colour: str = PALETTE[0]) -> Figure:
    """Horizontal bars with 95 % intervals and their values, in the order given; zeros are left out.

    Bars beyond the first 20 are summed up in one.
    """
    shown = [(name, mean, half) for name, (mean, half) in values.items() if mean > 0]
    rest = shown[_MOST_BARS:]
    shown = shown[:_MOST_BARS]
    if rest:
        shown.append((f"{len(rest)} others", sum(mean for _, mean, _ in rest), None))
    with figure_and_axes(7.5, 1.4 + 0.3 * max(len(shown), 2)) as (figure, (axes,)):
        for row, (_, mean, half) in enumerate(shown):
            axes.barh(row, mean, 0.66, color=colour)
            if half:
                reach = [[min(half, mean)], [half]]
                axes.errorbar(mean, row, xerr=reach, color=INK, capsize=3, linewidth=1.1)
            beside(axes, format_count(mean), (mean + (half or 0.0), row))
        axes.set_yticks(range(len(shown)), [name for name, _, _ in shown])
        axes.invert_yaxis()
        longest = max((mean + (half or 0.0) for _, mean, half in shown), default=1.0)
        axes.set(xlim=(0, 1.12 * longest), xlabel=axis)
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_title(title)
    return figure
