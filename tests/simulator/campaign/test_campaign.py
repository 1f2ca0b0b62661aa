from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.reliability.checkpoint import daly_interval_s
from hdpsim.cost_models.reliability.failures import Detection, FailureCause, FailureProfile, failure_profile
from hdpsim.simulator.campaign.between_failures import TICKS_PER_S, Pace, Stretch
from hdpsim.simulator.campaign.events import Handling, mean_detection_s
from hdpsim.simulator.campaign.run_with_failures import simulate_campaign
from hdpsim.simulator.campaign.setup import CampaignResult, CampaignSetup

pytestmark = pytest.mark.usefixtures("each_plan_once")

DAY = 86400.0
HOUR = 3600.0


def profile(per_s: float, detection: Detection = "hang", *, evict: bool = False) -> FailureProfile:
    """One cause of the whole job."""
    cause = FailureCause(name="x", per_day=per_s * DAY, scope="job", detection=detection, evict=evict)
    return FailureProfile(name="test", title="test", causes=(cause,))


HANDLING = Handling(
    heartbeat_s=10.0,
    heartbeat_misses=3,
    hang_timeout_s=100.0,
    diagnosis_s=80.0,
    manual_share=0.0,
    manual_s=0.0,
    repair_s=DAY,
)
CALM = CampaignSetup(
    duration_s=10_000.0,
    nodes=4,
    links_per_node=8,
    step_s=10.0,
    tokens_per_step=1000.0,
    steps_per_checkpoint=9,
    block_s=10.0,
    upload_s=0.0,
    load_s=50.0,
    scheduling_s=40.0,
    group_initialisation_s=60.0,
    jitter=0.0,
    drift_per_day=0.0,
    failures=profile(0.0),
    failure_scale=1.0,
    handling=HANDLING,
    spares=1000,
    straggler_share=0.0,
    slow_steps=((1, 1.1),),
    straggler_detection_s=HOUR,
    straggler_mttf_s=None,
)


def check(result: CampaignResult) -> None:
    """What holds for every run."""
    assert sum(result.account_ticks) == round(result.duration_s * TICKS_PER_S)
    assert min(result.account_ticks) >= 0
    assert 0 <= result.ettr <= 1
    assert sum(result.restarts.values()) == len(result.incidents)
    assert result.tokens == pytest.approx(result.curve_tokens[-1])
    assert list(result.curve_s) == sorted(result.curve_s)


def test_a_run_without_failures_by_hand() -> None:
    # 100 s to start, then cycles of 9 x 10 s and 10 s of checkpoint: 99 of them fill the remaining 9,900 s
    result = simulate_campaign(CALM)
    check(result)
    assert result.account_s["training"] == 99 * 90
    assert result.account_s["checkpoint"] == 99 * 10
    assert (result.account_s["scheduling"], result.account_s["group_initialisation"]) == (40, 60)
    assert result.account_s["checkpoint_load"] == 0
    assert result.steps == 891
    assert result.ettr == 0.891
    assert result.goodput == pytest.approx(0.891)
    assert result.incidents == ()


def test_a_slow_upload_makes_the_next_checkpoint_wait() -> None:
    # after the first cycle: 90 s of work, 10 s more until 100 s of upload are over, 10 s of checkpoint
    result = simulate_campaign(replace(CALM, upload_s=100.0, duration_s=100.0 + 100.0 + 110.0 * 10))
    check(result)
    assert result.account_s["checkpoint_wait"] == 10 * 10
    assert result.steps == 11 * 9


def test_drift_grows_with_the_cycles_since_the_restart() -> None:
    # cycle i takes 90 s (1 + d i 90 / 86400); with d = 96 % a day that is 0.001 i
    result = simulate_campaign(replace(CALM, drift_per_day=0.96, duration_s=100.0 + 10 * 100 + 0.09 * 45))
    check(result)
    assert result.steps == 90
    assert result.account_s["drift"] == pytest.approx(0.09 * 45)


def stretch(tick_s: float, upload_s: float = 30.0) -> tuple[Stretch, int]:
    pace = Pace(step_s=10.0, steps_per_cycle=9, block_ticks=10**7, upload_ticks=round(upload_s * 10**6))
    return Stretch(pace, 0, np.random.default_rng(0)), round(tick_s * 10**6)


