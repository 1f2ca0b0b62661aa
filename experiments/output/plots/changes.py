"""Plots of changes: what leads from a step to another one, and which inputs move it most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hdpsim.quoting import shortened

from .style import GRID, INK, PALETTE, beside, figure_and_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_SLOWER, _FASTER, _WHOLE = PALETTE[3], PALETTE[2], "#8C8C8C"
_LONGEST_LABEL = 44


class Fall(NamedTuple):
    """One change: seconds of a million tokens with it alone, and with all before it; None where it cannot run."""

    label: str
    alone_s: float | None
    joined_s: float | None


class Swing(NamedTuple):
    """One input: relative changes of the throughput when it is lowered and raised; None where that cannot be."""

    label: str
    lower: float | None
    higher: float | None


def plot_waterfall(falls: Sequence[Fall], *, title: str) -> Figure:
    """Bars from the base to all changes together; a line shows each change alone on the base."""
    base_s = falls[0].joined_s or 0.0
    steps = [fall.joined_s for fall in falls]
    alone: Line2D | None = None
    with figure_and_axes(8.5, 1.5 + 0.42 * (len(falls) + 1)) as (figure, (axes,)):
        axes.barh(0, base_s, 0.62, color=_WHOLE)
        beside(axes, f"{base_s:.3g} s", (base_s, 0))
        for row, ((was, now), fall) in enumerate(zip(pairwise(steps), falls[1:], strict=True), start=1):
            if was is None or now is None:
                beside(axes, "cannot run" if now is None else "the changes before it cannot run", (0, row))
            else:
                axes.barh(row, now - was, 0.62, left=was, color=_FASTER if now < was else _SLOWER)
                axes.plot([was, was], [row - 1, row], color=INK, linewidth=0.7)
                beside(axes, f"{now - was:+.3g} s", (max(now, was), row))
            if fall.alone_s is not None:
                (alone,) = axes.plot([base_s, fall.alone_s], [row + 0.4, row + 0.4], color=INK, linewidth=1.4)
        last = steps[-1]
        if last is not None:
            if steps[-2] is not None:
                axes.plot([last, last], [len(falls) - 1, len(falls)], color=INK, linewidth=0.7)
            axes.barh(len(falls), last, 0.62, color=_WHOLE)
            beside(axes, f"{last:.3g} s", (last, len(falls)))
        labels = [shortened(fall.label, _LONGEST_LABEL) for fall in falls]
        axes.set_yticks(range(len(falls) + 1), [*labels, "all together"])
        axes.set_ylim(len(falls) + 0.5, -0.5)
        known = [each for fall in falls for each in (fall.alone_s, fall.joined_s) if each is not None]
        axes.set(xlim=(0, 1.15 * max(known, default=1.0)), xlabel="seconds for a million tokens", title=title)
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        if alone is not None:
            figure.legend([alone], ["alone, from the base"], loc="outside lower right")
    return figure


def plot_tornado(swings: Sequence[Swing], *, share: float, title: str) -> Figure:
    """Bars to both sides of the base, the longest first."""
    with figure_and_axes(8.5, 1.6 + 0.32 * max(len(swings), 2)) as (figure, (axes,)):
        for row, swing in enumerate(swings):
            for moved, colour, sign in ((swing.lower, PALETTE[1], "-"), (swing.higher, PALETTE[0], "+")):
                if moved is not None:
                    label = f"{sign}{share:.0%}" if row == 0 else None
                    axes.barh(row, 100 * moved, 0.62, color=colour, label=label, alpha=0.9)
        axes.axvline(0.0, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(swings)), [shortened(swing.label, _LONGEST_LABEL) for swing in swings])
        axes.invert_yaxis()
        axes.set(xlabel="change of tokens/s (%)", title=title)
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.legend(loc="lower right")
    return figure
