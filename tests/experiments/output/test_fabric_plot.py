"""Drawing a fabric: both formats, full and collapsed, the same bytes every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.experiments.output.plots.fabric import draw_fabric

GPU = Gpu(
    name="H100", bf16_flop_per_s=989e12, fp8_flop_per_s=None, hbm_bytes=80 * 2**30, hbm_bytes_per_s=3.35e12,
    sm_count=132, nvlink_bytes_per_s=450e9, host_link_bytes_per_s=55e9, host_link_duplex_bytes_per_s=40e9,
    tdp_w=700, calibration="h100",
)  # fmt: skip
NODE = Node(name="server", gpu=GPU, gpus=4, nics=4, nic_bytes_per_s=50e9, host_memory_bytes=2e12)


@pytest.mark.parametrize(("nodes", "suffix"), [(8, "png"), (512, "svg"), (1, "png")])
def test_drawings(tmp_path: Path, nodes: int, suffix: str) -> None:
    path = tmp_path / f"fabric.{suffix}"
    draw_fabric(Cluster(name="test", node=NODE, nodes=nodes, fabric=Fabric(nodes_per_block=2)), path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_devices_are_counted_in_the_legend(tmp_path: Path) -> None:
    path = tmp_path / "fabric.svg"
    draw_fabric(Cluster(name="test", node=NODE, nodes=512), path)
    assert "gpu (2,048)" in path.read_text()
