"""Rounds of sequences of like length, each on equal groups of a size of its own."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import Task, problem_of, small_setup, tasks

from hdpsim import validate_plan
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.strategies.opt.rounds import MOST_ROUNDS, Rounds
from hdpsim.simulator.strategies.static.wlb_llm import work_s


@settings(max_examples=25, deadline=None)
@given(tasks())
def test_every_way_keeps_all_promises_and_sorts_by_its_end(task: Task):
    problem = problem_of(task.setup, task.lengths)
    rounds = Rounds.of(problem)
    ways = rounds.ways()
    assert [end_s for end_s, _ in ways] == sorted(end_s for end_s, _ in ways)
    for _, cuts in ways[:3]:
        validate_plan(rounds.plan(cuts), task.lengths, problem.stages)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(64, 4096), min_size=2, max_size=7))
def test_no_other_cuts_take_less(lengths: list[int]):
    # So few sequences that a cut may lie between any two: all sets of cuts are tried.
    rounds = Rounds.of(problem_of(small_setup(layout=Layout(pp=2)), lengths))
    count = len(rounds.cuts) - 1
    assert count == len(lengths)
    for _, cuts in rounds.ways():
        inner = combinations(range(1, count), len(cuts) - 1)
        least_s = min(
            sum(float(rounds.time_s[one]) for one in zip((0, *some), (*some, count), strict=True))
            for some in inner
        )
        assert sum(float(rounds.time_s[one]) for one in cuts) == pytest.approx(least_s)
    assert len(rounds.ways()) <= min(count, MOST_ROUNDS)


def test_a_round_takes_its_longest_sequence_or_all_work_over_all_ranks():
    # 16 ranks: one sequence of 32K needs 4 of 8K tokens; sixteen of 8K are one for every rank.
    problem = problem_of(small_setup(capacity=8192, context=32_768), [32_768, *[8192] * 16])
    rounds = Rounds.of(problem)
    last = len(rounds.cuts) - 1
    assert rounds.cuts[1] == 1
    on = {degree: work_s(problem, degree) for degree in (1, 4, 8, 16)}
    least_s = float(rounds.time_s[0, 1])
    assert least_s == pytest.approx(min(on[degree][0] for degree in (4, 8, 16)) + problem.fixed_s)
    assert float(rounds.time_s[1, last]) == pytest.approx(on[1][1] + problem.fixed_s)
    assert rounds.degrees[rounds.best[1, last]] == 1


def test_where_ranks_meet_every_round_takes_the_gathers():
    # Parameters over all ranks: a gather takes as long for one token as for a thousand, so fewer rounds are better.
    lengths = [2048, 2048, *[300] * 12]
    alone, shared = (
        Rounds.of(problem_of(small_setup(layout=Layout(sharding=sharding)), lengths))
        for sharding in ("zero1", "zero3")
    )
    assert (
        shared.time_s[np.isfinite(shared.time_s)].min() > 2.0 * alone.time_s[np.isfinite(alone.time_s)].min()
    )
    assert len(shared.ways()[0][1]) == 1


def test_where_ranks_meet_groups_of_two_sizes_run_in_turn():
    """Some long sequences and many short ones under ZeRO-3: groups of one size for all took longer, as did flexsp."""
    setup = small_setup(capacity=16_384, context=65_536, layout=Layout(sharding="zero3"), name="hdp-opt")
    lengths = [40_000, 30_000, *[2048] * 160]
    plan, _, _ = plan_batch(setup, lengths)
    assert len(set(plan.group_size.tolist())) == 2
