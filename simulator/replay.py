"""The closed-form replay: plays a plan with numpy, without an event loop.

What both executors mean by playing a plan:

* A process is stage s of rank r. It runs its operations one at a time, in the order of the schedule; slots in which
  the rank has no micro-batch (holes, or fewer slots than others) are skipped.
* Time 0 is the start of the step. The first operation of a process can start at data_s + parameter_gather_s[s].
* The forward of micro-batch m on virtual stage k = v * S + s (chunk v) needs the forward of m on k - 1, plus
  transfer_s[m] if that sits on another stage (S > 1). The backward on the last virtual stage needs its forward;
  the backward on k needs the backward on k + 1, plus transfer_s[m] again. Transfers do not contend.
* A shared micro-batch is a rendezvous, operation by operation: it starts when all members are ready for it
  and ends for all at the same time (ring attention keeps them in step). Its duration is the base duration times the
  largest noise factor among its members.
* When all ranks of stage s have run their operations, its gradients are summed in gradient_sync_s[s]. When those of
  all stages are there, the optimizers run for optimizer_s[s]. The step ends with the slowest of them.

The replay advances in waves: all operations whose parties are there start together in one numpy step; each wave
releases the next. The start of an operation is the latest arrival of its parties, so the order of the waves does not
matter, and their number is the length of the longest chain of dependent operations, not the number of operations.
Ranks that provably do the same (see lockstep) are played once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.micro_batch import StepCosts
from simulator.accounts import Timeline, account
from simulator.deadlock import deadlock_error
from simulator.execution import Execution, Noise
from simulator.lockstep import find_lockstep
from simulator.plan import Plan
from simulator.program import Program, compile_program, ranges

__all__ = ["play", "run_replay"]

Floats = NDArray[np.float64]


def run_replay(plan: Plan, costs: StepCosts, noise: Noise | None = None) -> Execution:
    """Play *plan* and return the step's time and where it went.

    Raises:
        DeadlockError: the orders of the ranks contradict each other.
    """
    lockstep = find_lockstep(plan, costs, noise)
    if lockstep is not None:
        return lockstep.expanded(_run(lockstep.plan, lockstep.costs, None))
    return _run(plan, costs, noise)


def _run(plan: Plan, costs: StepCosts, noise: Noise | None) -> Execution:
    program = compile_program(plan, costs, noise)
    start_s, end_s = play(program)
    done_s = np.repeat(program.opening_s, program.ranks)
    busy = np.flatnonzero(np.diff(program.part_offsets))
    done_s[busy] = end_s[program.part_operation[program.part_offsets[busy + 1] - 1]]
    sync_start_s = done_s.reshape(program.stages, program.ranks).max(axis=1)
    optimizer_start_s = float((sync_start_s + costs.epilogue.gradient_sync_s).max())
    timeline = Timeline(
        start_s=start_s,
        end_s=end_s,
        sync_start_s=sync_start_s,
        optimizer_start_s=optimizer_start_s,
        step_s=float((optimizer_start_s + costs.epilogue.optimizer_s).max()),
    )
    return account(program, costs, timeline)


def play(program: Program) -> tuple[Floats, Floats]:
    """Return the start and the end of every operation.

    Raises:
        DeadlockError: some operations can never start.
    """
    units, duration_s, transfer_s = program.units, program.operation_s, program.transfer_s
    part_operation, last_part = program.part_operation, program.part_offsets[1:]
    first_process = program.chain_stage * program.ranks
    group_size = np.diff(program.member_offsets)

    part = program.part_offsets[:-1].copy()  # of each process: the part it is at
    free_s = np.repeat(program.opening_s, program.ranks)  # of each process: when it got there
    start_s = np.zeros(len(duration_s))  # the latest arrival so far
    end_s = np.full(len(duration_s), np.nan)  # NaN: not played
    missing = program.parties.copy()
    winner = np.empty(len(duration_s), dtype=np.int64)

    arrived = np.flatnonzero(part < last_part)
    fed = np.zeros(0, dtype=np.int64)
    while len(arrived) or len(fed):
        operation = part_operation[part[arrived]]
        np.maximum.at(start_s, operation, free_s[arrived])
        np.subtract.at(missing, operation, 1)

        ready = np.concatenate([operation, fed])
        ready = ready[missing[ready] == 0]
        # Each operation once, though several members arrived: the last one to write its place stays.
        place = np.arange(len(ready))
        winner[ready] = place
        ready = ready[winner[ready] == place]
        ready_end_s = start_s[ready] + duration_s[ready]
        end_s[ready] = ready_end_s

        link = ready // units
        unit = ready - link * units
        fed = ready + units
        inside = fed < len(duration_s)
        fed = fed[inside]
        start_s[fed] = np.maximum(start_s[fed], ready_end_s[inside] + transfer_s[unit[inside]])
        missing[fed] -= 1

        sizes = group_size[unit]
        members = program.member_ranks[ranges(program.member_offsets[unit], sizes)]
        members += np.repeat(first_process[link], sizes)
        free_s[members] = np.repeat(ready_end_s, sizes)
        part[members] += 1
        arrived = members[part[members] < last_part[members]]

    if np.any(part < last_part):
        raise deadlock_error(program, ~np.isnan(end_s))
    return start_s, end_s
