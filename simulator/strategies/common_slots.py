"""Plans for ranks that meet in every layer: every micro-batch at one slot on all its ranks, like beside like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpsim.arrays import Ints, offsets_of
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.plan_micro_batches import plan_micro_batches
from hdpsim.simulator.strategies.problem import PlanningProblem


def has_common_slots(plan: Plan) -> bool:
    """Whether every micro-batch has the same slot on all its ranks."""
    if plan.in_step or len(plan.member_ranks) == plan.micro_batches:
        return True
    entries = plan.entries
    return not len(entries.apart(entries.slot))


def in_common_slots(problem: PlanningProblem, plan: Plan) -> Plan:
    """The plan with the same micro-batches on the same ranks, the longest first.

        for every micro-batch, by falling time: the first slot that is free on all its ranks

    Where ranks meet in every layer a slot takes what its longest micro-batch does, so that the sum over slots of the
    longest counts. Of micro-batches that nobody shares no order has a smaller sum: slot k then holds the k-th longest
    of every rank.
    """
    times_s = problem.cost.busy_s(plan_micro_batches(problem.cost, plan))
    members = plan.member_ranks.tolist()
    offsets = plan.member_offsets.tolist()
    taken = [0] * plan.ranks  # of every rank: its slots as bits
    slot = np.zeros(plan.micro_batches, dtype=np.int64)
    for number in np.argsort(-times_s, kind="stable").tolist():
        ranks = members[offsets[number] : offsets[number + 1]]
        busy = 0
        for rank in ranks:
            busy |= taken[rank]
        first = ~busy & (busy + 1)
        for rank in ranks:
            taken[rank] |= first
        slot[number] = first.bit_length() - 1
    return _at_slots(plan, slot)


def _at_slots(plan: Plan, slot: Ints) -> Plan:
    slots = int(slot.max()) + 1
    table = np.full((plan.ranks, slots), HOLE, dtype=np.int64)
    number = np.repeat(np.arange(plan.micro_batches), plan.group_size)
    table[plan.member_ranks, slot[number]] = number
    filled = np.where(table != HOLE, np.arange(1, slots + 1), 0).max(axis=1)  # without the holes at the end
    order = table[np.arange(slots) < filled[:, None]]
    return replace(plan, order=order, order_offsets=offsets_of(filled), in_step=False)
