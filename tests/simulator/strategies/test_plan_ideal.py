from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import CALIBRATIONS, FLOOR, MODEL, Task, problem_of, small_cluster, small_setup, tasks

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.strategies import plan_ideal
from hdpsim.simulator.strategies.hdp.groups import least_group
from hdpsim.simulator.strategies.plan_ideal import plan_ideal_s
from hdpsim.simulator.strategies.problem import PlanningProblem


def best_makespan_s(problem: PlanningProblem) -> float:
    """Busiest rank of the best of all plans in which sequences have micro-batches of their own, gangs aligned.

    All group sizes, all members, all packings of the short ones onto ranks (one micro-batch each).
    """
    ranks = range(problem.ranks)
    choices = []
    least = least_group(problem, problem.lengths)
    for length, smallest in zip(problem.lengths.tolist(), least.tolist(), strict=True):
        sizes = range(smallest, problem.ranks + 1) if length > problem.capacity_tokens else [1]
        choices.append(
            [
                (sum(1 << (first + i) for i in range(size)), float(problem.sequence_s([length], [size])[0]))
                for size in sizes
                for first in range(problem.ranks - size + 1)
            ]
        )
    best = np.inf
    for plan in product(*choices):
        loads = [sum(time_s for members, time_s in plan if members >> rank & 1) for rank in ranks]
        best = min(best, max(loads))
    return best


@settings(max_examples=60)
@given(
    st.integers(2, 4),
    st.lists(st.sampled_from([300, 900, 1024, 1500, 2048, 3000, 4096]), min_size=1, max_size=4),
    st.sampled_from(CALIBRATIONS),
    st.booleans(),
)
def test_no_plan_of_a_tiny_case_is_faster(ranks: int, lengths: list[int], cal: object, offload: bool):
    cluster = replace(small_cluster(ranks), node=replace(small_cluster(1).node, gpus=1, nics=1))
    setup = small_setup(
        cluster=cluster, capacity=1024, context=ranks * 1024, cal=cal, selective_offloading=offload
    )
    problem = problem_of(setup, [min(length, ranks * 1024) for length in lengths])
    # Short sequences may share micro-batches, which saves the fixed part of all but one per C tokens.
    short = problem.lengths[problem.lengths <= 1024]
    saved_s = len(short) * (problem.fixed_s + problem.floor_s)
    assert plan_ideal_s(problem) <= best_makespan_s(problem) * (1 + 1e-9)
    assert plan_ideal_s(problem) >= (best_makespan_s(problem) - saved_s) / 4


@pytest.mark.parametrize("need", [3, 5, 7])
def test_of_whole_heads_a_larger_group_may_take_less_work(need: int):
    """One of 7 ranks has 2 of 8 heads, as all of 4 ranks have: 8 ranks take less time and fewer rank-seconds."""
    layout, capacity = Layout(cp_kind="ulysses"), 8192
    setup = small_setup(layout=layout, capacity=capacity, context=need * capacity)
    problem = problem_of(setup, [need * capacity] * 4)
    assert problem.most_ranks == MODEL.heads
    sizes = np.array([size for size in (4, 8) if size >= need])  # of 16 ranks: in one round or in two
    rounds = 4 * sizes // problem.ranks
    times_s = rounds * problem.sequence_s(np.full_like(sizes, need * capacity), sizes)
    assert plan_ideal_s(problem) <= times_s.min() * (1 + 1e-9)
    assert plan_ideal_s(problem) >= 0.8 * times_s.min()


def bound(lengths: list[int], **changes: object) -> float:
    return plan_ideal_s(problem_of(small_setup(context=16384, **changes), lengths))  # type: ignore[arg-type]


def test_full_sequences_on_all_ranks():
    # 16 ranks with two full sequences each: the work of two, at most 0.1 % less for the best GEMM rate.
    problem = problem_of(small_setup(), [1024] * 32)
    each_s = float(problem.sequence_s([1024], [1])[0])
    assert 2 * each_s * 0.99 <= plan_ideal_s(problem) <= 2 * each_s


def test_one_sequence_is_bound_by_the_best_group():
    problem = problem_of(small_setup(context=16384), [16384])
    least = int(least_group(problem, problem.lengths)[0])
    times = problem.sequence_s(np.full(17 - least, 16384), np.arange(least, 17))
    # every token counts at the rate of the largest micro-batch, whose weight gradients show less of their traffic
    assert 0.85 * times.min() <= plan_ideal_s(problem) <= times.min()


def test_micro_batches_have_a_least_time():
    # 8 layers of 3 x 2 ms and 2 ms of host work: 50 ms each. 640 sequences of 64 tokens fill 40 micro-batches.
    assert bound([64] * 640, cal=FLOOR) == pytest.approx(40 * 0.050 / 16)
    # A single one is the longest piece.
    assert bound([64] * 16, cal=FLOOR) == pytest.approx(0.050)


def test_a_pipeline_is_passed_stage_by_stage():
    # One sequence on one rank of four stages: the time of all stages, not of one.
    layout = Layout(pp=4)
    problem = problem_of(small_setup(layout=layout, context=1024), [1024])
    one = problem_of(small_setup(context=1024), [1024])
    assert plan_ideal_s(problem) == pytest.approx(
        plan_ideal_s(one) + 3 * problem.fixed_s, rel=1e-3
    )  # the fixed part once a stage


def test_deadlines_count():
    # Half of the work in one sequence that offloading lets one rank hold: it has to be spread to end in time.
    model = replace(MODEL, layers=32)
    problem = problem_of(small_setup(model=model, context=16384, capacity=1024), [16384] + [1024] * 10)
    least = least_group(problem, problem.lengths[:1])
    alone_s = float(problem.sequence_s([16384], least)[0])
    assert least[0] < 16
    assert plan_ideal_s(problem) < alone_s
    plain_s = (float(problem.piece_s([1024] * 10).sum()) + least[0] * alone_s) / 16
    assert plan_ideal_s(problem) >= plain_s * 0.98


def test_more_work_never_lowers_the_bound():
    lengths = [100, 1024, 5000, 16384]
    bounds = [bound(lengths * times) for times in range(1, 5)]
    assert bounds == sorted(bounds)


@settings(max_examples=60, deadline=None)
@given(tasks())
def test_sizes_beyond_those_looked_at_first_change_nothing(task: Task):
    one = problem_of(task.setup, task.lengths)
    bounds = []
    for sizes in (1, 2, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan_ideal, "FIRST_SIZES", sizes)
            bounds.append(plan_ideal_s(one))
    assert bounds == pytest.approx([bounds[0]] * 3, rel=1e-12)
