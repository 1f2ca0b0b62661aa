"""What of a step's gather and reduction the first forward and the last backward hide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import ideal_cost, micro_batches

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.data_parallel import ComputeWindows, buckets, edge_pieces, exposed_s
from hdpsim.cost_models.step.epilogue import step_costs

ONE = np.array([1.0])


@pytest.mark.parametrize(
    ("pp", "vpp", "micro_batches", "passes"),
    [(1, 1, 8, 1.0), (4, 1, 8, 1.0), (4, 2, 8, 2.5), (4, 2, 2, 1.5)],  # ((v - 1) min(p, m) + 1) / v
)
def test_windows(pp: int, vpp: int, micro_batches: int, passes: float) -> None:
    windows = ComputeWindows.of(Layout(pp=pp, vpp=vpp), 2.0 * ONE, 3.0 * ONE, micro_batches)
    assert windows.forward_s == pytest.approx([2.0 * passes])
    assert windows.backward_s == pytest.approx([3.0 * passes])


@pytest.mark.parametrize(
    ("parameters", "members", "vpp", "count"),
    [(1e9, 8, 1, 25), (1e9, 100, 1, 10), (1e9, 1000, 1, 1), (1e9, 1000, 4, 4)],  # at least 40e6, 1e6 a rank
)
def test_buckets(parameters: float, members: int, vpp: int, count: int) -> None:
    pipeline = Layout(pp=2, vpp=vpp) if vpp > 1 else Layout()
    assert buckets(np.array([parameters]), members, pipeline).tolist() == [count]


@pytest.mark.parametrize(
    ("layout", "edges"),
    [
        (Layout(), 25.0),
        (Layout(pp=4), 25.0),
        (Layout(pp=4, vpp=6, schedule="interleaved"), 6.0),  # chunks are gathered and reduced as a whole
        (Layout(pp=4, vpp=2, schedule="zb-v"), 25.0),
    ],
)
def test_edges(layout: Layout, edges: float) -> None:
    assert edge_pieces(np.array([25.0]), layout).tolist() == [edges]


@pytest.mark.parametrize(
    ("transfer", "edge", "window", "slowdown", "exposed"),
    [
        (10.0, 1.0, 100.0, 0.0, 1.0),  # all but the edge is hidden
        (10.0, 1.0, 100.0, 0.1, 1.9),  # and slows the compute beside it: 0.1 x 9
        (10.0, 1.0, 4.0, 0.1, 6.0),  # 9 do not fit into 4
        (10.0, 1.0, 0.0, 0.1, 10.9 - 0.9),  # nothing to slow: all of it
    ],
)
def test_exposed(transfer: float, edge: float, window: float, slowdown: float, exposed: float) -> None:
    result = exposed_s(transfer * ONE, edge * ONE, window * ONE, slowdown)
    assert result == pytest.approx([exposed])


@given(st.integers(1, 200_000))
def test_longer_micro_batches_hide_more(tokens: int) -> None:
    cost = ideal_cost()
    short, long, bare = (
        step_costs(priced, micro_batches([[length]] * 128), 128, data_s=0.0).epilogue
        for priced, length in (
            (cost, tokens),
            (cost, 2 * tokens),
            (ideal_cost(layout=Layout(dp_overlap=False)), tokens),
        )
    )
    assert long.gradient_sync_s <= short.gradient_sync_s * (1 + 1e-9)
    assert long.parameter_gather_s <= short.parameter_gather_s + 1e-9
    assert short.gradient_sync_s <= bare.gradient_sync_s * (1 + 1e-12)
    assert short.parameter_gather_s <= bare.parameter_gather_s * (1 + 1e-12)
