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
* Ranks that meet in every layer hold each slot together (see meetings).
* Ranks that agree on something after passes, as on the loss of every micro-batch, end these together (common_ends).
* Zero-bubble schedules split the backward: its weight gradient feeds nobody and runs between two operations of its
  process. ZB-H2 and ZB-V have no barrier over the stages: a stage begins its next step when its optimizer is done, and
  the time of a step is the least period at which all stages can repeat (see repetition).
* Blocking transfers and overlapped pairs: see parts.

The replay advances in waves: all operations whose parties are there start together in one numpy step; each wave
releases the next. The start of an operation is the latest arrival of its parties, so the order of the waves does not
matter, and their number is the length of the longest chain of dependent operations, not the number of operations.
Ranks that provably do the same (see lockstep) are played once.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hdpsim.arrays import Floats, Ints, ranges
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.accounts import StepEnd, Timeline, account
from hdpsim.simulator.play.execution import Execution, Noise
from hdpsim.simulator.play.pipeline.common_ends import Arrivals
from hdpsim.simulator.play.pipeline.deadlock import deadlock_error
from hdpsim.simulator.play.pipeline.extras import Extras
from hdpsim.simulator.play.pipeline.program import Program, compile_program
from hdpsim.simulator.play.shortcuts.equal_micro_batches import can_play
from hdpsim.simulator.play.shortcuts.equal_ranks import (
    expanded,
    find_lockstep,
    find_teams,
    plan_of_lone_ranks,
)
from hdpsim.simulator.play.shortcuts.repeating_micro_batches import lone_step_end, run_lone_ranks
from hdpsim.simulator.play.shortcuts.repeating_steps import steady_step
from hdpsim.simulator.play.shortcuts.unequal_stages import run_side_by_side, side_by_side


def run_replay(plan: Plan, costs: StepCosts, noise: Noise | None = None) -> Execution:
    """Play *plan* and return the step's time and where it went.

    Raises:
        DeadlockError: the orders of the ranks contradict each other.
    """
    lockstep = find_lockstep(plan, costs, noise)
    if lockstep is not None:
        counts, stands_for = lockstep
        return expanded(replay_lone_ranks(costs, counts), stands_for)
    if noise is not None and side_by_side(plan, costs, noise):
        return run_side_by_side(plan, costs, noise)
    teams = _teams(plan, costs, noise)
    if teams is None:
        return _run(plan, costs, noise)
    small, stands_for = teams
    return expanded(_run(small, costs, None), stands_for)


def replay_step_s(plan: Plan, costs: StepCosts) -> float:
    """Seconds of the step that run_replay plays, which says where they went besides."""
    lockstep = find_lockstep(plan, costs, None)
    if lockstep is not None:
        return replay_lone_ranks(costs, lockstep[0]).step_s
    teams = _teams(plan, costs, None)
    return _timeline(compile_program(plan if teams is None else teams[0], costs, None)).step_end.step_s


def _teams(plan: Plan, costs: StepCosts, noise: Noise | None) -> tuple[Plan, Ints] | None:
    # Members of several kinds are not alike, and who meets others in every layer is no team of its own.
    apart = costs.members is None and (costs.meeting_ranks == 1 or costs.alike)
    return find_teams(plan, noise) if apart else None


def replay_lone_ranks(costs: StepCosts, counts: Ints) -> Execution:
    """Play ranks with so many equal micro-batches each, which share nothing but gradients.

    Raises:
        InfeasibleError: the schedule cannot run so many.
    """
    if can_play(costs):
        return run_lone_ranks(costs, counts.tolist())
    return _run(plan_of_lone_ranks(counts), costs.repeated(int(counts.sum())), None)


def replay_lone_step(costs: StepCosts, most: int) -> StepEnd:
    """The end of the step of ranks with up to so many equal micro-batches each, which share nothing but gradients.

    Only one with *most* of them is played: fewer run the same operations without some of them, and nothing comes later.

    Raises:
        InfeasibleError: the schedule cannot run so many.
    """
    if can_play(costs):
        return lone_step_end(costs, most)
    program = compile_program(plan_of_lone_ranks(np.array([most])), costs.repeated(most), None)
    return _timeline(program).step_end


def _run(plan: Plan, costs: StepCosts, noise: Noise | None) -> Execution:
    program = compile_program(plan, costs, noise)
    return account(program, _timeline(program))


