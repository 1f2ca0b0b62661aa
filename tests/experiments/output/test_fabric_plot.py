"""Drawing a fabric: both formats; equal devices are drawn once, with their number and rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.experiments.output.plots.fabric import plot_fabric
from hdpsim.experiments.output.plots.style import write_figure

GPU = Gpu(
    name="H100", bf16_flop_per_s=989e12, fp8_flop_per_s=None, hbm_bytes=80 * 2**30, hbm_bytes_per_s=3.35e12,
    sm_count=132, nvlink_bytes_per_s=450e9, host_link_bytes_per_s=55e9, host_link_duplex_bytes_per_s=40e9,
    tdp_w=700, calibration="h100",
)  # fmt: skip
NODE = Node(name="server", gpu=GPU, gpus=4, nics=4, nic_bytes_per_s=50e9, host_memory_bytes=2e12)


@pytest.mark.parametrize(("nodes", "suffix"), [(8, "png"), (512, "svg"), (1, "png")])
def test_drawings(tmp_path: Path, nodes: int, suffix: str) -> None:
    path = tmp_path / f"fabric.{suffix}"
    cluster = Cluster(name="test", node=NODE, nodes=nodes, fabric=Fabric(nodes_per_block=2))
    write_figure(plot_fabric(cluster), path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def words_of(cluster: Cluster) -> list[str]:
    return [text.get_text() for text in plot_fabric(cluster).axes[0].texts]


def test_equal_devices_are_counted_and_rates_said() -> None:
    # 512 nodes of 4 GPUs and 4 NICs; blocks of 32 nodes with 4 leaves (one a rail): 16 blocks, 64 leaves
    shown = set(words_of(Cluster(name="test", node=NODE, nodes=512)))
    assert {
        "leaf\n64 in all",
        "GPU\n4 a node",
        "512 x node: 4 x H100",
        "16 x block: 32 nodes, 128 GPUs",
    } <= shown
    assert {"NVLink 450 GB/s\na GPU", "400 Gbit/s a NIC", "as much up as down"} <= shown


def test_a_single_node_has_no_network() -> None:
    shown = words_of(Cluster(name="test", node=NODE, nodes=1))
    assert "NVSwitch" in shown
    assert not any("NIC" in text or "block" in text for text in shown)


def test_oversubscription_is_said() -> None:
    fabric = Fabric(
        nodes_per_block=2, blocks_per_pod=2, leaf_oversubscription=2.0, spine_oversubscription=7.0
    )
    shown = set(words_of(Cluster(name="test", node=NODE, nodes=16, fabric=fabric)))
    assert {"2 times less up than down", "7 times less up than down", "cluster: 4 pods"} <= shown
