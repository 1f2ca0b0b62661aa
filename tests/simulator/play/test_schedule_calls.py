"""Pipelines that drain several times a step: by hand, and what that never does. Random ones are in plans.cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.layout_checks import check_layout
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.play.pipeline.schedules import stage_order
from hdpsim.simulator.play.shortcuts.repeating_micro_batches import lone_step_end
from hdpsim.simulator.step_memory import memory_of

from .test_repeating_micro_batches import SHAPES, costs


@pytest.mark.parametrize("shape", SHAPES[:6])
@pytest.mark.parametrize("calls", [1, 2, 17])
def test_equal_stages_fill_and_drain_in_every_call(shape: tuple[Schedule, int, int], calls: int) -> None:
    # A call of m micro-batches takes m + (p - 1) / v slots of v (F + B); 0.25 s of data come first.
    _, stages, chunks = shape
    m, slot_s = 3 * stages, 3.0
    drained = replace(costs(shape, [1.0, 1.0, 1.0], 0.0), drains_every=m)
    end = lone_step_end(drained, calls * m)
    assert end.done_s[0, 0] == pytest.approx(0.25 + calls * (m * chunks + stages - 1) * slot_s)


def test_the_last_call_has_what_is_left() -> None:
    order = stage_order("1f1b", 2, 1, 0, 5, 2)
    assert order.slot.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4, 4]
    assert order.op.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 1]


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(SHAPES),
    st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 12),
    st.integers(2, 3),
    st.integers(1, 24),
    st.booleans(),
)
def test_more_calls_never_make_a_step_shorter(
    shape: tuple[Schedule, int, int],
    forward_s: list[float],
    transfer_s: float,
    call: int,
    times: int,
    count: int,
    overlap: bool,
) -> None:
    priced = costs(shape, forward_s, transfer_s, overlap=overlap)
    short, long, one, whole = (
        lone_step_end(replace(priced, drains_every=every), count).step_s
        for every in (call, times * call, count, 0)
    )
    assert one == whole
    assert short >= long * (1 - 1e-12) >= whole * (1 - 2e-12)


def test_a_call_keeps_no_more_activations_than_its_micro_batches() -> None:
    piped = Layout(pp=4, cp=1, rank_capacity_tokens=1024)
    setup = small_setup(layout=piped, context=1024, name="static")
    every, two, few = (
        memory_of(replace(setup, layout=layout), 1024, micro_batches=count).total_bytes
        for layout, count in ((piped, 16), (piped.changed(schedule_micro_batches=2), 16), (piped, 2))
    )
    assert few == two < every


@pytest.mark.parametrize("switches", [{"schedule": "dualpipe"}, {"deferred_head_gradient": True}])
def test_what_takes_all_micro_batches_of_a_step_is_refused(switches: dict[str, object]) -> None:
    layout = Layout(pp=2, schedule_micro_batches=4, **switches)
    with pytest.raises(InfeasibleError, match="schedule_micro_batches: all"):
        check_layout(small_setup(layout=layout).model, layout)
