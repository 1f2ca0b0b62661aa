"""Plots of ByteScale's reproduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.experiments.output.plot_style import (
    GRID,
    INK,
    base2_ticks,
    colours_of,
    count_axis,
    figure_and_axes,
    format_tokens,
    marker_of,
    style,
)
from hdpsim.experiments.papers.bytescale_data import DATASETS, STRATEGIES
from hdpsim.experiments.papers.bytescale_summary import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Floats = NDArray[np.float64]

_TITLES = {"github": "GitHub", "byted": "Byted"}

FLAT_SHARE = 0.02
"""A range narrower than this part of its value is drawn as one mark."""


def measured_and_predicted(records: Sequence[Record]) -> dict[str, tuple[list[float], list[float]]]:
    """Points of a scatter plot by strategy; strategies without any are left out."""
    points: dict[str, tuple[list[float], list[float]]] = {}
    for strategy in STRATEGIES:
        known = [r for r in records if r["strategy"] == strategy and r["error"] is not None]
        if known:
            points[strategy] = ([r["measured"] for r in known], [r["predicted"] for r in known])
    return points


def plot_model(model: str, gpus: int, records: Sequence[Record]) -> Figure:
    """Throughput against context, one panel per data set: predictions as lines, the paper as hollow markers."""
    mine = [r for r in records if (r["model"], r["gpus"]) == (model, gpus) and r["predicted"] is not None]
    datasets = [name for name in DATASETS if any(r["dataset"] == name for r in mine)]
    with style():
        figure, panels = figure_and_axes(2.2 + 4.2 * len(datasets), 4.3, 1, len(datasets), share_y=True)
        for axes, dataset in zip(panels, datasets, strict=True):
            here = [r for r in mine if r["dataset"] == dataset]
            _throughput_lines(axes, here)
            contexts = sorted({r["context_tokens"] for r in here})
            base2_ticks(axes, [float(c) for c in contexts], [format_tokens(c) for c in contexts])
            axes.set_xlabel("context length (tokens)")
            axes.set_title(f"{_TITLES[dataset]} lengths", fontsize=10)
        panels[0].set_yscale("log")
        count_axis(panels[0].yaxis)
        panels[0].set_ylabel("throughput (tokens/s)")
        _legend(figure, panels[0], paper=any(r["measured"] is not None for r in mine))
        figure.suptitle(f"{model} on {gpus:,} GPUs", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _throughput_lines(axes: Axes, records: Sequence[Record]) -> None:
    for i, (strategy, colour) in enumerate(colours_of(dict.fromkeys(STRATEGIES)).items()):
        row = sorted((r for r in records if r["strategy"] == strategy), key=lambda r: r["context_tokens"])
        if not row:
            continue
        axes.plot([r["context_tokens"] for r in row], [r["predicted"] for r in row], color=colour, linewidth=1.8,
                  marker=marker_of(i), markersize=4.5)  # fmt: skip
        known = [r for r in row if r["measured"] is not None]
        axes.plot([r["context_tokens"] for r in known], [r["measured"] for r in known], color=colour,
                  linestyle="none", marker=marker_of(i), markersize=9, markerfacecolor="none",
                  markeredgewidth=1.3)  # fmt: skip
    axes.grid(color=GRID, linewidth=0.7)


def _legend(figure: Figure, axes: Axes, *, paper: bool) -> None:
    """Strategies by colour, then what lines and hollow markers are; below the panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker_of(i), linewidth=1.8, markersize=4.5, label=name)
        for i, (name, colour) in enumerate(colours_of(dict.fromkeys(STRATEGIES)).items())
    ]
    if paper:
        handles.append(
            Line2D(
                [],
                [],
                color=INK,
                linestyle="none",
                marker="o",
                markersize=9,
                markerfacecolor="none",
                label="paper (hollow)",
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def plot_ranks(busy_s: Mapping[str, Floats], paper: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Busy time of every rank, busiest first, and the range the paper reports as a band at the side.

    Args:
        busy_s: strategy -> seconds of every rank.
        paper: strategy -> "paper" -> seconds of the paper's least and most busy rank.
        title: heading of the plot.
    """
    colours = colours_of(busy_s)
    with style():
        figure, (axes,) = figure_and_axes(8.2, 4.6)
        ranks = max(len(seconds) for seconds in busy_s.values())
        for position, (name, seconds) in enumerate(busy_s.items()):
            axes.step(np.arange(1, len(seconds) + 1), np.sort(seconds)[::-1], color=colours[name], linewidth=2,
                      label=f"{name}: {seconds.min():.0f} to {seconds.max():.0f} s")  # fmt: skip
            least, most = paper[name]["paper"]["least"], paper[name]["paper"]["most"]
            at = ranks * (1.05 + 0.035 * position)
            if most - least < FLAT_SHARE * most:
                axes.plot([at], [most], color=colours[name], marker="_", markersize=11, markeredgewidth=3)
            else:
                axes.plot([at, at], [least, most], color=colours[name], linewidth=5, solid_capstyle="butt")
        axes.axvline(1.02 * ranks, color=GRID, linewidth=1)
        axes.text(
            1.085 * ranks,
            -0.02,
            "paper",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=9,
        )
        axes.set_xlim(1, 1.16 * ranks)
        axes.set_xticks(np.linspace(0, ranks, 5)[1:].astype(int))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("ranks, busiest first")
        axes.set_ylabel("forward and backward in one step (s)")
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_title(title)
        figure.legend(loc="outside lower center", ncols=len(busy_s))
    return figure


def ablation_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[float], list[float | None]]:
    """Step names, predicted and published speed-ups of the ablation."""
    return (
        [row["step"] for row in rows],
        [row["speed_up"] for row in rows],
        [row["paper_speed_up"] for row in rows],
    )
