"""Ranks that meet in every layer: to gather its parameters (ZeRO-3), or to send tokens to each other's experts.

A collective in every layer waits for the last of its ranks. So neighbouring ranks that meet begin a slot together and
end it together, forward and backward each: it takes what the slowest of their micro-batches takes. A rank without a
micro-batch in that slot takes part with an empty pass (real stacks pad with dummy micro-batches: the collective would
hang without it). A group that spans several such blocks joins them for that slot.

A *meeting* is played like one micro-batch that all its ranks share. What a rank computes there is its own; the rest is
wait_group.
Ignored: the one layer that prefetch lets a rank run ahead; noise of micro-batches that are all alike.
Source: FSDP, arXiv 2304.11277, section 3.3 (all ranks issue the same collectives); Megatron-Core,
MoEAlltoAllTokenDispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of, ranges
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.errors import PlanError
from hdpsim.simulator.plan import HOLE, Entries, Plan
from hdpsim.simulator.play.execution import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """What is played in place of a plan whose ranks meet in every layer.

    Attributes:
        plan: of meetings; its segments say nothing.
        costs: of every meeting the slowest micro-batch, forward and backward each.
        noise: by entries of that plan.
        meeting: [micro-batches]: of the plan that it stands for.
        own: [ranks, slots]: the micro-batch that a rank has at a slot, or HOLE.
    """

    plan: Plan
    costs: StepCosts
    noise: Noise | None
    meeting: Ints
    own: Ints

    def of_ranks(self, rank: Ints, meeting: Ints) -> Ints:
        """The own micro-batch of each *rank* at that *meeting*, or HOLE."""
        return self.own[rank, self._slot[meeting]]

    def largest(self, values: Floats) -> Floats:
        """[..., meetings]: the largest of [..., micro-batches]."""
        order, first = _runs(self.meeting)
        return np.asarray(np.maximum.reduceat(values[..., order], first, axis=-1))

    @property
    def _slot(self) -> Ints:
        """[meetings]: when each is held."""
        slot = np.zeros(self.plan.micro_batches, dtype=np.int64)
        held = self.plan.order != HOLE
        slot[self.plan.order[held]] = np.tile(np.arange(self.own.shape[1]), self.plan.ranks)[held]
        return slot


def meetings_of(plan: Plan, costs: StepCosts, noise: Noise | None) -> Meetings | None:
    """The meetings of a plan; None where ranks do not meet, or what they run is alike anyway.

    What is alike may still be late, one more than another, where transfers share links (costs.traffic): without noise
    those meet, too.

    Raises:
        PlanError: members of a group would meet others at different slots, and wait for ever.
    """
    block = costs.meeting_ranks
    late = costs.traffic is not None and noise is None
    if block == 1 or (costs.alike and not late) or plan.micro_batches == 0:
        return None
    own = np.full((plan.ranks, int(np.diff(plan.order_offsets).max(initial=0))), HOLE, dtype=np.int64)
    entries = plan.entries
    _, rank, slot, micro_batch = entries
    own[rank, slot] = micro_batch
    check_common_slots(entries, "where ranks meet in every layer")
    blocks = plan.ranks // block
    room_of_entry = slot * blocks + rank // block
    by_micro_batch, first = _runs(micro_batch)
    room = joined(room_of_entry[by_micro_batch], first, own.shape[1] * blocks)
    held, meeting_of_room = np.unique(room[room_of_entry], return_inverse=True)
    meeting = np.zeros(plan.micro_batches, dtype=np.int64)
    meeting[micro_batch] = meeting_of_room
    # All ranks of a block take part in its meetings.
    number = np.full(len(room), HOLE, dtype=np.int64)
    number[held] = np.arange(len(held))
    order = number[room].reshape(own.shape[1], blocks).T.repeat(block, axis=0)  # [ranks, slots]
    at_rank, at_slot = np.nonzero(order != HOLE)
    of_entry = order[at_rank, at_slot]
    by_meeting = np.argsort(of_entry, kind="stable")  # entries go by rank
    zeros = np.zeros(len(held), dtype=np.int64)
    met = replace(
        plan,
        segment_tokens=zeros + 1,
        segment_sequence=zeros,
        segment_start=zeros,
        segment_offsets=np.arange(len(held) + 1),
        member_ranks=at_rank[by_meeting],
        member_offsets=offsets_of(np.bincount(of_entry, minlength=len(held))),
        offload_ratio=np.zeros(len(held)),
        order=order.ravel(),
        order_offsets=np.arange(plan.ranks + 1) * own.shape[1],
        padding_tokens=None,
        in_step=False,
    )
    return Meetings(
        plan=met,
        costs=_slowest(costs, meeting),
        noise=None if noise is None else _of_entries(noise, plan, own),
        meeting=meeting,
        own=own,
    )


def check_common_slots(entries: Entries, why: str) -> None:
    """Raise PlanError unless every micro-batch has the same slot on all its ranks."""
    moved = entries.apart(entries.slot)
    if len(moved):
        _, rank, slot, micro_batch = (column[moved[0]] for column in entries)
        other = entries.slot[entries.micro_batch == micro_batch][-1]
        raise PlanError(
            f"micro-batch {micro_batch} has slot {slot} on rank {rank} and "
            f"slot {other} on another; {why} all members need the same slot"
        )


def joined(members: Ints, first: Ints, count: int) -> Ints:
    """[count]: the least number that each is joined with by groups of *members*, which begin at *first*."""
    sizes = np.diff(first, append=len(members))
    least, before = np.arange(count), np.zeros(0, dtype=np.int64)
    while not np.array_equal(before, least):
        # every round all members take the least number of their group
        before = least.copy()
        np.minimum.at(least, members, np.repeat(np.minimum.reduceat(least[members], first), sizes))
        least = least[least]
    return least


def _runs(key: Ints) -> tuple[Ints, Ints]:
    """Places by ascending key, and where each key begins among them."""
    order = np.argsort(key, kind="stable")
    return order, np.flatnonzero(np.diff(key[order], prepend=-1))


def _slowest(costs: StepCosts, meeting: Ints) -> StepCosts:
    """The costs of meetings: of every kind of stage the terms of the micro-batch that takes longest there."""
    kinds = np.arange(costs.forward_terms_s.shape[1])

    def slowest(total_s: Floats) -> Ints:
        """[K, meetings]"""
        slowest_units = []
        for row in total_s:
            order = np.lexsort((-row, meeting))
            slowest_units.append(order[np.flatnonzero(np.diff(meeting[order], prepend=-1))])
        return np.stack(slowest_units)

    forward, backward = slowest(costs.forward_s), slowest(costs.backward_s)
    order, first = _runs(meeting)
    weights = costs.weight_terms_s
    return replace(
        costs,
        forward_terms_s=costs.forward_terms_s[:, kinds[:, None], forward],
        backward_terms_s=costs.backward_terms_s[:, kinds[:, None], backward],
        weight_terms_s=None if weights is None else weights[:, kinds[:, None], backward],
        transfer_s=np.maximum.reduceat(costs.transfer_s[order], first),
        meeting_ranks=1,
    )


def _of_entries(noise: Noise, plan: Plan, own: Ints) -> Noise:
    """The noise by rank and slot; empty passes have none."""
    slots = np.diff(plan.order_offsets)
    rank, slot = np.repeat(np.arange(plan.ranks), slots), ranges(np.zeros_like(slots), slots)
    place = rank * own.shape[1] + slot

    def spread(drawn: Floats | None) -> Floats | None:
        if drawn is None:
            return None
        every = np.ones((own.size, *drawn.shape[1:]))
        every[place] = drawn
        return every

    return replace(noise, forward=spread(noise.forward), backward=spread(noise.backward))
