"""Ranks that share nothing, with equal micro-batches on unequal stages: played as columns of one table.

Who follows whom is the same on all of them: every operation is looked at once, for all ranks.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np

from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.accounts import StepEnd
from hdpsim.simulator.play.execution import Execution, Noise
from hdpsim.simulator.play.pipeline.chain import make_chain

from .equal_micro_batches import LoneRank, can_play, rank_turns
from .repeating_micro_batches import booked


def side_by_side(plan: Plan, costs: StepCosts, noise: Noise) -> bool:
    """Whether run_side_by_side can play the plan: its *noise* lasts for the whole step."""
    lasts = noise.forward is None and noise.backward is None
    alone = costs.members is None and costs.meeting_ranks == 1
    if not (lasts and alone and can_play(costs)) or costs.schedule in SPLIT_SCHEDULES:
        return False
    if len(plan.member_ranks) != plan.micro_batches:
        return False
    slots = np.diff(plan.order_offsets)
    return bool((slots == slots[0]).all()) and not (plan.order == HOLE).any()


def run_side_by_side(plan: Plan, costs: StepCosts, noise: Noise) -> Execution:
    """Play a *plan* that is side_by_side."""
    count, rank = int(plan.order_offsets[1]), LoneRank.of(costs)
    chain = make_chain(costs.schedule, costs.stages, costs.chunks)
    turns = rank_turns(costs, count, count)
    backward = np.ones((costs.stages, plan.ranks)) if noise.rank_stage is None else noise.rank_stage.T
    forward = backward if noise.forward_stage is None else backward * noise.forward_stage.T
    kinds, stage = chain.kinds(costs.kind), chain.stage[0, : chain.virtual_stages]
    sides_s = costs.forward_s[kinds, :1] * forward[stage], costs.backward_s[kinds, :1] * backward[stage]
    link_s = chain.along(*sides_s)
    opening_s = costs.epilogue.data_s + costs.epilogue.parameter_gather_s
    end_s = np.empty((costs.stages + 1 + len(turns.steps), plan.ranks))
    end_s[: costs.stages], end_s[costs.stages] = opening_s[:, None], 0.0
    wait_group_s = np.zeros((costs.stages, plan.ranks))
    last = chain.virtual_stages - 1 if costs.meets_after != "step" else -1
    last_forward_s = costs.forward_s[kinds[-1], 0] * forward[stage[-1]]
    hold_s = float(costs.transfer_s[0])
    ordered = zip(turns.steps, turns.held or repeat((0.0, [])), strict=False)
    for place, ((before, source, link), (transfers, others)) in enumerate(ordered, costs.stages + 1):
        free_s = end_s[before] + transfers * hold_s if transfers else end_s[before]
        start_s = np.maximum(free_s, end_s[source] + rank.delay_s[link])
        for other in others:
            np.maximum(start_s, end_s[other] + hold_s, out=start_s)
        np.add(start_s, link_s[link], out=end_s[place])
        if link == last:
            came_s = start_s + last_forward_s
            late_s = came_s.max() - came_s
            wait_group_s[stage[-1]] += late_s
            end_s[place] += late_s
        if costs.meets_after == "pass":
            late_s = end_s[place].max() - end_s[place]
            wait_group_s[chain.stage[0, link]] += late_s
            end_s[place] += late_s
    end = StepEnd.after(end_s[turns.last], costs.epilogue, np.zeros(costs.stages), stage_by_stage=False)
    forward_s, backward_s = (
        terms_s[:, costs.kind, 0].sum(axis=2)[:, :, None]  # [terms, stages, 1]
        for terms_s in (costs.forward_terms_s, costs.backward_terms_s)
    )
    return booked(costs, end, count * (forward_s * forward + backward_s * backward), wait_group_s)
