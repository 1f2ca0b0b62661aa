"""In which wave each operation is played: those of a wave wait for nothing but operations of waves before it.

How long operations take does not matter. With a pipeline nor does the plan, where every micro-batch has one slot on all
its ranks: all of them run the operations of a stage in the order that the schedule has for one rank with every slot,
and leave out what is not there. So the waves of that one rank do for every plan, and are kept.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hdpsim.arrays import Ints, ranges
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import MeetsAfter
from hdpsim.simulator.plan_micro_batches import plain_costs
from hdpsim.simulator.play.pipeline.common_ends import Arrivals
from hdpsim.simulator.play.pipeline.deadlock import deadlock_error
from hdpsim.simulator.play.pipeline.extras import Extras
from hdpsim.simulator.play.pipeline.program import Program, compile_program
from hdpsim.simulator.play.shortcuts.equal_ranks import plan_of_lone_ranks


class Waves(NamedTuple):
    """Operations wave by wave."""

    operation: Ints
    bounds: Ints
    """[waves + 1]: where each wave starts."""


def waves_of(program: Program) -> Waves:
    """The waves of all operations that somebody takes part in.

    Raises:
        DeadlockError: some operations can never start.
    """
    plan, costs, entries = program.plan, program.costs, program.entries
    if program.chain.links == 1 or not plan.micro_batches:
        return find_waves(program)
    members = np.bincount(entries.micro_batch, minlength=plan.micro_batches)
    if len(entries.apart(entries.slot)) or not np.array_equal(members, plan.group_size):
        return find_waves(program)
    slot = np.empty(plan.micro_batches, dtype=np.int64)
    slot[entries.micro_batch] = entries.slot
    slots = int(slot.max()) + 1
    if costs.schedule != "dualpipe":  # of all others few slots are the first of many
        slots = 1 << (slots - 1).bit_length()
    number = _waves_by_slot(
        (costs.schedule, costs.stages, costs.chunks, costs.drains_every),
        slots,
        overlap=costs.pp_overlap,
        meets_after=costs.meets_after,
    )[:, slot].ravel()
    operation = np.argsort(number, kind="stable")
    counts = np.bincount(number)
    return Waves(operation, np.concatenate([[0], np.cumsum(counts[counts > 0])]))


@lru_cache(maxsize=64)
def _waves_by_slot(
    shape: tuple[Schedule, int, int, int], slots: int, *, overlap: bool, meets_after: MeetsAfter
) -> NDArray[Any]:
    """[links, slots]: the wave of every operation of a rank with so many slots, read-only."""
    nothing, (schedule, stages, chunks, drains_every) = np.zeros(slots), shape
    costs = plain_costs(stages, nothing, nothing, chunks=chunks, schedule=schedule)
    costs = replace(costs, drains_every=drains_every, pp_overlap=overlap, meets_after=meets_after)
    program = compile_program(plan_of_lone_ranks(np.array([slots])), costs)
    waves = find_waves(program)
    # numpy sorts 16 bits by counting, in a tenth of the time
    number = np.empty(len(waves.operation), dtype=np.uint16 if len(waves.bounds) < 1 << 16 else np.int64)
    number[waves.operation] = np.repeat(np.arange(len(waves.bounds) - 1), np.diff(waves.bounds))
    number.setflags(write=False)
    return number.reshape(program.chain.links, slots)


def find_waves(program: Program) -> Waves:
    """The waves, found operation by operation: each as early as those it waits for allow.

    Raises:
        DeadlockError: some operations can never start.
    """
    units, operations = program.units, len(program.operation_s)
    part_operation, last_part = program.part_operation, program.part_offsets[1:]
    extras = program.extras
    member_ranks, member_offsets = program.plan.member_ranks, program.plan.member_offsets
    group_size = program.plan.group_size

    part = program.part_offsets[:-1].copy()  # of each process: the part it is at
    missing = program.parties.copy()
    arrivals = None if program.common_ends is None else Arrivals(program.common_ends)
    winner = np.empty(operations, dtype=np.int64)
    played: list[Ints] = []

    arrived = np.flatnonzero(part < last_part)
    fed = np.zeros(0, dtype=np.int64)
    while len(arrived) or len(fed):
        operation = part_operation[part[arrived]]
        np.subtract.at(missing, operation, 1)
        ready = np.concatenate([operation, fed])
        ready = ready[missing[ready] == 0]
        # Each operation once, though several members arrived: the last one to write its place stays.
        place = np.arange(len(ready))
        winner[ready] = place
        ready = ready[winner[ready] == place]
        if arrivals is not None:
            ready = arrivals.after(ready)
        played.append(ready)

        fed = ready + units
        fed = fed[fed < operations]
        missing[fed] -= 1
        if extras is not None and len(extras.feeds.before):
            fed = np.concatenate([fed, _feed(extras, ready, missing)])

        link = ready // units
        unit = ready - link * units
        sizes = group_size[unit]
        members = member_ranks[ranges(member_offsets[unit], sizes)]
        members += np.repeat(program.stage_of(link, unit) * program.ranks, sizes)
        part[members] += 1
        arrived = members[part[members] < last_part[members]]

    waves = [ready for ready in played if len(ready)]
    order = np.concatenate([np.zeros(0, dtype=np.int64), *waves])
    if np.any(part < last_part):
        finished = np.zeros(operations, dtype=np.bool_)
        finished[order] = True
        raise deadlock_error(program, finished)
    return Waves(order, np.cumsum([0, *map(len, waves)]))


def _feed(extras: Extras, ready: Ints, missing: Ints) -> Ints:
    """Tell the operations that wait for the *ready* ones besides the chain; return them."""
    first = extras.feed_offsets[ready]
    after = extras.feeds.after[ranges(first, extras.feed_offsets[ready + 1] - first)]
    np.subtract.at(missing, after, 1)
    return after
