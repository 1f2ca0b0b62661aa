import numpy as np
import pytest
from hypothesis import given, settings
from simulator_plans import Case, cases, make_costs, make_plan

from hdpsim.errors import DeadlockError
from hdpsim.simulator.play import engine
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import WAITS, Noise
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.replay import run_replay


@settings(max_examples=300)
@given(cases())
def test_engine_and_replay_agree(case: Case):
    engine = run_engine(case.plan, case.costs, case.noise)
    replay = run_replay(case.plan, case.costs, case.noise)
    assert engine.step_s == pytest.approx(replay.step_s, rel=1e-9)
    assert engine.accounts == replay.accounts == case.costs.terms + WAITS
    np.testing.assert_allclose(
        engine.account_s, replay.account_s, rtol=1e-9, atol=1e-9 * max(engine.step_s, 1)
    )


@settings(max_examples=100)
@given(cases())
def test_spans_fill_the_busy_time_and_never_overlap(case: Case):
    execution = run_engine(case.plan, case.costs, case.noise, spans=True)
    spans = execution.spans
    assert spans is not None
    stages, chunks = case.costs.stages, case.costs.chunks
    entries = int(np.count_nonzero(case.plan.order >= 0))
    for op in (0, 1):
        assert np.count_nonzero(spans.op == op) == entries * stages * chunks
    assert np.all(spans.end_s >= spans.start_s)
    lane = spans.rank * stages + spans.stage
    order = np.lexsort((spans.end_s, spans.start_s, lane))
    same_lane = np.diff(lane[order]) == 0
    assert np.all((spans.start_s[order][1:] >= spans.end_s[order][:-1])[same_lane])
    assert spans.end_s.max(initial=0.0) <= execution.step_s * (1 + 1e-12)

    # Everything that is not a wait; and what a slower member adds, which is in wait_group.
    own = [i for i, name in enumerate(execution.accounts) if not name.startswith("wait_")]
    group = execution.accounts.index("wait_group")
    busy = np.bincount(lane, spans.end_s - spans.start_s, case.plan.ranks * stages)
    own_s = execution.account_s[own].sum(axis=0).ravel()
    limit_s = own_s + execution.account_s[group].ravel()
    tolerance = 1e-9 * max(execution.step_s, 1)
    assert np.all(busy >= own_s - tolerance)
    assert np.all(busy <= limit_s + tolerance)


def test_spans_by_hand():
    # Two stages, two micro-batches, forward 1 s, backward 2 s, transfer 0.5 s; the step begins with 1 s of data.
    plan = make_plan([[0, 1]])
    costs = make_costs([1, 1], [2, 2], stages=2, transfer_s=0.5, data_s=1.0, optimizer_s=0.25)
    spans = run_engine(plan, costs, spans=True).spans
    assert spans is not None
    rows = list(
        zip(
            spans.stage,
            spans.op,
            spans.micro_batch,
            spans.start_s.tolist(),
            spans.end_s.tolist(),
            strict=True,
        )
    )
    data, optimizer = WAITS.index("data"), WAITS.index("optimizer")
    assert rows == [
        (0, 2, data, 0.0, 1.0),
        (0, 0, 0, 1.0, 2.0),
        (0, 0, 1, 2.0, 3.0),
        (0, 1, 0, 6.0, 8.0),  # stage 1 is done with B0 at 5.5
        (0, 1, 1, 9.0, 11.0),  # stage 1 is done with B1 at 8.5
        (0, 2, optimizer, 11.0, 11.25),
        (1, 2, data, 0.0, 1.0),
        (1, 0, 0, 2.5, 3.5),
        (1, 1, 0, 3.5, 5.5),
        (1, 0, 1, 5.5, 6.5),
        (1, 1, 1, 6.5, 8.5),
        (1, 2, optimizer, 11.0, 11.25),
    ]


def test_merged_micro_batches_are_listed_one_by_one():
    # Rank 0 alone: 0, 1, then 2 with rank 1. The first two are one event, yet two forwards and two backwards.
    plan = make_plan([[0, 1, 2], [2]])
    spans = run_engine(plan, make_costs([1, 2, 4], [1, 3, 5]), spans=True).spans
    assert spans is not None
    of_rank_0 = spans.rank == 0
    assert spans.micro_batch[of_rank_0].tolist() == [0, 0, 1, 1, 2, 2]
    assert spans.start_s[of_rank_0].tolist() == [0, 1, 2, 4, 7, 11]
    assert spans.end_s[of_rank_0].tolist() == [1, 2, 4, 7, 11, 16]
    assert spans.start_s[~of_rank_0].tolist() == [7, 11]


def test_local_work_is_merged_into_one_event():
    # 2 processes and 1 stage: start and end of 3 processes, opening, gradients, sync, optimizer, all stages' barrier.
    fixed = 2 * 3 + 4 + 1
    many = run_engine(make_plan([list(range(50)), list(range(50, 100))]), make_costs([1] * 100, [2] * 100))
    assert many.events == fixed + 2
    shared = run_engine(make_plan([[0, 1, 2], [3, 1, 4]]), make_costs([1] * 5, [2] * 5))
    assert shared.events == fixed + 5


