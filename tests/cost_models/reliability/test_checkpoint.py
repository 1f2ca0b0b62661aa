from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reliability.checkpoint import (
    blocking_s,
    checkpoint_size,
    daly_interval_s,
    expected_ettr,
    load_s,
    upload_s,
    young_interval_s,
)
from hdpsim.cost_models.transformer.parameters import parameters

MIN = 60.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("mtbf_s", "minutes", "published"), [(24 * HOUR, 116.7, 117), (6 * HOUR, 56.7, 57), (15 * MIN, 9.14, 9.1)]
)
def test_dalys_own_figures(mtbf_s: float, minutes: float, published: float) -> None:
    interval_min = daly_interval_s(5 * MIN, mtbf_s) / MIN
    assert interval_min == pytest.approx(minutes, abs=0.05)
    assert round(interval_min, 1 if published < 10 else 0) == published


def test_young_by_hand() -> None:
    assert young_interval_s(50.0, 10_000.0) == 1000.0  # sqrt(2 x 50 x 10,000)


def test_daly_is_the_mean_time_to_failure_when_checkpoints_are_longer_than_two_of_them() -> None:
    assert daly_interval_s(200.0, 100.0) == 100.0


def exponential_run_s(interval_s: float, block_s: float, mtbf_s: float) -> float:
    """Daly's exact expected time of a second of work, restarts apart, whose failures are exponential."""
    return mtbf_s * math.expm1((interval_s + block_s) / mtbf_s) / interval_s


@given(st.floats(0.1, 100.0), st.floats(1e4, 1e7))
def test_dalys_interval_is_close_to_the_best_of_the_exact_run_time(block_s: float, mtbf_s: float) -> None:
    best = daly_interval_s(block_s, mtbf_s)
    here = exponential_run_s(best, block_s, mtbf_s)
    assert here <= min(exponential_run_s(best * k, block_s, mtbf_s) for k in (0.5, 0.8, 1.25, 2.0))


@pytest.mark.parametrize(
    ("gpus", "block_s", "restart_min", "percent"),
    [
        (16384, 10, 5, 93.2),
        (16384, 10, 10, 90.6),
        (16384, 60, 10, 85.0),
        (12288, 10, 5, 94.4),
        (12288, 10, 10, 92.4),
        (12288, 60, 10, 87.5),
    ],
)
def test_metas_expected_ratio_at_llama3s_rate(
    gpus: int, block_s: float, restart_min: float, percent: float
) -> None:
    per_s = 419 / (54 * 86400) * gpus / 16384
    interval = young_interval_s(block_s, 1 / per_s)
    assert 100 * expected_ettr(per_s, restart_min * MIN, block_s, interval) == pytest.approx(
        percent, abs=0.06
    )


def test_size_of_megascales_checkpoint() -> None:
    model, layout = catalog.model("megascale-175b"), Layout(tp=8, pp=8, vpp=6, schedule="interleaved")
    size = checkpoint_size(model, layout, 192)
    assert size.unique_bytes == pytest.approx(14 * 175e9, rel=0.01)
    # weights 2 B of 1/64 of the model, optimizer 12 B of 1/12,288; the first and last stage hold the vocabulary too
    assert size.gpu_bytes == pytest.approx(2 * 175e9 / 64 + 12 * 175e9 / 12288, rel=0.06)
    assert size.all_ranks_bytes == pytest.approx(192 * 2 * 175e9 + 12 * 175e9, rel=0.01)


def test_a_checkpoint_holds_the_states_that_there_are() -> None:
    model = catalog.model("llama-3-8b")
    size = checkpoint_size(model, Layout(sharding="zero3", optimizer_bytes=4), 64)
    assert size.unique_bytes == pytest.approx((2 + 4) * parameters(model).total)
    assert size.gpu_bytes == pytest.approx(size.unique_bytes / 64)


def test_a_checkpoint_of_adapters_has_no_optimizer_states_of_frozen_weights() -> None:
    model = replace(catalog.model("llama-3-8b"), adapter_rank=16)
    size = checkpoint_size(model, Layout(tp=2), 4)
    # r (in + out) of queries, keys and values together (4,096 and 6,144) and of the output (4,096 and 4,096), 32 times
    adapters = 32 * 16 * ((4096 + 6144) + (4096 + 4096))
    assert size.unique_bytes == pytest.approx(2 * parameters(model).total + (2 + 12) * adapters)


