"""Every kind of context parallelism under every strategy: a step runs wherever its group sizes allow, and no other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, small_cluster, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.setup import Setup, StrategyName
from hdpsim.simulator.step import simulate_step

KINDS: tuple[ContextParallelKind, ...] = ("ring", "all-gather", "gathered-ring", "ulysses")
STRATEGIES: tuple[StrategyName, ...] = ("static", "hdp-naive", "hdp-opt")
CAPACITY = 512


def most_ranks(setup: Setup) -> int:
    """Of one group: whole heads, where heads are what is spread."""
    if setup.layout.context.kind != "ulysses":
        return setup.ranks
    return min(setup.ranks, max(1, setup.model.heads // setup.layout.parallel.tp))


def can_run(setup: Setup, longest: int) -> bool:
    """Whether any group holds what it has to: the context (static), or the longest sequence with offloading."""
    most = most_ranks(setup)
    if setup.strategy.name == "static":
        needed = -(-setup.context_tokens // CAPACITY)
        degrees = [d for d in range(needed, most + 1) if setup.ranks % d == 0]
        return setup.layout.parallel.cp in degrees if setup.layout.parallel.cp else bool(degrees)
    layers = setup.model.layers // setup.layout.parallel.pp
    kept = 2 / layers if setup.strategy.selective_offloading and layers > 2 else 1.0
    return longest * kept <= most * CAPACITY


def scenario_words(setup: Setup) -> tuple[str, ...]:
    layout = setup.layout
    return (
        f"context of {setup.context_tokens} tokens",
        f"cp = {layout.parallel.cp}",
        f"cp_kind = {layout.context.kind}",
        "layout.rank_capacity",
    )


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(STRATEGIES),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, None, 1, 2, 4, 8, 16]),
    st.integers(1, 8),
    st.booleans(),
    st.lists(st.integers(1, 16 * CAPACITY), min_size=1, max_size=12),
)
@example("ulysses", "static", 2, 1, 4, 4, True, [100, 900])
@example("ulysses", "hdp-naive", 2, 1, None, 4, True, [100, 2000])
@example("ulysses", "hdp-opt", 2, 1, None, 16, True, [100, 8000])
@example("ulysses", "hdp-opt", 8, 1, None, 4, False, [600])
def test_a_step_runs_where_its_groups_are_allowed(
    kind: ContextParallelKind,
    strategy: StrategyName,
    tp: int,
    pp: int,
    cp: int | None,
    context: int,
    offload: bool,
    lengths: list[int],
):
    setup = small_setup(
        nodes=4,
        capacity=CAPACITY,
        context=context * CAPACITY,
        layout=Layout(tp=tp, pp=pp, cp=cp if strategy == "static" else None, cp_kind=kind),
        name=strategy,
        selective_offloading=offload,
    )
    batch = np.minimum(lengths, setup.context_tokens)
    if can_run(setup, int(batch.max())):
        simulate_step(setup, batch)
        return
    with pytest.raises(InfeasibleError) as refused:
        simulate_step(setup, batch)
    assert any(words in str(refused.value) for words in scenario_words(setup))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_group_has_more_ranks_than_heads_to_spread(strategy: StrategyName):
    # 64 ranks of two heads each; a long sequence would otherwise be spread over many.
    setup = small_setup(
        cluster=small_cluster(32),
        capacity=2048,
        context=4096,
        model=replace(MODEL, layers=32),
        layout=Layout(tp=4, cp_kind="ulysses"),
        name=strategy,
    )
    plan, *_ = plan_batch(setup, [4096, 3000] + [500] * 60)
    assert plan.group_size.max() == 2


def test_groups_in_whole_nodes_have_no_more_ranks_than_heads():
    # Nodes of 8 ranks: groups of 9 to 12 of the 12 heads may not become 16.
    setup = small_setup(
        cluster=small_cluster(8),
        capacity=1024,
        context=12 * 1024,
        model=replace(MODEL, heads=12, kv_heads=12),
        layout=Layout(cp_kind="ulysses"),
        selective_offloading=False,
    )
    plan, *_ = plan_batch(setup, [12 * 1024, 11_000, 10_000, 9500] + [900] * 40)
    assert 8 < plan.group_size.max() <= 12
