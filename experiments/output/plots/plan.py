"""Plots of a plan: work of every rank in every slot, who waits, how large groups are and where they sit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats, Ints

from .style import INK, PALETTE, figure_and_axes, headed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 512
"""Ranks drawn; of more, every so many-th."""
MOST_NODE_LINES = 48
LEAST_SHARE = 0.05
"""Where the scale of shares ends at least: less than that is no colour."""
_EMPTY = "#F2F2F2"


def plot_plan_work(slot_s: Floats, waiting: Floats, *, title: str) -> Figure:
    """Left: seconds of every rank in every slot. Right: share of the step that every rank and stage waits.

    *slot_s*: [ranks, slots], nan: none; *waiting*: [ranks, stages].
    """
    with figure_and_axes(11.0, 4.8, columns=2) as (figure, (left, right)):
        _heat(figure, left, slot_s, label="seconds, forward and backward", colours="viridis_r", low=0.0)
        left.set(xlabel="slot (order on a rank)", title="Work of ranks and slots")
        headed(figure, f"{title}: its plan")
        words = "share of the step waiting"
        _heat(figure, right, waiting, label=words, colours="magma_r", low=0.0, share=True)
        stages = waiting.shape[1]
        right.set(xlabel="pipeline stage", title="Bubbles and other waits")
        right.set_xticks(range(0, stages, max(1, -(-stages // 16))))
    return figure


def plot_plan_groups(
    sizes: Ints, work_s: Floats, slot_sizes: Floats, *, ranks_per_node: int, crossing: int, title: str
) -> Figure:
    """Left: micro-batches and rank-seconds by the size of their group. Right: the group of every rank in every slot.

    Args:
        sizes: ranks of every micro-batch.
        work_s: rank-seconds of every micro-batch.
        slot_sizes: [ranks, slots]: ranks of the micro-batch there, nan: none.
        ranks_per_node: for the lines between nodes; 0: a rank is larger than a node.
        crossing: micro-batches on several nodes.
        title: name of the strategy.
    """
    with figure_and_axes(11.0, 4.8, columns=2) as (figure, (left, right)):
        bins = np.ceil(np.log2(sizes)).astype(np.int64)
        known = np.arange(int(bins.max()) + 1)
        count = np.bincount(bins, minlength=len(known)) / len(sizes)
        work = np.bincount(bins, weights=work_s, minlength=len(known)) / work_s.sum()
        for shift, shares, words, colour in (
            (-0.2, count, "micro-batches", PALETTE[5]), (0.2, work, "work (rank-seconds)", PALETTE[0])
        ):  # fmt: skip
            left.bar(known + shift, shares, width=0.38, color=colour, label=words)
            for place, share in zip(known, shares, strict=True):
                if share > 0:
                    left.text(place + shift, share, f"{share:.0%}", ha="center", va="bottom", fontsize=8)
        left.set_xticks(known, [f"{2**one:,}" for one in known])
        left.set(xlabel="ranks in the group (up to)", ylabel="share", ylim=(0, 1.25), title="Groups by size")
        left.set_yticks(np.arange(6) / 5, [f"{20 * fifth}%" for fifth in range(6)])
        left.legend(loc="upper left", ncols=2)
        headed(figure, f"{title}: its groups of ranks")
        _heat(figure, right, slot_sizes, label="ranks in the group", colours="YlGnBu", low=1.0, log=True)
        nodes = -(-len(slot_sizes) // ranks_per_node) if ranks_per_node else 0
        if 1 < nodes <= MOST_NODE_LINES:
            for node in range(1, nodes):
                for colour, width in (("white", 1.8), (INK, 0.6)):  # seen on light and dark groups
                    right.axhline(node * ranks_per_node - 0.5, color=colour, linewidth=width)
        across = f"{crossing:,} of {len(sizes):,} micro-batches on several nodes" if nodes > 1 else ""
        lines = f"lines: nodes of {ranks_per_node} ranks" if 1 < nodes <= MOST_NODE_LINES else ""
        words = "\n".join(filter(None, ("slot (order on a rank)", "; ".join(filter(None, (across, lines))))))
        right.set(xlabel=words, title="Which group sits where")
    return figure


def _heat(
    figure: Figure,
    axes: Axes,
    table: Floats,
    *,
    label: str,
    colours: str,
    low: float,
    share: bool = False,
    log: bool = False,
) -> None:
    """A heat map with ranks from top to bottom; what is nan is left light."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    every = -(-len(table) // MOST_ROWS)
    shown = table[::every]
    high = max(float(np.nanmax(shown)), LEAST_SHARE if share else 2.0 if log else low + 1e-12)
    image = axes.imshow(
        np.ma.masked_invalid(shown), aspect="auto", interpolation="nearest",
        cmap=colormaps[colours].with_extremes(bad=_EMPTY), norm=LogNorm(1.0, high) if log else Normalize(low, high),
        extent=(-0.5, table.shape[1] - 0.5, len(shown) * every - 0.5, -0.5),
    )  # fmt: skip
    axes.set_ylabel("rank" if every == 1 else f"rank (one in {every} drawn)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    bar = figure.colorbar(image, ax=axes, label=label)
    if share:
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    if log:
        ticks = [2.0**power for power in range(int(np.log2(high)) + 1)]
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.ax.minorticks_off()
