"""Packs that somebody else made: each is a micro-batch on a group of neighbouring ranks, however unequal they are."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Ints, ranges
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem


def plan_given_packs(problem: PlanningProblem, pack: Ints, degree: int) -> Plan:
    """Pack i runs on group i modulo the number of groups, after the packs that the group has already.

    Fewer packs than groups leave groups without work.

    Args:
        problem: the batch.
        pack: for every sequence the number of its pack; no number below the largest is left out.
        degree: ranks of a group, which share each of its packs.

    Raises:
        InfeasibleError: ranks that do not divide.
    """
    if problem.ranks % degree:
        raise InfeasibleError(f"{problem.ranks} ranks do not divide by cp = {degree}")
    groups, packs = problem.ranks // degree, int(pack.max()) + 1
    by_pack = np.argsort(pack, kind="stable")
    tokens = problem.lengths[by_pack]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(pack, minlength=packs))))
    held = np.add.reduceat(tokens, offsets[:-1])
    slots = packs // groups + (np.arange(groups) < packs % groups).astype(np.int64)
    rank_slots = np.repeat(slots, degree)
    first = np.cumsum(rank_slots) - rank_slots
    slot = ranges(np.zeros_like(first), rank_slots)
    return Plan(
        strategy=problem.options.name,
        ranks=problem.ranks,
        capacity_tokens=int(-(-held.max() // degree)),
        segment_tokens=tokens,
        segment_sequence=by_pack,
        segment_start=np.zeros_like(tokens),
        segment_offsets=offsets,
        member_ranks=ranges((np.arange(packs) % groups) * degree, np.full(packs, degree)),
        member_offsets=np.arange(packs + 1, dtype=np.int64) * degree,
        offload_ratio=np.full(packs, problem.mesh_offload_ratio),
        order=np.repeat(np.repeat(np.arange(groups), degree), rank_slots) + groups * slot,
        order_offsets=np.concatenate(([0], np.cumsum(rank_slots))),
        notes=(f"given packs: {packs} on {groups} groups of {degree} ranks",),
    )
