"""How long a pipeline takes for a plan, by the planner's own times: the replay, without prices and epilogue."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.plan_micro_batches import plain_costs
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.replay import play

BACKWARD_SHARE = 0.7
"""Backward over forward and backward: twice the matrix products, 2.5 times the attention."""

WEIGHT_SHARE = 3.0 / 7.0
"""Weight gradient over backward, where a schedule splits it: as much as the forward."""


def rehearsed_s(
    plan: Plan, seconds: Floats, *, stages: int, chunks: int, schedule: Schedule = "1f1b"
) -> Floats:
    """When each rank ends, all its stages, if micro-batches take *seconds* on every stage, forward and backward.

    Counted: the schedule with its bubbles, waiting of groups.  Ignored: transfers, what distinguishes stages.
    """
    forward_s, backward_s = (seconds * (share / chunks) for share in (1.0 - BACKWARD_SHARE, BACKWARD_SHARE))
    costs = plain_costs(
        stages, forward_s, backward_s, chunks=chunks, schedule=schedule, weight_share=WEIGHT_SHARE
    )
    program = compile_program(plan, costs)
    _, _, done_s = play(program, np.zeros(stages))
    return np.asarray(done_s.reshape(stages, program.ranks).max(axis=0))
