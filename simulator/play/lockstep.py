"""Plans whose ranks all do the same: it is enough to play one of them.

When every micro-batch costs the same and the members of a group run it at the same slot and have equally many slots,
nobody ever waits for a member: by induction over the slots all of them arrive at the same time. Then a rank's step
depends on its number of slots alone. This is what a static mesh makes of sequences of one length, at any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Ints, offsets_of
from hdpsim.cost_models.step.micro_batch import StepCosts
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.execution import Execution, Noise


@dataclass(frozen=True, slots=True)
class Lockstep:
    """A small plan that stands for a large one.

    Attributes:
        counts: slots of each rank of the small plan: one rank for each number of slots that occurs; nothing is shared.
        ranks: of the large plan.
        stands_for: [ranks]: the rank of the small plan that does what each rank does; None = the only one.
    """

    counts: Ints
    ranks: int
    stands_for: Ints | None

    def expanded(self, execution: Execution) -> Execution:
        """The large plan's execution from the small one's."""
        accounts, _, stages = execution.account_s.shape
        if self.stands_for is None:
            account_s = np.broadcast_to(execution.account_s, (accounts, self.ranks, stages))
        else:
            account_s = execution.account_s[:, self.stands_for]
        return replace(execution, account_s=account_s)


def plan_of_lone_ranks(counts: Ints) -> Plan:
    """A plan of ranks with so many micro-batches each, which share nothing."""
    count = int(counts.sum())
    numbers = np.arange(count + 1, dtype=np.int64)
    return Plan(
        strategy="static",
        ranks=len(counts),
        capacity_tokens=1,
        segment_tokens=np.ones(count, dtype=np.int64),
        segment_sequence=numbers[:-1],
        segment_start=np.zeros(count, dtype=np.int64),
        segment_offsets=numbers,
        member_ranks=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        member_offsets=numbers,
        offload_ratio=np.zeros(count),
        order=numbers[:-1],
        order_offsets=offsets_of(counts),
    )


def find_lockstep(plan: Plan, costs: StepCosts, noise: Noise | None) -> Lockstep | None:
    """What the ranks of *plan* do that all do the same, or None where they may wait for each other."""
    if noise is not None or not costs.alike:
        return None
    slots = plan.order_offsets[1:] - plan.order_offsets[:-1]
    if not (plan.in_step or members_in_step(plan, slots)):
        return None
    counts, stands_for = slots[:1], None
    if (slots != slots[0]).any():
        counts, stands_for = np.unique(slots, return_inverse=True)
    return Lockstep(counts, plan.ranks, stands_for)


def members_in_step(plan: Plan, slots: Ints) -> bool:
    """Whether all members of every group run it at the same slot and have equally many *slots*, without holes."""
    if (plan.order == HOLE).any():
        return False
    if len(plan.member_ranks) == plan.micro_batches:  # nothing is shared
        return True
    rank = np.repeat(np.arange(plan.ranks), slots)
    place = np.arange(len(plan.order)) - plan.order_offsets[rank]
    for value in (place, slots[rank]):
        expected = np.zeros(plan.micro_batches, dtype=np.int64)
        expected[plan.order] = value  # any member's: the others are held against it
        if np.any(expected[plan.order] != value):
            return False
    return True


class Played(NamedTuple):
    """When a rank alone did what."""

    start_s: list[float]
    """[operations]"""
    end_s: list[float]
    """[operations]: NaN = never played."""
    finished: bool


def play_rank(
    units: int,
    part_operation: list[int],
    part_offsets: list[int],
    stage_of: list[int],
    operation_s: list[float],
    result_delay_s: list[float],
    opening_s: list[float],
) -> Played:
    """Play the pipeline of one rank; the arguments are those of a Program, stage_of by link.

    Each stage runs on until its next input is not there yet; an operation that feeds another stage wakes it up.
    """
    size, stages = len(operation_s), len(opening_s)
    place, last = part_offsets[:-1], part_offsets[1:]
    free_s = list(opening_s)
    input_s = [0.0] * units + [math.nan] * (size - units)  # NaN: not there yet
    start_s, end_s = [0.0] * size, [math.nan] * size
    todo = list(range(stages))
    while todo:
        stage = todo.pop()
        at, now_s = place[stage], free_s[stage]
        while at < last[stage]:
            operation = part_operation[at]
            arrival_s = input_s[operation]
            if arrival_s != arrival_s:  # NaN
                break
            now_s = max(now_s, arrival_s)
            start_s[operation] = now_s
            now_s += operation_s[operation]
            end_s[operation] = now_s
            at += 1
            following = operation + units
            if following < size:
                input_s[following] = now_s + result_delay_s[operation]
                other = stage_of[following // units]
                if other != stage:
                    todo.append(other)
        place[stage], free_s[stage] = at, now_s
    return Played(start_s, end_s, place == last)
