"""tools/bytescale_machines.py: which machine a figure speaks for, on kernels that can be checked by hand."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from hdpsim.cost_models.calibration.calibration import calibration, calibration_names
from hdpsim.experiments.papers.bytescale_steps import Machine

TOOL: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[3] / "tools/bytescale_machines.py")
)


def _of(figure: str, name: str, tp: int) -> dict[str, float]:
    rows = TOOL["kernels_of"](Machine.named(name))[figure][tp]
    return {row["what"].rpartition(": ")[2]: row["predicted"] for row in rows}


def test_a_kernel_takes_half_as_long_on_twice_the_gpus() -> None:
    one, two = (_of("18a", "A100 8x200G", tp) for tp in (1, 2))
    # 2 x 8192^2 x 4096 FLOP at 0.675 of 312e12 FLOP/s with ramp and last wave
    assert one["ring_step"] == pytest.approx(1e3 * 2 * 8192**2 * 4096 / (0.675 * 312e12), rel=0.15)
    assert two["ring_step"] == pytest.approx(
        one["ring_step"] / 2, rel=0.05
    )  # a last wave takes more of half the work
    assert two["merge"] == pytest.approx(one["merge"] / 2, rel=0.01)


def test_rates_of_a_machine_may_be_its_own() -> None:
    found = _of("18a", "H20 4x200G, rates of Figure 18a", 2)
    assert found["ring_step"] == pytest.approx(2.8, rel=0.03)  # what the figure shows, from which the rate is


def test_the_degree_with_the_smallest_median_is_taken() -> None:
    rows = {1: [{"error": 0.5}, {"error": None}], 2: [{"error": -0.1}, {"error": 0.3}]}
    tp, errors = TOOL["best"](rows)
    assert (tp, errors["max_abs_error"]) == (2, 0.3)
    assert errors["mean"] == pytest.approx(0.1)


def test_a_row_names_the_degree_and_the_one_of_the_case_study() -> None:
    near, far = [{"error": 0.1}, {"error": -0.3}], [{"error": 0.5}]
    found = {"18a": {1: near, 2: far}, "6a": {4: far, 8: near}, "19": {0: near}}
    assert TOOL["row"](found) == ["20% / 30% (TP 1); 50% at TP 2", "20% / 30% (TP 8)", "20% / 30%, -10%"]


def test_no_shipped_calibration_has_a_delay_of_its_own() -> None:
    for name in calibration_names():
        assert calibration(name).ring_delay_s == 1e-5, name
