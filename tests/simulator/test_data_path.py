"""Loading and planning have a clock of their own: slow enough, they decide every strategy's step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import Task, tasks

from hdpsim.ranges import constant_range
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, simulate_step

PLANNED = ("planner_s_per_sequence", "metadata_bytes_per_s")
"""What only strategies with a plan wait for."""


def slower(setup: Setup, constant: str, times: float) -> Setup:
    """The setup with one constant of loading or planning so many times worse, as far as its range goes."""
    value = getattr(setup.calibration, constant)
    worse = value * times if constant == "planner_s_per_sequence" else value / times
    allowed = constant_range(constant)
    worse = min(max(worse, allowed.low), allowed.high)
    return replace(setup, calibration=replace(setup.calibration, **{constant: worse}))


def seconds_in(result: StepResult, account: str) -> float:
    return float(result.account_s[result.accounts.index(account)].max())


def shown_s(result: StepResult) -> dict[str, float]:
    return {name: seconds_in(result, name) for name in ("data", "planning")}


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    tasks(),
    st.sampled_from(["loader_tokens_per_s", *PLANNED]),
    st.sampled_from(["static", "hdp-naive", "hdp-opt"]),
    st.sampled_from([1, 2]),
)
def test_loading_and_planning_show_when_they_are_slow_enough(
    task: Task, constant: str, name: str, prefetch: int
):
    strategy = replace(task.setup.strategy, name=name)
    pipeline = replace(task.setup.data_pipeline, prefetch_steps=prefetch)
    setup = replace(task.setup, strategy=strategy, data_pipeline=pipeline)
    before = simulate_step(setup, task.lengths)
    after = simulate_step(slower(setup, constant, 1e9), task.lengths)
    if name == "static" and constant in PLANNED:
        assert after.step_s == before.step_s
        return
    assert after.step_s >= before.step_s
    if constant != "metadata_bytes_per_s":  # whose range ends before it outlasts a step
        assert after.step_s > 2 * before.step_s
        assert max(shown_s(after).values()) > before.step_s
    assert after.account_s.sum(axis=0) == pytest.approx(after.step_s)
    # What is late is said to be late: the other accounts are as before, but for the first gather that hides behind it.
    rest, usual = (one.step_s - sum(shown_s(one).values()) for one in (after, before))
    assert usual - seconds_in(before, "parameter_gather") - 1e-6 * usual <= rest <= usual * (1 + 1e-6)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(tasks(), st.floats(1.0, 1e6), st.booleans())
def test_a_slower_way_of_the_data_never_shortens_a_step(task: Task, times: float, asynchronous: bool):
    pipeline = replace(task.setup.data_pipeline, asynchronous=asynchronous)
    setup = replace(task.setup, data_pipeline=pipeline)
    at_once = setup
    for constant in ("loader_tokens_per_s", *PLANNED):
        at_once = slower(at_once, constant, 1e-9)
    steps_s = [
        simulate_step(one, task.lengths).step_s
        for one in (at_once, setup, slower(setup, "loader_tokens_per_s", times))
    ]
    assert steps_s[0] <= steps_s[1] * (1 + 1e-12)
    assert steps_s[1] <= steps_s[2] * (1 + 1e-12)
    if asynchronous:  # preparing further ahead never slows a step either
        ahead = replace(setup, data_pipeline=replace(pipeline, prefetch_steps=4))
        assert simulate_step(ahead, task.lengths).step_s <= steps_s[1] * (1 + 1e-12)
