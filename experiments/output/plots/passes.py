"""A picture of when chosen ranks do what: a lane for each of their stages, a bar for each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .style import ACCOUNT_SHADES, INK, account_group, figure_and_axes, headed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, object]]

COMPUTE = {
    "forward": ACCOUNT_SHADES["compute"][3],
    "backward": ACCOUNT_SHADES["compute"][1],
    "weight gradient": ACCOUNT_SHADES["compute"][0],
}
"""What a pass computes, by its direction."""
OTHERS = {
    "communication": ACCOUNT_SHADES["communication"][1],
    "overhead": ACCOUNT_SHADES["overhead"][1],
    "waiting": ACCOUNT_SHADES["waiting"][3],
}
"""What else a pass spends its time on, in the order in which it is drawn; inside a layer they alternate."""
HATCHES = {"communication": "////", "waiting": "....", "overhead": "xxxx"}
MOST_LANES, MOST_PASSES = 24, 1_200
"""Of a figure. Of more lanes, only the ranks that wait least, then lanes evenly spaced."""

HALF = 0.39
"""Of the height of a bar, in lanes."""

Lane = tuple[str, int, int, int]
Box = list[tuple[float, float]]


def lane_of(row: Mapping[str, object]) -> Lane:
    """Strategy, rank, stage, and number of the lane of what runs beside another."""
    return str(row["strategy"]), *(int(str(row[name])) for name in ("rank", "stage", "lane"))  # type: ignore[return-value]


def lane_words(lane: Lane, chosen: str) -> str:
    """`rank 3, waits least; stage 0`."""
    _, rank, stage, beside = lane
    return f"rank {rank}, {chosen}; stage {stage}" + (f", beside it {beside}" if beside else "")


def pieces(row: Mapping[str, object]) -> list[tuple[str, float, float, str]]:
    """Kind, begin, seconds and colour of what a pass is drawn as: computing, then all else that it spends time on."""
    start, end = (float(str(row[name])) for name in ("start_s", "end_s"))
    kind = str(row["pass"])
    if kind not in COMPUTE:
        group = account_group(kind)
        return [(group, start, end - start, OTHERS.get(group, COMPUTE["forward"]))]
    spent = {group: float(str(row[f"{group}_s"])) for group in OTHERS}
    drawn = [(kind, start, end - start - sum(spent.values()), COMPUTE[kind])]
    at = start + drawn[0][2]
    for group, seconds in spent.items():
        if seconds > 0.0:
            drawn.append((group, at, seconds, OTHERS[group]))
            at += seconds
    return drawn


def _fewer_lanes(rows: Rows, most: int) -> list[Lane]:
    """Lanes there is room for: of every strategy the same share, the ranks that wait least first."""
    by_strategy: dict[str, dict[Lane, str]] = {}
    for row in rows:
        by_strategy.setdefault(str(row["strategy"]), {}).setdefault(lane_of(row), str(row["chosen"]))
    share, shown = max(1, most // max(1, len(by_strategy))), list[Lane]()
    for lanes in by_strategy.values():
        if len(lanes) > share:
            first = next(iter(lanes.values()))
            lanes = {lane: chosen for lane, chosen in lanes.items() if chosen == first}
        every = list(lanes)
        count = min(share, len(every))
        shown += [every[place * (len(every) - 1) // max(1, count - 1)] for place in range(count)]
    return shown


def fitting_lanes(rows: Rows, most_lanes: int, most_passes: int) -> dict[Lane, list[Mapping[str, object]]]:
    """Passes by lane, of as many lanes as there is room for."""
    while True:
        lanes: dict[Lane, list[Mapping[str, object]]] = {lane: [] for lane in _fewer_lanes(rows, most_lanes)}
        for row in rows:
            if (lane := lane_of(row)) in lanes:
                lanes[lane].append(row)
        if most_lanes == 1 or sum(map(len, lanes.values())) <= most_passes:
            return lanes
        most_lanes //= 2


def _box(place: int, start: float, seconds: float) -> Box:
    """Corners of a bar in a lane."""
    low, high, end = place - HALF, place + HALF, start + seconds
    return [(start, low), (start, high), (end, high), (end, low)]


def plot_passes(rows: Rows) -> Figure:
    """When chosen ranks do what, one lane for each stage; what is empty is waiting between passes."""
    from matplotlib.collections import PolyCollection

    shown = fitting_lanes(rows, MOST_LANES, MOST_PASSES)
    names = [f"{lane[0]}, {lane_words(lane, str(passes[0]['chosen']))}" for lane, passes in shown.items()]
    with figure_and_axes(11.0, 1.6 + 0.34 * len(names)) as (figure, (axes,)):
        bars: dict[tuple[str, str], list[Box]] = {}
        for place, passes in enumerate(shown.values()):
            for row in passes:
                for kind, start, seconds, colour in pieces(row):
                    bars.setdefault((kind, colour), []).append(_box(place, start, seconds))
        for (kind, colour), boxes in bars.items():
            # One collection for each kind: thousands of single bars would take seconds and megabytes.
            look: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.2}
            axes.add_collection(PolyCollection(boxes, hatch=HATCHES.get(kind), label=kind, **look))
        axes.set_xlim(0.0, max(float(str(row["end_s"])) for row in rows))
        axes.set(xlabel="seconds since the step began", title="")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.tick_params(axis="y", labelcolor=INK, length=0)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        kinds = [kind for kind in (*COMPUTE, *OTHERS) if kind in handles]
        figure.legend([handles[kind] for kind in kinds], kinds, loc="outside lower center", ncols=6)
        headed(figure, "Passes of chosen ranks in the step of the first batch")
    return figure
