"""Plots of a network of flows: load over time and over the fabric, and the hops of a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.arrays import Floats

from .style import GRID, INK, PALETTE, figure_and_axes, headed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = "YlOrRd"
_NOTHING = "#EFEFEF"  # no such link, or one that is cut
_EDGE = "#777777"
_MOST_LABELS = 24
_MOST_HOPS_NAMED = 32
_WORTH_DRAWING = 0.005  # share of a ring's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a fabric: the load of its links, block by block.

    Attributes:
        name: of the layer.
        load: [rows, columns]: share of the rate; nan: no such link, or cut.
        row: what a row is ("NIC").
        groups: how many equal parts the columns have, between which lines are drawn (blocks, pods).
    """

    name: str
    load: Floats
    row: str
    groups: int


def plot_link_load(names: Sequence[str], edges_s: Floats, load: Floats, *, title: str) -> Figure:
    """A strip for each link, the darker the fuller: *load* [links, periods] between the edges."""
    with figure_and_axes(10.5, 1.7 + 0.3 * len(names)) as (figure, (axes,)):
        shades = axes.pcolormesh(
            edges_s, np.arange(len(names) + 1), load, cmap=_COLOURS, vmin=0.0, vmax=1.0, rasterized=True
        )
        for row in range(1, len(names)):
            axes.axhline(row, color="white", linewidth=2)
        axes.set_yticks(np.arange(len(names)) + 0.5, list(names))
        axes.invert_yaxis()
        axes.set(xlabel="seconds of the step", title=title)
        _colour_bar(figure, shades, [axes])
    return figure


def plot_fabric_load(layers: Sequence[Layer], blocks: Sequence[str], *, title: str) -> Figure:
    """Heat maps of the layers above each other, their columns by *blocks* from left to right."""
    heights = [0.55 + 0.13 * len(layer.load) for layer in layers]
    height_in = 1.5 + sum(heights) + 0.25 * len(layers)
    with figure_and_axes(10.5, height_in, len(layers), heights=heights) as (figure, panels):
        hottest = max((float(np.nanmax(layer.load, initial=0.0)) for layer in layers), default=0.0)
        for axes, layer in zip(panels, layers, strict=True):
            rows, columns = layer.load.shape
            axes.set_facecolor(_NOTHING)
            shades = axes.pcolormesh(
                np.linspace(0.0, len(blocks), columns + 1), np.arange(rows + 1), np.ma.masked_invalid(layer.load),
                cmap=_COLOURS, vmin=0.0, vmax=max(hottest, 1e-3), rasterized=True,
            )  # fmt: skip
            for edge in np.linspace(0.0, len(blocks), layer.groups + 1)[1:-1]:
                axes.axvline(edge, color=_EDGE, linewidth=0.8 if layer.groups <= _MOST_LABELS else 0.3)
            numbers = [0] if rows == 1 else [0, rows - 1]
            axes.set_yticks(np.array(numbers) + 0.5, map(str, numbers) if rows > 1 else [""])
            axes.set_ylabel(layer.row)
            axes.set_title(layer.name, fontsize=10, fontweight="normal")
            axes.set_xticks([])
            axes.invert_yaxis()
        every = -(-len(blocks) // _MOST_LABELS)
        shown = range(0, len(blocks), every)
        panels[-1].set_xticks([block + 0.5 for block in shown], [blocks[block] for block in shown])
        panels[-1].set_xlabel("block")
        headed(figure, title)
        _colour_bar(figure, shades, panels)
    return figure


def _colour_bar(figure: Figure, shades: Any, panels: Sequence[Axes]) -> None:
    from matplotlib.ticker import PercentFormatter

    bar = figure.colorbar(shades, ax=list(panels), fraction=0.03, pad=0.02, format=PercentFormatter(1.0))
    bar.set_label("share of the rate")
    bar.outline.set_visible(False)


def plot_ring_hops(
    hops: Sequence[str], alone_s: Floats, shared_s: Floats, *, took_alone_s: float, took_s: float, title: str
) -> Figure:
    """Bars for each hop: how long it needs its links alone, and what others add; lines: the whole ring."""
    scale, unit = (1e3, "milliseconds") if took_s < 1.0 else (1.0, "seconds")
    with figure_and_axes(10.5, 4.0) as (figure, (axes,)):
        places = np.arange(len(hops))
        width = 0.7 if len(hops) <= _MOST_HOPS_NAMED else 1.0
        axes.bar(places, alone_s * scale, width, color=PALETTE[0], label="its links alone")
        added = np.maximum(shared_s - alone_s, 0.0)
        if added.max(initial=0.0) > _WORTH_DRAWING * took_s:
            axes.bar(places, added * scale, width, bottom=alone_s * scale, color=PALETTE[3],
                     label="beside other transfers")  # fmt: skip
        axes.axhline(took_s * scale, color=INK, linewidth=1.2, label="the ring took")
        if took_s > took_alone_s * (1.0 + _WORTH_DRAWING):
            axes.axhline(took_alone_s * scale, color=INK, linewidth=1.2, linestyle=(0, (4, 3)),
                         label="the ring alone")  # fmt: skip
        every = -(-len(hops) // _MOST_HOPS_NAMED)
        axes.set_xticks(places[::every], [hops[place] for place in places[::every]])
        axes.tick_params(axis="x", rotation=50 if max(map(len, hops), default=0) * len(hops) > 90 else 0)
        hop = "hop, from rank to rank (no bar: inside a node)"
        axes.set(xlabel=hop, ylabel=unit, title=title, ylim=(0, 1.08 * took_s * scale))
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        figure.legend(loc="outside lower center", ncols=4)
    return figure
