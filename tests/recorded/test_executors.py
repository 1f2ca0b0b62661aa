"""Graphs of operations: numbers by hand, the closed form against the engine, circles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.errors import DeadlockError
from hdpsim.simulator.recorded.operation_graph import OperationGraph, Replay, play_operations


def graph(operations: int, edges: list[tuple[int, int]], group: list[int] | None = None) -> OperationGraph:
    return OperationGraph(
        operations=operations,
        source=np.array([a for a, _ in edges], dtype=np.int64),
        target=np.array([b for _, b in edges], dtype=np.int64),
        group=np.array(range(operations) if group is None else group, dtype=np.int64),
        name="op{}".format,
    )


def test_a_chain_a_fork_and_a_meeting_by_hand() -> None:
    # Worker A: 0 then 1; worker B: 2 then 3. 1 and 3 meet: both begin at max(2, 5) = 5 and end after their own work.
    # 4 waits for 1 and 3: begins at max(5 + 1, 5 + 3) = 8.
    drawn = graph(5, [(0, 1), (2, 3), (1, 4), (3, 4)], [0, 1, 2, 1, 3])
    work_s = np.array([2.0, 1.0, 5.0, 3.0, 0.5])
    expected = [2.0, 6.0, 5.0, 8.0, 8.5]
    assert Replay(drawn).ends(work_s).tolist() == expected
    assert play_operations(drawn, work_s).tolist() == expected
    assert Replay(drawn).levels == 3


def test_a_delay_comes_after_the_last_predecessor_and_before_the_meeting() -> None:
    # 0 and 1 meet without predecessors: starts at 0.25 and 4, so both begin at 4.
    drawn = graph(3, [(0, 2)], [0, 0, 1])
    delay_s = np.array([0.25, 4.0, 0.5])
    work_s = np.array([1.0, 2.0, 1.0])
    assert Replay(drawn).ends(work_s, delay_s).tolist() == [5.0, 6.0, 6.5]
    assert play_operations(drawn, work_s, delay_s).tolist() == [5.0, 6.0, 6.5]


def test_variants_are_played_side_by_side() -> None:
    drawn = graph(2, [(0, 1)])
    assert Replay(drawn).ends([[1.0, 2.0], [3.0, 4.0]]).tolist() == [[1.0, 3.0], [3.0, 7.0]]


def test_nothing_to_play() -> None:
    assert Replay(graph(0, [])).ends(np.zeros(0)).shape == (0,)
    assert play_operations(graph(0, []), np.zeros(0)).shape == (0,)


def test_a_circle_through_a_meeting_is_named_by_both_executors() -> None:
    # 0 before 1, 2 before 3; 0 meets 3 and 1 meets 2: each meeting waits for the other.
    drawn = graph(4, [(0, 1), (2, 3)], [0, 1, 1, 0])
    for play in (lambda: Replay(drawn), lambda: play_operations(drawn, np.ones(4))):
        with pytest.raises(
            DeadlockError, match=r"deadlock: op\d, which waits for op\d, which waits for op\d"
        ):
            play()


def test_a_long_circle_is_cut() -> None:
    with pytest.raises(DeadlockError, match="which waits for 12 more, which waits for"):
        Replay(graph(20, [(i, (i + 1) % 20) for i in range(20)]))


seconds = st.floats(0.0, 10.0)


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[OperationGraph, np.ndarray, np.ndarray]:
    """Operations in layers; groups only inside a layer, dependencies only from earlier ones: never a circle."""
    layers = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    layer = np.repeat(np.arange(len(layers)), layers)
    count = len(layer)
    pairs = [(a, b) for a in range(count) for b in range(count) if layer[a] < layer[b]]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=12)) if pairs else []
    names = [4 * int(layer[i]) + draw(st.integers(0, 3)) for i in range(count)]
    group = np.unique(names, return_inverse=True)[1].tolist()
    work_s = np.array(draw(st.lists(seconds, min_size=count, max_size=count)))
    delay_s = np.array(draw(st.lists(seconds, min_size=count, max_size=count)))
    return graph(count, edges, group), work_s, delay_s


@settings(deadline=None, max_examples=60)
@given(random_graphs())
def test_engine_and_closed_form_agree(case: tuple[OperationGraph, np.ndarray, np.ndarray]) -> None:
    drawn, work_s, delay_s = case
    replay = Replay(drawn)
    for delay in (None, delay_s):
        np.testing.assert_allclose(
            play_operations(drawn, work_s, delay), replay.ends(work_s, delay), rtol=1e-12
        )


@settings(deadline=None, max_examples=40)
@given(random_graphs(), st.floats(0.1, 10.0))
def test_time_scales_and_never_falls_with_work(
    case: tuple[OperationGraph, np.ndarray, np.ndarray], factor: float
) -> None:
    drawn, work_s, more_s = case
    replay = Replay(drawn)
    ends = replay.ends(work_s)
    np.testing.assert_allclose(replay.ends(factor * work_s), factor * ends, rtol=1e-9)
    assert np.all(replay.ends(work_s + more_s) >= ends)
