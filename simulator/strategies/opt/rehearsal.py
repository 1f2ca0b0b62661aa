"""How long a pipeline takes for a plan, by the planner's own times: the replay, without prices and epilogue."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.groups import Schedule
from hdpsim.cost_models.step.micro_batch import Epilogue, StepCosts
from hdpsim.simulator.plan import Plan
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
    forward_s = (seconds * ((1.0 - BACKWARD_SHARE) / chunks))[None, None, :]
    backward_s = (seconds * (BACKWARD_SHARE / chunks))[None, None, :]
    nothing = np.zeros(stages)
    costs = StepCosts(
        stages=stages,
        chunks=chunks,
        schedule=schedule,
        terms=("work",),
        forward_terms_s=forward_s,
        backward_terms_s=backward_s,
        weight_terms_s=backward_s * WEIGHT_SHARE,
        kind=np.zeros((stages, chunks), dtype=np.int64),
        transfer_s=np.zeros(len(seconds)),
        epilogue=Epilogue(
            data_s=0.0, parameter_gather_s=nothing, gradient_sync_s=nothing, optimizer_s=nothing
        ),
    )
    program = compile_program(plan, costs)
    _, end_s = play(program, nothing)
    done_s = np.zeros(program.processes)
    busy = np.flatnonzero(np.diff(program.part_offsets))
    done_s[busy] = end_s[program.part_operation[program.part_offsets[busy + 1] - 1]]
    return np.asarray(done_s.reshape(stages, program.ranks).max(axis=0))
