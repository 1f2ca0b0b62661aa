"""The plots of a run: plain data in, a matplotlib Figure out. `style.save_figure` writes PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .style import (
    GRID,
    INK,
    base2_ticks,
    colours_of,
    count_axis,
    figure_and_axes,
    format_count,
    format_tokens,
    headed,
    marker_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Interval = tuple[float, float]


def plot_length_distribution(
    bucket_tokens: Sequence[int],
    sample_share: ArrayLike,
    token_share: ArrayLike,
    *,
    title: str = "Sequence lengths: how many sequences, and how many tokens",
) -> Figure:
    """Bars per bucket up to *bucket_tokens*: its share of the sequences and its share of the tokens."""
    position = np.arange(len(bucket_tokens))
    with figure_and_axes(max(6.5, 0.52 * len(bucket_tokens) + 2.0), 4.0) as (figure, (axes,)):
        shares = ((-0.2, sample_share, "#0072B2", "sequences"), (0.2, token_share, "#E69F00", "tokens"))
        for shift, share, colour, of in shares:
            axes.bar(position + shift, 100 * np.asarray(share), 0.4, color=colour, label=f"share of {of}")
        axes.set_xticks(position, [format_tokens(bound) for bound in bucket_tokens])
        axes.set(xlabel="length of the sequence, up to (tokens)", ylabel="share (%)")
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_title(title)
        axes.legend()
    return figure


def plot_scaling(
    gpus: Sequence[int],
    tokens_per_s: Mapping[str, Sequence[float | None]],
    bars: Mapping[str, Sequence[Interval | None]] | None = None,
    *,
    what: str = "95% confidence interval",
    title: str = "Scaling",
) -> Figure:
    """Throughput against the number of GPUs with each strategy's ideal line, and throughput per GPU.

    Rows go by strategy; None where it cannot run, or has no *bars* (their ends; *what* says what they are). The ideal
    line goes through a strategy's first point that is not None; the share of it that the last point reaches is written
    at its end. It is relative to the strategy's own start: what ranks strategies is throughput per GPU.
    """
    count = np.asarray(gpus, dtype=np.float64)
    colours = colours_of(tokens_per_s)
    with figure_and_axes(10.5, 4.4, 1, 2) as (figure, (left, right)):
        per_gpu: dict[str, list[float]] = {}
        for name, row in tokens_per_s.items():
            values = _with_gaps(row)
            known = np.flatnonzero(np.isfinite(values))
            if not len(known):
                continue
            ideal = values[known[0]] * count / count[known[0]]
            left.plot(count, ideal, color=colours[name], linewidth=1, linestyle=(0, (3, 3)))
            per_gpu[name] = list(values / count)
            last = known[-1]
            if last != known[0]:
                right.annotate(
                    f"{values[last] / ideal[last]:.0%}", (count[last], per_gpu[name][last]), (7, 0),
                    textcoords="offset points", va="center", fontsize=8, color=colours[name],
                )  # fmt: skip
        _lines(left, list(gpus), tokens_per_s)
        _lines(right, list(gpus), per_gpu)
        known_bars = {name: ends for name, ends in (bars or {}).items() if any(ends)}
        for name, known_ends in known_bars.items():
            values = _with_gaps(tokens_per_s[name])
            low, high = (_with_gaps([ends and ends[side] for ends in known_ends]) for side in (0, 1))
            reach = np.maximum(np.nan_to_num([np.minimum(values - low, 0.95 * values), high - values]), 0.0)
            for axes, scale in ((left, 1.0), (right, 1.0 / count)):
                axes.errorbar(count, values * scale, reach * scale, fmt="none", ecolor=colours[name],
                              elinewidth=0.9, capsize=2.5)  # fmt: skip
        left.plot([], [], color=INK, linewidth=1, linestyle=(0, (3, 3)), label="ideal (linear)")
        for axes in (left, right):
            base2_ticks(axes, [float(g) for g in gpus], [f"{g:,}" for g in gpus])
            axes.set_xlabel("GPUs")
        left.set_yscale("log")
        count_axis(left.yaxis)
        left.set(ylabel="throughput (tokens/s)", title="In all")
        words = "; %: of its own start" + (f"; bars: {what}" if known_bars else "")
        headed(figure, title + words)
        left.legend()
        right.set_ylim(bottom=0)
        right.margins(y=0.15)
        count_axis(right.yaxis)
        right.set(ylabel="throughput per GPU (tokens/s)", title="Per GPU")
    return figure


def plot_paper_against_prediction(
    points: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    quantity: str = "throughput (tokens/s)",
    title: str = "Measured against predicted",
) -> Figure:
    """Log-log scatter of predictions over measurements with the diagonal and a band of +-10%.

    *points* are measured and predicted figures of every group (a model, a source).
    """
    pairs = {name: (np.asarray(m, np.float64), np.asarray(p, np.float64)) for name, (m, p) in points.items()}
    everything = np.concatenate([np.concatenate(pair) for pair in pairs.values()])
    low, high = 0.8 * float(everything.min()), 1.25 * float(everything.max())
    errors = np.concatenate([np.abs(p / m - 1) for m, p in pairs.values()])
    with figure_and_axes(7.8, 5.6) as (figure, (axes,)):
        ends = np.array([low, high])
        axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="#E6E6E6", linewidth=0, label="within 10%")
        axes.plot(ends, ends, color="#777777", linewidth=1)
        colours = colours_of(pairs)
        for i, (name, (measured, predicted)) in enumerate(pairs.items()):
            axes.scatter(measured, predicted, s=34, color=colours[name], marker=marker_of(i),
                         edgecolor="white", linewidth=0.4, label=name, zorder=3)  # fmt: skip
        for set_scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
            set_scale("log")
            count_axis(axis)
        axes.set(xlim=(low, high), ylim=(low, high))
        axes.set_aspect("equal")
        axes.set(xlabel=f"measured {quantity}", ylabel=f"predicted {quantity}")
        inside = float(np.mean(errors <= 0.1))
        records = "1 record" if len(errors) == 1 else f"{len(errors):,} records"
        axes.set_title(f"{title}\n{records}: median error {np.median(errors):.1%}, "
                       f"{inside:.0%} within 10%", fontsize=10)  # fmt: skip
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=1 + len(pairs) // 20)
    return figure


def plot_error_shares(errors: Mapping[str, ArrayLike], *, title: str) -> Figure:
    """How many of the measurements are predicted within an error, as a line for each set of errors (shares)."""
    with figure_and_axes(7.0, 4.2) as (figure, (axes,)):
        for (name, colour), dashes in zip(colours_of(errors).items(), cycle(("-", "--", ":")), strict=False):
            ordered = np.sort(np.asarray(errors[name], dtype=np.float64))
            share = np.arange(len(ordered) + 1) / len(ordered)
            axes.step(100.0 * np.array([0.0, *ordered]), 100.0 * share, where="post", color=colour, linestyle=dashes,
                      linewidth=1.8, label=f"{name}: median {np.median(ordered):.1%}")  # fmt: skip
        axes.set(xlim=(0, None), ylim=(0, 102), title=title)
        axes.set(xlabel="error, up to (% of the measurement)", ylabel="share of the measurements (%)")
        axes.grid(color=GRID, linewidth=0.7)
        axes.legend(loc="lower right")
    return figure


def plot_throughput_bars(
    tokens_per_s: Mapping[str, float],
    interval: Mapping[str, Interval] | None = None,
    *,
    base: str | None = None,
    what: str = "95% confidence interval",
    speed_up: Mapping[str, float] | None = None,
) -> Figure:
    """Bars of every strategy's tokens/s with intervals (low, high), labelled with the speed-up over *base*.

    Default: the first strategy is the base, and the speed-up is the ratio of the means. *what* says what intervals are.
    """
    base = next(iter(tokens_per_s)) if base is None else base
    colours = colours_of(tokens_per_s)
    bounds = interval or {}
    highest = max([*tokens_per_s.values(), *(high for _, high in bounds.values())])
    with figure_and_axes(max(4.6, 1.5 + 1.5 * len(tokens_per_s)), 4.4) as (figure, (axes,)):
        for i, (name, value) in enumerate(tokens_per_s.items()):
            axes.bar(i, value, 0.62, color=colours[name])
            top = value
            if name in bounds:
                low, top = bounds[name]
                reach = [[max(value - low, 0.0)], [max(top - value, 0.0)]]
                axes.errorbar(i, value, reach, color=INK, capsize=4, linewidth=1.2)
            ratio = value / tokens_per_s[base] if speed_up is None else speed_up[name]
            over_base = "" if name == base else f"\n{ratio:.2f}×"
            axes.annotate(f"{format_count(value)}{over_base}", (i, max(top, value)), (0, 6), ha="center",
                          textcoords="offset points", fontweight="bold")  # fmt: skip
        axes.set_xticks(range(len(tokens_per_s)), list(map(_below_a_bar, tokens_per_s)))
        axes.set_ylim(0, 1.18 * highest)
        count_axis(axes.yaxis)
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        words = f"× = speed-up over {base}" + (f"\nbars: {what}" if bounds else "")
        axes.set(ylabel="throughput (tokens/s)", title="Throughput", xlabel=words)
    return figure


_LONGEST_BELOW_A_BAR = 18


def _below_a_bar(name: str) -> str:
    r"""A name in lines that leave the bars beside it room: a variant's keys each in a line of their own.

    >>> _below_a_bar("hdp-opt"), _below_a_bar("wlb-llm(cp_kind=all-gather,outlier_queues=2)")
    ('hdp-opt', 'wlb-llm\n(cp_kind=\nall-gather,\noutlier_queues=2)')
    """
    if len(name) <= _LONGEST_BELOW_A_BAR:
        return name
    lines = name.replace("(", "\n(", 1).replace(",", ",\n").split("\n")
    return "\n".join(
        line if len(line) <= _LONGEST_BELOW_A_BAR else line.replace("=", "=\n", 1) for line in lines
    )


Line = Sequence[tuple[float, float | None, float | None]]
"""Points of a series: x, predicted, published."""


def plot_beside_paper(
    panels: Mapping[str, Mapping[str, Line]],
    *,
    x: str,
    y: str,
    title: str,
    x_text: Callable[[float], str] = "{:,}".format,
    log: bool = True,
) -> Figure:
    """Predictions as lines, what a paper published as hollow markers.

    Args:
        panels: heading -> series -> its points.
        x: label of the x axis.
        y: label of the y axis.
        title: heading of the plot.
        x_text: how a value of x reads.
        log: the y axis is logarithmic.
    """
    names = dict.fromkeys(name for lines in panels.values() for name in lines)
    look = {name: (colour, marker_of(i)) for i, (name, colour) in enumerate(colours_of(names).items())}
    width = max(6.4, 2.2 + 4.2 * len(panels))
    with figure_and_axes(width, 4.3, 1, len(panels), share_y=True) as (figure, all_axes):
        for axes, (heading, lines) in zip(all_axes, panels.items(), strict=True):
            for name, points in lines.items():
                (colour, marker), values = look[name], [point[0] for point in points]
                axes.plot(values, _with_gaps([point[1] for point in points]), color=colour, linewidth=1.8,
                          marker=marker, markersize=4.5)  # fmt: skip
                axes.plot(values, _with_gaps([point[2] for point in points]), color=colour, linestyle="none",
                          marker=marker, markersize=9, markerfacecolor="none", markeredgewidth=1.3)  # fmt: skip
            ticks = sorted({point[0] for points in lines.values() for point in points})
            base2_ticks(axes, [float(tick) for tick in ticks], [x_text(tick) for tick in ticks])
            axes.set_xlabel(x)
            axes.grid(color=GRID, linewidth=0.7)
            if heading:
                axes.set_title(heading, fontsize=10)
        if log:
            all_axes[0].set_yscale("log")
        else:
            all_axes[0].margins(y=0.12)
            all_axes[0].set_ylim(bottom=0)
        count_axis(all_axes[0].yaxis)
        all_axes[0].set_ylabel(y)
        every = (point for lines in panels.values() for row in lines.values() for point in row)
        _legend_below(figure, look, published=any(point[2] is not None for point in every))
        headed(figure, title)
    return figure


def _legend_below(figure: Figure, look: Mapping[str, tuple[str, str]], *, published: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker, linewidth=1.8, markersize=4.5, label=name)
        for name, (colour, marker) in look.items()
    ]
    if published:
        handles.append(Line2D([], [], color=INK, linestyle="none", marker="o", markersize=9, markerfacecolor="none",
                              label="published (hollow)"))  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def plot_ablation(
    steps: Sequence[str],
    predicted: Sequence[float | None],
    published: Sequence[float | None] | None = None,
    *,
    quantity: str = "",
    text: str = "{:.2f}×",
    gain: str | None = None,
    title: str = "What each part adds",
) -> Figure:
    """What is reached after each step of an ablation, predicted beside published.

    Args:
        steps: names, each switched on top of those before it; the first is the base.
        predicted: after each step; None where it cannot run.
        published: the same, None where it is not known.
        quantity: what it is; default: the speed-up over the base.
        text: how a value reads.
        gain: how what a step adds reads, below its value; default: not at all.
        title: heading of the plot.
    """
    series = [("predicted", "#0072B2", _with_gaps(predicted))]
    if published is not None:
        series.append(("published", "white", _with_gaps(published)))
    width = 0.8 / len(series)
    with figure_and_axes(max(5.5, 1.3 * len(steps) + 1.5), 4.4) as (figure, (axes,)):
        for i, (label, colour, values) in enumerate(series):
            position = np.arange(len(steps)) + (i - (len(series) - 1) / 2) * width
            edge = INK if colour == "white" else "none"  # hollow as elsewhere: grey is the static mesh's
            axes.bar(position, np.nan_to_num(values), width * 0.94, color=colour, edgecolor=edge, label=label)
            for place, value in enumerate(values):
                if math.isfinite(value):
                    added = gain.format(value - values[place - 1]) if gain and place else ""
                    axes.annotate(f"{text.format(value)}\n{added}".rstrip(), (position[place], value), (0, 3),
                                  ha="center", textcoords="offset points", fontsize=9)  # fmt: skip
        axes.set_xticks(range(len(steps)), [_wrapped(step) for step in steps])
        axes.set(
            ylabel=quantity or f"speed-up over {steps[0]} (×)",
            ylim=(0, 1.2 * max(float(np.nanmax(values)) for _, _, values in series)),
        )
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_title(title)
        if len(series) > 1:
            axes.legend(loc="upper left")
    return figure


def _with_gaps(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _lines(axes: Axes, x: Sequence[float], rows: Mapping[str, Sequence[float | None]]) -> None:
    for i, (name, colour) in enumerate(colours_of(rows).items()):
        axes.plot(x, _with_gaps(rows[name]), color=colour, marker=marker_of(i), linewidth=1.8,
                  markersize=5.5, label=name)  # fmt: skip
    axes.grid(color=GRID, linewidth=0.7)


def _wrapped(text: str, width: int = 14) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
