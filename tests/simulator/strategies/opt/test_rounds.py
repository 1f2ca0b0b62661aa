"""Rounds of sequences of like length, each on groups of the sizes that end it earliest."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import Task, problem_of, small_setup, tasks

from hdpsim import validate_plan
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.strategies.opt.rounds import MOST_ROUNDS, Groups, Rounds
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
    problem = problem_of(small_setup(layout=Layout(pp=2)), lengths)
    rounds = Rounds.of(problem)
    count = len(rounds.cuts) - 1
    assert count == len(lengths)

    def end_s(cuts: list[tuple[int, int]]) -> float:
        return sum(float(rounds.time_s[one]) for one in (*cuts, *cuts[:1] * int(problem.bubble_weight)))

    for _, cuts in rounds.ways():
        inner = combinations(range(1, count), len(cuts) - 1)
        least_s = min(end_s(list(zip((0, *some), (*some, count), strict=True))) for some in inner)
        assert end_s(cuts) == pytest.approx(least_s)
    assert len(rounds.ways()) <= min(count, MOST_ROUNDS)


def test_a_round_takes_its_longest_sequence_or_all_work_over_all_ranks():
    # 16 ranks: one sequence of 32K needs 4 of 8K tokens; sixteen of 8K are one for every rank.
    problem = problem_of(small_setup(capacity=8192, context=32_768), [32_768, *[8192] * 16])
    rounds = Rounds.of(problem)
    last = len(rounds.cuts) - 1
    assert rounds.cuts[1] == 1
    least_s = min(work_s(problem, degree)[0] for degree in (4, 8, 16))
    assert float(rounds.busy_s[0, 1]) == pytest.approx(least_s)
    assert float(rounds.busy_s[1, last]) == pytest.approx(
        work_s(problem, 1)[1], rel=0.06
    )  # ends are looked at one by one
    micro_batch_s = float(problem.cost.busy_s(MicroBatches.single(np.array([8192])))[0])
    assert float(rounds.time_s[1, last]) == pytest.approx(micro_batch_s, rel=0.06)


def test_where_ranks_meet_every_round_takes_the_gathers():
    # Parameters over all ranks: a gather takes as long for one token as for a thousand, so fewer rounds are better.
    lengths = [2048, 2048, *[300] * 12]
    alone, shared = (
        Rounds.of(problem_of(small_setup(layout=Layout(sharding=sharding)), lengths))
        for sharding in ("zero1", "zero3")
    )
    assert shared.time_s.min() > 1.9 * alone.time_s.min()
    assert len(shared.ways()[0][1]) == 1


@settings(max_examples=25, deadline=None)
@given(tasks(), st.floats(0.5, 4.0))
def test_groups_of_several_sizes_end_by_then_and_hold_their_sequences(task: Task, times: float):
    problem = problem_of(task.setup, task.lengths)
    groups = Groups.of(problem, np.sort(problem.lengths)[::-1])
    until_s = times * float(groups.alone_s().min(axis=0).max())
    own = len(task.lengths) // 2 + 1
    assert groups.packed(own)[2] <= groups.part(slice(own)).equal()[2]
    if (found := groups.first_fit(until_s, own)) is not None:
        pack, size = found
        assert size.sum() <= problem.ranks
        assert (pack[:own] >= 0).all()
        row, placed = np.searchsorted(groups.sizes, size), np.flatnonzero(pack >= 0)
        for each, most in (
            (groups.work_s[row[pack], np.arange(len(pack))], until_s),
            (groups.tokens, groups.room(until_s)[row]),
        ):
            assert (np.bincount(pack[placed], weights=each[placed]) <= most * (1 + 1e-9)).all()


@settings(max_examples=25, deadline=None)
@given(tasks(), st.floats(0.5, 4.0), st.integers(0, 2**32))
def test_first_fit_is_what_trying_every_group_gives(task: Task, times: float, seed: int):
    problem = problem_of(task.setup, task.lengths)
    groups = Groups.of(problem, np.sort(problem.lengths)[::-1])
    until_s = times * float(groups.alone_s().min(axis=0).max())
    # Estimates that err do not fall with the length.
    errors = np.exp(np.random.default_rng(seed).normal(0.0, 0.3, len(groups.tokens)))
    groups = replace(groups, work_s=groups.work_s * errors)
    ranks, room = groups.ranks(until_s), groups.room(until_s)
    free, made, packs = (
        problem.ranks,
        list[list[float]](),
        list[int](),
    )  # of a group: row, time and tokens left
    for number, tokens in enumerate(groups.tokens.tolist()):
        work_s = groups.work_s[:, number].tolist()
        fits = (at for at, (row, left_s, left) in enumerate(made) if work_s[row] <= left_s and tokens <= left)
        at, row = next(fits, -1), int(ranks[:, number].argmin())
        if at < 0 and np.isfinite(ranks[row, number]) and groups.sizes[row] <= free:
            at, free = len(made), free - int(groups.sizes[row])
            made.append([row, until_s, room[row]])
        if at >= 0:
            made[at][1] -= work_s[made[at][0]]
            made[at][2] -= tokens
        packs.append(at)
    found = groups.first_fit(until_s, 0)
    assert found is not None
    pack, size = found
    by_size = sorted(range(len(made)), key=lambda at: -made[at][0])
    assert size.tolist() == [groups.sizes[made[at][0]] for at in by_size]
    assert [by_size[at] if at >= 0 else -1 for at in pack.tolist()] == packs
    if -1 in packs:
        assert groups.first_fit(until_s, packs.index(-1) + 1) is None


def test_many_short_sequences_on_a_ring_share_its_waits():
    # A ring waits for the latency of its hops: no longer for 16 sequences of 1,000 tokens than for one.
    groups = Groups.of(problem_of(small_setup(), [1000] * 16), np.full(16, 1000))
    row = int(np.flatnonzero(groups.sizes == 8)[0])
    assert groups.work_s[row].sum() < 2.0 * groups.start_s[row]


def test_a_round_has_groups_of_several_sizes_where_ranks_meet():
    """One long sequence and many short ones under ZeRO-3: groups of one size for all took 15 % longer."""
    setup = small_setup(capacity=16_384, context=65_536, layout=Layout(sharding="zero3"), name="hdp-opt")
    plan, _, _ = plan_batch(setup, [40_000, 30_000, *[2048] * 160])
    first = np.unique(plan.entries.micro_batch[plan.entries.slot == 0])
    assert len(np.unique(plan.group_size[first])) > 1