def _timeline(program: Program) -> Timeline:
    return steady_step(program.costs, partial(replay_timeline, program))


def replay_timeline(program: Program, begin_s: Floats) -> Timeline:
    """One step whose stages begin at *begin_s*.

    Raises:
        DeadlockError: the orders of the ranks contradict each other.
    """
    start_s, end_s, done_s, computed_s = play(program, program.opening_s + begin_s)
    if program.extras is not None:
        done_s += program.extras.tail_s
    by_stage = done_s.reshape(program.stages, program.ranks)
    end = StepEnd.after(by_stage, program.costs.epilogue, begin_s, stage_by_stage=program.stage_by_stage)
    return Timeline(start_s, end_s, end, computed_s=computed_s)


def play(program: Program, opening_s: Floats) -> tuple[Floats, Floats, Floats, Floats | None]:
    """When stages open at *opening_s*: start and end of every operation, the end of every process, Timeline.computed_s.

    Raises:
        DeadlockError: some operations can never start.
    """
    units, duration_s, result_delay_s = program.units, program.operation_s, program.result_delay_s
    part_operation, last_part = program.part_operation, program.part_offsets[1:]
    extras = program.extras
    member_ranks, member_offsets = program.plan.member_ranks, program.plan.member_offsets
    group_size = program.plan.group_size

    part = program.part_offsets[:-1].copy()  # of each process: the part it is at
    free_s = np.repeat(opening_s, program.ranks)  # of each process: when it got there
    start_s = np.zeros(len(duration_s))  # the latest arrival so far
    end_s = np.full(len(duration_s), np.nan)  # NaN: not played
    missing = program.parties.copy()
    arrivals = None if program.common_ends is None else Arrivals(program.common_ends)
    computed_s = None if arrivals is None else end_s.copy()
    winner = np.empty(len(duration_s), dtype=np.int64)

    arrived = np.flatnonzero(part < last_part)
    fed = np.zeros(0, dtype=np.int64)
    while len(arrived) or len(fed):
        operation = part_operation[part[arrived]]
        ready_s = free_s[arrived]
        if extras is not None:
            ready_s += extras.part_wait_s[part[arrived]]
        np.maximum.at(start_s, operation, ready_s)
        np.subtract.at(missing, operation, 1)

        ready = np.concatenate([operation, fed])
        ready = ready[missing[ready] == 0]
        # Each operation once, though several members arrived: the last one to write its place stays.
        place = np.arange(len(ready))
        winner[ready] = place
        ready = ready[winner[ready] == place]
        ready_end_s = start_s[ready] + duration_s[ready]
        if arrivals is not None and computed_s is not None:
            computed_s[ready] = ready_end_s
            ready, ready_end_s = arrivals.after(ready, ready_end_s)
        end_s[ready] = ready_end_s

        link = ready // units
        unit = ready - link * units
        fed = ready + units
        inside = fed < len(duration_s)
        fed = fed[inside]
        result_s = (ready_end_s + result_delay_s[ready])[inside]
        start_s[fed] = np.maximum(start_s[fed], result_s)
        missing[fed] -= 1
        if extras is not None and len(extras.feeds.before):
            fed = np.concatenate([fed, _feed(extras, ready, ready_end_s, start_s, missing)])

        sizes = group_size[unit]
        members = member_ranks[ranges(member_offsets[unit], sizes)]
        members += np.repeat(program.stage_of(link, unit) * program.ranks, sizes)
        free_s[members] = np.repeat(ready_end_s, sizes)
        part[members] += 1
        arrived = members[part[members] < last_part[members]]

    if np.any(part < last_part):
        raise deadlock_error(program, ~np.isnan(end_s))
    return start_s, end_s, free_s, computed_s


def _feed(extras: Extras, ready: Ints, end_s: Floats, start_s: Floats, missing: Ints) -> Ints:
    """Tell the operations that wait for the *ready* ones besides the chain; return them."""
    first = extras.feed_offsets[ready]
    counts = extras.feed_offsets[ready + 1] - first
    which = ranges(first, counts)
    after = extras.feeds.after[which]
    np.maximum.at(start_s, after, np.repeat(end_s, counts) + extras.feeds.delay_s[which])
    np.subtract.at(missing, after, 1)
    return after
