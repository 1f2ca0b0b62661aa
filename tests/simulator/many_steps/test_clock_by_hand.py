"""A run of a few steps whose every time is worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_runs import a_step, checkpoints, played, run_by_hand

from hdpsim.errors import OutOfMemoryError


def ends(rows):
    return [row.end_s for row in rows]


def test_nothing_slow_adds_nothing_but_the_first_batch():
    rows = played(a_step(10.0, loading_s=2.0, plan_s=1.0) for _ in range(4))
    assert ends(rows) == [13.0, 23.0, 33.0, 43.0]
    assert [row.wait_data_s for row in rows] == [2.0, 0.0, 0.0, 0.0]
    assert [row.wait_plan_s for row in rows] == [1.0, 0.0, 0.0, 0.0]


def test_one_step_ahead_hides_what_fits_into_a_step():
    # The batch of step 2 is begun when step 1 begins at 13; it is there at 13 + 8 + 5 = 26, three seconds after 23.
    rows = played(a_step(10.0, loading_s=8.0, plan_s=5.0) for _ in range(3))
    assert ends(rows) == [23.0, 36.0, 49.0]
    assert [row.wait_plan_s for row in rows] == [5.0, 3.0, 3.0]  # planning is the last on the way
    # Two steps ahead loading and planning overlap: the slower of the two, 8, hides in a step of 10.
    rows = played(a_step(10.0, loading_s=8.0, plan_s=5.0, ahead=2) for _ in range(4))
    assert ends(rows) == [23.0, 33.0, 43.0, 53.0]


def test_without_prefetching_a_step_waits_for_all_of_its_batch():
    rows = played(a_step(10.0, loading_s=2.0, plan_s=1.0, ahead=0) for _ in range(3))
    assert ends(rows) == [13.0, 26.0, 39.0]
    assert [row.wait_data_s for row in rows] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_a_planner_slower_than_the_step_sets_the_pace_however_long_its_queue(ahead):
    rows = played(a_step(10.0, plan_s=12.0, ahead=ahead) for _ in range(20))
    assert np.diff(ends(rows)) == pytest.approx(12.0, rel=1e-12)
    assert [row.wait_plan_s for row in rows[1:]] == pytest.approx([2.0] * 19, rel=1e-12)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_queue_of_depth_q_hides_q_steps_of_a_burst(ahead):
    """One plan takes a hundred seconds. It is begun q steps before its step; the steps in between are planned."""
    steps = [a_step(10.0, plan_s=100.0 if number == 8 else 1.0, ahead=ahead) for number in range(12)]
    rows = played(steps)
    # Batch 8 (from 0) takes its place when step 8 - q begins; step 8 could begin q steps of 10 s later.
    waited = [row.wait_plan_s for row in rows]
    assert waited[0] == 1.0
    assert waited[8] == pytest.approx(100.0 - 10.0 * ahead)
    # The batches behind it were planned one by one: each is there in time again.
    assert sum(waited) == pytest.approx(1.0 + waited[8])


def test_a_storage_that_all_share():
    # 100 bytes of a batch at 10 B/s: loaders could do it in 2 s, the storage takes 10.
    rows = played([a_step(1.0, loading_s=2.0, read_bytes=100.0, ahead=4) for _ in range(5)], storage=10.0)
    assert ends(rows) == pytest.approx([11.0, 21.0, 31.0, 41.0, 51.0])
    # A checkpoint of 200 bytes after step 2 halves the rate until it has been written.
    run = run_by_hand(
        [a_step(10.0, loading_s=2.0, read_bytes=100.0) for _ in range(6)],
        storage=20.0,
        checkpoints=checkpoints(2, 1.0, 200.0),
    )
    rows = list(run)
    # Steps end at 15 and 25; the checkpoint blocks until 26. Batch 3, begun at 15, is there at 20; batch 4 is begun
    # at 26 with the write: both get 10 B/s, the batch is there at 36, the write's other 100 bytes take 5 s more.
    assert ends(rows)[:4] == pytest.approx([15.0, 25.0, 36.0, 46.0])
    assert rows[2].wait_checkpoint_s == pytest.approx(1.0)
    assert [row.wait_checkpoint_s for row in rows[3:]] == pytest.approx([0.0, 1.0, 0.0])
    assert run.storage.moved_bytes == pytest.approx(6 * 100.0 + 2 * 200.0)


def test_a_checkpoint_waits_until_the_one_before_has_been_written():
    # 150 bytes at 10 B/s take 15 s, a step 10: the second checkpoint waits four seconds more than it blocks.
    rows = played([a_step(10.0) for _ in range(4)], storage=10.0, checkpoints=checkpoints(1, 1.0, 150.0))
    assert [row.wait_checkpoint_s for row in rows] == pytest.approx([0.0, 1.0, 6.0, 6.0])


def test_a_step_waits_for_room_on_the_host():
    # 60 of 100 bytes are offloaded by every step; the copy of a checkpoint takes 50 and is written in 20 s.
    rows = played(
        [a_step(10.0, offload_bytes=60.0) for _ in range(3)],
        room=100.0,
        storage=10.0,
        checkpoints=checkpoints(2, 1.0, 200.0, host_bytes=50.0),
    )
    assert ends(rows) == pytest.approx([10.0, 20.0, 51.0])
    assert rows[2].wait_checkpoint_s == pytest.approx(1.0)
    assert rows[2].wait_host_memory_s == pytest.approx(20.0)


def test_what_never_fits_on_the_host_is_refused_with_the_reason():
    rows = iter(run_by_hand([a_step(10.0), a_step(10.0, offload_bytes=101.0)], room=100.0))
    assert next(rows).end_s == 10.0
    with pytest.raises(
        OutOfMemoryError, match="step 2 needs 101 B on the fullest host, which has room for 100 B"
    ):
        next(rows)


def test_who_waits_for_room_that_nobody_gives_back_says_so():
    # Two batches of 30 bytes are there, the first one's included, and step 1 needs 60 of the 100 bytes.
    steps = [a_step(10.0, batch_bytes=30.0, offload_bytes=60.0, ahead=3) for _ in range(5)]
    with pytest.raises(OutOfMemoryError, match=r"step 1 waits for 60 B .* 60 B of 100 B are held by batches"):
        played(steps, room=100.0)


def test_stages_carry_their_skew_from_step_to_step():
    # Stage 1 is 4 s behind stage 0, which is free again 6 s before it: steps repeat every 10 s, not 14.
    longest = np.array([[8.0, 14.0], [-np.inf, 10.0]])
    rows = played(a_step(10.0, longest_s=longest) for _ in range(4))
    assert ends(rows) == [14.0, 24.0, 34.0, 44.0]
    assert [row.start_s for row in rows] == [0.0, 8.0, 16.0, 24.0]
    assert [row.carry_over_s for row in rows] == [4.0, 0.0, 0.0, 0.0]


def test_a_failure_of_a_later_step_is_raised_after_the_steps_before_it():
    def steps():
        yield a_step(10.0)
        yield a_step(10.0)
        raise OSError("disk")

    rows = iter(run_by_hand(steps()))
    assert [next(rows).end_s, next(rows).end_s] == [10.0, 20.0]
    with pytest.raises(OSError, match="disk"):
        next(rows)


SECONDS = st.one_of(st.just(0.0), st.floats(0.01, 20.0))
STEPS = st.lists(
    st.tuples(st.floats(0.1, 20.0), SECONDS, SECONDS, st.sampled_from([0.0, 1.0, 7.5, 50.0])),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.integers(0, 4), st.floats(1.0, 50.0))
def test_time_and_tokens_are_conserved(steps, ahead, storage):
    made = [
        a_step(step, loading_s=load, plan_s=plan, read_bytes=volume, ahead=ahead, tokens=number)
        for number, (step, load, plan, volume) in enumerate(steps)
    ]
    run = run_by_hand(made, storage=storage)
    rows = list(run)
    assert [row.step.tokens for row in rows] == list(range(len(steps)))
    assert sum(row.period_s for row in rows) == pytest.approx(rows[-1].end_s)
    assert sum(sum(row.account_s.values()) for row in rows) == pytest.approx(rows[-1].end_s)
    assert run.storage.moved_bytes == pytest.approx(sum(volume for *_, volume in steps), abs=1e-9)
    assert run.now_s >= run.storage.moved_bytes / storage * (1 - 1e-9)
    again = list(run_by_hand(made, storage=storage))
    assert again == rows


@given(STEPS, st.integers(1, 4), st.floats(1.0, 50.0), st.integers(0, 3), st.floats(0.1, 1.0))
def test_faster_anything_is_never_slower(steps, ahead, storage, which, factor):
    """Without checkpoints only one reads from the storage at a time, and all times are maxima of sums."""

    def run(scale):
        rows = played(
            [
                a_step(
                    step * (scale if which == 0 else 1.0),
                    loading_s=load * (scale if which == 1 else 1.0),
                    plan_s=plan * (scale if which == 2 else 1.0),
                    read_bytes=volume,
                    ahead=ahead,
                )
                for step, load, plan, volume in steps
            ],
            storage=storage / (scale if which == 3 else 1.0),
        )
        return rows[-1].end_s

    assert run(factor) <= run(1.0) * (1 + 1e-9)
    deeper = played(
        [a_step(s, loading_s=a, plan_s=b, read_bytes=v, ahead=ahead + 1) for s, a, b, v in steps],
        storage=storage,
    )
    assert deeper[-1].end_s <= run(1.0) * (1 + 1e-9)


@given(st.floats(0.1, 20.0), SECONDS, SECONDS, st.integers(0, 5))
def test_equal_steps_settle_at_the_closed_form(step, load, plan, ahead):
    from hdpsim.cost_models.step.data_loading import DataPath

    rows = played(a_step(step, loading_s=load, plan_s=plan, ahead=ahead) for _ in range(40))
    data_s, planning_s = DataPath(loading_s=load, planning_s=plan, ahead_steps=ahead).exposed_s(step)
    last = rows[-20:]  # with several batches on their way the settled steps may come in turns
    mean = {
        name: sum(getattr(row, name) for row in last) / 20
        for name in ("period_s", "wait_plan_s", "wait_data_s")
    }
    assert mean["period_s"] == pytest.approx(step + data_s + planning_s, rel=0.02, abs=1e-9)
    if ahead <= 1:
        assert last[-1].period_s == pytest.approx(step + data_s + planning_s)
        assert last[-1].wait_data_s == pytest.approx(data_s, abs=1e-9)
        assert last[-1].wait_plan_s == pytest.approx(planning_s, abs=1e-9)
