"""Steps whose micro-batches repeat: the same end as playing every one of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import Epilogue, StepCosts
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.simulator.play.replay import _run
from hdpsim.simulator.play.shortcuts.equal_micro_batches import LoneRank, turns_of_rank
from hdpsim.simulator.play.shortcuts.equal_ranks import plan_of_lone_ranks
from hdpsim.simulator.play.shortcuts.repeating_micro_batches import (
    _cut_at,
    find_cut,
    find_repetition,
    lone_step_end,
    run_lone_ranks,
)

SHAPES: list[tuple[Schedule, int, int]] = [
    ("1f1b", 2, 1),
    ("1f1b", 3, 1),
    ("1f1b", 5, 1),
    ("interleaved", 2, 2),
    ("interleaved", 3, 2),
    ("interleaved", 4, 3),
    ("zb-h1", 3, 1),
    ("zb-h1", 4, 1),
    ("zb-h2", 3, 1),
    ("zb-h2", 4, 1),
    ("zb-v", 3, 2),
]


def costs(
    shape: tuple[Schedule, int, int], forward_s: list[float], transfer_s: float, *, overlap: bool = True
) -> StepCosts:
    """Forwards of virtual stages of three kinds, backwards twice as long, half of which are weight gradients."""
    schedule, stages, chunks = shape
    kind = np.ones((stages, chunks), dtype=np.int64)
    kind[0, 0], kind[-1, -1] = 0, 2
    column = np.array(forward_s)[None, :, None]  # [terms, kinds, 1]
    return StepCosts(
        stages=stages,
        chunks=chunks,
        terms=("gemm",),
        forward_terms_s=column,
        backward_terms_s=2.0 * column,
        weight_terms_s=column if schedule in SPLIT_SCHEDULES else None,
        kind=kind,
        transfer_s=np.array([transfer_s]),
        epilogue=Epilogue(
            data_s=0.25,
            parameter_gather_s=np.arange(stages) * 0.5,
            gradient_sync_s=np.arange(stages) + 1.0,
            optimizer_s=np.full(stages, 0.75),
        ),
        schedule=schedule,
        pp_overlap=overlap or schedule in SPLIT_SCHEDULES,
        alike=True,
    )


def test_two_stages_by_hand() -> None:
    # Forward 1 s, backward 2 s on both stages, no transfers: 1F1B takes (m + 1) x 3 s; 0.5 s gather on the second
    # stage, 0.25 s data; the first stage ends last: + 1 s sync, then 0.75 s once the second has summed for 2 s, too.
    end = lone_step_end(costs(("1f1b", 2, 1), [1.0, 1.0, 1.0], 0.0), 1000)
    assert end.done_s[0, 0] == pytest.approx(0.25 + 1001 * 3.0, abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(SHAPES),
    st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.integers(1, 70),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0, 0, 1, 7, 30]),
)
def test_the_same_as_playing_all_micro_batches(
    shape: tuple[Schedule, int, int],
    forward_s: list[float],
    transfer_s: float,
    count: int,
    fewer: int,
    overlap: bool,
    drains_every: int,
) -> None:
    priced = replace(costs(shape, forward_s, transfer_s, overlap=overlap), drains_every=drains_every)
    counts = [count, max(count - fewer, 0)]
    whole = _run(plan_of_lone_ranks(np.array(counts)), priced.repeated(sum(counts)), None)
    steady = run_lone_ranks(priced, counts)
    assert lone_step_end(priced, count).step_s == pytest.approx(whole.step_s, rel=1e-12)
    np.testing.assert_allclose(steady.account_s, whole.account_s, rtol=0, atol=1e-12 * whole.step_s)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SHAPES), st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3), st.integers(1, 40))
def test_a_rank_with_one_micro_batch_less_is_never_later(
    shape: tuple[Schedule, int, int], forward_s: list[float], count: int
) -> None:
    priced = costs(shape, forward_s, 0.1)
    both = run_lone_ranks(priced, [count, count + 1])
    assert lone_step_end(priced, count + 1).step_s == pytest.approx(both.step_s, rel=1e-12)


@pytest.mark.parametrize(("shape", "overlap"), [*product(SHAPES, [True]), *product(SHAPES[:6], [False])])
def test_cuts_look_alike(shape: tuple[Schedule, int, int], overlap: bool) -> None:
    schedule, stages, chunks = shape
    cut = find_cut(schedule, stages, chunks, overlap=overlap)
    if schedule == "zb-v":
        assert cut is None
        return
    assert cut is not None
    count = 12 * stages
    turns = turns_of_rank(schedule, stages, chunks, count, count, overlap=overlap)
    for micro_batch in range(cut.first, count - cut.ahead, cut.step):
        link, offset = _cut_at(turns, stages, count, micro_batch)
        np.testing.assert_array_equal(link, cut.link)
        np.testing.assert_array_equal(offset, cut.offset)


def test_a_slow_transfer_binds_all_stages_in_turn() -> None:
    # The way down all 4 stages and back, 4 x 3 s and 6 transfers of 0.5 s, lets 4 micro-batches pass: 15 s for 4.
    priced = costs(("1f1b", 4, 1), [1.0, 1.0, 1.0], 0.5)
    cut = find_cut("1f1b", 4, 1)
    assert cut is not None
    turns, count = turns_of_rank("1f1b", 4, 1, 20, 20), 20
    played = LoneRank.of(priced).play(count, count, np.zeros(4))
    end_s = np.empty(len(turns.operation))
    end_s[turns.operation] = played.end_s[-len(end_s) :]
    found = find_repetition(cut, end_s.reshape(-1, count))
    assert found is not None
    assert found == (4, pytest.approx(15.0))
