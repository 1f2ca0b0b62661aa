"""Memory that grows with the group that shares a sequence, where groups follow the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, small_cluster, small_setup

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster, NodeGroup
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.errors import InfeasibleError, OutOfMemoryError
from hdpsim.simulator.setup import MemoryOptions, Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.step_memory import capacity_tokens, memory_of

GIB = 2.0**30
KINDS = {
    "gathered": ({"cp_kind": "all-gather", "cp_keep_gathered": True}, MemoryOptions()),
    "steps": ({}, MemoryOptions(overheads=MemoryOverheads(ring_steps_kept=True))),
}
NARROW = replace(MODEL, vocab=1024)  # whose head hides no ring
DYNAMIC = ("hdp-naive", "hdp-balance", "hdp-opt", "flexsp", "megatron-dynamic-cp", "static")


def grown(kind: str, *, gib: float = 80.0, context: int = 2**17, **more: Any) -> Setup:
    """16 GPUs, capacity as memory allows it."""
    layout, memory = KINDS[kind]
    setup = small_setup(layout=Layout(**layout), context=context, model=NARROW, **more)
    node = setup.cluster.node
    node = replace(node, gpu=replace(node.gpu, hbm_bytes=gib * GIB))
    setup = replace(setup, cluster=replace(setup.cluster, node=node), memory=memory)
    return replace(setup, layout=setup.layout.changed(rank_capacity_tokens=None))


def plain(setup: Setup) -> Setup:
    """The same without what grows."""
    return replace(setup, layout=setup.layout.changed(cp_keep_gathered=False), memory=MemoryOptions())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DYNAMIC)
def test_what_a_plans_groups_keep_is_counted(kind: str, name: str) -> None:
    """64K tokens on the groups that 4,096 tokens a rank need: 16 ranks; each keeps of 15 others, or of 16 steps."""
    setup = grown(kind, name=name)
    setup = replace(setup, layout=setup.layout.changed(rank_capacity_tokens=4096), context_tokens=2**16)
    lengths = np.array([2**16, *[512] * 64])
    result, without = (simulate_step(one, lengths) for one in (setup, plain(setup)))
    assert result.plan.group_size.max() <= 16  # of 11 each has 5,958 tokens, and offloads what exceeds 4,096
    assert result.memory.total_bytes > without.memory.total_bytes
    if kind == "gathered":  # 8 layers, 15 x 4,096 tokens, 2 x 1,024 x 2 B
        more = result.memory.activations - without.memory.activations
        assert more == pytest.approx(8 * 15 * 4096 * 2 * 1024 * 2)


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    gib=st.sampled_from([6.0, 12.0, 40.0]),
    context=st.sampled_from([2**14, 2**17, 2**19]),
    name=st.sampled_from(["static", "hdp-naive"]),
)
def test_a_capacity_that_memory_sets_holds_the_group_of_the_context(
    kind: str, gib: float, context: int, name: str
) -> None:
    setup = grown(kind, gib=gib, context=context, name=name)
    try:
        capacity = capacity_tokens(setup)
    except OutOfMemoryError:
        return
    assert capacity <= capacity_tokens(plain(setup))
    ranks = -(-context // capacity)
    if ranks <= setup.ranks:
        assert memory_of(setup, capacity, group_ranks=ranks).fits
        assert simulate_step(setup, np.array([context])).memory.fits
    else:
        with pytest.raises(InfeasibleError):
            simulate_step(setup, np.array([context]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [[1024] * 16, [2**17]])
def test_of_a_mesh_only_the_ranks_that_share_its_packs_count(kind: str, lengths: list[int]) -> None:
    """Of single ranks nothing more is kept, nor do they have rings; of others as much as with a stated degree."""
    setup, batch = grown(kind, context=max(lengths), name="static"), np.array(lengths)
    setup = replace(setup, layout=setup.layout.changed(rank_capacity_tokens=8192))
    settled = simulate_step(setup, batch)
    degree = int(settled.plan.group_size.max())
    stated = replace(setup, layout=setup.layout.changed(cp=degree))
    assert simulate_step(stated, batch).memory == settled.memory
    more = settled.memory.total_bytes - simulate_step(plain(setup), batch).memory.total_bytes
    assert (degree > 1, more > 0.0) == (len(lengths) == 1, len(lengths) == 1)
    assert degree > 1 or more == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_no_group_holds_a_sequence_whose_keys_fill_the_memory(kind: str) -> None:
    """4M tokens: keys of 8 layers, 4 KiB each, are 128 GiB; steps of a ring, 6 KiB a token of the sequence, 24 GiB."""
    setup = grown(kind, gib=20.0, context=2**22, name="hdp-naive")
    with pytest.raises(InfeasibleError):
        simulate_step(setup, np.array([2**22]))


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_of_several_kinds_count_the_groups_that_they_are_in(kind: str) -> None:
    layout, memory = KINDS[kind]
    groups = tuple(NodeGroup(node=catalog.node(name), nodes=1) for name in ("hgx-h100-80gb", "hgx-a100-80gb"))
    mixed = MixedCluster(name="mixed", groups=groups, fabric=small_cluster(1).fabric)
    setup = small_setup(
        layout=Layout(**layout),  # type: ignore[arg-type]
        context=2**14,
        name="hdp-naive",
        cluster=mixed,
        model=NARROW,
    )
    setup = replace(setup, memory=memory, kind_calibrations=(setup.calibration, setup.calibration))
    result, without = (simulate_step(one, np.array([2**14, 512])) for one in (setup, plain(setup)))
    assert result.memory.total_bytes > without.memory.total_bytes


def test_a_word_where_a_kept_ring_has_no_steps() -> None:
    kept = KINDS["steps"][1]
    gathers = replace(
        small_setup(layout=Layout(cp=4, cp_kind="all-gather"), name="static", context=4096), memory=kept
    )
    notes = simulate_step(gathers, np.array([4096])).notes
    assert any("memory.ring_steps_kept" in note and "cp_kind is all-gather" in note for note in notes)
    alone = replace(small_setup(layout=Layout(cp=1), name="static", context=1024), memory=kept)
    notes = simulate_step(alone, np.array([1024] * 16)).notes
    assert any("memory.ring_steps_kept" in note and "no sequence is shared" in note for note in notes)


def test_small_models_are_what_the_figures_above_say() -> None:
    assert (MODEL.layers, MODEL.kv_heads * MODEL.head_dim) == (8, 1024)
