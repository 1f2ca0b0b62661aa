"""What records say of their machines: network of a server, hosts that check collectives, power of its GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.experiments.records.machine import checks_seen, collective_share, nic_gbps
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run import RunConfig


@pytest.mark.parametrize(
    ("config", "gbps"),
    [
        ({"notes": "A100 nodes, 4x100Gb OPA per node (recalled)", "gpus_per_node": 8}, 50.0),
        ({"notes": "400 Gbps per node", "gpus_per_node": 4}, 100.0),
        ({"notes": "400 Gbps per node", "nic_gbps_per_gpu": 200.0}, 200.0),
        ({"notes": "NIC 8x400Gb of DGX-H100 (inferred)"}, None),
        ({"notes": "8 GPUs per node"}, None),
    ],
)
def test_network_of_a_server(config: dict[str, Any], gbps: float | None) -> None:
    assert nic_gbps(RunConfig(**{"gpu": "h100", **config})) == gbps


def test_collectives_use_one_link_of_omni_path() -> None:
    shares = {"4x100Gb OPA per node": 0.25, "4x100Gb per node": 1.0, "100Gb Omni-Path per node": 1.0, "": 1.0}
    assert {notes: collective_share(RunConfig(gpu="h100", notes=notes)) for notes in shares} == shares


@pytest.mark.parametrize(
    ("stated", "boosted"),
    [
        ({"notes": "2024-08-22, vboost run; x"}, True),
        ({"notes": "2024-08-22; x"}, False),
        (
            {
                "framework": "NeMo (MLPerf v4.1)",
                "micro_batch": 2,
                "n_gpus": 512,
                "global_batch_seqs": 2048,
                "notes": "config DGXH100_64x8x128x4x8_mbs2 parsed",
            },
            True,
        ),
        (
            {
                "framework": "NeMo (MLPerf v4.1)",
                "micro_batch": 2,
                "n_gpus": 256,
                "global_batch_seqs": 2048,
                "notes": "config DGXH100_32x8x256x4x8_mbs2 parsed",
            },
            False,
        ),
        (
            {"framework": "NeMo (MLPerf v4.0)", "micro_batch": 1, "n_gpus": 512, "global_batch_seqs": 2048},
            False,
        ),
        (
            {"framework": "NeMo (MLPerf v3.1)", "micro_batch": 2, "n_gpus": 512, "global_batch_seqs": 2048},
            False,
        ),
        ({"framework": "NeMo (MLPerf v4.1)", "task": "lora"}, True),
        ({"framework": "NeMo (MLPerf v5.0)", "task": "lora"}, False),
    ],
)
def test_power_moved_to_the_tensor_cores(stated: dict[str, Any], boosted: bool) -> None:
    run = Run(RunConfig(**{"gpu": "h100", "tp": 4, "pp": 8, **stated}))
    found = setting_of(run, "tensor_boost")
    assert (found is not None) is boosted
    assert found is None or bool(found.words) is (found.kind != "stated")


@pytest.mark.parametrize(
    ("stated", "node"),
    [
        ({"gpu": "H100-SXM-80G", "notes": "AWS p5, 32 x EFA"}, "p5-h100-80gb"),
        ({"gpu": "A100-80G-SXM", "notes": "EFA"}, None),
        ({"gpu": "H100-SXM-80G", "notes": "AWS p5e"}, None),
        ({"gpu": "A100-40G-SXM", "family": "pythia"}, "p4d"),
    ],
)
def test_nodes_of_clouds(stated: dict[str, Any], node: str | None) -> None:
    found = setting_of(Run(RunConfig(**stated)), "node")
    assert (found and found.value) == node


_GATHERED = "NCCL busbw measured in the same job with 1 GiB fp32: AR 180.1 AG {} RS 70.2 GB/s (all ranks)"


def _checked(gpus: int, bus_gbs: float) -> bool:
    config = RunConfig(gpu="h100", notes=_GATHERED.format(bus_gbs))
    return bool(checks_seen(config, catalog.cluster_of("p5-h100-80gb", gpus=gpus), calibration("hopper")))


def test_hosts_whose_checks_a_gather_shows() -> None:
    # 256 GPUs gather 1 GiB in 13.9 ms over the network, and meet for 8 x 212 + 248 x 327 us before: 77 and 11 GB/s
    assert [_checked(256, bus_gbs) for bus_gbs in (76.0, 40.0, 20.0, 11.0)] == [False, False, True, True]
    assert not _checked(8, 1.0)  # hosts of one node


@given(st.sampled_from([16, 64, 512]), st.floats(0.1, 500.0), st.floats(1.0, 10.0))
def test_a_slower_gather_shows_checks_no_less(gpus: int, bus_gbs: float, slower: float) -> None:
    assert _checked(gpus, bus_gbs / slower) >= _checked(gpus, bus_gbs)


def test_a_record_with_a_slow_gather_has_its_collectives_checked() -> None:
    stated: dict[str, Any] = {"gpu": "H100-SXM-80G", "n_gpus": 256, "gpus_per_node": 8, "framework": "nanotron",
        "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 32, "ffn_hidden": 8192, "seq_len": 4096, "tp": 1,
        "pp": 1, "global_batch_seqs": 256, "micro_batch": 1, "notes": _GATHERED.format(13.4)}  # fmt: skip
    run = prepare(RunConfig(**stated))
    assert run.setup.layout.host.checked_collectives
    assert any("the job's own gather" in words for words in run.assumptions)
    for config, without in (
        (RunConfig(**stated), frozenset({"inferred"})),
        (RunConfig(**{**stated, "notes": "AG 13.4"}), frozenset()),
    ):
        assert not prepare(config, without=without).setup.layout.host.checked_collectives