def test_shards_of_32_bits_are_stored_once_not_once_more_in_16() -> None:
    model = catalog.model("llama-3-8b")
    of_32_bits = MemoryOverheads(sixteen_bit_shards=False)
    size = checkpoint_size(model, Layout(sharding="zero3"), 8, of_32_bits)
    assert size.unique_bytes == size.all_ranks_bytes == pytest.approx(12 * parameters(model).total)
    assert checkpoint_size(model, Layout(), 8, of_32_bits) == checkpoint_size(model, Layout(), 8)


def test_optimizer_states_of_the_host_are_stored_and_read_but_no_gpu_copies_them() -> None:
    model, offloading = catalog.model("llama-3-8b"), Layout(tp=2, optimizer_offload=True)
    with_gpu, with_host = (checkpoint_size(model, layout, 4) for layout in (Layout(tp=2), offloading))
    assert with_host.gpu_bytes == with_host.replicated_bytes
    assert replace(with_host, gpu_bytes=with_gpu.gpu_bytes) == with_gpu


@pytest.mark.parametrize("model", ["llama-3.2-1b", "deepseek-v3", "nemotron-3-super-120b-a12b"])
@pytest.mark.parametrize("offload", [False, True])
def test_all_ranks_hold_what_is_stored_and_exactly_once_if_they_share_everything(
    model: str, offload: bool
) -> None:
    """Weights, optimizer states and layers of multi-token prediction; adapters beside frozen weights."""
    plain = catalog.model(model)
    for kind in (plain, plain if plain.layer_pattern else replace(plain, adapter_rank=16)):
        for layout in (Layout(tp=2), Layout(pp=2, sharding="none"), Layout(pp=2, tp=2, sharding="zero3")):
            size = checkpoint_size(kind, layout.changed(optimizer_offload=offload), 4)
            assert size.all_ranks_bytes >= size.unique_bytes * (1 - 1e-9)
        once = checkpoint_size(kind, Layout(sharding="zero3", optimizer_offload=offload), 4)
        assert once.all_ranks_bytes == pytest.approx(once.unique_bytes, rel=1e-9)


def test_one_reader_per_group_reads_less_and_is_faster() -> None:
    model, cluster = catalog.model("megascale-175b"), catalog.cluster("megascale")
    size = checkpoint_size(model, Layout(tp=8, pp=8), 192)
    one = load_s(size, cluster, 192, 100e9, "one-per-group")
    every = load_s(size, cluster, 192, 100e9, "every-rank")
    assert every == pytest.approx(
        size.all_ranks_bytes / 100e9 + size.gpu_bytes / (cluster.gpu.host_link_bytes_per_s / 2)  # shared
    )
    assert every > 20 * one  # 69 TB against 2.45 TB
    assert upload_s(size, cluster, 100e9) == pytest.approx(24.5, rel=0.01)
    assert 1 < blocking_s(size, cluster) < 10  # "several seconds"


@given(st.integers(1, 8), st.floats(1e9, 1e12), st.integers(1, 64))
def test_a_checkpoint_is_written_no_faster_than_nics_and_storage_take_it(
    nics: int, storage_bytes_per_s: float, nodes: int
) -> None:
    size = checkpoint_size(catalog.model("llama-3-8b"), Layout(tp=2), 4 * nodes)
    hgx = catalog.node("hgx-h100-80gb")
    cluster = Cluster(name="here", node=replace(hgx, nics=nics), nodes=nodes)
    written_s = upload_s(size, cluster, storage_bytes_per_s)
    assert written_s >= size.unique_bytes / (nodes * nics * hgx.nic_bytes_per_s) * (1 - 1e-12)
    assert written_s >= size.unique_bytes / storage_bytes_per_s * (1 - 1e-12)
    assert upload_s(size, replace(cluster, nodes=nodes + 1), storage_bytes_per_s) <= written_s


def test_an_upload_over_one_slow_nic_by_hand() -> None:
    size = checkpoint_size(catalog.model("llama-3-8b"), Layout(tp=2), 4)
    node = replace(catalog.node("hgx-h100-80gb"), nics=1, nic_bytes_per_s=12.5e9)
    # 14 B x 8.03e9 parameters = 112.4 GB; at 100 Gbit/s 9 s, whatever the storage takes beyond that
    assert upload_s(size, Cluster(name="here", node=node, nodes=1), 100e9) == pytest.approx(8.99, abs=0.01)


def test_eight_bit_copies_are_not_saved() -> None:
    model = catalog.model("llama-3-8b")
    assert checkpoint_size(model, Layout(precision="fp8"), 8) == checkpoint_size(model, Layout(), 8)
