"""Plans of a mesh: packs, each a micro-batch on a group of neighbouring ranks; also packs that somebody else made."""

from __future__ import annotations

from typing import Any

import numpy as np

from hdpsim.arrays import Ints, offsets_of, ranges
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem

from .packing import Pieces


def plan_given_packs(problem: PlanningProblem, pack: Ints, degree: int) -> Plan:
    """Pack i runs on group i modulo the number of groups, after the packs that the group has already.

    Fewer packs than groups leave groups without work, and packs are as unequal as they are given.

    Args:
        problem: the batch.
        pack: for every sequence the number of its pack; no number below the largest is left out.
        degree: ranks of a group, which share each of its packs.

    Raises:
        InfeasibleError: ranks that do not divide.
    """
    if problem.ranks % degree:
        raise InfeasibleError(f"{problem.ranks} ranks do not divide by cp = {degree}")
    pieces = Pieces.of_whole(problem.lengths, pack).at(np.argsort(pack, kind="stable"))
    offsets = offsets_of(np.bincount(pack))
    groups, packs = problem.ranks // degree, len(offsets) - 1
    return mesh_plan(
        problem,
        pieces,
        offsets,
        degree,
        in_turn(packs, groups),
        capacity_tokens=int(-(-np.add.reduceat(pieces.tokens, offsets[:-1]).max() // degree)),
        notes=(f"given packs: {packs} on {groups} groups of {degree} ranks",),
    )


def in_turn(packs: int, groups: int) -> tuple[Ints, Ints, Ints]:
    """Pack i goes to group i modulo groups: the group of every pack, packs by group and slot, slots of every group."""
    slots = packs // groups + (np.arange(groups) < packs % groups).astype(np.int64)
    slot = ranges(np.zeros_like(slots), slots)
    number = np.arange(packs, dtype=np.int64)
    return number % groups, np.repeat(np.arange(groups, dtype=np.int64), slots) + groups * slot, slots


def mesh_plan(
    problem: PlanningProblem,
    pieces: Pieces,
    offsets: Ints,
    degree: int,
    dealt: tuple[Ints, Ints, Ints],
    **more: Any,
) -> Plan:
    """The plan of packs on groups of *degree* neighbouring ranks.

    Args:
        problem: the batch.
        pieces: by pack.
        offsets: of every pack's first piece.
        degree: ranks of a group.
        dealt: to whom, see in_turn.
        more: further fields of the Plan.
    """
    (group, order, slots), packs = dealt, len(offsets) - 1
    first, rank_slots = np.cumsum(slots) - slots, np.repeat(slots, degree)
    return Plan(
        strategy=problem.options.name,
        ranks=problem.ranks,
        segment_tokens=pieces.tokens,
        segment_sequence=pieces.sequence,
        segment_start=pieces.start,
        segment_offsets=offsets,
        member_ranks=ranges(group * degree, np.full(packs, degree)),
        member_offsets=np.arange(packs + 1, dtype=np.int64) * degree,
        offload_ratio=np.full(packs, problem.mesh_offload_ratio),
        order=order[ranges(np.repeat(first, degree), rank_slots)],  # all members of a group have the group's
        order_offsets=offsets_of(rank_slots),
        **more,
    )