def test_events_are_those_simpy_processes(monkeypatch: pytest.MonkeyPatch):
    import simpy

    steps = 0
    original = simpy.Environment.step

    def counting_step(self: simpy.Environment) -> None:
        nonlocal steps
        original(self)
        steps += 1

    monkeypatch.setattr(simpy.Environment, "step", counting_step)
    plan = make_plan([[0, 2], [1, 2]])
    execution = run_engine(plan, make_costs([1, 2, 3], [1, 2, 3], stages=3, transfer_s=0.1))
    assert execution.events == steps


def test_deadlock_names_the_cycle_without_a_pipeline():
    plan = make_plan([[0, 1], [1, 0]])
    costs = make_costs([1, 1], [1, 1])
    for run in (run_engine, run_replay):
        with pytest.raises(DeadlockError) as caught:
            run(plan, costs)
        assert str(caught.value) == (
            "deadlock: rank 0 waits in the forward of micro-batch 0 for rank 1, "
            "which waits in the forward of micro-batch 1 for rank 0"
        )


def test_deadlock_names_stages_and_chunks():
    # Micro-batches 0 and 1 are swapped on rank 1: the slots of the groups differ.
    plan = make_plan([[0, 1], [1, 0]])
    for run in (run_engine, run_replay):
        with pytest.raises(
            DeadlockError, match=r"^deadlock: rank 0 stage 0 waits in the forward of micro-batch 0 "
        ):
            run(plan, make_costs([1, 1], [1, 1], stages=2))
        with pytest.raises(DeadlockError, match=r"forward of micro-batch 1 \(chunk 0\) for rank 0 stage 0$"):
            run(plan, make_costs([1, 1], [1, 1], stages=2, chunks=2))


def test_deadlock_through_the_pipeline():
    # Both ranks run 0 before 2, which would do without a pipeline. But stage 0 of 2 runs one forward ahead:
    # rank 0: F0 F1 B0 F2 ..., rank 1: F0 F2 B0 B2.
    plan = make_plan([[0, 1, 2], [0, 2]])
    run_engine(plan, make_costs([1] * 3, [1] * 3))
    messages = set()
    for run in (run_engine, run_replay):
        with pytest.raises(DeadlockError) as caught:
            run(plan, make_costs([1] * 3, [1] * 3, stages=2))
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert messages.pop() == (
        "deadlock: rank 0 stage 0 waits in the backward of micro-batch 0 for rank 1 stage 0, "
        "which waits in the forward of micro-batch 2 for rank 0 stage 0"
    )


def test_a_member_that_never_comes_is_named():
    plan = make_plan([[0], [1]], groups=[[0, 1], [1]])
    for run in (run_engine, run_replay):
        with pytest.raises(
            DeadlockError, match="micro-batch 0 for rank 1, whose order does not hold it any more"
        ):
            run(plan, make_costs([1, 1], [1, 1]))


def test_long_cycles_are_cut():
    # Rank r shares micro-batch r with rank r + 1, and everyone starts with the one of the rank before.
    ranks = 20
    plan = make_plan([[(r - 1) % ranks, r] for r in range(ranks)])
    for run in (run_engine, run_replay):
        with pytest.raises(DeadlockError, match="leads through 12 more waits to rank 1, which waits"):
            run(plan, make_costs([1] * ranks, [1] * ranks))


def test_noise_of_the_slowest_member_counts():
    plan = make_plan([[0], [0]])
    noise = Noise(rank_stage=np.array([[1.0], [1.5]]))
    execution = run_engine(plan, make_costs([2], [4]), noise)
    # (2 + 4) * 1.5 = 9; rank 0 works 6 s and waits 3 s.
    assert execution.step_s == 9.0
    accounts = dict(zip(execution.accounts, execution.account_s[:, :, 0], strict=True))
    assert accounts["wait_group"].tolist() == [3.0, 0.0]
    assert accounts["attention"].tolist() == [1.5, 2.25]


def test_ranks_that_share_nothing_are_played_apart(monkeypatch: pytest.MonkeyPatch):
    # Ranks 0, 2 and 3 are tied by micro-batches 0 and 4, ranks 1 and 4 are alone.
    plan = make_plan([[0, 1], [2], [0, 4], [4], [3]])
    costs = make_costs([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], stages=2, transfer_s=0.5)
    together = run_engine(plan, costs)
    monkeypatch.setattr(engine, "BUNDLE_PROCESSES", 2)
    assert engine._bundles(compile_program(plan, costs)) == [[0, 2, 3], [1], [4]]
    apart = run_engine(plan, costs)
    assert apart.step_s == together.step_s
    np.testing.assert_array_equal(apart.account_s, together.account_s)
    assert apart.events == together.events + 2 * costs.stages  # every bundle opens its stages
