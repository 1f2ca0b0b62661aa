from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import (
    Case,
    StuckError,
    cases,
    flat_plans,
    make_costs,
    make_plan,
    naive_step,
    scale_costs,
)

from hdpsim.errors import DeadlockError
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.execution import WAITS, Execution, Noise
from hdpsim.simulator.play.pipeline.waves import find_waves
from hdpsim.simulator.play.replay import run_replay


def accounts(execution: Execution) -> dict[str, np.ndarray]:
    return dict(zip(execution.accounts, execution.account_s, strict=True))


def test_1f1b_by_hand():
    # Two stages, three micro-batches, forward 1 s, backward 2 s, no transfer:
    #   stage 0: F0 0-1  F1 1-2  .. B0 4-6   F2 6-7   B1 7-9  .. B2 10-12
    #   stage 1:         F0 1-2  B0 2-4 F1 4-5 B1 5-7 F2 7-8 B2 8-10
    execution = run_replay(make_plan([[0, 1, 2]]), make_costs([1] * 3, [2] * 3, stages=2))
    assert execution.step_s == 12.0
    account = accounts(execution)
    assert account["wait_pipeline"].tolist() == [[3.0, 1.0]]  # stage 0: 2-4 and 9-10; stage 1: 0-1
    assert account["wait_gradients"].tolist() == [[0.0, 0.0]]
    assert account["wait_stages"].tolist() == [[0.0, 2.0]]  # stage 1 is done at 10
    assert (account["attention"] + account["gemm"]).tolist() == [[9.0, 9.0]]


def test_transfers_by_hand():
    # One micro-batch through three stages: 3 forwards, 3 backwards, 4 transfers of 0.5 s.
    execution = run_replay(make_plan([[0]]), make_costs([1], [2], stages=3, transfer_s=0.5))
    assert execution.step_s == 3 * 1 + 3 * 2 + 4 * 0.5
    # Stage 2 waits for F0 on stages 0 and 1 and two transfers; stage 0 for everything but its own 3 s.
    assert accounts(execution)["wait_pipeline"].tolist() == [[8.0, 1.5 + 3 + 0.5 * 2, 3.0]]


def test_epilogue_by_hand():
    # Ranks with 3 s and 6 s of work; data 1 s, gather 2 s, sync 4 s, optimizer 5 s: 1 + 2 + 6 + 4 + 5 = 18 s.
    costs = make_costs([1, 2], [2, 4], data_s=1.0, gather_s=2.0, sync_s=4.0, optimizer_s=5.0)
    execution = run_replay(make_plan([[0], [1]]), costs)
    assert execution.step_s == 18.0
    account = accounts(execution)
    assert account["wait_gradients"][:, 0].tolist() == [3.0, 0.0]
    assert [float(account[name][0, 0]) for name in WAITS] == [
        1.0,
        0.0,
        2.0,
        0.0,
        0.0,
        3.0,
        4.0,
        0.0,
        5.0,
        0.0,
    ]


def test_stages_wait_for_the_gradients_and_optimizers_of_all():
    costs = make_costs([1], [2], stages=2)
    epilogue = replace(costs.epilogue, gradient_sync_s=np.array([1.0, 4.0]), optimizer_s=np.array([2.0, 0.5]))
    execution = run_replay(make_plan([[0]]), replace(costs, epilogue=epilogue))
    # Stage 0 works until 6 and sums until 7; stage 1 works until 4 and sums until 8; optimizers 8-10 and 8-8.5.
    assert execution.step_s == 10.0
    account = accounts(execution)
    assert account["wait_stages"].tolist() == [[1.0, 0.0]]
    assert account["wait_step_end"].tolist() == [[0.0, 1.5]]


def test_groups_meet_in_forward_and_backward():
    # Rank 0 needs 3 s for its own micro-batch before it can join the shared one; rank 1 comes at once.
    execution = run_replay(make_plan([[0, 1], [1]]), make_costs([1, 10], [2, 20]))
    assert execution.step_s == 33.0
    assert accounts(execution)["wait_group"][:, 0].tolist() == [0.0, 3.0]


def test_holes_take_no_time():
    costs = make_costs([1, 2], [1, 2], stages=2)
    full = run_replay(make_plan([[0, 1]]), costs)
    holed = run_replay(make_plan([[HOLE, 0, HOLE, HOLE, 1]]), costs)
    # Not the same schedule: in 1F1B stage 0 runs the backward of slot 0 before the forward of slot 4.
    assert full.step_s <= holed.step_s
    assert run_replay(make_plan([[0, 1, HOLE, HOLE]]), costs).step_s == full.step_s


def test_an_empty_plan_is_only_the_epilogue():
    costs = make_costs([], [], stages=2, data_s=1.0, gather_s=1.0, sync_s=1.0, optimizer_s=1.0)
    assert run_replay(make_plan([[], []]), costs).step_s == 4.0


@given(st.integers(1, 6), st.integers(1, 10), st.integers(1, 3))
def test_1f1b_bubble(stages: int, micro_batches: int, ranks: int):
    # Ideal pipeline: m (f + b) of work and a bubble of (p - 1) (f + b), a share (p - 1) / m of the work.
    orders = [list(range(r * micro_batches, (r + 1) * micro_batches)) for r in range(ranks)]
    total = ranks * micro_batches
    execution = run_replay(make_plan(orders), make_costs([1.0] * total, [2.0] * total, stages=stages))
    assert execution.step_s == pytest.approx((micro_batches + stages - 1) * 3.0)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4))
