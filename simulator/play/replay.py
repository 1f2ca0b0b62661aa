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

The replay advances in waves (see waves): operations that wait for nothing but those of waves before them are played in
one numpy step. The start of an operation is the latest arrival of its parties, so the number of steps is the length of
the longest chain of dependent operations, not the number of operations.
Ranks that provably do the same (see lockstep) are played once.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of, ranges
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.accounts import StepEnd, Timeline, account
from hdpsim.simulator.play.execution import Execution, Noise
from hdpsim.simulator.play.pipeline.common_ends import ALONE
from hdpsim.simulator.play.pipeline.program import Program, compile_program
from hdpsim.simulator.play.pipeline.waves import waves_of
from hdpsim.simulator.play.shortcuts.equal_micro_batches import can_play
from hdpsim.simulator.play.shortcuts.equal_ranks import (
    expanded,
    find_lockstep,
    find_teams,
    plan_of_lone_ranks,
)
from hdpsim.simulator.play.shortcuts.one_stage import is_one_stage, play_one_stage
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
    if is_one_stage(program):
        return *play_one_stage(program, opening_s), None
    order, bounds = waves_of(program)
    plan, extras, ends = program.plan, program.extras, program.common_ends
    operations = len(program.operation_s)
    link, unit = np.divmod(order, max(program.units, 1))
    sizes = plan.group_size[unit]
    process = plan.member_ranks[ranges(plan.member_offsets[unit], sizes)]
    if program.stages > 1:
        process += np.repeat(program.stage_of(link, unit) * program.ranks, sizes)
    first = offsets_of(sizes)  # of each operation: its first member
    place = np.zeros(operations, dtype=np.int64)
    place[order] = np.arange(len(order))
    source = np.where(link > 0, place[order - program.units], len(order))
    duration_s, delay_s = program.operation_s[order], program.result_delay_s[order]
    feeds: list[slice] = []
    if extras is not None and len(extras.feeds.before):
        by_place = np.argsort(place[extras.feeds.after], kind="stable")
        before, after = place[extras.feeds.before[by_place]], place[extras.feeds.after[by_place]]
        hold_s = extras.feeds.delay_s[by_place]
        feeds = _slices(np.searchsorted(after, bounds))

    free_s = np.repeat(opening_s, program.ranks)  # of each process: when it got there
    start_s, own_end_s, end_s = np.empty((3, len(order)))
    result_s = np.zeros(len(order) + 1)  # when it is where it is needed; behind them the input of first links
    if extras is not None:
        part = program.part_offsets[:-1].copy()  # of each process: the one it is at
    if ends is not None:
        meeting = ends.meeting[order]
        latest_s = np.zeros(len(ends.parties) + 1)  # behind them what is ALONE, not read
    for wave, (here, members) in enumerate(zip(_slices(bounds), _slices(first[bounds]), strict=True)):
        member_process = process[members]
        ready_s = free_s[member_process]
        if extras is not None:
            ready_s += extras.part_wait_s[part[member_process]]
            part[member_process] += 1
        if shared := len(member_process) > here.stop - here.start:
            ready_s = np.maximum.reduceat(ready_s, first[here] - members.start)
        np.maximum(ready_s, result_s[source[here]], out=start_s[here])
        if feeds:
            fed = feeds[wave]
            np.maximum.at(start_s, after[fed], end_s[before[fed]] + hold_s[fed])
        ends_s = np.add(start_s[here], duration_s[here], out=own_end_s[here])
        if ends is not None:
            np.maximum.at(latest_s, meeting[here], ends_s)
            ends_s = np.where(meeting[here] == ALONE, ends_s, latest_s[meeting[here]])
        end_s[here] = ends_s
        np.add(ends_s, delay_s[here], out=result_s[here])
        free_s[member_process] = ends_s.repeat(sizes[here]) if shared else ends_s

    played_s = np.full((3, operations), np.nan)  # NaN: nobody takes part
    played_s[0] = 0.0
    played_s[:, order] = start_s, end_s, own_end_s
    return played_s[0], played_s[1], free_s, None if ends is None else played_s[2]


def _slices(bounds: Ints) -> list[slice]:
    return [slice(one, after) for one, after in pairwise(bounds.tolist())]
