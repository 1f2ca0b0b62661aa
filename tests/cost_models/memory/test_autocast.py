"""What weights of 32 bits under autocast keep, and keys and values that transformers' models keep for generation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import RecomputeKind
from hdpsim.cost_models.memory.activations import activation_bytes_per_token_layer, norm_copies
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.peak import memory_report
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu

LLAMA = catalog.model("llama-2-7b")
CLUSTER = catalog.cluster("superpod-h100")
SHARDED = Layout().changed(sharding="zero3")
LEAN = MemoryOverheads(sixteen_bit_shards=False)
WIDE = replace(LEAN, autocast=True)
HIDDEN = 4096


def _kept(layout: Layout, overheads: MemoryOverheads) -> float:
    return activation_bytes_per_token_layer(LLAMA, layout, overheads=overheads)


@pytest.mark.parametrize(("recompute", "times"), [("none", 2), ("full", 1)])
def test_the_residual_stream_has_32_bits_each_time_it_is_kept(recompute: RecomputeKind, times: int) -> None:
    layout = SHARDED.changed(recompute=recompute)
    assert _kept(layout, WIDE) - _kept(layout, LEAN) == pytest.approx(times * 2.0 * HIDDEN)
    assert _kept(SHARDED.changed(recompute="full"), WIDE) == pytest.approx(4.0 * HIDDEN)


def test_norms_of_a_wide_stream_make_no_copy() -> None:
    """16 bits: a copy of 4 for 2 of the input, and 2 put out; 32 bits: 4 put out. Twice a layer."""
    assert norm_copies(LLAMA, SHARDED) == pytest.approx(2 * 4.0 * HIDDEN)
    assert norm_copies(LLAMA, SHARDED, wide=True) == pytest.approx(2 * 4.0 * HIDDEN)


def test_gathered_weights_have_32_bits() -> None:
    pair = 2 * parameters_per_gpu(LLAMA, SHARDED, 0).largest_unit
    wide, narrow = (state_bytes(LLAMA, SHARDED, 8, 0, stack).gathered for stack in (WIDE, LEAN))
    assert wide - narrow == pytest.approx(2.0 * pair)
    both = replace(WIDE, sixteen_bit_shards=True)  # shards in 16 bits are gathered
    assert state_bytes(LLAMA, SHARDED, 8, 0, both) == state_bytes(
        LLAMA, SHARDED, 8, 0, replace(both, autocast=False)
    )


@given(st.integers(1, 32), st.sampled_from(("none", "selective", "full")))
def test_keys_and_values_stay_where_layers_are_computed_again(blocks: int, recompute: RecomputeKind) -> None:
    """2 B x 2 x 32 heads x 128 of 32 layers; without recomputation attention keeps them anyway."""
    layout = SHARDED.changed(recompute=recompute)
    kept = replace(LEAN, keys_values_kept=True)
    more, less = (
        memory_report(LLAMA, layout, CLUSTER, 8, 128 * blocks, overheads=stack) for stack in (kept, LEAN)
    )
    again = 128 * blocks * 32 * 4.0 * HIDDEN if recompute == "full" else 0.0
    assert more.activations - less.activations == pytest.approx(again)
    assert more.working_set == less.working_set
