"""Communicators of the groups that share sequences: one for all of them, or one for each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hdpsim.cost_models.reliability.startup import made_in_a_step_s
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.setup import StrategyOptions


class RingGroups(NamedTuple):
    """Groups of several ranks that a plan uses, equal ones once."""

    groups: int
    most_of_a_rank: int


def ring_groups(options: StrategyOptions, plan: Plan) -> RingGroups | None:
    """The groups that need communicators of their own; None where all share one."""
    if options.communicators == "shared" or options.has_one_mesh:
        return None
    members = np.split(plan.member_ranks, plan.member_offsets[1:-1])
    different = {group.tobytes(): group for group in members if len(group) > 1}
    if not different:
        return RingGroups(0, 0)
    return RingGroups(len(different), int(np.bincount(np.concatenate([*different.values()])).max()))


def communicators_s(options: StrategyOptions, cost: MicroBatchCost, plan: Plan) -> float:
    """Time before a step in which its groups of ranks get communicators: one for every GPU of a rank."""
    groups, parallel = ring_groups(options, plan), cost.layout.parallel
    if groups is None:
        return 0.0
    return made_in_a_step_s(groups.groups * parallel.tp * parallel.pp, cost.cluster.gpus)