@pytest.mark.parametrize(
    ("at_s", "kept_steps", "lost_s", "reached"),
    [
        (45.0, 0, 45.0, 4.5),  # before the first checkpoint
        (95.0, 0, 95.0, 9.0),  # while it blocks
        (120.0, 0, 120.0, 11.0),  # it is being uploaded
        (130.0, 9, 30.0, 12.0),  # it has arrived
        (215.0, 9, 115.0, 19.5),  # the second one has not
        (231.0, 18, 31.0, 21.1),
    ],
)
def test_what_a_failure_costs(at_s: float, kept_steps: int, lost_s: float, reached: float) -> None:
    cycles, tick = stretch(at_s)
    closing = cycles.fail(tick)
    assert closing.kept_steps == kept_steps
    assert closing.lost_ticks == pytest.approx(lost_s * 10**6)
    assert closing.reached_steps == pytest.approx(reached)


def test_a_stretch_that_ends_at_a_checkpoint_hands_the_upload_over() -> None:
    cycles, tick = stretch(150.0)
    end = cycles.checkpoint_after(tick)
    assert end == 200 * 10**6
    closing = cycles.at_checkpoint(end)
    assert (closing.kept_steps, closing.cycles) == (9, 2)
    assert closing.uploading is not None
    pace = Pace(step_s=10.0, steps_per_cycle=9, block_ticks=10**7, upload_ticks=30 * 10**6)
    for seconds, kept in ((29.9, 0), (30.1, 9)):
        after = Stretch(pace, end, np.random.default_rng(0), uploading=closing.uploading)
        failed = after.fail(end + round(seconds * 10**6))
        assert failed.kept_steps == kept
        assert failed.kept.sum() + failed.lost_ticks == round(seconds * 10**6) + 100 * 10**6


def test_old_cycles_are_summed_up_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(
        step_s=1.0, steps_per_cycle=3, block_ticks=10**5, upload_ticks=10**6, jitter=0.3, drift_per_day=0.1
    )
    closings = []
    for most in (1 << 16, 8):
        monkeypatch.setattr("hdpsim.simulator.campaign.between_failures.MOST_CYCLES", most)
        cycles = Stretch(pace, 0, np.random.default_rng(7))
        end = cycles.checkpoint_after(1000 * 10**6)
        closings.append((end, cycles.fail(end + 10**5), cycles.end(end + 10**5), cycles.at_checkpoint(end)))
    assert str(closings[0]) == str(closings[1])


def test_how_many_cycles_are_drawn_at_once_changes_nothing() -> None:
    pace = Pace(step_s=1.0, steps_per_cycle=3, block_ticks=10**5, upload_ticks=10**6, jitter=0.3)
    at_once, bit_by_bit = (Stretch(pace, 0, np.random.default_rng(7)) for _ in range(2))
    ends = [bit_by_bit.checkpoint_after(second * 10**6) for second in range(0, 500, 5)]
    assert [at_once.checkpoint_after(second * 10**6) for second in range(495, -5, -5)] == ends[::-1]


@pytest.mark.parametrize(("restart_s", "block_s"), [(100.0, 20.0), (900.0, 60.0)])
def test_synchronous_checkpoints_agree_with_dalys_exact_run_time(restart_s: float, block_s: float) -> None:
    # a restart is detection (the hang's timeout) and nothing else; failures strike during it as in the formula
    mtbf_s, steps = 3600.0, 30
    setup = replace(
        CALM,
        duration_s=4000 * HOUR,
        failures=profile(1 / mtbf_s),
        handling=replace(HANDLING, hang_timeout_s=restart_s, diagnosis_s=0.0),
        steps_per_checkpoint=steps,
        block_s=block_s,
        load_s=0.0,
        scheduling_s=0.0,
        group_initialisation_s=0.0,
    )
    result = simulate_campaign(setup)
    check(result)
    # T = M e^(R/M) (e^((tau + delta)/M) - 1) T_s / tau: Daly, Future Generation Computer Systems 22(3), 2006
    work_s = steps * 10.0
    run_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((work_s + block_s) / mtbf_s)
    exact = work_s / run_s
    # 4,000 failures: the standard error of the ratio is below half a per cent
    assert result.ettr == pytest.approx(exact, rel=0.015)
    assert result.failures == pytest.approx(4000, abs=4 * math.sqrt(4000))


