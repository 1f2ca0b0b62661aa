"""A step that is played in an environment which others share: the same step, on their clock."""

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from simulator_plans import Case, cases, make_costs, make_plan

from hdpsim.errors import DeadlockError
from hdpsim.simulator.play.engine import StepPlay
from hdpsim.simulator.play.pipeline.program import compile_program


@settings(max_examples=100)
@given(cases())
def test_a_step_that_begins_at_once_is_the_step_played_alone(case: Case):
    program = compile_program(case.plan, case.costs, case.noise)
    alone = StepPlay(program).run_alone(np.zeros(case.costs.stages))
    env = simpy.Environment(initial_time=10.0)
    step = StepPlay(program)
    shared = env.run(step.start(env, [env.timeout(5.0)] * case.costs.stages))

    tolerance = 1e-9 * max(alone.step_end.step_s, 1)
    assert shared.step_end.step_s == pytest.approx(alone.step_end.step_s, abs=tolerance)
    np.testing.assert_allclose(shared.end_s - 15.0, alone.end_s, atol=tolerance)
    np.testing.assert_allclose(shared.step_end.done_s - 15.0, alone.step_end.done_s, atol=tolerance)


def test_stages_begin_with_their_events_and_tell_when_they_end():
    # Forward 1 s and backward 2 s on each of two stages, no transfers: stage 1 opens only after 4 s.
    program = compile_program(
        make_plan([[0]]), make_costs([1], [2], stages=2, sync_s=0.5, optimizer_s=0.25), None
    )
    env, ends = simpy.Environment(), []

    def listen(stage: int, event: simpy.Event):
        yield event
        ends.append((stage, env.now))

    step = StepPlay(program)
    whole = step.start(env, [env.timeout(0.0), env.timeout(4.0)])
    for stage, ended in enumerate(step.stage_ended):
        env.process(listen(stage, ended))
    timeline = env.run(whole)

    # 0-1 forward; 4-7 forward and backward of stage 1; 7-9 backward of stage 0; 9.5 gradients; 9.75 optimizers.
    assert sorted(ends) == [(0, 9.75), (1, 9.75)]
    assert timeline.step_end.begin_s.tolist() == [0.0, 4.0]
    assert timeline.step_end.step_s == 9.75


def test_orders_that_contradict_each_other_leave_the_environment_without_events():
    program = compile_program(
        make_plan([[0, 1], [1, 0]], groups=[[0, 1], [0, 1]]), make_costs([1, 1], [1, 1]), None
    )
    env, step = simpy.Environment(), StepPlay(program)
    step.start(env, [env.timeout(0.0)])
    env.run()
    with pytest.raises(DeadlockError):
        step.check_played()
