"""WLB-LLM's packs of equal work and DistCA's disaggregated attention as strategies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.layer.attention.ring_attention import CUT_ALONG_TOKENS
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.planning import micro_batch_cost, plan_batch
from hdpsim.simulator.play.pipeline.validate_plan import validate_plan
from hdpsim.simulator.setup import OF_PAPERS, Setup
from hdpsim.simulator.step import simulate_step

CHANGES = ("layout.rank_capacity=8K", "data.context=16K", "layout.tp=1", "memory.must_fit=false")
"""Eight ranks of 8K tokens, sequences of up to 16K."""


def setup_of(name: str, *changes: str) -> Setup:
    kind = ("layout.cp_kind=disaggregated",) if name == "distca" else ()
    return load_scenario("quickstart-8gpu", (*CHANGES, *kind, *changes)).setup(name)


@pytest.mark.parametrize("name", OF_PAPERS)
@settings(max_examples=25)
@given(lengths=st.lists(st.integers(1, 16384), min_size=1, max_size=60))
def test_plans_keep_every_promise(name: str, lengths: list[int]) -> None:
    setup = setup_of(name)
    plan, problem, _ = plan_batch(setup, lengths)
    validate_plan(plan, np.array(lengths), problem.stages)
    again, _, _ = plan_batch(setup, lengths)
    assert np.array_equal(plan.segment_sequence, again.segment_sequence)
    assert np.array_equal(plan.order, again.order)


@pytest.mark.parametrize("name", OF_PAPERS)
def test_pipelines_and_both_executors(name: str) -> None:
    lengths = np.random.default_rng(0).integers(100, 16384, 40)
    setup = setup_of(name, "layout.pp=2")
    replayed = simulate_step(setup, lengths)
    validate_plan(replayed.plan, lengths, 2)
    engine = replace(setup, execution=replace(setup.execution, executor="engine"))
    assert simulate_step(engine, lengths).step_s == pytest.approx(replayed.step_s, rel=1e-9)


def test_wlb_llm_has_packs_of_equal_work_where_the_mesh_has_packs_of_equal_length() -> None:
    """One sequence of 16K, and 16K in short ones: equal in length, not in work."""
    lengths = [16384, *[512] * 128]
    wlb, static = (simulate_step(setup_of(name, "layout.cp=2"), lengths) for name in ("wlb-llm", "static"))
    assert set(wlb.plan.group_size) == {2}
    tokens = wlb.plan.segment_tokens
    held = np.add.reduceat(tokens, wlb.plan.segment_offsets[:-1])
    with_long = int(
        held[np.repeat(np.arange(len(held)), np.diff(wlb.plan.segment_offsets))[tokens == 16384][0]]
    )
    assert with_long == 16384  # nothing more goes to the long one
    others = held[held != with_long]
    assert others.max() - others.min() <= 512
    assert wlb.step_s <= static.step_s


def test_wlb_llm_takes_the_smallest_mesh_that_holds_the_context() -> None:
    plan, _, _ = plan_batch(setup_of("wlb-llm"), [100, 200])
    assert set(plan.group_size) == {2}
    with pytest.raises(InfeasibleError, match="cp must be at least 2"):
        plan_batch(setup_of("wlb-llm", "layout.cp=1"), [100])


def test_distca_shares_everything_with_everybody() -> None:
    lengths = [16384, *[700] * 90]  # 79K tokens of 64K that fit at a time
    plan, _, _ = plan_batch(setup_of("distca"), lengths)
    assert plan.micro_batches == 2
    assert set(plan.group_size) == {8}
    load_scenario("quickstart-8gpu")
    with pytest.raises(InfeasibleError, match=r"needs layout\.cp_kind = disaggregated, not ring"):
        plan_batch(setup_of("distca", "layout.cp_kind=ring"), lengths)


def test_distca_refuses_what_all_ranks_together_do_not_hold() -> None:
    setup = setup_of("distca", "layout.rank_capacity=1K")  # eight ranks of 1K
    plan_batch(setup, [8192, 1])
    with pytest.raises(InfeasibleError, match="8193 tokens does not fit on 8 ranks of 1024 tokens"):
        plan_batch(setup, [8193, 1])


def test_distca_balances_attention_that_packs_cannot() -> None:
    """One long sequence among short ones: whoever holds it is late, unless its attention is shared."""
    lengths = [8192, *[256] * 160]
    distca, wlb = (simulate_step(setup_of(name), lengths).step_s for name in ("distca", "wlb-llm"))
    assert distca < wlb


def test_wlb_llm_chooses_pack_by_pack_how_to_cut() -> None:
    def sharding(name: str, *changes: str) -> str | None:
        return micro_batch_cost(setup_of(name, *changes)).layout.context.sharding

    assert sharding("wlb-llm") == sharding("hdp-opt") == "adaptive"
    assert sharding("wlb-llm", "layout.cp_sharding=document") == "document"
    assert sharding("static") is None  # by document
    mesh = setup_of("wlb-llm", "strategy.dynamic_groups=false")  # which is no longer the paper's
    assert micro_batch_cost(mesh).layout.context.sharding is None


@settings(max_examples=25)
@given(
    lengths=st.lists(st.sampled_from([40, 300, 1000, 5000, 16384]), min_size=1, max_size=60),
    kind=st.sampled_from(CUT_ALONG_TOKENS),
)
def test_choosing_is_no_slower_than_either(lengths: list[int], kind: str) -> None:
    steps = [
        simulate_step(
            setup_of("wlb-llm", "layout.cp=4", f"layout.cp_kind={kind}", f"layout.cp_sharding={how}"), lengths
        )
        for how in ("auto", "document", "pack")
    ]
    plans = [step.plan for step in steps]
    assert np.array_equal(plans[0].segment_sequence, plans[1].segment_sequence)
    assert np.array_equal(plans[0].segment_sequence, plans[2].segment_sequence)
    assert steps[0].step_s <= min(step.step_s for step in steps[1:]) * (1 + 1e-12)
