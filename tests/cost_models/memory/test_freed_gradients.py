"""Gradients that grow while activations go, and shards of 32 bits alone: what PyTorch's FSDP keeps."""

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

LLAMA = catalog.model("llama-3-8b")
CLUSTER = catalog.cluster("superpod-h100")
SHARDED = Layout().changed(sharding="zero3")
KEPT = MemoryOverheads()
FREED = replace(KEPT, gradients_freed=True)


def _report(
    tokens: int, overheads: MemoryOverheads, *, micro_batches: int | None = 1, ranks: int = 8
) -> MemoryReport:
    return memory_report(
        LLAMA, SHARDED, CLUSTER, ranks, tokens, micro_batches=micro_batches, overheads=overheads
    )


@given(st.integers(1, 64), st.sampled_from((8, 16, 64)))
def test_the_peak_has_the_larger_of_gradients_and_activations(blocks: int, ranks: int) -> None:
    kept, freed = (_report(128 * blocks, stack, ranks=ranks) for stack in (KEPT, FREED))
    moving = kept.activations + kept.head
    assert freed.gradients + moving == pytest.approx(max(kept.gradients, moving))
    assert kept.total_bytes - freed.total_bytes == pytest.approx(min(kept.gradients, moving))


@pytest.mark.parametrize("micro_batches", [None, 2, 8])
def test_gradients_of_earlier_micro_batches_are_there(micro_batches: int | None) -> None:
    assert _report(2048, FREED, micro_batches=micro_batches) == _report(
        2048, KEPT, micro_batches=micro_batches
    )


def test_a_pipeline_keeps_them() -> None:
    piped = Layout().changed(pp=2)
    kept, freed = (
        memory_report(LLAMA, piped, CLUSTER, 8, 2048, micro_batches=1, overheads=stack)
        for stack in (KEPT, FREED)
    )
    assert kept == freed


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_the_capacity_is_the_largest_that_fits(ranks: int) -> None:
    most = rank_capacity_tokens(LLAMA, SHARDED, CLUSTER, ranks, micro_batches=1, overheads=FREED)
    assert _report(most, FREED, ranks=ranks).fits
    assert not _report(most + 128, FREED, ranks=ranks).fits
    assert most >= rank_capacity_tokens(LLAMA, SHARDED, CLUSTER, ranks, micro_batches=1, overheads=KEPT)


def test_shards_of_32_bits_alone_take_16_bytes_and_gathered_weights_are_copies() -> None:
    """8 ranks: 16 / 8 = 2 B per parameter and two units of 16-bit copies in full, where 18 / 8 and 7/8 of them were."""
    alone = replace(KEPT, sixteen_bit_shards=False)
    both, one = (state_bytes(LLAMA, SHARDED, 8, 0, stack) for stack in (KEPT, alone))
    shard = parameters_per_gpu(LLAMA, SHARDED, 0)
    assert one.weights == 0.0
    assert one.gradients + one.optimizer == pytest.approx(2.0 * shard.total)
    assert both.weights == pytest.approx(shard.total / 4)
    assert one.gathered - both.gathered == pytest.approx(2.0 * min(2 * shard.largest_unit, shard.total) / 8)


def test_whole_weights_have_their_16_bits() -> None:
    whole = Layout().changed(sharding="zero1")
    alone = replace(KEPT, sixteen_bit_shards=False)
    assert state_bytes(LLAMA, whole, 8, 0, alone) == state_bytes(LLAMA, whole, 8, 0, KEPT)
