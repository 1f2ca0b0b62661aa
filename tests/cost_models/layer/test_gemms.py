"""Tables of matrix products are kept for all calibrations that agree on what products read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware.catalog import gpu
from hdpsim.cost_models.kernels.casts import LinearOp
from hdpsim.cost_models.layer.gemms import BACKWARD, FORWARD, KEPT_FROM, LayerGemms
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.tracing import tracing

H100, HOPPER = gpu("h100"), calibration("hopper")
TOKENS = np.arange(1.0, KEPT_FROM + 1.0)


def table_s(cal: Calibration, columns: int = 512, tokens: np.ndarray = TOKENS) -> list[np.ndarray]:
    op = LinearOp(name="one", columns=columns, inner=256)
    return LayerGemms([op], Layout(), H100, cal, precision="bf16").products_s(tokens, FORWARD, BACKWARD)


def test_a_table_is_kept_where_no_product_reads_what_differs() -> None:
    table = table_s(HOPPER)
    other = replace(HOPPER, ring_delay_s=1.0, network=replace(HOPPER.network, nic_latency_s=1.0))
    assert table_s(other) is table
    assert table_s(HOPPER, columns=768) is not table


@pytest.mark.parametrize("name", ["gemm_efficiency", "hbm_efficiency", "kernel_tail_s", "gemm_half_k"])
def test_a_constant_of_products_makes_another_table(name: str) -> None:
    table = table_s(HOPPER)
    other = replace(HOPPER, **{name: 0.9 * getattr(HOPPER, name)})
    changed = table_s(other)
    assert not np.array_equal(changed[0], table[0])
    few = table_s(other, tokens=TOKENS[-10:])  # is not kept
    assert [side[-10:].tolist() for side in changed] == [side.tolist() for side in few]


def test_who_listens_sees_a_kept_table_worked_out() -> None:
    table = table_s(HOPPER)
    with tracing() as calls:
        seen = table_s(HOPPER)
    assert calls
    assert [side.tolist() for side in seen] == [side.tolist() for side in table]