def test_the_optimum_is_an_optimum_of_the_simulation() -> None:
    mtbf_s, block_s = 2 * HOUR, 60.0
    best = round(daly_interval_s(block_s, mtbf_s) / 10.0)
    base = replace(CALM, duration_s=3000 * HOUR, failures=profile(1 / mtbf_s), block_s=block_s)
    ettr = {
        steps: simulate_campaign(replace(base, steps_per_checkpoint=steps)).ettr
        for steps in (best // 3, best, best * 3)
    }
    assert max(ettr, key=lambda steps: ettr[steps]) == best


def test_an_empty_pool_waits_for_repairs_and_a_large_one_does_not() -> None:
    base = replace(CALM, duration_s=60 * DAY, failures=profile(1 / (6 * HOUR), evict=True))
    waits = {}
    for spares in (0, 2, 6, 40):
        result = simulate_campaign(replace(base, spares=spares))
        check(result)
        waits[spares] = result.account_s["waiting_for_node"]
    assert waits[0] > waits[2] > waits[6] >= waits[40] == 0
    # without spares and with one node missing, the mean wait is the mean repair (1 d), cut by those that overlap
    assert waits[0] > 0.5 * 60 * DAY


@pytest.mark.parametrize(("nodes", "spares"), [(1, 0), (4, 0), (4, 2)])
def test_waiting_for_nodes_is_that_of_machines_in_repair(nodes: int, spares: int) -> None:
    """Nodes that are away do not fail: a job of one node waits for repair / (time to failure + repair).

    With k nodes in repair min(n, n + s - k) of them fail, each at its rate, and k are repaired: a birth-death process.
    """
    to_failure, repair, days = 10.0, 5.0, 4000
    chances = [1.0]
    for away in range(nodes + spares):
        at_work = min(nodes, nodes + spares - away)
        chances.append(chances[-1] * at_work / to_failure / ((away + 1) / repair))
    cause = FailureCause(name="x", per_day=1 / to_failure, scope="node", detection="in-band", evict=True)
    quick = {"scheduling_s": 0.0, "group_initialisation_s": 0.0, "load_s": 0.0, "block_s": 0.0}
    base = replace(CALM, **quick, nodes=nodes, spares=spares, duration_s=days * DAY, step_s=HOUR)
    result = simulate_campaign(
        replace(
            base,
            steps_per_checkpoint=1,
            failures=FailureProfile(name="p", title="p", causes=(cause,)),
            handling=replace(HANDLING, repair_s=repair * DAY, diagnosis_s=0.0),
        )
    )
    check(result)
    waits = result.account_s["waiting_for_node"] / result.duration_s
    assert waits == pytest.approx(1.0 - sum(chances[: spares + 1]) / sum(chances), abs=0.04)


def test_no_more_nodes_leave_than_there_are() -> None:
    """Failures, rounds of tests and looks that take healthy nodes for bad ones: one node may be found many times."""
    wrong = replace(HANDLING, diagnosis_false_positives=0.5, straggler_false_positives=0.5, repair_s=HOUR)
    often = replace(CALM, nodes=1, spares=0, duration_s=4 * DAY, failures=profile(1 / HOUR, evict=True))
    result = simulate_campaign(replace(often, handling=wrong, straggler_detection_s=300.0))
    check(result)
    assert result.evictions > 20
    assert result.account_s["training"] > 0


def test_planned_stops_lose_no_work_and_cost_upload_and_restart() -> None:
    base = replace(CALM, duration_s=30 * DAY, upload_s=20.0, failures=profile(1 / HOUR, "planned"))
    result = simulate_campaign(base)
    check(result)
    assert result.failures == 0
    assert len(result.incidents) > 600
    assert (
        result.account_s["lost_work"] == result.account_s["detection"] == result.account_s["diagnosis"] == 0
    )
    down = [incident.down_s for incident in result.incidents[:-1]]
    assert down == pytest.approx([20 + 40 + 60 + 50] * len(down))


def test_slow_nodes_are_found_and_replaced() -> None:
    # a node turns slow every 6 h and is found after 1 h: about a sixth of the time the job takes 1.1 x as long
    setup = replace(CALM, duration_s=30 * DAY, straggler_mttf_s=4 * 6 * HOUR, spares=1000)
    result = simulate_campaign(setup)
    check(result)
    share = result.account_s["stragglers"] / (result.account_s["training"] + result.account_s["stragglers"])
    # slow with probability 1 - e^(-1/6) = 0.154 at any time (M/D/infinity), where 1 - 1/1.1 = 0.091 is lost
    assert share == pytest.approx(0.154 * 0.091, rel=0.25)
    assert result.restarts["straggler"] == pytest.approx(30 * 4, rel=0.3)


def test_a_job_full_of_slow_nodes_is_slow_throughout() -> None:
    result = simulate_campaign(
        replace(CALM, duration_s=DAY, straggler_share=1.0, straggler_detection_s=10 * DAY)
    )
    check(result)
    steps_s = result.account_s["training"] + result.account_s["stragglers"]
    assert result.account_s["stragglers"] == pytest.approx(steps_s * (1 - 1 / 1.1))


def test_llama3s_54_days() -> None:
    setup = replace(
        CALM,
        duration_s=54 * DAY,
        nodes=2048,
        failures=failure_profile("llama3"),
        steps_per_checkpoint=30,
        block_s=5.0,
        upload_s=20.0,
        handling=replace(HANDLING, hang_timeout_s=600.0, diagnosis_s=300.0),
        spares=40,
    )
    results = [simulate_campaign(replace(setup, seed=(0, run))) for run in range(6)]
    for result in results:
        check(result)
    assert np.mean([len(result.incidents) for result in results]) == pytest.approx(466, rel=0.05)
    assert np.mean([result.failures for result in results]) == pytest.approx(419, rel=0.05)
    assert min(result.ettr for result in results) > 0.9


@pytest.mark.parametrize(("detection", "mean_s"), [("in-band", 2.95), ("heartbeat", 25.0), ("hang", 100.0)])
def test_mean_detection_by_hand_and_drawn(detection: Detection, mean_s: float) -> None:
    failures = profile(1 / 2000.0, detection)
    assert mean_detection_s(failures.causes[0], HANDLING) == pytest.approx(mean_s)
    result = simulate_campaign(replace(CALM, duration_s=30 * DAY, failures=failures))
    check(result)
    assert result.account_s["detection"] / result.failures == pytest.approx(mean_s, rel=0.06)


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    setup = replace(CALM, duration_s=5 * DAY, failures=profile(1 / HOUR), jitter=0.05)
    again, other = simulate_campaign(setup), simulate_campaign(replace(setup, seed=(0, 1)))
    assert simulate_campaign(setup) == again
    assert other != again


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    mtbf_s=st.floats(50.0, 1e5),
    detection=st.sampled_from(["in-band", "heartbeat", "hang", "planned"]),
    evict=st.booleans(),
    steps=st.integers(1, 40),
    step_s=st.floats(0.5, 50.0),
    block_s=st.floats(0.0, 60.0),
    upload_s=st.floats(0.0, 500.0),
    jitter=st.floats(0.0, 0.5),
    drift=st.floats(0.0, 0.5),
    spares=st.integers(0, 3),
    straggler_share=st.floats(0.0, 1.0),
    straggler_mttf_s=st.none() | st.floats(1e3, 1e6),
)
def test_every_tick_is_in_exactly_one_account(
    seed: int,
    mtbf_s: float,
    detection: Detection,
    evict: bool,
    steps: int,
    step_s: float,
    block_s: float,
    upload_s: float,
    jitter: float,
    drift: float,
    spares: int,
    straggler_share: float,
    straggler_mttf_s: float | None,
) -> None:
    setup = replace(
        CALM,
        duration_s=20_000.0,
        seed=(0, seed),
        failures=profile(1 / mtbf_s, detection, evict=evict),
        steps_per_checkpoint=steps,
        step_s=step_s,
        block_s=block_s,
        upload_s=upload_s,
        jitter=jitter,
        drift_per_day=drift,
        spares=spares,
        straggler_share=straggler_share,
        straggler_mttf_s=straggler_mttf_s,
        straggler_detection_s=700.0,
        handling=replace(HANDLING, repair_s=3000.0),
    )
    check(simulate_campaign(setup))
