"""What a timeline says of a pass: its sequences, its ranks, and parts that lie inside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpsim.experiments.output.timeline.passes import PARTS, WAIT, Passes
from hdpsim.experiments.output.timeline.step import write_timeline
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.verbs.running import compare
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.setup import ExecutionOptions
from hdpsim.simulator.step import simulate_step


def slices_of(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def test_every_term_is_in_one_part() -> None:
    setup = load_scenario("quickstart-8gpu").setup("static")
    lengths = np.array([20_000, 1_000, 500])
    result = simulate_step(setup, lengths)
    costs = price_plan(setup, planning_problem(setup, lengths), result.plan)
    named = [term for terms in PARTS.values() for term in terms]
    assert sorted(named) == sorted(costs.terms)
    passes = Passes.of(result.plan, costs)
    for op, whole_s in ((0, costs.forward_s), (1, costs.backward_s)):
        assert passes.part_ns[op].sum(axis=0) == pytest.approx(1e9 * whole_s)


@pytest.mark.parametrize("changes", [("layout.pp=2", "layout.tp=1"), ("layout.sharding=zero3",)])
def test_parts_lie_inside_their_pass_one_after_the_other(tmp_path: Path, changes: tuple[str, ...]) -> None:
    setup = load_scenario("quickstart-8gpu", ("memory.must_fit=false", *changes)).setup("hdp-balance")
    setup = replace(setup, execution=ExecutionOptions(executor="engine", spans=True))
    lengths = np.array([60_000, 9_000, *[3_000] * 12])
    result = simulate_step(setup, lengths)
    assert result.spans is not None
    costs = price_plan(setup, planning_problem(setup, lengths), result.plan)
    write_timeline(tmp_path / "t.json", result.spans, passes=Passes.of(result.plan, costs))
    slices = slices_of(tmp_path / "t.json")
    passes = [one for one in slices if one["cat"] in ("forward", "backward")]
    parts = [one for one in slices if one["cat"] == "part"]
    assert {one["name"] for one in parts} <= {*PARTS, WAIT}
    for one in passes:
        begin, end = one["ts"], one["ts"] + one["dur"]
        inside = [
            part
            for part in parts
            if (part["pid"], part["tid"]) == (one["pid"], one["tid"])
            and begin - 1e-6 <= part["ts"] < end - 1e-6
        ]
        assert sum(part["dur"] for part in inside) == pytest.approx(one["dur"], abs=0.01)
    tokens = {one["args"]["micro_batch"]: one["args"]["tokens"] for one in passes}
    assert sum(tokens.values()) == lengths.sum()
    longest = next(one["args"] for one in passes if one["args"]["lengths"].startswith("60000"))
    assert longest["group"] == len(range(*[int(n) + i for i, n in enumerate(longest["ranks"].split("-"))]))


def test_compare_writes_a_timeline_for_every_strategy(tmp_path: Path) -> None:
    names = ["static(cp=4)", "hdp-naive"]
    result = compare("quickstart-8gpu", strategies=names, batches=1, timeline=str(tmp_path / "step.json.gz"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-hdp-naive.json.gz",
        "step-static-cp-4-.json.gz",
    ]
    assert len(result.lines) == 2
