"""An allocator that a running-ahead host fills up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_hardware import IDEAL, MODEL, ideal_cluster

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.peak import memory_report, refill_s

REPORT = memory_report(
    MODEL, Layout(tp=8), ideal_cluster(), 4, 4096, overheads=MemoryOverheads(host_run_ahead=True)
)
CAL = replace(IDEAL, allocator_bytes_per_s=1e9)


def test_what_does_not_fit_is_given_back_and_got_again() -> None:
    used = REPORT.total_bytes
    # 8 GB of queued tensors, 3 GB of room: 5 GB at 1 GB/s
    assert refill_s(replace(REPORT, capacity_bytes=used + 3e9, run_ahead=8e9), CAL) == pytest.approx(5.0)


def test_room_for_everything_costs_nothing() -> None:
    assert refill_s(replace(REPORT, capacity_bytes=REPORT.total_bytes + 8e9, run_ahead=8e9), CAL) == 0.0


@given(st.floats(0.0, 1e12))
def test_a_host_that_does_not_run_ahead_never_waits(capacity: float) -> None:
    assert refill_s(replace(REPORT, capacity_bytes=capacity, run_ahead=0.0), CAL) == 0.0


@given(st.floats(0.0, 1e11), st.floats(0.0, 1e11), st.floats(0.0, 1e11))
def test_more_memory_never_waits_longer(capacity: float, more: float, ahead: float) -> None:
    small, large = (replace(REPORT, capacity_bytes=c, run_ahead=ahead) for c in (capacity, capacity + more))
    assert 0.0 <= refill_s(large, CAL) <= refill_s(small, CAL) <= ahead / 1e9
