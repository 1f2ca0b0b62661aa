"""Power of GPUs and servers: by hand at its limits, and between them for whatever a GPU does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.power import GpuWork, gpu_w, idle_w, node_w, waiting_w

H100 = catalog.gpu("h100-80gb")
HOPPER = calibration("hopper")
SECONDS = st.floats(0.0, 100.0)


def work(**spent: float) -> GpuWork:
    nothing = dict.fromkeys(("matrix_s", "memory_s", "communication_s", "waiting_s"), 0.0)
    return GpuWork(**{**nothing, "product_flop": 0.0, "attention_flop": 0.0, **spent})


def test_each_activity_alone() -> None:
    def drawn(**spent: float) -> float:
        return gpu_w(work(**spent), H100, HOPPER, "bf16")

    assert drawn(memory_s=2.0) == pytest.approx(0.6 * 700)
    assert drawn(communication_s=2.0) == pytest.approx(0.5 * 700)
    assert drawn(waiting_s=2.0) == pytest.approx(0.3 * 700)
    assert drawn(matrix_s=1.0, product_flop=1e15) == 700  # 175 + 800 W is more than the board may
    assert drawn(matrix_s=1.0, product_flop=3e14, attention_flop=1e14) == pytest.approx(175 + 0.8e-12 * 4e14)
    both, hot = work(matrix_s=1.0, product_flop=2e14, attention_flop=1e14), replace(H100, matrix_energy=1.5)
    assert gpu_w(both, hot, HOPPER, "bf16") == pytest.approx(175 + 0.8e-12 * (1.5 * 2e14 + 1e14))


def test_where_matrix_work_is_slowed_down_the_limit_is_drawn() -> None:
    rate = (H100.tdp_w - HOPPER.static_w) / HOPPER.bf16_joule_per_flop
    assert gpu_w(work(matrix_s=1.0, product_flop=rate), H100, HOPPER, "bf16") == pytest.approx(H100.tdp_w)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(SECONDS, SECONDS, SECONDS, st.floats(0.1, 100.0), st.floats(0.0, 1e17), st.floats(0.0, 1e17))
def test_between_static_and_limit(
    matrix: float, memory: float, talk: float, wait: float, products: float, attention: float
) -> None:
    spent = GpuWork(
        matrix_s=matrix,
        memory_s=memory,
        communication_s=talk,
        waiting_s=wait,
        product_flop=products,
        attention_flop=attention,
    )
    drawn = gpu_w(spent, H100, HOPPER, "bf16")
    assert min(HOPPER.static_w, waiting_w(H100)) * (1 - 1e-9) <= drawn <= H100.tdp_w * (1 + 1e-9)
    more = replace(spent, waiting_s=spent.waiting_s + 10.0)
    if drawn > waiting_w(H100):
        assert gpu_w(more, H100, HOPPER, "bf16") < drawn


def test_idle_boards() -> None:
    assert idle_w(H100) == 68
    assert idle_w(replace(H100, idle_w=None)) == pytest.approx(70)


def test_a_server_at_full_load_and_idle() -> None:
    node = catalog.node("hgx-h100-80gb")
    assert node_w(node, 700.0) == pytest.approx(1.5 * 8 * 700)
    assert node_w(node, 0.0) == pytest.approx(0.25 * 8 * 700)
