"""The plots of a replayed job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hdpsim.experiments.output.plots.style import GRID, PALETTE, figure_and_axes, headed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_TICKS = 16  # more step labels than this are thinned out


def plot_steps(
    labels: Sequence[int], recorded_s: ArrayLike, predicted_s: ArrayLike, ideal_s: ArrayLike, *, title: str
) -> Figure:
    """Step times as recorded (rings), predicted (line) and ideal (dashed), one place per recorded step."""
    place = np.arange(len(labels))
    with figure_and_axes(8.5, 4.0) as (figure, (axes,)):
        axes.plot(place, predicted_s, color=PALETTE[0], linewidth=1.6, label="predicted")
        rings: Any = {"markersize": 6.5, "fillstyle": "none"}
        axes.plot(place, recorded_s, "o", color=PALETTE[1], label="recorded", **rings)
        axes.plot(place, ideal_s, "--", color=PALETTE[2], linewidth=1.4, label="ideal")
        every = -(-len(labels) // _TICKS)
        axes.set_xticks(place[::every], [str(label) for label in labels[::every]])
        axes.set(ylim=(0, None), xlabel="recorded step", ylabel="step time (s)")
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_title(title)
        axes.legend(loc="lower right", ncols=3)
    return figure


def plot_attribution(panels: Mapping[str, Mapping[str, float]], *, title: str) -> Figure:
    """Horizontal bars, one panel per way to divide the job: seconds of a step saved by making each part ideal."""
    rows = max(len(parts) for parts in panels.values())
    wide, high = 4.3 * len(panels), max(2.6, 0.36 * rows + 1.3)
    with figure_and_axes(wide, high, 1, len(panels)) as (figure, axes_list):
        for axes, (name, parts) in zip(axes_list, panels.items(), strict=True):
            seconds = list(parts.values())
            colours = [PALETTE[3] if value > 0 else PALETTE[6] for value in seconds]
            axes.barh(range(len(parts)), seconds, height=0.66, color=colours)
            longest = max(map(abs, seconds))
            for place, value in enumerate(seconds):
                if abs(value) >= 0.01 * longest:
                    axes.annotate(
                        f"{value:.3g}", (max(value, 0.0), place), xytext=(3, 0), textcoords="offset points",
                        va="center", fontsize=8,
                    )  # fmt: skip
            axes.margins(x=0.18)  # room for the labels
            axes.set_yticks(range(len(parts)), list(parts))
            axes.set_ylim(rows - 0.4, -0.6)  # bars of all panels equally thick, the first on top
            axes.axvline(0, color="#888888", linewidth=0.8)
            axes.grid(axis="x", color=GRID, linewidth=0.7)
            axes.set(xlabel="seconds of a step saved", title=name)
        headed(figure, title)
    return figure


def plot_workers(compute_s: NDArray[np.float64], *, title: str) -> Figure:
    """A map of workers: seconds of computation per step of each stage (row) and data-parallel rank (column)."""
    stages, ranks = compute_s.shape
    with figure_and_axes(min(12.0, max(5.0, 0.22 * ranks + 2.5)), 1.9 + 0.34 * stages) as (figure, (axes,)):
        image = axes.imshow(compute_s, aspect="auto", cmap="viridis", interpolation="nearest")
        axes.set(xlabel="data-parallel rank", ylabel="stage")
        axes.set_yticks(range(stages))
        axes.set_xticks(range(0, ranks, -(-ranks // _TICKS)))
        bar = figure.colorbar(image, ax=axes)
        bar.set_label("s of computation")
        axes.set_title(title)
    return figure
