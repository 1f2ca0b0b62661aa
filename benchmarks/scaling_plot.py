"""Time and memory against GPUs, from the scaling entries of benchmarks/results.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure import fitted_exponent

from hdpsim.experiments.output.plots.style import (
    GRID,
    INK,
    PALETTE,
    base2_ticks,
    count_axis,
    figure_and_axes,
    format_tokens,
    marker_of,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MEGABYTE = 1e6
PANELS = (
    ("seconds_by_gpus", 1.0, "CPU time, one thread", "seconds"),
    ("peak_bytes_by_gpus", MEGABYTE, "Peak memory beyond the input", "megabytes"),
)


def draw_scaling(entries: list[dict[str, Any]], path: Path) -> None:
    """Write the figure of *entries* as a PNG; equal entries give equal bytes."""
    with style():
        path.parent.mkdir(parents=True, exist_ok=True)
        scaling_figure(entries).savefig(path, dpi=110, metadata={"Software": "hdpsim"})


def scaling_figure(entries: list[dict[str, Any]]) -> Figure:
    """Two panels on logarithmic axes: a line for each part of a step, its fitted exponent in the legend."""
    series = [entry for entry in entries if "seconds_by_gpus" in entry]
    with figure_and_axes(11.0, 4.6, columns=2) as (figure, panels):
        for axes, (key, unit, title, label) in zip(panels, PANELS, strict=True):
            _panel(axes, series, key, unit)
            axes.set_title(title)
            axes.set_ylabel(label)
            axes.set_xlabel("GPUs, K = 1,024 (16 a rank, two pipeline stages; 2,048 tokens a GPU)")
    return figure


def _panel(axes: Axes, series: list[dict[str, Any]], key: str, unit: float) -> None:
    for number, entry in enumerate(series):
        gpus, values = entry["gpus"], [value / unit for value in entry[key]]
        axes.plot(
            gpus,
            values,
            color=PALETTE[number],
            marker=marker_of(number),
            markersize=5,
            label=f"{entry['name'].removesuffix('-scaling')}: exponent {fitted_exponent(gpus, values):.2f}",
        )
    gpus = series[0]["gpus"]
    base2_ticks(axes, gpus, [format_tokens(count) for count in gpus])
    axes.set_yscale("log")
    count_axis(axes.yaxis)
    axes.grid(color=GRID, linewidth=0.6)
    low, high = axes.get_ylim()
    start = 10**-0.25 * low * 10**0.5
    axes.plot(
        [gpus[0], gpus[-1]],
        [start, start * gpus[-1] / gpus[0]],
        color=INK,
        linestyle=":",
        linewidth=1.0,
        label="linear",
        zorder=0,
    )
    axes.set_ylim(low, high)
    axes.legend(loc="upper left")
