"""What an optimizer's step puts beside its states, and what only an allocator holds of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.peak import memory_report, rank_capacity_tokens
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu

LLAMA = catalog.model("llama-3.2-1b")
CLUSTER = catalog.cluster("superpod-h100")
ZERO1 = Layout().changed(sharding="zero1", gradient_bytes=2)
LEAN = MemoryOverheads(fragmentation_share=0.0)
FLAT = replace(LEAN, update_copy_bytes=6.0)
PIECES = replace(FLAT, update_in_one_piece=True)
COUNT = parameters_per_gpu(LLAMA, ZERO1, 0).total


def _report(tokens: int, overheads: MemoryOverheads, layout: Layout = ZERO1, ranks: int = 8) -> MemoryReport:
    return memory_report(LLAMA, layout, CLUSTER, ranks, tokens, overheads=overheads)


def test_copies_are_of_the_parameters_that_a_rank_updates() -> None:
    of_eight, alone = (state_bytes(LLAMA, ZERO1, ranks, 0, FLAT).update for ranks in (8, 1))
    assert of_eight == pytest.approx(6.0 * COUNT / 8)
    assert alone == pytest.approx(6.0 * COUNT)
    offloaded = ZERO1.changed(optimizer_offload=True)
    assert state_bytes(LLAMA, offloaded, 8, 0, FLAT).update == 0.0


def test_an_update_in_parts_copies_one_of_them() -> None:
    """DeepSpeed's ZeRO-3 updates a billion parameters at a time."""
    in_parts = replace(FLAT, update_parameters=1e8)
    assert state_bytes(LLAMA, ZERO1, 2, 0, in_parts).update == pytest.approx(6e8)
    assert state_bytes(LLAMA, ZERO1, 64, 0, in_parts) == state_bytes(LLAMA, ZERO1, 64, 0, FLAT)


def test_parameters_that_a_backward_soon_needs_stay_gathered() -> None:
    """A billion of 1.24 in 16 bits, 7/8 of them not its own; two layers where these are more."""
    sharded = ZERO1.changed(sharding="zero3")
    near, far = replace(LEAN, gathered_parameters=1e9), replace(LEAN, gathered_parameters=1e6)
    unit = parameters_per_gpu(LLAMA, sharded, 0).largest_unit
    gathered = state_bytes(LLAMA, sharded, 8, 0, near).gathered
    assert gathered == pytest.approx(7 / 8 * (2.0 * 1e9 + 2.0 * unit))
    assert state_bytes(LLAMA, sharded, 8, 0, far) == state_bytes(LLAMA, sharded, 8, 0, LEAN)


def test_the_update_needs_more_where_a_rank_has_few_tokens() -> None:
    """One rank: weights 2, gradients 2, optimizer 12, copies 6 B a parameter, when no activation is left."""
    report = _report(128, FLAT, ranks=1)
    outside = report.context + report.communication
    assert report.total_bytes == pytest.approx((2 + 2 + 12 + 6) * COUNT + outside)


@given(st.integers(1, 64), st.sampled_from((1, 2, 8, 64)))
def test_the_peak_is_the_larger_of_two_moments(blocks: int, ranks: int) -> None:
    without, with_copies = (_report(128 * blocks, stack, ranks=ranks) for stack in (LEAN, FLAT))
    states = state_bytes(LLAMA, ZERO1, ranks, 0, FLAT)
    in_step = states.weights + states.optimizer + states.step_gradients + states.update
    outside = without.context + without.communication
    assert with_copies.total_bytes == pytest.approx(max(without.total_bytes, in_step + outside))


@given(st.integers(1, 64), st.sampled_from((1, 2, 8, 64)))
def test_single_tensors_come_on_top_of_what_the_allocator_holds(blocks: int, ranks: int) -> None:
    """No freed block is large enough, so the driver gives as much again; it is never needed all at once."""
    without, pieces = (_report(128 * blocks, stack, ranks=ranks) for stack in (LEAN, PIECES))
    on_top = min(without.total_bytes + 6.0 * COUNT / ranks, pieces.capacity_bytes)
    assert pieces.device_bytes == pytest.approx(on_top)
    assert pieces.total_bytes == _report(128 * blocks, FLAT, ranks=ranks).total_bytes
    assert pieces.reserved_bytes == pytest.approx(on_top - without.context - without.communication)


def test_gradients_that_grow_are_all_there_in_the_step() -> None:
    """fms-acceleration's full fine-tuning in 16 bits: weights 2, gradients 2, moments 4, their root 2 B a parameter."""
    stack = replace(LEAN, update_copy_bytes=2.0, gradients_freed=True)
    layout = Layout().changed(gradient_bytes=2, optimizer_bytes=4)
    report = memory_report(LLAMA, layout, CLUSTER, 1, 1024, micro_batches=1, overheads=stack)
    assert report.allocated_bytes == pytest.approx((2 + 2 + 4 + 2) * COUNT)


def test_second_gradients_are_whole() -> None:
    """DeepSpeed's optimizer for bf16: 2 B a parameter beside 4, on however many ranks."""
    layout = Layout().changed(sharding="zero1")
    second = replace(LEAN, second_gradient_bytes=2.0)
    for ranks in (1, 8):
        more, less = (state_bytes(LLAMA, layout, ranks, 0, stack) for stack in (second, LEAN))
        assert more.gradients == pytest.approx(6.0 * COUNT) == pytest.approx(less.gradients + 2.0 * COUNT)
        assert more.step_gradients == more.gradients
    sharded = Layout().changed(sharding="zero2")
    assert state_bytes(LLAMA, sharded, 8, 0, second) == state_bytes(LLAMA, sharded, 8, 0, LEAN)


def test_buffers_of_buckets_are_there_while_layers_run_backward() -> None:
    buckets = replace(LEAN, bucket_buffer_bytes=1e9)
    assert _report(2048, buckets).total_bytes == pytest.approx(_report(2048, LEAN).total_bytes + 1e9)
    assert _report(2048, buckets, ranks=1) == _report(2048, LEAN, ranks=1)
    piped = ZERO1.changed(pp=2)
    at_the_end, without = (_report(2048, stack, piped) for stack in (buckets, LEAN))
    assert at_the_end.total_bytes == without.total_bytes
    assert at_the_end.device_bytes == pytest.approx(without.device_bytes + 1e9)


def test_freed_logits_are_held_where_there_is_room() -> None:
    """bf16 logits of 2 B each: blocks of half the size of those in fp32 that follow."""
    cached = replace(LEAN, cached_logit_bytes=2.0)
    held, without = (_report(4096, stack) for stack in (cached, LEAN))
    assert held.total_bytes == without.total_bytes
    assert held.device_bytes - without.device_bytes == pytest.approx(2.0 * 4096 * LLAMA.vocab)
    lossy, cached_lossy = (_report(4096, replace(stack, fragmentation_share=0.1)) for stack in (LEAN, cached))
    assert cached_lossy.fragmentation == pytest.approx(lossy.fragmentation - 0.1 * lossy.head)
    assert cached_lossy.device_bytes == pytest.approx(lossy.device_bytes + held.cached)
    full = replace(held, capacity_bytes=held.total_bytes)
    assert full.device_bytes == full.total_bytes
    assert full.fits


@pytest.mark.parametrize("ranks", [1, 4, 64])
def test_the_capacity_is_the_largest_that_fits(ranks: int) -> None:
    most = rank_capacity_tokens(LLAMA, ZERO1, CLUSTER, ranks, overheads=PIECES)
    assert _report(most, PIECES, ranks=ranks).fits
    assert not _report(most + 128, PIECES, ranks=ranks).fits
