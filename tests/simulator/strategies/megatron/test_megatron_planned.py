"""Megatron-Core's hybrid context parallelism and its scheduler for pipelines, by hand and by promise."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, problem_of, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.find_own_strategy import load_strategy
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.pipeline.validate_plan import validate_plan
from hdpsim.simulator.strategies.megatron.hybrid import first_dynamic_cp, hybrid_cp
from hdpsim.simulator.strategies.megatron.pipelined import _Draft, balanced_with_pp, layer_flop
from hdpsim.simulator.strategies.problem import PlanningProblem


def problem(lengths: list[int], *, layout: Layout | None = None, nodes: int = 1) -> PlanningProblem:
    setup = small_setup(nodes=nodes, layout=layout or Layout(), name="static", context=8192)
    return problem_of(setup, lengths)


def of_ranks(plan: Plan) -> list[list[list[int]]]:
    """By rank: the lengths of each micro-batch."""
    held = [part.tolist() for part in np.split(plan.segment_tokens, plan.segment_offsets[1:-1])]
    orders = np.split(plan.order, plan.order_offsets[1:-1])
    return [[held[m] for m in order.tolist() if m >= 0] for order in orders]


def test_long_samples_get_groups_and_short_ones_the_least_busy_rank() -> None:
    # 8 ranks of 1024. 4000 tokens: 4 ranks, 4e6 each. 1000: 1e6 each; four ranks take five of them in turn.
    plan = hybrid_cp(problem([4000, 1000, 1000, 1000, 1000, 1000]))
    ranks = of_ranks(plan)
    assert ranks[:4] == [[[4000]]] * 4
    assert sorted(len(rank) for rank in ranks[4:]) == [1, 1, 1, 2]
    assert plan.notes[0].startswith("1 rounds")


def test_empty_ranks_double_the_smallest_group() -> None:
    plan = hybrid_cp(problem([2000, 500]))  # 2 ranks and 1: 500 gets 2, then 2000 gets 4, then 500 gets 4
    assert sorted(plan.group_size.tolist()) == [4, 4]


def test_the_first_dynamic_scheduler_packs_what_ranks_hold() -> None:
    # 8 ranks of 1024: 4000 on four, four of 1000 on one each; the fifth finds no room and takes a round of all ranks
    plan = first_dynamic_cp(problem([4000, 1000, 1000, 1000, 1000, 1000]))
    assert of_ranks(plan)[0] == [[4000], [1000]]
    assert sorted(plan.group_size.tolist()) == [1, 1, 1, 1, 4, 8]
    # 2 x 500 fit a rank, so nine go into one round
    assert max(map(len, of_ranks(first_dynamic_cp(problem([500] * 9))))) == 1


def test_no_pipeline_and_no_sequence_beyond_all_ranks() -> None:
    with pytest.raises(InfeasibleError, match="without a pipeline"):
        hybrid_cp(problem([100], layout=Layout(pp=2)))
    with pytest.raises(InfeasibleError, match="does not fit on 8 ranks of 1024"):
        hybrid_cp(problem([9000]))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 8192), min_size=1, max_size=80))
def test_hybrid_plans_are_sound(lengths: list[int]) -> None:
    plan = hybrid_cp(problem(lengths))
    validate_plan(plan, np.array(lengths), 1)
    assert plan.micro_batches == len(lengths)  # nothing is packed
    packed = first_dynamic_cp(problem(lengths))
    validate_plan(packed, np.array(lengths), 1)
    held = np.add.reduceat(packed.segment_tokens, packed.segment_offsets[:-1])
    assert (held <= packed.group_size * 1024).all()
    assert len(set(np.diff(packed.order_offsets).tolist())) == 1  # one micro-batch of a round on every rank


def test_flop_are_those_of_the_model_without_its_head() -> None:
    asked = problem([1000, 3000])
    head = 2 * MODEL.hidden * MODEL.vocab * asked.lengths
    whole = [sequence_model_flop(MODEL, [length], causal=True) / 3 for length in (1000, 3000)]
    assert layer_flop(asked, backward=False) == pytest.approx(np.array(whole) - head)


def test_big_sequences_are_shared_and_small_ones_fill_all_other_slots() -> None:
    # 4 ranks in 2 stages, 2 slots each: one of 4000 is more than 1.3 times the mean work of a slot.
    asked = problem([4000, *[400] * 8], layout=Layout(pp=2))
    plan = balanced_with_pp(asked)
    slots = np.diff(plan.order_offsets)
    assert (slots == slots[0]).all()
    assert slots[0] % 2 == 0
    assert (plan.order >= 0).all()
    assert plan.group_size.max() == 4
    assert sorted(plan.group_size.tolist())[:-1] == [1] * (plan.micro_batches - 1)


def test_layout_cp_limits_the_groups() -> None:
    asked = problem([2000, *[400] * 12], layout=Layout(pp=2, cp=2))
    assert balanced_with_pp(asked).group_size.max() == 2


def test_too_few_sequences() -> None:
    with pytest.raises(InfeasibleError, match="a sequence for each of 2 slots on 4 ranks"):
        balanced_with_pp(problem([100] * 7, layout=Layout(pp=2)))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 2000), min_size=16, max_size=80), st.sampled_from([1, 2]))
def test_balanced_plans_are_sound_and_full(lengths: list[int], pp: int) -> None:
    try:
        plan = balanced_with_pp(problem(lengths, layout=Layout(pp=pp)))
    except InfeasibleError:
        return  # no number of micro-batches fits the ranks
    validate_plan(plan, np.array(lengths), pp)
    slots = np.diff(plan.order_offsets)
    assert slots.max() % pp == 0


@settings(max_examples=25)
@given(st.lists(st.integers(1, 1000), min_size=16, max_size=60))
def test_small_ones_go_where_looking_at_every_slot_sends_them(lengths: list[int]) -> None:
    asked = problem(lengths, layout=Layout(pp=2))
    draft = _Draft(asked, 2)
    flop, rest = layer_flop(asked, backward=False), np.argsort(-np.array(lengths), kind="stable").tolist()
    count, mean = 2 * asked.ranks, sum(lengths) / (2 * asked.ranks)
    load, held, packs, late = (
        np.zeros(count),
        np.zeros(count),
        [list[int]() for _ in range(count)],
        list[int](),
    )
    for sequence in rest:
        having = np.where(held + lengths[sequence] <= mean, load, np.inf)
        if np.isinf(having.min()):
            late.append(sequence)
            continue
        at = int(having.argmin())
        load[at], held[at] = load[at] + flop[sequence], held[at] + lengths[sequence]
        packs[at].append(sequence)
    for sequence in late:
        at = int(np.square(held + lengths[sequence] - mean).argmin())
        load[at], held[at] = load[at] + flop[sequence], held[at] + lengths[sequence]
        packs[at].append(sequence)
    dealt = draft._pack(rest)
    assert dealt == (all(packs) and held.max() <= asked.capacity_tokens)
    if dealt:
        assert [slot.sequences for slot in draft._small] == [
            packs[at] for at in np.argsort(load, kind="stable")
        ]


def test_what_plugs_in_by_name_is_where_the_entry_points_say() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[4] / "pyproject.toml").read_text())
    places = project["project"]["entry-points"]["hdpsim.strategies"]
    assert set(places) == {
        "flexsp", "megatron-balanced-pp", "megatron-dp-balanced", "megatron-dynamic-cp", "megatron-hybrid-cp",
    }  # fmt: skip
    assert load_strategy(places["megatron-hybrid-cp"]) is hybrid_cp
    assert all(callable(load_strategy(place)) for place in places.values())
