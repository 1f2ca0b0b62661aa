import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.simulator.play.pipeline import schedules
from hdpsim.simulator.play.pipeline.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    stage_order,
    warm_up_forwards,
)


def in_turn(*shape: int):
    """op, chunk and slot of a stage under 1F1B (one chunk) or the interleaved schedule."""
    return stage_order("interleaved", *shape)[:3]


def text(stages: int, chunks: int, stage: int, slots: int) -> str:
    columns = (column.tolist() for column in in_turn(stages, chunks, stage, slots))
    name = "{}{}" if chunks == 1 else "{}{}.{}"
    return " ".join(
        name.format("FB"[op], slot, chunk) if chunks > 1 else name.format("FB"[op], slot)
        for op, chunk, slot in zip(*columns, strict=True)
    )


def test_one_stage_alternates():
    assert text(1, 1, 0, 3) == "F0 B0 F1 B1 F2 B2"


def test_1f1b_warms_up_and_cools_down():
    assert text(3, 1, 0, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(3, 1, 1, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert text(3, 1, 2, 4) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_1f1b_with_fewer_slots_than_stages():
    assert text(4, 1, 0, 2) == "F0 F1 B0 B1"
    assert text(4, 1, 3, 2) == "F0 B0 F1 B1"


def test_interleaved_is_megatrons():
    # Stage 0 of 2 with 2 chunks warms up with (2 - 1 - 0) * 2 + (2 - 1) * 2 = 4 forwards, stage 1 with 2.
    assert text(2, 2, 0, 4) == (
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
    )
    assert text(2, 2, 1, 4) == (
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"
    )


def test_interleaved_leaves_out_slots_beyond_the_last():
    assert text(2, 2, 1, 3) == "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 B1.0 F2.1 B2.1 B2.0"


def test_warm_up():
    assert [warm_up_forwards(4, 1, stage) for stage in range(4)] == [3, 2, 1, 0]
    # (4 - 1 - stage) * 2 + (3 - 1) * 4
    assert [warm_up_forwards(4, 3, stage) for stage in range(4)] == [14, 12, 10, 8]


shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 9))


@given(shapes)
def test_every_operation_once_and_forward_before_backward(shape: tuple[int, int, int]):
    stages, chunks, slots = shape
    for stage in range(stages):
        order = list(
            zip(
                *(c.tolist() for c in in_turn(stages, chunks, stage, slots)),
                strict=True,
            )
        )
        assert sorted(order) == sorted(itertools.product(range(2), range(chunks), range(slots)))
        place = {operation: i for i, operation in enumerate(order)}
        for chunk, slot in itertools.product(range(chunks), range(slots)):
            assert place[0, chunk, slot] < place[1, chunk, slot]


@given(shapes, st.integers(0, 20))
def test_fewer_slots_keep_the_order_of_more(shape: tuple[int, int, int], more: int):
    stages, chunks, slots = shape
    for stage in range(stages):
        few = np.stack(in_turn(stages, chunks, stage, slots))
        many = np.stack(in_turn(stages, chunks, stage, slots + more))
        np.testing.assert_array_equal(few, many[:, many[2] < slots])


@given(shapes)
def test_the_last_stage_turns_round_at_once(shape: tuple[int, int, int]):
    stages, chunks, slots = shape
    op, chunk, slot = in_turn(stages, chunks, stages - 1, slots)
    turns = np.flatnonzero((op == 0) & (chunk == chunks - 1))
    assert np.all(op[turns + 1] == 1)
    assert np.all(chunk[turns + 1] == chunks - 1)
    assert np.all(slot[turns + 1] == slot[turns])


def test_tables_are_shared_and_read_only():
    op, _, _ = in_turn(2, 1, 0, 3)
    assert stage_order("interleaved", 2, 1, 0, 3).op is op
    with pytest.raises(ValueError, match="read-only"):
        op[0] = 1


@pytest.mark.parametrize("shape", [(0, 1, 0, 1), (2, 0, 0, 1), (2, 1, 2, 1), (2, 1, -1, 1), (2, 1, 0, -1)])
def test_impossible_shapes(shape: tuple[int, int, int, int]):
    with pytest.raises(ValueError, match="no stage"):
        in_turn(*shape)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 1), ("interleaved", 3), ("zb-v", 2), ("zb-h1", 1), ("zb-h2", 1)]
)
@pytest.mark.parametrize("place", [0.0, 0.37, 1.0])
def test_few_slots_take_no_more_for_many_stages(schedule: Schedule, chunks: int, place: float):
    """A plan of p stages asks for p orders: one that takes memory (and time) by p would make it quadratic."""

    def peak(stages: int) -> int:
        stage_order.cache_clear()
        schedules._in_turn.cache_clear()
        tracemalloc.start()
        order = stage_order(schedule, stages, chunks, round(place * (stages - 1)), 5)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(order.op) == 5 * chunks * (3 if schedule.startswith("zb") else 2)
        return found

    # the least of three: whatever else allocates beside it is counted along
    few, many = (min(peak(stages) for _ in range(3)) for stages in (100, 10_000))
    assert many < 2 * few + 20_000


@pytest.mark.parametrize(("schedule", "chunks"), [("interleaved", 2), ("interleaved", 3), ("zb-v", 2)])
@given(stages=st.integers(2, 9), place=st.floats(0, 1), few=st.integers(0, 20), more=st.integers(0, 20))
def test_the_order_of_few_slots_is_that_of_many(
    schedule: Schedule, chunks: int, stages: int, place: float, few: int, more: int
):
    stage = round(place * (stages - 1))
    short = stage_order(schedule, stages, chunks, stage, few)
    long = stage_order(schedule, stages, chunks, stage, few + more)
    seen = (long.slot < few) & (long.op != BACKWARD_WEIGHT)  # nobody else sees when weight gradients are done
    own = short.op != BACKWARD_WEIGHT
    for column in ("op", "chunk", "slot"):
        np.testing.assert_array_equal(getattr(short, column)[own], getattr(long, column)[seen])


def test_zb_v_is_pytorchs():
    """ScheduleZBVZeroBubble for 3 stages and 5 micro-batches, as it writes down its phases."""
    order = stage_order("zb-v", 3, 2, 1, 5)
    words = [
        "FBW"[(FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT).index(op)] + f"{slot}.{chunk}"
        for op, chunk, slot in zip(order.op.tolist(), order.chunk.tolist(), order.slot.tolist(), strict=True)
    ]
    assert " ".join(words) == (
        "F0.0 F1.0 F2.0 F0.1 F3.0 F1.1 B0.1 W0.1 F2.1 B1.1 W1.1 F4.0 B0.0 W0.0 F3.1 B2.1 W2.1 B1.0 W1.0 F4.1 B3.1 "
        "W3.1 B2.0 B4.1 B3.0 W2.0 B4.0 W3.0 W4.1 W4.0"
    )
