"""No step is below its lower bound, whatever schedule, strategy and layout; and the bound says something."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import (
    CALIBRATIONS,
    HOPPER,
    SCHEDULES,
    STRATEGIES,
    Task,
    meetings,
    pipelines,
    small_setup,
    tasks,
)

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind, Schedule
from hdpsim.simulator.lower_bound import least_rate_s, lower_bound_s
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step


def assert_bounded(setup: Setup, lengths: np.ndarray) -> float:
    """Return the step over its bound."""
    over = simulate_step(setup, lengths).step_s / lower_bound_s(setup, lengths)
    assert over >= 1 - 1e-9
    return over


@settings(max_examples=30)
@given(tasks())
def test_no_step_is_below_its_bound(task: Task):
    assert_bounded(task.setup, task.lengths)


@settings(max_examples=35)
@given(pipelines())
def test_no_schedule_ends_below_the_bound(task: Task):
    assert_bounded(task.setup, task.lengths)


@settings(max_examples=40)
@given(meetings())
def test_no_step_of_ranks_that_meet_is_below_its_bound(task: Task):
    assert task.setup.layout.meeting_ranks(task.setup.ranks) > 1
    assert_bounded(task.setup, task.lengths)


@settings(max_examples=30)
@given(
    st.sampled_from(["1f1b", "zb-h1", "zb-h2"]),
    st.sampled_from(["ring", "all-gather", "gathered-ring", "double-ring", "hybrid", "disaggregated"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([256, 1024]),
    st.integers(1, 16),
    st.sampled_from(CALIBRATIONS),
)
def test_no_sequence_alone_ends_below_the_bound_when_its_scores_are_computed_again(
    schedule: Schedule, cp_kind: ContextParallelKind, pp: int, capacity: int, ranks: int, cal: Calibration
):
    layout = Layout(
        pp=pp,
        schedule=schedule if pp > 1 else "1f1b",
        cp_kind=cp_kind,
        recompute="selective",
        attention_kernel="unfused",
    )
    context = capacity * ranks
    setup = small_setup(
        nodes=2 * pp, layout=layout, capacity=capacity, context=context, cal=cal, name="static"
    )
    assert_bounded(setup, np.array([context]))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["llama-2-7b", "deepseek-v2-lite"])
def test_models_of_the_catalog_end_above_it(name: str, schedule: Schedule):
    vpp = {"interleaved": 2, "zb-v": 2}.get(schedule, 1)
    model = replace(catalog.model(name), layers=32)
    layout = Layout(tp=2, pp=4, vpp=vpp, ep=2 if model.experts else 1, schedule=schedule)
    setup = small_setup(model=model, layout=layout, capacity=4096, name="static")
    assert assert_bounded(setup, np.full(2 * 16, 4096)) < 1.5


def test_all_strategies_have_one_bound():
    lengths = np.array([16384, 10_000, 9000, 3000, 3000, 1024] * 8 + [300] * 40)
    found = {
        lower_bound_s(small_setup(context=16384, name=name, packing=packing), lengths)
        for name in STRATEGIES
        for packing in ("in-order", "first-fit", "best-fit")
    }
    assert len(found) == 1
    # Half of a sequence has less than half of its attention.
    assert lower_bound_s(small_setup(context=16384, name="static", packing="concatenate"), lengths) < min(
        found
    )


@pytest.mark.parametrize("cal", CALIBRATIONS, ids=lambda cal: cal.name)
def test_equal_full_sequences_reach_it(cal: Calibration):
    # Long enough that host work and traffic of weights, which fewer and larger micro-batches would save, are little.
    # What SMs idle at the end of an attention kernel is not in the bound: more sequences would share it.
    cal = replace(cal, attention_forward_tail=0.0, attention_backward_tail=0.0)
    setup = small_setup(cal=cal, capacity=65536, context=65536)
    assert assert_bounded(setup, np.full(setup.ranks * 4, 65536)) < 1.025


def test_a_sequence_alone_is_bound_by_its_best_group():
    assert assert_bounded(small_setup(context=16384, capacity=2048), np.array([16384])) < 1.1


def test_a_graph_of_all_passes_has_no_host_work_in_the_bound():
    layout = Layout(pp=2, cuda_graphs=True, cuda_graph_scope="iteration")
    cal = replace(HOPPER, micro_batch_fixed_s=0.1)
    assert_bounded(small_setup(layout=layout, cal=cal, name="static"), np.full(32, 1024))


def test_more_work_never_lowers_it():
    lengths = np.array([100, 1024, 5000, 16384])
    bounds = [lower_bound_s(small_setup(context=16384), np.tile(lengths, times)) for times in range(1, 9)]
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0]


@settings(max_examples=60)
@given(st.integers(1, 3000), st.integers(1, 300), st.floats(0.0, 500.0), st.integers(0, 60))
def test_the_best_rate_of_all_sizes_is_found(most: int, tile: int, fixed: float, dearer: int):
    asked: list[int] = []

    def seconds(tokens: np.ndarray) -> np.ndarray:
        asked.extend(tokens.tolist())
        tiles = -(-tokens // tile) * tile
        return np.stack([tiles + fixed, tiles + dearer * (tokens // 100)])

    every = np.arange(1, most + 1)
    best = (seconds(every) / every).min(axis=1)
    asked.clear()
    found = least_rate_s(seconds, most)
    assert (found <= best).all()
    assert found == pytest.approx(best, rel=3e-3)
    assert set(asked) <= {most, *range(1, most)}
    stretches = {8**power for power in range(5)}  # cut at the same sizes whatever the most
    assert {one for one in asked if one in stretches} == {one for one in stretches if one <= most}
