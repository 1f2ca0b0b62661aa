"""What records say of their machines: network of a server, power of its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from hdpsim.experiments.records.setup import _cluster, collective_share, nic_gbps
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import RunConfig


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


def test_jean_zays_servers_are_those_that_notes_describe() -> None:
    """Four links of 100 Gbit/s for eight GPUs, one of them for collectives, with a column or with words."""
    run = {"gpu": "A100-80G-SXM", "n_gpus": 16}
    named = _cluster(Run(RunConfig(**run, switches=(("node", "jean-zay-a100-80gb"),))), 16, []).node
    described = _cluster(Run(RunConfig(**run, notes="4x100Gb OPA per node")), 16, []).node
    for node in (named, described):
        assert node.nic_bytes_per_s_per_gpu == pytest.approx(6.25e9)
        assert node.collective_share == 0.25


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


def test_a_source_whose_own_products_show_that_its_boards_have_less_power() -> None:
    for family, board_w in (("simumax", 775), ("nemo", None)):
        run = Run(RunConfig(gpu="B200-SXM-180G", family=family))
        found = setting_of(run, "board_w")
        assert (found and found.value) == board_w
        assert _cluster(run, 8, []).gpu.tdp_w == (board_w or 1000)


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
