"""Schedules that split the backward, and transfers that block: orders, closed forms, and both executors agreeing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import Case, cases, make_costs, make_plan, pipeline_plans

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.stages import (
    bubble_weight,
    chunks_per_stage,
    in_flight_passes,
    virtual_stage_table,
)
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.execution import Execution, Noise
from hdpsim.simulator.play.pipeline.schedules import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    stage_order,
)
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.play.shortcuts.equal_ranks import find_lockstep

CHUNKS: dict[Schedule, int] = {"zb-h1": 1, "zb-h2": 1, "zb-v": 2, "dualpipe": 2}
SPLIT = tuple(CHUNKS)


def split_costs(
    schedule: Schedule, stages: int, count: int, f: float, b: float, w: float, *, transfer_s: float = 0.0
) -> StepCosts:
    """Forward *f*, input gradient *b*, weight gradient *w* seconds of a stage, all its chunks together."""
    chunks = CHUNKS[schedule]
    share = 2 if schedule == "zb-v" else 1
    costs = make_costs(
        [f / share] * count, [(b + w) / share] * count, stages=stages, chunks=chunks, transfer_s=transfer_s
    )
    weight = np.zeros_like(costs.backward_terms_s)
    weight[1] = w / share  # of the second term, three quarters of the backward
    return replace(costs, schedule=schedule, weight_terms_s=weight)


def step_s(schedule: Schedule, stages: int, m: int, f: float, b: float, w: float, **more: float) -> float:
    plan = make_plan([list(range(m)), list(range(m, 2 * m))])
    return run_replay(plan, split_costs(schedule, stages, 2 * m, f, b, w, **more)).step_s


def letters(schedule: Schedule, stages: int, stage: int, slots: int) -> str:
    order = stage_order(schedule, stages, CHUNKS[schedule], stage, slots)
    names = {FORWARD: "F", BACKWARD: "A", BACKWARD_INPUT: "B", BACKWARD_WEIGHT: "W"}
    rows = zip(order.op.tolist(), order.chunk.tolist(), order.slot.tolist(), strict=True)
    return " ".join(
        f"{names[op]}{'' if CHUNKS[schedule] == 1 else 'ab'[chunk]}{slot}" for op, chunk, slot in rows
    )


def test_zb_h1_by_hand():
    # 1F1B, but stage s runs the weight gradient of a slot s backwards later.
    assert letters("zb-h1", 3, 0, 4) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert letters("zb-h1", 3, 1, 4) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3"
    assert letters("zb-h1", 3, 2, 4) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_zb_h2_by_hand():
    # 2 (p - s) - 1 forwards come first; the last stage hurries its last 2 p - 1 = 3 input gradients.
    assert letters("zb-h2", 2, 0, 4) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert letters("zb-h2", 2, 1, 4) == "F0 B0 W0 F1 B1 F2 B2 F3 B3 W1 W2 W3"


def test_zb_v_goes_down_and_up():
    assert virtual_stage_table("zb-v", 3, 2) == ((0, 5), (1, 4), (2, 3))
    assert letters("zb-v", 2, 1, 3) == "Fa0 Fb0 Fa1 Fb1 Bb1 Wb1 Fa2 Ba0 Wa0".replace("Bb1 Wb1", "Bb0 Wb0") + (
        " Fb2 Bb1 Wb1 Ba1 Bb2 Ba2 Wa1 Wb2 Wa2"
    )


@given(st.sampled_from(SPLIT[:3]), st.integers(2, 8), st.integers(1, 24))
def test_every_operation_once_and_in_order(schedule: Schedule, stages: int, slots: int):
    for stage in range(stages):
        order = stage_order(schedule, stages, CHUNKS[schedule], stage, slots)
        place = {key: i for i, key in enumerate(zip(order.op, order.chunk, order.slot, strict=True))}
        assert len(place) == len(order.op) == 3 * CHUNKS[schedule] * slots
        for chunk in range(CHUNKS[schedule]):
            for slot in range(slots):
                places = [place[op, chunk, slot] for op in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)]
                assert places == sorted(places)


@given(st.sampled_from(SPLIT[:3]), st.integers(2, 6), st.integers(0, 12), st.integers(0, 12))
def test_fewer_slots_keep_the_order_of_more(schedule: Schedule, stages: int, slots: int, more: int):
    # Without weight gradients, which nobody else can observe: this is what keeps unequal ranks free of deadlock.
    for stage in range(stages):
        few, many = (
            np.stack(stage_order(schedule, stages, CHUNKS[schedule], stage, count)[:3])
            for count in (slots, slots + more)
        )
        few, many = (table[:, table[0] != BACKWARD_WEIGHT] for table in (few, many))
        np.testing.assert_array_equal(few, many[:, many[2] < slots])


@pytest.mark.parametrize("stages", [2, 4, 6])
@pytest.mark.parametrize("extra", [0, 2, 6])
def test_closed_form_bubbles(stages: int, extra: int):
    # All parts 1 s, so a micro-batch is 3 s of work. Bubbles: (p - 1) (F + B - 2 W), none, none, and DualPipe's
    # (p / 2 - 1) (F&B + B - 3 W), where F&B = 3 s (nothing to overlap) and B = 2 s are whole.
    m = 2 * stages + extra
    assert step_s("zb-h1", stages, m, 1, 1, 1) == pytest.approx(3 * m + (stages - 1))
    assert step_s("zb-h2", stages, m, 1, 1, 1) == pytest.approx(3 * m)
    assert step_s("zb-v", stages, m, 1, 1, 1) == pytest.approx(3 * m)
    assert step_s("dualpipe", stages, m, 1, 1, 1) == pytest.approx(3 * m + (stages // 2 - 1) * (3 + 2 - 3))


@pytest.mark.parametrize("schedule", SPLIT)
def test_bubble_weight_is_that_of_the_step(schedule: Schedule):
    stages, m = 4, 12
    layout = Layout(pp=stages, vpp=2 if schedule == "zb-v" else 1, schedule=schedule)
    bubble = step_s(schedule, stages, m, 1, 1, 1) - 3 * m
    assert bubble == pytest.approx(3 * bubble_weight(layout))


@given(st.integers(2, 6), st.integers(0, 10), st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(0.1, 1.0))
def test_zb_h1_bubble_with_any_durations(stages: int, extra: int, f: float, b: float, share: float):
    # (p - 1) (F + B - W) with B the input gradient alone, as long as W is the shortest part.
    w, m = share * min(f, b), 2 * stages + extra
    assert step_s("zb-h1", stages, m, f, b, w) == pytest.approx(m * (f + b + w) + (stages - 1) * (f + b - w))


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_in_flight_passes_are_those_of_the_order(schedule: Schedule, stages: int):
    layout = Layout(pp=stages, vpp=2 if schedule == "zb-v" else 1, schedule=schedule)
    for stage in range(stages):
        order = stage_order(schedule, stages, CHUNKS[schedule], stage, 4 * stages)
        starts, ends = order.op == FORWARD, (order.op == BACKWARD) | (order.op == BACKWARD_WEIGHT)
        held = np.cumsum(starts.astype(int) - np.concatenate([[0], ends[:-1]]))
        assert sum(in_flight_passes(layout, stage)) == held.max()
        one = in_flight_passes(layout, stage, micro_batches=1)
        assert one == (1,) * len(one)
        assert one == in_flight_passes(layout.changed(schedule_micro_batches=1), stage)


def test_chunks():
    assert [chunks_per_stage(schedule, 1) for schedule in ("1f1b", "zb-h1", "dualpipe")] == [1, 1, 2]


def test_dualpipe_hides_communication_of_the_other_way():
    # Without anything to hide F&B = F + B; a first term of 0.25 s forward, 0.5 s backward is hidden where paired.
    stages, m = 2, 8
    plan = make_plan([list(range(m))])
    costs = split_costs("dualpipe", stages, m, 1, 1, 1)
    plain, hidden = run_replay(plan, costs), run_replay(plan, replace(costs, overlapped_term=0))
    # On two stages all pairs but the first: m - 1 forwards (0.25 s) and backwards (0.5 s), less the last backward.
    pairs = 2 * (m // 2 - stages + 1) - 1
    saved = plain.account_s[0] - hidden.account_s[0]
    np.testing.assert_allclose(saved, pairs * 0.75)
    assert hidden.step_s < plain.step_s
    np.testing.assert_allclose(hidden.account_s.sum(axis=0), hidden.step_s)


def test_dualpipe_wants_equal_even_slots():
    for orders in ([[0, 1, 2]], [[0, 1, 2, 3], [4, 5]], [[0, 1]]):
        plan = make_plan(orders)
        with pytest.raises(InfeasibleError, match="even number of micro-batches"):
            run_replay(plan, split_costs("dualpipe", 2, plan.micro_batches, 1, 1, 1))


@st.composite
def split_cases(draw: st.DrawFn) -> Case:
    """Random plans, costs and noise under the split schedules and with blocking transfers."""
    schedule = draw(st.sampled_from(("1f1b", "interleaved", *SPLIT)))
    stages = draw(st.sampled_from((2, 4)) if schedule == "dualpipe" else st.integers(2, 4))
    chunks = CHUNKS.get(schedule, 1 if schedule == "1f1b" else 2)
    if schedule == "dualpipe":
        slots, ranks = 2 * stages + 2 * draw(st.integers(0, 3)), draw(st.integers(1, 3))
        shared = draw(st.booleans())
        plan = make_plan(
            [[slot if shared else slot + r * slots for slot in range(slots)] for r in range(ranks)]
        )
    else:
        plan = draw(pipeline_plans())
    case = draw(cases())
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, kinds = plan.micro_batches, draw(st.integers(1, 3))
    forward, backward = random.random((2, 2, kinds, count))
    table = np.array(virtual_stage_table(schedule, stages, chunks))
    kind = random.integers(0, kinds, table.max() + 1)[table]
    epilogue = replace(
        case.costs.epilogue,
        parameter_gather_s=random.random(stages),
        gradient_sync_s=random.random(stages),
        optimizer_s=random.random(stages),
    )
    costs = replace(
        case.costs,
        stages=stages,
        chunks=chunks,
        schedule=schedule,
        forward_terms_s=forward,
        backward_terms_s=backward,
        weight_terms_s=backward * random.random() if schedule in SPLIT else None,
        overlapped_term=draw(st.sampled_from((None, 0))),
        drains_every=0 if schedule == "dualpipe" else case.costs.drains_every,
        kind=kind,
        transfer_s=random.random(count),
        epilogue=epilogue,
        pp_overlap=draw(st.booleans()) or schedule in SPLIT,
    )
    shape = (len(plan.order), stages, chunks)
    noise = Noise(
        rank_stage=0.5 + random.random((plan.ranks, stages)),
        forward=0.5 + random.random(shape),
        backward=0.5 + random.random(shape),
    )
    return Case(plan, costs, noise if draw(st.booleans()) else None)


@settings(max_examples=200, deadline=None)
@given(split_cases())
def test_engine_and_replay_agree_and_accounts_sum(case: Case):
    engine = run_engine(case.plan, case.costs, case.noise)
    replay = run_replay(case.plan, case.costs, case.noise)
    assert engine.step_s == pytest.approx(replay.step_s, rel=1e-9)
    np.testing.assert_allclose(engine.account_s, replay.account_s, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(replay.account_s.sum(axis=0), replay.step_s, rtol=1e-9)
    assert replay.account_s.min(initial=0.0) >= -1e-9 * replay.step_s


@settings(max_examples=60, deadline=None)
@given(split_cases())
def test_spans_never_overlap_and_hold_all_work(case: Case):
    spans = run_engine(case.plan, case.costs, case.noise, spans=True).spans
    assert spans is not None
    lane = spans.rank * case.costs.stages + spans.stage
    order = np.lexsort((spans.end_s, spans.start_s, lane))
    same = np.diff(lane[order]) == 0
    assert np.all((spans.start_s[order][1:] >= spans.end_s[order][:-1] - 1e-9)[same])
    entries = int(np.count_nonzero(case.plan.order >= 0))
    visits = entries * case.costs.stages * (1 if case.costs.schedule == "dualpipe" else case.costs.chunks)
    assert np.count_nonzero(spans.op == FORWARD) == visits
    weights = np.count_nonzero(spans.op == BACKWARD_WEIGHT)
    assert weights == visits if case.costs.schedule in SPLIT[:3] else weights <= visits


def play(plan_slots: int, costs: StepCosts) -> Execution:
    return run_replay(make_plan([list(range(plan_slots))]), costs)


def test_blocking_by_hand():
    # Two stages, two micro-batches, F 1 s, B 2 s, transfer 0.5 s that holds both sides:
    #   stage 0: F0 0-1  send 1-1.5          F1 1.5-2.5  send 2.5..4.5+.5  (stage 1 comes to it at 4.5, after B0)
    #   stage 1: F0 1.5-2.5 B0 2.5-4.5   send B0, receive F1 4.5-5    F1 5-6 B1 6-8
    #   stage 0: B0 5-7, then receives B1 8-8.5, B1 8.5-10.5
    costs = make_costs([1, 1], [2, 2], stages=2, transfer_s=0.5)
    assert play(2, replace(costs, pp_overlap=False)).step_s == 10.5
    # Asynchronous: F1 follows F0 at once, F1 on stage 1 starts at 4.5: B1 there 5.5-7.5, on stage 0 8-10.
    assert play(2, costs).step_s == 10.0


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 4))
def test_free_transfers_block_nobody(stages: int, chunks: int, groups: int):
    costs = make_costs([1.0] * stages * groups, [2.0] * stages * groups, stages=stages, chunks=chunks)
    blocking = play(stages * groups, replace(costs, pp_overlap=False)).step_s
    assert blocking == pytest.approx(play(stages * groups, costs).step_s)


@pytest.mark.parametrize("chunks", [2, 4])
def test_blocking_lengthens_every_operation_of_the_steady_state(chunks: int):
    # Sixteen more micro-batches: chunks x (F + B) of work each, and one transfer for every operation.
    stages, transfer_s = 4, 0.125
    steps = []
    for m in (16, 32):
        costs = make_costs([1.0] * m, [2.0] * m, stages=stages, chunks=chunks, transfer_s=transfer_s)
        steps.append([play(m, replace(costs, pp_overlap=overlap)).step_s for overlap in (True, False)])
    (early_async, early_blocking), (late_async, late_blocking) = steps
    assert late_async - early_async == pytest.approx(16 * chunks * 3.0)
    assert late_blocking - early_blocking == pytest.approx(16 * chunks * (3.0 + 2 * transfer_s))


def test_one_rank_stands_for_many_in_split_schedules():
    m = 8
    plan = make_plan([list(range(r * m, r * m + m)) for r in range(4)])
    for schedule in SPLIT:
        costs = split_costs(schedule, 2, 4 * m, 1, 1.5, 0.5, transfer_s=0.25)
        alike = replace(costs, alike=True)
        assert find_lockstep(plan, alike, None) is not None
        fast, slow = run_replay(plan, alike), run_replay(plan, costs)
        assert fast.step_s == pytest.approx(slow.step_s, rel=1e-12)
        np.testing.assert_allclose(fast.account_s, slow.account_s, rtol=1e-9, atol=1e-12)
