"""What a GPU gets of the way to host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.offloading import offload_bytes_per_s

CAL = replace(calibration("ampere"), host_link_efficiency=0.9, host_memory_bytes_per_s=1e15)
A100 = catalog.cluster("megascale")


def test_two_gpus_share_a_pcie_switch() -> None:
    # 25.9 GB/s one way of a PCIe 4.0 link, two GPUs behind it
    assert offload_bytes_per_s(A100, Layout(), CAL) == pytest.approx(0.9 * 25.9e9 / 2)


def test_in_a_pipeline_both_directions_are_busy() -> None:
    assert offload_bytes_per_s(A100, Layout(pp=4), CAL) == pytest.approx(0.9 * 18.5e9 / 2)


def test_host_memory_is_shared_by_the_node() -> None:
    slow = replace(CAL, host_memory_bytes_per_s=4e10)
    assert offload_bytes_per_s(A100, Layout(), slow) == pytest.approx(4e10 / 8)
    assert offload_bytes_per_s(A100, Layout(pp=2), slow) == pytest.approx(4e10 / 16)


def test_a_switch_has_no_more_gpus_than_the_node() -> None:
    one = replace(A100, node=replace(A100.node, gpus=1))
    assert offload_bytes_per_s(one, Layout(), CAL) == pytest.approx(0.9 * 25.9e9)
