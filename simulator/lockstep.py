"""Plans whose ranks all do the same: it is enough to play one of them.

When every micro-batch costs the same and the members of a group run it at the same slot and have equally many slots,
nobody ever waits for a member: by induction over the slots all of them arrive at the same time. Then a rank's step
depends on its number of slots alone. This is what a static mesh makes of sequences of one length, at any size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cost_models.micro_batch import StepCosts
from simulator.execution import Execution, Noise
from simulator.plan import HOLE, Plan

__all__ = ["Lockstep", "find_lockstep", "members_in_step"]

Ints = NDArray[np.int64]


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

    def small(self, plan: Plan, costs: StepCosts) -> tuple[Plan, StepCosts]:
        """The small plan, and the large plan's costs with as many columns as it has micro-batches."""
        return _alone(plan, self.counts), _columns(costs, int(self.counts.sum()))

    def expanded(self, execution: Execution) -> Execution:
        """The large plan's execution from the small one's."""
        accounts, _, stages = execution.account_s.shape
        if self.stands_for is None:
            account_s = np.broadcast_to(execution.account_s, (accounts, self.ranks, stages))
        else:
            account_s = execution.account_s[:, self.stands_for]
        return replace(execution, account_s=account_s)


def find_lockstep(plan: Plan, costs: StepCosts, noise: Noise | None) -> Lockstep | None:
    """What the ranks of *plan* do that all do the same, or None where they may wait for each other."""
    noisy = noise is not None and not (noise.rank_stage is noise.forward is noise.backward is None)
    if noisy or not costs.alike:
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


def _alone(plan: Plan, counts: Ints) -> Plan:
    """One rank with counts[i] micro-batches of its own for every i."""
    micro_batches = int(counts.sum())
    numbers = np.arange(micro_batches + 1, dtype=np.int64)
    return Plan(
        strategy=plan.strategy,
        ranks=len(counts),
        capacity_tokens=plan.capacity_tokens,
        segment_tokens=np.ones(micro_batches, dtype=np.int64),
        segment_sequence=numbers[:-1],
        segment_start=np.zeros(micro_batches, dtype=np.int64),
        segment_offsets=numbers,
        member_ranks=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        member_offsets=numbers,
        offload_ratio=np.zeros(micro_batches),
        order=numbers[:-1],
        order_offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)]),
    )


def _columns(costs: StepCosts, count: int) -> StepCosts:
    """The same costs for *count* micro-batches."""
    terms, kinds = costs.forward_terms_s.shape[:2]
    return replace(
        costs,
        forward_terms_s=np.broadcast_to(costs.forward_terms_s[:, :, :1], (terms, kinds, count)),
        backward_terms_s=np.broadcast_to(costs.backward_terms_s[:, :, :1], (terms, kinds, count)),
        transfer_s=np.broadcast_to(costs.transfer_s[:1], count),
        weight_terms_s=None
        if costs.weight_terms_s is None
        else np.broadcast_to(costs.weight_terms_s[:, :, :1], (terms, kinds, count)),
    )
