"""Plots of where time goes: by account for every strategy, rank by rank, and step by step on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.experiments.output.plots.style import (
    ACCOUNT_SHADES,
    INK,
    PALETTE,
    account_colours,
    account_group,
    figure_and_axes,
    headed,
    readable_name,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Seconds = Mapping[str, float]

_SMALL_SHARE = 0.004
"""Accounts below this share of the longest bar are drawn together as "other ..."."""

_MAX_BINS = 256
_PANELS_A_ROW = 4
"""More ranks than that are averaged in bins of neighbours on the sorted curve."""

_LAYER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")

_LAYER_WORDS = {"communication": "exposed communication"}

_LEGEND_ENTRY_IN = 1.9
"""Width of the widest entry of a legend."""


def plot_time_breakdown(seconds: Mapping[str, Seconds]) -> Figure:
    """Stacked horizontal bars, one per strategy: *seconds* of a step by account (mean over GPUs), which sum to it."""
    parts = _accounts_by_group(seconds)
    height_in = max(1.4 + 0.72 * len(seconds), 0.9 + 0.2 * (len(parts) + 4))
    with figure_and_axes(10.5, height_in) as (figure, (axes,)):
        left = np.zeros(len(seconds))
        longest_s = max(sum(accounts.values()) for accounts in seconds.values())
        for group, label, members, colour in parts:
            width = np.array(
                [sum(accounts.get(name, 0.0) for name in members) for accounts in seconds.values()]
            )
            axes.barh(range(len(seconds)), width, left=left, height=0.62, color=colour, edgecolor="white",
                      linewidth=0.5, label=label)  # fmt: skip
            for row, value in enumerate(width):
                if value > 0.06 * longest_s:
                    ink = "white" if colour in ACCOUNT_SHADES[group][:2] else INK
                    middle = left[row] + value / 2
                    axes.text(middle, row, f"{value:.3g}", ha="center", va="center", color=ink, fontsize=8)
            left += width
        for row, total in enumerate(left):
            axes.text(total + 0.01 * longest_s, row, f"{total:.3g} s", va="center", fontweight="bold")
        axes.set_yticks(range(len(seconds)), list(seconds))
        centre, reach = (len(seconds) - 1) / 2, max(len(seconds), 1.6) / 2
        axes.set_ylim(centre + reach, centre - reach)  # the first bar on top
        axes.set(xlim=(0, 1.12 * longest_s), xlabel="seconds of one step (mean over GPUs)")
        axes.set_title("Where the time goes")
        _grouped_legend(axes, parts)
    return figure


def plot_rank_step_time(layers_s: Mapping[str, Mapping[str, ArrayLike]]) -> Figure:
    """One panel per strategy: what each rank does, ranks sorted by what they do beside waiting, waits on top.

    The title of a panel tells compute and exposed communication apart: a rank that only sends is not at work.

    Args:
        layers_s: strategy -> layer -> seconds per rank, stacked in this order; layers whose name starts with
            "wait" are waits (grey), "compute" is work, "communication" is what compute does not hide.
    """
    from matplotlib.ticker import MaxNLocator

    columns = min(len(layers_s), _PANELS_A_ROW)
    rows = -(-len(layers_s) // columns)
    width = max(5.6, 3.6 * columns)
    with figure_and_axes(width, 1.1 + 2.8 * rows, rows, columns, share_y=True) as (figure, places):
        panels = places[: len(layers_s)]
        for empty in places[len(layers_s) :]:
            empty.set_axis_off()
        names = list(dict.fromkeys(name for layers in layers_s.values() for name in layers))
        active = [name for name in names if not name.startswith("wait")]
        colours = dict(zip(active, cycle(_LAYER_COLOURS), strict=False))
        highest_s = 0.0
        for axes, (strategy, layers) in zip(panels, layers_s.items(), strict=True):
            stack = {name: np.asarray(layers[name], dtype=np.float64) for name in names if name in layers}
            ranks = len(next(iter(stack.values())))
            nothing = np.zeros(ranks)
            at_work = np.sum([nothing, *(stack[name] for name in stack if name in colours)], axis=0)
            order = np.argsort(-at_work, kind="stable")
            edges = np.unique(np.linspace(0, ranks, min(ranks, _MAX_BINS) + 1).astype(np.int64))
            bottom = np.zeros(len(edges) - 1)
            for name in sorted(stack, key=lambda name: name not in colours):  # waits on top
                top = bottom + np.add.reduceat(stack[name][order], edges[:-1]) / np.diff(edges)
                colour, label = colours.get(name, "#D2D2D2"), _LAYER_WORDS.get(name, readable_name(name))
                axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, label=label)
                bottom = top
            compute = stack.get("compute", nothing)
            step_s = max(float(bottom.max()), 1e-300)
            words = [f"{compute.mean() / step_s:.0%} compute"]
            if "communication" in stack:
                words.append(f"{stack['communication'].mean() / step_s:.0%} exposed comm.")
            axes.set_title(f"{strategy}\n{', '.join(words)}", fontsize=10)
            axes.set(xlabel="ranks, least waiting first", xlim=(0, ranks))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            highest_s = max(highest_s, step_s)
            axes.axhline(
                float(compute.mean()), color=INK, linewidth=1, linestyle=(0, (3, 3)), label="mean compute"
            )
        panels[0].set_ylim(0, 1.05 * highest_s)  # of all panels
        for axes in panels[::columns]:
            axes.set_ylabel("seconds in one step")
        headed(figure, "Time of every rank in the step of the first batch")
        handles: dict[str, Artist] = {}
        for axes in panels:
            handles.update({str(a.get_label()): a for a in axes.get_legend_handles_labels()[0]})
        entries = max(1, min(len(handles), int(width / _LEGEND_ENTRY_IN)))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=entries)
    return figure


def _accounts_by_group(seconds: Mapping[str, Seconds]) -> list[tuple[str, str, list[str], str]]:
    """Return (group, label, accounts, colour) of every part of the bars, in drawing order."""
    names = list(dict.fromkeys(name for accounts in seconds.values() for name in accounts))
    peak = {name: max(accounts.get(name, 0.0) for accounts in seconds.values()) for name in names}
    small_s = _SMALL_SHARE * max(sum(accounts.values()) for accounts in seconds.values())
    parts: list[tuple[str, str, list[str], str]] = []
    colours = account_colours(names)
    for group, shades in ACCOUNT_SHADES.items():
        members = sorted(
            (n for n in names if account_group(n) == group and peak[n] > 0), key=lambda n: -peak[n]
        )
        large = [name for name in members if peak[name] >= small_s]
        if len(members) == len(large) + 1 and len(members) <= len(shades):
            large = members  # a single small one is shown under its own name
        elif len(large) < len(members) or len(large) > len(shades):
            large = large[: len(shades) - 1]
        parts += [(group, readable_name(name), [name], colours[name]) for name in large]
        rest = [name for name in members if name not in large]
        if rest:
            parts.append((group, f"other {group}", rest, shades[-1]))
    return parts


def _grouped_legend(axes: Axes, parts: Iterable[tuple[str, str, list[str], str]]) -> None:
    """Legend beside the bars, in bar order, with a heading for every group."""
    from matplotlib.patches import Patch

    entries: list[Patch] = []
    for group, members in groupby(parts, key=lambda part: part[0]):
        entries.append(Patch(alpha=0, label=group.capitalize()))
        entries += [Patch(color=colour, label=label) for _, label, _, colour in members]
    legend = axes.legend(handles=entries, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1.2)
    headings = {name.capitalize() for name in ACCOUNT_SHADES}
    for text in legend.get_texts():
        if text.get_text() in headings:
            text.set_fontweight("bold")


MOST_EDGES = 60
"""Steps up to which bars have gaps between them."""
_COLOURS = (PALETTE[1], PALETTE[3], PALETTE[2], PALETTE[4], PALETTE[6])
_HATCHES = ("//", "xx", "..", "\\\\", "--")


def plot_steps(
    step_s: Sequence[float],
    waits_s: Mapping[str, Sequence[float]],
    *,
    warm_up: int,
    period_s: float,
    title: str,
) -> Figure:
    """Bars of all steps: the step itself, and on top of it what it waited for.

    Args:
        step_s: of every step, without waits.
        waits_s: seconds of every step by what it waited for.
        warm_up: steps before the steady state.
        period_s: mean from the end of a step to that of the next in the steady state.
        title: name of the strategy.
    """
    from matplotlib.ticker import MaxNLocator

    with figure_and_axes(10.0, 4.2) as (figure, (axes,)):
        numbers, top = np.arange(1, len(step_s) + 1), np.array(step_s)
        width = 0.8 if len(step_s) <= MOST_EDGES else 1.0
        axes.bar(numbers, top, width=width, color=ACCOUNT_SHADES["compute"][1], label="the step itself")
        for (reason, seconds), colour, hatch in zip(waits_s.items(), _COLOURS, _HATCHES, strict=False):
            if any(seconds):
                label = f"waits for {reason.replace('_', ' ')}"
                axes.bar(numbers, seconds, width=width, bottom=top, color=colour, edgecolor="white", linewidth=0.0,
                         hatch=hatch, label=label)  # fmt: skip
                top = top + np.array(seconds)
        mean = f"mean period {period_s:.4g} s"
        axes.axhline(period_s, color=INK, linewidth=1.0, linestyle="--", label=mean)
        if warm_up:
            axes.axvspan(0.5, warm_up + 0.5, color="#999999", alpha=0.18, label="warm-up", zorder=0)
        axes.set(xlabel="step", ylabel="seconds", xlim=(0.5, len(step_s) + 0.5))
        axes.set_ylim(0.0, 1.05 * max(top.max(), period_s))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower center", ncols=4)
        headed(figure, f"{title}: steps, and what they wait for")
    return figure
