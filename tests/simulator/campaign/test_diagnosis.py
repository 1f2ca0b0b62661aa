"""Diagnosis of a campaign: tests with durations, misses and false positives; looks for slow nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import make_costs, make_plan

from hdpsim.cost_models.reliability.failures import FailureCause, FailureProfile, Scope
from hdpsim.simulator.campaign.between_failures import TICKS_PER_S, Pace, Stretch
from hdpsim.simulator.campaign.diagnosis import TESTS, Diagnosis, Fault, Round, TestName
from hdpsim.simulator.campaign.events import Handling
from hdpsim.simulator.campaign.run_with_failures import simulate_campaign
from hdpsim.simulator.campaign.setup import CampaignResult, CampaignSetup
from hdpsim.simulator.play.engine import StepPlay
from hdpsim.simulator.play.pipeline.program import compile_program

pytestmark = pytest.mark.usefixtures("each_plan_once")

DAY, HOUR = 86400.0, 3600.0
HANDLING = Handling(
    heartbeat_s=10.0, heartbeat_misses=3, hang_timeout_s=100.0, diagnosis_s=100.0, manual_share=0.0,
    manual_s=1000.0, repair_s=HOUR, fault_recurrence_s=600.0,
)  # fmt: skip


def cause(scope: Scope = "node", per_day: float = 1.0, *, evict: bool = True) -> FailureCause:
    return FailureCause(name="x", per_day=per_day, scope=scope, detection="in-band", evict=evict)


def campaign(handling: Handling, *, days: float = 60.0, **changes: object) -> CampaignSetup:
    setup = CampaignSetup(
        duration_s=days * DAY, nodes=8, links_per_node=8, step_s=10.0, tokens_per_step=1000.0,
        steps_per_checkpoint=30, block_s=5.0, upload_s=0.0, load_s=50.0, scheduling_s=40.0,
        group_initialisation_s=60.0, jitter=0.0, drift_per_day=0.0,
        failures=FailureProfile(name="test", title="test", causes=(cause(),)), failure_scale=1.0,
        handling=handling, spares=1000, straggler_share=0.0, slow_steps=((1, 1.1),),
        straggler_detection_s=HOUR, straggler_mttf_s=None,
    )  # fmt: skip
    return replace(setup, **changes)  # type: ignore[arg-type]


def run(setup: CampaignSetup) -> CampaignResult:
    result = simulate_campaign(setup)
    assert sum(result.account_ticks) == round(setup.duration_s * TICKS_PER_S)
    assert min(result.account_ticks) >= 0
    assert result.false_evictions <= result.evictions
    return result


def test_a_round_takes_its_tests_and_finds_what_they_see() -> None:
    suite = Diagnosis(round_s=100.0)
    assert suite.seconds == (10.0, 10.0, 30.0, 50.0)
    assert suite.is_perfect
    tests: tuple[TestName, ...]
    for tests, scope, found in (
        (("loopback",), "node", 1),
        (("loopback",), "link", 0),
        (("rnic",), "link", 1),
        (("all-to-all",), "link", 0),
        (("all-reduce",), "link", 1),
    ):
        one = replace(suite, tests=tests)
        tested = Round(one, np.random.default_rng(0))
        tested.run(tests[0], [Fault(cause(scope))], healthy=7)
        assert len(tested.found) == found
        assert tested.wrongly_found == 0
    assert not replace(suite, tests=("loopback", "all-to-all")).is_perfect  # nobody looks at links


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    st.integers(0, 50),
)
def test_more_mistakes_never_make_fewer(
    seed: int, misses: list[float], wrong: list[float], healthy: int
) -> None:
    rounds = []
    for missed, falsely in zip(misses, wrong, strict=True):
        suite = Diagnosis(round_s=1.0, misses=missed, false_positives=falsely)
        tested = Round(suite, np.random.default_rng(seed))
        faults = [Fault(cause("node")), Fault(cause("link")), Fault(cause("job"))]
        for test in TESTS:
            tested.run(test, faults, healthy)
        rounds.append((len(tested.found), tested.wrongly_found))
    assert rounds[0][0] >= rounds[1][0]
    assert rounds[0][1] <= rounds[1][1] <= healthy


def test_perfect_tests_cost_their_time_and_evict_every_fault_once() -> None:
    result = run(campaign(HANDLING))
    # a failure during the restart of another begins anew: its tests may be cut short
    assert result.account_s["diagnosis"] == pytest.approx(100.0 * result.failures, rel=0.02)
    assert result.evictions == pytest.approx(result.failures, abs=1)
    assert result.overlooked == result.false_evictions == 0


def test_faults_that_are_overlooked_strike_again_until_people_look() -> None:
    rare = {"days": 300.0, "failure_scale": 0.1}  # so that no two faults are there at once
    blind = run(
        campaign(replace(HANDLING, diagnosis_tests=("rnic",)), **rare)
    )  # which sees no fault of a node
    seeing = run(campaign(HANDLING, **rare))
    # three rounds miss every fault, then people need 1,000 s: four stops for one
    assert blind.failures == pytest.approx(4 * seeing.failures, rel=0.15)
    assert blind.overlooked == pytest.approx(3 * seeing.failures, rel=0.15)
    assert blind.evictions == pytest.approx(seeing.evictions, rel=0.1)
    assert blind.ettr < seeing.ettr


def test_heartbeats_tell_which_node_it_was() -> None:
    dead = replace(cause(), detection="heartbeat")
    profile = FailureProfile(name="test", title="test", causes=(dead,))
    result = run(campaign(replace(HANDLING, diagnosis_misses=1.0), failures=profile))
    assert result.overlooked == 0
    assert result.evictions == pytest.approx(result.failures, abs=1)


def test_false_positives_evict_more_and_misses_restart_more() -> None:
    runs = [
        [
            run(campaign(replace(HANDLING, **{name: share}), days=30.0, seed=(0, number)))
            for number in range(3)
        ]
        for name in ("diagnosis_false_positives", "diagnosis_misses")
        for share in (0.0, 0.02, 0.3)
    ]
    evictions = [sum(result.evictions for result in of) for of in runs[:3]]
    assert evictions == sorted(evictions)
    assert evictions[0] < evictions[2]
    restarts = [sum(result.failures for result in of) for of in runs[3:]]
    assert restarts == sorted(restarts)


def test_slow_nodes_that_are_overlooked_stay_longer_and_some_recover() -> None:
    base = campaign(
        HANDLING, failures=FailureProfile(name="t", title="t", causes=()), straggler_mttf_s=8 * 6 * HOUR
    )

    def slow_s(**changes: object) -> float:
        handling = replace(HANDLING, straggler_misses=float(changes.pop("misses", 0.0)))  # type: ignore[arg-type]
        return run(replace(base, handling=handling, **changes)).account_s["stragglers"]  # type: ignore[arg-type]

    # one node every 6 h, found after 1 h: with every other look missed after 2 h, with a mean recovery of 1 h sooner
    assert slow_s() < slow_s(misses=0.5)
    assert slow_s(misses=0.5) == pytest.approx(2 * slow_s(), rel=0.35)
    assert slow_s(straggler_recovery_s=HOUR) == pytest.approx((1 - np.exp(-1)) * slow_s(), rel=0.25)


def test_looks_that_are_wrong_evict_healthy_nodes() -> None:
    none = FailureProfile(name="t", title="t", causes=())
    result = run(campaign(replace(HANDLING, straggler_false_positives=0.01), failures=none))
    # 8 nodes x 24 looks a day x 60 days x 1 %
    assert result.false_evictions == pytest.approx(115, rel=0.3)
    assert result.evictions == result.false_evictions
    assert result.failures == 0


def test_a_failure_inside_a_step_loses_what_the_steps_of_the_engine_had_not_ended() -> None:
    # two stages, three micro-batches, 3 s each and 1.5 s of pipeline fill: the engine's steps on one clock
    plan, costs = make_plan([[0, 1, 2]]), make_costs([1.0] * 3, [2.0] * 3, stages=2)
    program = compile_program(plan, costs, None)
    step_s = StepPlay(program).run_alone(np.zeros(2)).step_end.step_s
    pace = Pace(step_s=step_s, steps_per_cycle=5, block_ticks=0, upload_ticks=0)
    for at_s in (0.4 * step_s, 3.99 * step_s, 4.01 * step_s, 7.5 * step_s, 12.3 * step_s):
        env = simpy.Environment()
        ended: list[float] = []

        def train(env: simpy.Environment = env, ended: list[float] = ended):
            while True:
                begin = [env.timeout(0.0)] * 2
                yield StepPlay(program).start(env, begin)
                ended.append(env.now)

        env.process(train())
        env.run(until=at_s)
        closing = Stretch(pace, 0, np.random.default_rng(0)).fail(round(at_s * TICKS_PER_S))
        assert int(closing.reached_steps) == len(ended)
        # of the steps that had ended those since the last checkpoint are lost, and the one under way
        lost_steps = len(ended) - closing.kept_steps
        under_way_s = at_s - (ended[-1] if ended else 0.0)
        assert closing.lost_ticks / TICKS_PER_S == pytest.approx(lost_steps * step_s + under_way_s, abs=1e-4)