def test_interleaved_bubble(stages: int, chunks: int, groups: int):
    # v chunks cut the bubble by v: (p - 1) (f + b) / v on m (f + b), when m is a multiple of p.
    m = stages * groups
    costs = make_costs([1.0 / chunks] * m, [2.0 / chunks] * m, stages=stages, chunks=chunks)
    execution = run_replay(make_plan([list(range(m))]), costs)
    assert execution.step_s == pytest.approx(3.0 * (m + (stages - 1) / chunks))


@settings(max_examples=300)
@given(cases())
def test_the_naive_executor_agrees(case: Case):
    execution = run_replay(case.plan, case.costs, case.noise)
    step_s, account_s = naive_step(case)
    assert execution.step_s == pytest.approx(step_s, rel=1e-9)
    np.testing.assert_allclose(execution.account_s, account_s, rtol=1e-9, atol=1e-9 * max(step_s, 1))


@settings(max_examples=200)
@given(cases())
def test_accounts_sum_to_the_step(case: Case):
    execution = run_replay(case.plan, case.costs, case.noise)
    np.testing.assert_allclose(execution.account_s.sum(axis=0), execution.step_s, rtol=1e-9)
    assert execution.account_s.min(initial=0.0) >= -1e-9 * execution.step_s


@given(cases())
def test_waves_kept_by_slot_and_one_stage_play_as_waves_found_for_the_plan_do(case: Case):
    kept = run_replay(case.plan, case.costs, case.noise)
    replay = "hdpsim.simulator.play.replay"
    with patch(f"{replay}.waves_of", find_waves), patch(f"{replay}.is_one_stage", return_value=False):
        found = run_replay(case.plan, case.costs, case.noise)
    assert kept.step_s == found.step_s
    assert np.array_equal(kept.account_s, found.account_s)


@given(cases())
def test_twice_the_durations_are_twice_the_step(case: Case):
    once = run_replay(case.plan, case.costs, case.noise)
    twice = run_replay(case.plan, scale_costs(case.costs, 2.0), case.noise)
    assert twice.step_s == pytest.approx(2 * once.step_s, rel=1e-12)
    np.testing.assert_allclose(twice.account_s, 2 * once.account_s, atol=1e-9)


@given(cases(), st.integers(0, 2**32 - 1))
def test_shorter_work_and_transfers_never_slow_the_step(case: Case, seed: int):
    random = np.random.default_rng(seed)
    costs = case.costs
    shorter = replace(
        costs,
        transfer_s=costs.transfer_s * random.random(len(costs.transfer_s)),
        forward_terms_s=costs.forward_terms_s * random.choice([0.5, 1.0], costs.forward_terms_s.shape),
    )
    before = run_replay(case.plan, costs, case.noise).step_s
    assert run_replay(case.plan, shorter, case.noise).step_s <= before * (1 + 1e-12)


def permuted(plan: Plan, names: list[int]) -> Plan:
    """The same plan with rank r called names[r]."""
    orders: list[list[int]] = [[] for _ in names]
    groups = []
    for rank, name in enumerate(names):
        orders[name] = plan.order[plan.order_offsets[rank] : plan.order_offsets[rank + 1]].tolist()
    for m in range(plan.micro_batches):
        members = plan.member_ranks[plan.member_offsets[m] : plan.member_offsets[m + 1]]
        groups.append(sorted(names[r] for r in members))
    return make_plan(orders, groups)


@given(cases(with_noise=False), st.randoms(use_true_random=False))
def test_the_names_of_ranks_do_not_matter(case: Case, random: object):
    names = list(range(case.plan.ranks))
    random.shuffle(names)  # type: ignore[attr-defined]
    before = run_replay(case.plan, case.costs)
    after = run_replay(permuted(case.plan, names), case.costs)
    assert after.step_s == pytest.approx(before.step_s, rel=1e-12)
    np.testing.assert_allclose(after.account_s[:, names], before.account_s, atol=1e-9)


@given(flat_plans(), st.randoms(use_true_random=False))
def test_deadlocks_are_found_exactly_when_there_are_some(plan: Plan, random: object):
    order = plan.order.copy()
    for start, end in zip(plan.order_offsets, plan.order_offsets[1:], strict=False):
        part = order[start:end].tolist()
        random.shuffle(part)  # type: ignore[attr-defined]
        order[start:end] = part
    count = plan.micro_batches
    case = Case(replace(plan, order=order), make_costs([1.0] * count, [1.0] * count), None)
    try:
        step_s, _ = naive_step(case)
    except StuckError:
        with pytest.raises(DeadlockError, match=r"^deadlock: rank \d waits in the forward .* for rank \d$"):
            run_replay(case.plan, case.costs)
    else:
        assert run_replay(case.plan, case.costs).step_s == pytest.approx(step_s)


def test_noise_without_effect_changes_nothing():
    plan, costs = make_plan([[0, 2], [1, 2]]), make_costs([1, 2, 3], [2, 3, 4], stages=2)
    plain = run_replay(plan, costs)
    for noise in (Noise(), Noise(rank_stage=np.ones((2, 2)), forward=np.ones((4, 2, 1)))):
        np.testing.assert_allclose(run_replay(plan, costs, noise).account_s, plain.account_s, rtol=1e-12)
