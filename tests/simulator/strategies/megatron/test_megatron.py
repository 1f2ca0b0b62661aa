"""Megatron-Core's schedulers: rounds and packs by hand, and what every plan of them keeps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import problem_of, small_setup

from hdpsim import validate_plan
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.megatron.schedulers import _Round, dp_balanced, dynamic_cp
from hdpsim.simulator.strategies.problem import PlanningProblem


def problem(lengths: list[int], *, context: int = 8192, layout: Layout | None = None) -> PlanningProblem:
    """8 ranks of one GPU and 1,024 tokens for every pipeline stage."""
    pp = 1 if layout is None else layout.parallel.pp
    return problem_of(small_setup(nodes=pp, context=context, layout=layout), lengths)


def groups(plan: Plan) -> list[tuple[list[int], list[int]]]:
    """Tokens and ranks of every micro-batch."""
    segments, members = pairwise(plan.segment_offsets.tolist()), pairwise(plan.member_offsets.tolist())
    return [
        (plan.segment_tokens[a:b].tolist(), plan.member_ranks[c:d].tolist())
        for (a, b), (c, d) in zip(segments, members, strict=True)
    ]


def test_a_round_by_hand() -> None:
    # 4,096 tokens take 4 ranks: 2^22 of work a rank, which is the busiest whatever the others do. They take the first
    # choice that leaves it so: the smallest groups with room.
    plan = dynamic_cp(problem([4096, 2000, 1000, 500]))
    made = groups(plan)
    assert made[0] == ([4096], [0, 1, 2, 3])
    assert ([2000], [4, 5]) in made
    assert len(made) >= 3
    assert sorted(rank for _, ranks in made for rank in ranks) == list(
        range(8)
    )  # one round, all ranks in use


def test_what_is_above_the_cap_waits_for_the_next_round() -> None:
    # Eight sequences of 1,000 fill the ranks one each; eight more do not fit beside them (1,024 tokens).
    plan = dynamic_cp(problem([1000] * 16))
    slots = np.diff(plan.order_offsets)
    assert slots.tolist() == [2] * 8


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 3000), min_size=2, max_size=40))
def test_a_round_takes_what_it_would_take_if_every_sequence_were_asked(lengths: list[int]) -> None:
    lengths = sorted(lengths, reverse=True)
    filled, asked = (_Round(problem(lengths), lengths, 0) for _ in range(2))
    rest = range(1, len(lengths))
    assert filled.fill(list(rest)) == [one for one in rest if asked.fill([one])]
    assert filled.spread() == asked.spread()


def test_no_group_is_doubled_beyond_what_heads_allow() -> None:
    # Eight ranks, two heads: the two groups of two ranks may not double, and four ranks stay idle.
    two_heads = problem([2000] * 2)
    two_heads.__dict__["most_ranks"] = 2
    assert [len(ranks) for _, ranks in groups(dynamic_cp(two_heads))] == [2, 2]


def test_ranks_left_over_double_the_smallest_groups() -> None:
    # Four groups of one rank on eight: all double.
    plan = dynamic_cp(problem([1000] * 4))
    assert [len(ranks) for _, ranks in groups(plan)] == [2, 2, 2, 2]


def test_packs_of_every_group_by_hand() -> None:
    # CP 2 x DP 4, 2,048 tokens a pack: [1500, 500], [2000], [700, 700], then the last pack's last sequence alone.
    layout = Layout(cp=2)
    plan = dp_balanced(problem([1500, 500, 2000, 700, 700], context=2048, layout=layout))
    assert groups(plan) == [
        ([1500, 500], [0, 1]),
        ([2000], [2, 3]),
        ([700], [4, 5]),
        ([700], [6, 7]),
    ]


def test_too_few_sequences_for_the_groups() -> None:
    with pytest.raises(InfeasibleError, match="as many packs for each of 4 groups"):
        dp_balanced(problem([1500, 1500, 2000], context=2048, layout=Layout(cp=2)))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 8192), min_size=16, max_size=80), st.sampled_from([1, 2]))
def test_every_plan_is_sound_and_gives_all_ranks_as_many_slots(lengths: list[int], pp: int) -> None:
    for plan_of, layout in ((dynamic_cp, Layout(pp=pp)), (dp_balanced, Layout(pp=pp, cp=8))):
        plan = plan_of(problem(lengths, layout=layout))
        validate_plan(plan, np.array(lengths), pp)
        slots = np.diff(plan.order_offsets)
        assert (slots == slots[0]).all()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 8192), min_size=1, max_size=60))
def test_no_rank_of_a_round_has_more_than_the_cap(lengths: list[int]) -> None:
    plan = dynamic_cp(problem(lengths))
    by_rank = np.split(plan.order, plan.order_offsets[1:-1])
    slot_of = {int(m): slot for order in by_rank for slot, m in enumerate(order)}
    longest: dict[int, float] = {}
    for number, (tokens, _) in enumerate(groups(plan)):
        longest[slot_of[number]] = max(longest.get(slot_of[number], 0.0), max(tokens))
    for number, (tokens, ranks) in enumerate(groups(plan)):
        top = longest[slot_of[number]]
        least = 1
        while least * 1024 < top:
            least *= 2
        if len(ranks) < 8:  # the group of all ranks is the fallback
            assert sum(t**2 for t in tokens) / len(ranks) <= 1.05 * top**2 / least + 1e-6


@settings(max_examples=60)
@given(st.lists(st.integers(1, 8192), min_size=2, max_size=40))
def test_a_sequence_goes_where_the_busiest_rank_has_least(lengths: list[int]) -> None:
    lengths = sorted(lengths, reverse=True)
    made = _Round(problem(lengths), lengths, 0)
    for number, length in enumerate(lengths[1:], 1):
        busiest = max(group.work for group in made._groups)
        places = []  # smaller groups first, those there are before a new one, the older ones first
        for size in (1, 2, 4, 8):
            work = length**2 / size
            for group in made._groups:
                if group.size == size and group.tokens + length / size <= 1024:
                    places.append((max(busiest, group.work + work), group))
            if length <= 1024 * size and size <= made._free:
                places.append((max(busiest, work), size))
        end, where = min(places, key=lambda place: place[0], default=(np.inf, None))
        if end > made._cap:
            where = None
        found = made._best_group(length)
        assert found is where or found == where
        if where is not None:
            made._add(number, made._new(where) if isinstance(where, int) else where)
