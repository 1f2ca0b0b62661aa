"""Steps that follow each other stage by stage repeat at the least period there is, which grows with every duration."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import make_costs, make_plan

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.stages import virtual_stage_table
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.play.shortcuts.repeating_steps import steady_begins

CHUNKS: dict[Schedule, int] = {"zb-h1": 1, "zb-h2": 1, "zb-v": 2, "dualpipe": 2}


def largest_mean(ways_s: Floats) -> float:
    """Of all rounds of different stages."""
    stages = range(len(ways_s))
    rounds = [order for size in stages for order in permutations(stages, size + 1)]
    return max(float(np.mean([ways_s[a, b] for a, b in zip(r, r[1:] + r[:1], strict=True)])) for r in rounds)


@settings(max_examples=100)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.integers(0, 9), min_size=n * n, max_size=n * n)))
def test_the_period_is_the_largest_mean_of_a_round(numbers: list[int]):
    stages = int(len(numbers) ** 0.5)
    ways_s = np.array(numbers, dtype=np.float64).reshape(stages, stages) + 0.5

    def ends(begin_s: Floats) -> Floats:
        return np.asarray((begin_s[:, None] + ways_s).max(axis=0))

    begin_s = steady_begins(stages, ends)
    assert begin_s.min() == 0
    assert (ends(begin_s) - begin_s).max() == pytest.approx(largest_mean(ways_s))


def split_step(schedule: Schedule, stages: int, forward: Floats, inputs: Floats, weight: Floats) -> StepCosts:
    """Costs by virtual stage and micro-batch, [K, m] each."""
    count, chunks = forward.shape[1], CHUNKS[schedule]
    costs = make_costs([1.0] * count, [1.0] * count, stages=stages, chunks=chunks)
    kind = np.array(virtual_stage_table(schedule, stages, chunks), dtype=np.int64)
    terms = [np.zeros((len(costs.terms), *forward.shape)) for _ in range(3)]
    for out, seconds in zip(terms, (forward, inputs + weight, weight), strict=True):
        out[0] = seconds
    epilogue = replace(costs.epilogue, optimizer_s=np.linspace(0.0, 2.0, stages))
    return replace(
        costs,
        schedule=schedule,
        kind=kind,
        forward_terms_s=terms[0],
        backward_terms_s=terms[1],
        weight_terms_s=terms[2],
        epilogue=epilogue,
    )


@st.composite
def durations(draw: st.DrawFn) -> tuple[Schedule, int, Floats, Floats]:
    """A schedule, its stages, [3, K, m] seconds of forwards, input and weight gradients, and shorter ones."""
    schedule = draw(st.sampled_from(sorted(CHUNKS)))
    stages = draw(st.sampled_from([2, 4]) if schedule == "dualpipe" else st.integers(2, 4))
    count = 2 * draw(st.integers(stages, stages + 2)) if schedule == "dualpipe" else draw(st.integers(1, 9))
    kinds = stages * CHUNKS[schedule] // (2 if schedule == "dualpipe" else 1)
    size = 3 * kinds * count
    seconds = np.array(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=np.float64)
    less = np.array(draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), dtype=np.float64)
    shape = (3, kinds, count)
    return schedule, stages, seconds.reshape(shape), np.maximum(0.0, seconds - less).reshape(shape)


@settings(max_examples=150)
@given(durations())
def test_no_shorter_operation_makes_a_step_longer(case: tuple[Schedule, int, Floats, Floats]):
    schedule, stages, seconds, less = case
    plan = make_plan([list(range(seconds.shape[2]))])
    slow, fast = (run_replay(plan, split_step(schedule, stages, *each)) for each in (seconds, less))
    assert fast.step_s <= slow.step_s * (1 + 1e-12)
    played = run_engine(plan, split_step(schedule, stages, *seconds))
    assert played.step_s == pytest.approx(slow.step_s, rel=1e-12)
    np.testing.assert_allclose(played.account_s, slow.account_s, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(slow.account_s.sum(axis=0), slow.step_s, rtol=1e-9, atol=1e-9)


def test_a_stage_that_begins_earlier_is_not_busy_for_longer():
    # Found by search: with a first forward 1 s shorter the last stage began 1 s earlier and ended when it did before,
    # so that its step seemed to take 30 s for 29 s.
    forward = np.array([[2, 2], [1, 8], [1, 1], [1, 2], [1, 1], [1, 0]], dtype=np.float64)
    inputs = np.array([[1, 0], [1, 0], [2, 1], [8, 2], [0, 2], [1, 1]], dtype=np.float64)
    weight = np.array([[1, 1], [1, 2], [1, 1], [2, 0], [2, 2], [1, 1]], dtype=np.float64)
    shorter = forward.copy()
    shorter[2, 0] -= 1.0
    plan = make_plan([[0, 1]])

    def step_s(forward: Floats) -> float:
        costs = split_step("zb-v", 3, forward, inputs, weight)
        last = replace(costs.epilogue, optimizer_s=np.array([0.0, 0.0, 6.0]))
        # the rows above are by stage and chunk
        kind = np.arange(6).reshape(3, 2)
        return run_replay(plan, replace(costs, epilogue=last, kind=kind)).step_s

    assert step_s(shorter) <= step_s(forward) <= 29.0
