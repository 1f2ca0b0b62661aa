"""A picture of many steps on one clock: what each took, and what it waited for before it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .style import ACCOUNT_SHADES, INK, PALETTE, figure_and_axes, headed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
