"""The plot of a search: what throughput costs in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdpsim.experiments.output.plots.style import GRID, PALETTE, count_axis, figure_and_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = tuple[list[float], list[float]]
"""Memory in GiB, and tokens a second."""


def plot_front(every: Points, front: Points, best: Points) -> Figure:
    """Plot all candidates, those that no other beats, and the best."""
    with figure_and_axes(7.0, 4.4) as (figure, (axes,)):
        axes.plot(*every, "o", color="#BBBBBB", markersize=4, label="replayed")
        axes.plot(*front, "o-", color=PALETTE[0], markersize=5, linewidth=1, label="Pareto front")
        axes.plot(*best, "D", color=PALETTE[3], markersize=8, label="best")
        axes.set(xlabel="memory per GPU (GiB)", ylabel="throughput (tokens/s)")
        axes.set_title("What throughput costs in memory")
        axes.grid(color=GRID, linewidth=0.7)
        count_axis(axes.yaxis)
        axes.legend()
    return figure
