"""Plans of which several ranks do the same: it is enough to play one of them.

When every micro-batch costs the same and the members of a group run it at the same slot and have equally many slots,
nobody ever waits for a member: by induction over the slots all of them arrive at the same time. Then a rank's step
depends on its number of slots alone. This is what a static mesh makes of sequences of one length, at any size.

Where micro-batches differ, ranks that share all of theirs with the same others are a team, and do the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpsim.arrays import Ints, offsets_of, ranges
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.execution import Execution, Noise


def expanded(small: Execution, stands_for: Ints) -> Execution:
    """The execution of a plan from that of a *small* one; *stands_for*: which of its ranks does what each rank does."""
    accounts, ranks, stages = small.account_s.shape
    if ranks > 1:
        return replace(small, account_s=small.account_s[:, stands_for])
    view = np.broadcast_to(small.account_s, (accounts, len(stands_for), stages))
    return replace(small, account_s=view)


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


def find_lockstep(plan: Plan, costs: StepCosts, noise: Noise | None) -> tuple[Ints, Ints] | None:
    """What the ranks of *plan* do that all do the same, or None where they may wait for each other.

    Returns:
        The slots of lone ranks, one for each number of slots that occurs, and of every rank which stands for it.
    """
    if noise is not None or not costs.alike:
        return None
    slots = plan.order_offsets[1:] - plan.order_offsets[:-1]
    if not (plan.in_step or members_in_step(plan, slots)):
        return None
    if (slots == slots[0]).all():
        return slots[:1], np.zeros_like(slots)
    if costs.meets_after != "step":  # those with fewer micro-batches wait for others in some of theirs
        return None
    counts, stands_for = np.unique(slots, return_inverse=True)
    return counts, stands_for


def members_in_step(plan: Plan, slots: Ints) -> bool:
    """Whether all members of every group run it at the same slot and have equally many *slots*, without holes."""
    if (plan.order == HOLE).any():
        return False
    if len(plan.member_ranks) == plan.micro_batches:  # nothing is shared
        return True
    entries = plan.entries
    return not any(len(entries.apart(value)) for value in (entries.slot, slots[entries.rank]))


def find_teams(plan: Plan, noise: Noise | None) -> tuple[Plan, Ints] | None:
    """The teams of a plan, or None where ranks share micro-batches with different others, or none at all.

    Returns:
        A plan of one rank of each team, in which nothing is shared, and of every rank which stands for it.
    """
    slots = np.diff(plan.order_offsets)
    if noise is not None or len(plan.member_ranks) == plan.micro_batches:  # nothing is shared
        return None
    first_member = plan.member_ranks[plan.member_offsets[:-1]]
    leader = np.arange(plan.ranks)
    held = np.flatnonzero(plan.order != HOLE)[::-1]  # from behind, so that a rank's first micro-batch stays
    leader[np.repeat(leader, slots)[held]] = first_member[plan.order[held]]
    if (leader[plan.member_ranks] != np.repeat(leader[first_member], plan.group_size)).any():
        return None
    # Whoever leads a team is in it, and its micro-batches are those of all members, at the same slots.
    if (leader[leader] != leader).any() or (slots != slots[leader]).any():
        return None
    start = plan.order_offsets[:-1]
    if (plan.order != plan.order[ranges(start[leader], slots)]).any():
        return None
    leads = leader == np.arange(plan.ranks)
    stands_for = np.cumsum(leads)[leader] - 1
    small = replace(
        plan,
        ranks=int(leads.sum()),
        member_ranks=stands_for[first_member],
        member_offsets=np.arange(plan.micro_batches + 1, dtype=np.int64),
        order=plan.order[ranges(start[leads], slots[leads])],
        order_offsets=offsets_of(slots[leads]),
        rank_capacity_tokens=None,
    )
    return small, stands_for
