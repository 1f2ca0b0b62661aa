"""Plots of MegaScale's reproduction: the paper beside the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.experiments.output.plot_style import (
    GRID,
    INK,
    PALETTE,
    colours_of,
    figure_and_axes,
    marker_of,
    style,
)
from hdpsim.experiments.papers.megascale_data import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Rows = Sequence[Mapping[str, Any]]

_PAPER = "#999999"


def plot_step_times(records: Rows) -> Figure:
    """Iteration time against GPUs, a panel per global batch: predictions as lines, the paper as hollow markers."""
    shown = [r for r in records if r["metric"] == "step_s" and r["predicted"] is not None]
    panels_of = sorted({(r["model"], r["global_batch"]) for r in shown})
    with style():
        figure, panels = figure_and_axes(2.4 + 3.8 * len(panels_of), 4.2, 1, len(panels_of))
        for axes, (model, batch) in zip(panels, panels_of, strict=True):
            here = [r for r in shown if (r["model"], r["global_batch"]) == (model, batch)]
            for i, (system, colour) in enumerate(colours_of(dict.fromkeys(SYSTEMS)).items()):
                row = sorted((r for r in here if r["system"] == system), key=lambda r: int(r["gpus"]))
                axes.plot([r["gpus"] for r in row], [r["predicted"] for r in row], color=colour, marker=marker_of(i),
                          linewidth=1.8, markersize=4.5, label=system)  # fmt: skip
                known = [r for r in row if r["measured"] is not None]
                axes.plot([r["gpus"] for r in known], [r["measured"] for r in known], color=colour, linestyle="none",
                          marker=marker_of(i), markersize=9, markerfacecolor="none")  # fmt: skip
            _gpus_axis(axes, sorted({r["gpus"] for r in here}))
            _plain_log_axis(axes, [r["predicted"] for r in here])
            axes.set_ylabel("iteration (s)")
            axes.set_title(f"{model}, batch {batch:,}", fontsize=10)
            axes.legend(loc="upper right")
        figure.suptitle(
            "Iteration time: lines predicted, hollow markers from Table 2", x=0.01, ha="left", fontsize=11
        )
    return figure


def plot_ablation_mfu(rows: Rows) -> Figure:
    """Cumulative MFU after every step of Table 3, predicted beside published, with each step's gain."""
    with style():
        figure, (axes,) = figure_and_axes(1.3 + 1.25 * len(rows), 4.4)
        for offset, key, gain, colour, label in (
            (-0.2, "mfu", "gain", PALETTE[0], "predicted"),
            (0.2, "paper_mfu", "paper_gain", _PAPER, "Table 3"),
        ):
            values = np.array([np.nan if row[key] is None else row[key] for row in rows], dtype=np.float64)
            axes.bar(np.arange(len(rows)) + offset, np.nan_to_num(values), 0.38, color=colour, label=label)
            for x, (row, value) in enumerate(zip(rows, values, strict=True)):
                text = f"{value:.1f}" + (f"\n{row[gain]:+.1f}" if row[gain] is not None else "")
                axes.annotate(text, (x + offset, value), (0, 3), ha="center", textcoords="offset points",
                              fontsize=8)  # fmt: skip
        axes.set_xticks(range(len(rows)), [fill(row["step"], 12) for row in rows], fontsize=9)
        axes.set_ylabel("model FLOP utilisation (%)")
        axes.set_ylim(0, 85)
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_title(
            "Every optimisation on top of those before it (175B, 256 GPUs); second line: gain of the step"
        )
        axes.legend(loc="upper left", ncols=2)
    return figure


def plot_weak_scaling(rows: Rows) -> Figure:
    """MFU of the 530B model against GPUs."""
    with style():
        figure, (axes,) = figure_and_axes(6.4, 4.0)
        for i, (system, colour) in enumerate(colours_of(dict.fromkeys(SYSTEMS)).items()):
            known = [row for row in rows if row[f"{system}_mfu"] is not None]
            axes.plot([row["gpus"] for row in known], [row[f"{system}_mfu"] for row in known], color=colour,
                      marker=marker_of(i), linewidth=1.8, label=system)  # fmt: skip
        _gpus_axis(axes, [row["gpus"] for row in rows])
        axes.set_ylim(0, 70)
        axes.set_ylabel("model FLOP utilisation (%)")
        axes.set_title("530B, 140 sequences a pipeline (weak scaling as in Figure 9)", fontsize=10)
        axes.legend(loc="lower left")
    return figure


def plot_startup(rows: Rows) -> Figure:
    """Seconds of group initialisation: predicted bars, published times and bounds as marks."""
    with style():
        figure, (axes,) = figure_and_axes(7.2, 1.4 + 0.45 * len(rows))
        for place, row in enumerate(rows):
            axes.barh(
                place, row["predicted_s"], 0.6, color=PALETTE[0], label="predicted" if not place else None
            )
            exact = row["paper_s"] is not None
            axes.plot([row["paper_s"] if exact else row["paper_below_s"]], [place], linestyle="none", color=INK,
                      marker="|" if exact else "<", markersize=16 if exact else 7,
                      label={0: "published", 2: "published: below"}.get(place))  # fmt: skip
        axes.set_yticks(range(len(rows)), [f"{row['gpus']:,} GPUs, {row['method']}" for row in rows])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("group initialisation (s)")
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.legend(loc="lower right")
    return figure


def plot_mttf(rows: Rows) -> Figure:
    """Mean time to failure against GPUs, and Meta's two figures."""
    with style():
        figure, (axes,) = figure_and_axes(6.0, 4.0)
        axes.plot([row["gpus"] for row in rows], [row["hours"] for row in rows], marker="o", color=PALETTE[0],
                  label="predicted")  # fmt: skip
        known = [row for row in rows if row["paper_hours"] is not None]
        axes.plot([row["gpus"] for row in known], [row["paper_hours"] for row in known], linestyle="none", marker="o",
                  markersize=10, markerfacecolor="none", color=INK, label="Meta, RSC-1")  # fmt: skip
        _gpus_axis(axes, [row["gpus"] for row in rows])
        _plain_log_axis(axes, [row["hours"] for row in rows])
        axes.set_ylabel("mean time to failure (h)")
        axes.set_title("6.5 failures per 1,000 node-days", fontsize=10)
        axes.legend(loc="upper right")
    return figure


def _gpus_axis(axes: Axes, gpus: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(list(gpus), [f"{count:,}" for count in gpus], fontsize=9, rotation=30)
    axes.minorticks_off()
    axes.set_xlabel("GPUs")
    axes.grid(color=GRID, linewidth=0.7)


def _plain_log_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic y axis with 1-2-5 ticks in plain digits."""
    ticks = [
        mantissa * 10.0**power
        for power in range(-2, 4)
        for mantissa in (1, 2, 5)
        if 0.6 * min(values) <= mantissa * 10.0**power <= 1.7 * max(values)
    ]
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
