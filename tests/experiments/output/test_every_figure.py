"""Every figure that a verb draws says what it is about, and no text of it leaves the canvas or lies over another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import hdpsim
from hdpsim import Result

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lean_studies", "each_plan_once", "one_process")]

LONG = "a scenario with a name as long as people give them when they try many things, with dates and all"
SCENARIO = {
    "name": LONG,
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "nodes": 2},
    "layout": {"tp": 2, "pp": 2, "rank_capacity": "16K tokens"},
    "data": {"distribution": "bytescale-github", "batch": "512K tokens", "context": "64K tokens"},
    "execution": {"batches": 2, "executor": "replay"},
}
FLOWS = {"execution.network": "flows", "execution.batches": 1}
SWEEP = {
    "base": SCENARIO,
    "grid": {
        "layout.tp": [2, 8],
        "layout.rank_capacity": ["16K tokens", "512K tokens"],
        "strategy.name": ["static"],
        "execution.batches": [1],
    },
}

VERBS: dict[str, Callable[[Path], Result]] = {
    "simulate": lambda _: hdpsim.simulate(SCENARIO, FLOWS),
    "many steps": lambda _: hdpsim.simulate(SCENARIO, {"run.planning_time": "1min"}, steps=5),
    "compare": lambda _: hdpsim.compare(SCENARIO, strategies="static(packing=first-fit,cp=4),hdp-opt"),
    "whatif": lambda _: hdpsim.whatif(SCENARIO, ["layout.tp=16", "layout.pp=1,layout.rank_capacity=8K tokens"]),
    "scale": lambda _: hdpsim.scale(SCENARIO, gpus=[8, 16], strategies="static,hdp-balance"),
    "sweep": lambda folder: hdpsim.sweep(SWEEP, store=folder, workers=1),
    "replay": lambda _: hdpsim.replay(SCENARIO, steps=3, workers=1),
    "campaign": lambda _: hdpsim.campaign(SCENARIO, duration="30d", seeds=3, workers=1),
    "plan": lambda _: hdpsim.plan(SCENARIO, budget="10 steps", batches=1, workers=1),
    "fabric": lambda _: hdpsim.fabric("llama3-24k"),
    "fabric of a node": lambda _: hdpsim.fabric("quickstart-8gpu"),
}  # fmt: skip


def wrong_texts(figure: Figure) -> list[str]:
    """What leaves the canvas, or lies over another text. Labels of ticks outside of the view are not drawn."""
    figure.canvas.draw()
    page, found = figure.bbox, []
    hidden = {
        id(label)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    texts = [
        t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in hidden
    ]
    boxes = [(text, text.get_window_extent()) for text in texts]
    for text, box in boxes:
        if min(box.x0, box.y0) < -1 or box.x1 > page.x1 + 1 or box.y1 > page.y1 + 1:
            found.append(f"{text.get_text()!r} leaves the canvas")
    level = [(text, box) for text, box in boxes if text.get_rotation() in (0.0, 90.0)]
    for (a, box_a), (b, box_b) in combinations(level, 2):
        across = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
        along = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
        if across > 1 and along > 1:
            found.append(f"{a.get_text()!r} lies over {b.get_text()!r}")
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_figures_are_whole_and_say_what_they_are_about(verb: str, tmp_path: Path) -> None:
    result = VERBS[verb](tmp_path)
    assert result.figures
    for name in result.figures:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = result.plot(name)
            assert not wrong_texts(figure), name
        words = " ".join(text.get_text() for text in figure.texts)
        assert f"hdpsim {hdpsim.__version__}" in words, name
        if verb != "sweep" and not verb.startswith("fabric"):
            assert LONG in words, name
        if not verb.startswith("fabric"):
            assert "(P10-P90)" in words, name
