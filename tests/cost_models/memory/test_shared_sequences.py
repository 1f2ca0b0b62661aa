"""What ranks that share a sequence hold of each other: by hand, and as the report of a GPU counts it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import LEAN, MemoryOverheads
from hdpsim.cost_models.memory.peak import memory_report, rank_capacity_tokens
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.memory.shared_sequences import (
    bytes_at_attention,
    gathered_bytes_per_token,
    ring_bytes_per_token,
    ring_step_bytes_per_token,
)

STEPS = MemoryOverheads(ring_steps_kept=True)
CLUSTER = catalog.cluster_of("hgx-a800-80gb", 64)
SEVEN_B = replace(
    catalog.model("llama-2-7b"), layers=4
)  # 32 heads of 128, as many of keys and values; f 11008
GROUPED = replace(catalog.model("llama-3-8b"), layers=4)  # 32 heads of 128, 8 of keys and values
LATENT = catalog.model("deepseek-v3")  # 128 heads, queries and keys 192 wide, values 128


def report(
    tokens: int, overheads: MemoryOverheads = LEAN, *, group: int | None = None, **layout: Any
) -> MemoryReport:
    return memory_report(
        SEVEN_B, Layout(**layout), CLUSTER, 64, tokens, overheads=overheads, group_ranks=group
    )


def test_ring_buffers() -> None:
    # 8 KV heads of 128 on tp 2: 4 heads x 128 x (K, V) x 2 buffers x 6 B
    assert ring_bytes_per_token(catalog.model("llama-7b"), Layout(tp=2)) == 4 * 128 * 2 * 2 * 6


def test_a_step_of_a_ring_by_hand() -> None:
    # keys and values 2 x 4096 x 2 B, output 4096 x 2 B, log-sum-exp 32 x 4 B
    assert ring_step_bytes_per_token(SEVEN_B, Layout()) == 16384 + 8192 + 128
    assert ring_step_bytes_per_token(SEVEN_B, Layout(tp=4)) == (16384 + 8192 + 128) / 4
    assert ring_step_bytes_per_token(GROUPED, Layout()) == 16384 / 4 + 8192 + 128
    # keys and values of all heads
    assert ring_step_bytes_per_token(LATENT, Layout()) == 128 * (2 * (192 + 128) + 2 * 128 + 4)


def test_a_layer_at_its_attention_by_hand() -> None:
    # input, normalised input, queries, keys, values and output, log-sum-exp
    here = 8192 + 8192 + 3 * 8192 + 8192 + 128
    assert bytes_at_attention(SEVEN_B, Layout(), 0.0, moe=False) == here
    assert bytes_at_attention(SEVEN_B, Layout(), 1000.0, moe=False) == here - 1000
    # computed again in the backward, while the gradient of the layer's output waits
    assert bytes_at_attention(SEVEN_B, Layout(recompute="full"), 0.0, moe=False) == here + 8192


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_fuller_of_a_rings_forward_and_the_layers_backward_counts(recompute: str) -> None:
    """Of 32 ranks: 24,704 B x 32 = 772 KiB a token beside what the layer has by then; of 2 the backward needs more."""
    tokens, shared = 4096, {"recompute": recompute, "sharding": "zero3"}
    kept = 8192 if recompute == "full" else report(1, cp=32, **shared).activations / 4  # of each of 4 layers
    here = 8192 + 8192 + 3 * 8192 + 8192 + 128 + (8192 if recompute == "full" else 0) - kept
    head = report(tokens, cp=32, **shared).head
    freed, full = (report(tokens, one, cp=32, **shared) for one in (LEAN, STEPS))
    assert full.working_set == pytest.approx(tokens * (32 * 24704 + here) - head)
    assert full.working_set > freed.working_set
    assert full.activations == freed.activations  # none of it lasts
    assert report(tokens, STEPS, cp=2, **shared) == report(tokens, cp=2, **shared)


@pytest.mark.parametrize("kind", ["all-gather", "gathered-ring", "double-ring", "ulysses", "hybrid"])
def test_only_a_ring_has_steps_to_keep(kind: str) -> None:
    assert report(4096, STEPS, cp=32, cp_kind=kind) == report(4096, cp=32, cp_kind=kind)
    assert report(4096, STEPS, cp=1) == report(4096, cp=1)


def test_what_stays_gathered_by_hand() -> None:
    """2 x 4096 x 2 B of 7 other ranks, in each of 4 layers; a layer that is computed again gathers again."""
    shared = {"cp": 8, "cp_kind": "all-gather", "sharding": "zero3"}
    once, twice = (report(4096, cp_keep_gathered=kept, **shared) for kept in (True, False))
    assert once.activations - twice.activations == pytest.approx(4 * 4096 * 7 * 16384)
    once, twice = (report(4096, cp_keep_gathered=kept, recompute="full", **shared) for kept in (True, False))
    assert once == twice
    assert gathered_bytes_per_token(SEVEN_B, Layout(cp_keep_gathered=True)) == 0.0  # of a ring


@settings(max_examples=30, deadline=None)
@given(
    sequence=st.sampled_from([2**16, 2**18]),
    groups=st.lists(st.sampled_from([2, 4, 8, 16, 32, 64]), min_size=2, max_size=2, unique=True),
    gathers=st.booleans(),
)
def test_larger_groups_never_need_more_for_a_sequence(
    sequence: int, groups: list[int], gathers: bool
) -> None:
    """What a GPU holds of the others is the sequence's, however many share it; the rest of it gets smaller."""
    layout = {"cp_kind": "all-gather", "cp_keep_gathered": True} if gathers else {"cp_kind": "ring"}
    few, many = sorted(groups)
    smaller, larger = (report(sequence // ranks, STEPS, group=ranks, **layout) for ranks in (few, many))
    assert larger.total_bytes <= smaller.total_bytes


@settings(max_examples=30, deadline=None)
@given(
    group=st.sampled_from([1, 2, 8, 64]),
    gathers=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_the_capacity_of_a_group_is_what_fits(group: int, gathers: bool, recompute: str) -> None:
    kind = {"cp_kind": "all-gather", "cp_keep_gathered": True} if gathers else {"cp_kind": "ring"}
    layout = Layout(sharding="zero3", recompute=recompute, **kind)  # type: ignore[arg-type]
    capacity = rank_capacity_tokens(SEVEN_B, layout, CLUSTER, 64, overheads=STEPS, group_ranks=group)
    fits, too_much = (
        memory_report(SEVEN_B, layout, CLUSTER, 64, tokens, overheads=STEPS, group_ranks=group)
        for tokens in (capacity, capacity + 128)
    )
    assert fits.fits
    assert not too_much.fits
    alone = rank_capacity_tokens(SEVEN_B, layout, CLUSTER, 64, overheads=STEPS, group_ranks=1)
    assert capacity <= alone
