"""Priced functions report arguments, constants and nested calls to a listener, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware.catalog import cluster_of, gpu, node
from hdpsim.cost_models.kernels.gemm import gemm_s
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.tracing import Call, aside, note, priced, remembered, tracing, watched

H100, HOPPER = gpu("h100"), calibration("hopper")


def test_nobody_listens_nothing_is_kept() -> None:
    note(ignored=1)
    aside(lambda: pytest.fail("nobody wants to see this"))
    assert gemm_s(8192, 8192, 8192, H100, HOPPER) == gemm_s(
        8192, 8192, 8192, watched(H100, "gpu"), watched(HOPPER, "calibration")
    )


def test_a_call_reports_arguments_constants_and_what_it_called() -> None:
    with tracing() as calls:
        seconds = gemm_s(8192, 4096, 2048, watched(H100, "gpu"), watched(HOPPER, "calibration"))
    (call,) = calls
    assert call.function.__name__ == "gemm_s"
    assert (call.inputs["m"], call.inputs["n"], call.inputs["k"]) == (8192, 4096, 2048)
    assert call.read["gpu.bf16_flop_per_s"] == H100.bf16_flop_per_s
    assert call.read["calibration.gemm_efficiency"] == HOPPER.gemm_efficiency
    assert "calibration.hbm_efficiency" not in call.read
    # The roofline's HBM side is a priced function of its own.
    (memory,) = call.calls
    assert memory.inputs["traffic_bytes"] == 2 * (8192 + 4096) * 2048 + 2 * 8192 * 4096
    assert memory.read["calibration.hbm_efficiency"] == HOPPER.hbm_efficiency
    assert call.result == seconds
    aside(lambda: pytest.fail("nobody listens any more"))


def test_what_was_kept_is_worked_out_again_for_a_listener() -> None:
    kept: dict[int, int] = {}
    asked: list[int] = []

    def work(key: int) -> int:
        asked.append(key)
        return key * key

    assert [remembered(kept, 3, work) for _ in range(2)] == [9, 9]
    assert asked == [3]
    with tracing():
        assert remembered(kept, 3, work) == 9
        aside(lambda: asked.append(0))
    assert asked == [3, 3, 0]


def test_parts_of_a_watched_value_are_watched_under_their_own_name() -> None:
    cluster = watched(cluster_of(node("hgx-h100"), 64), "cluster")
    collectives = Collectives(FabricModel(cluster, watched(HOPPER, "calibration").network))
    group = collectives.group(64)
    with tracing() as calls:
        collectives.all_gather_s(np.array([1e9]), group)
    assert calls[0].read["network.nic_efficiency"] == HOPPER.network.nic_efficiency
    assert calls[0].read["node.nics"] == 8
    assert calls[0].inputs["algorithm"].startswith("ring")


def test_a_watched_value_is_a_value_of_its_kind_and_equals_no_other() -> None:
    copy = watched(H100, "gpu")
    assert isinstance(copy, type(H100))
    assert copy != H100
    assert copy != watched(H100, "gpu")
    assert replace(copy, sm_count=100).sm_count == 100
    assert {copy: 1}[copy] == 1
    with pytest.raises(AttributeError):
        copy.sm_count = 3  # type: ignore[misc]


def test_methods_and_errors() -> None:
    class Pump:
        @priced("flow")
        def seconds(self, litres: float, *, rate: float = 2.0) -> float:
            note(half=litres / 2)
            return litres / rate

    with tracing() as calls:
        assert Pump().seconds(4.0) == 2.0
        with pytest.raises(ZeroDivisionError):
            Pump().seconds(4.0, rate=0.0)
    first, failed = calls
    assert (first.owner, first.terms) == (Pump, ("flow",))
    assert first.inputs == {"litres": 4.0, "rate": 2.0, "half": 2.0}
    assert isinstance(failed, Call)
    assert failed.result is None
