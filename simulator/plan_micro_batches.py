"""A plan's micro-batches as the cost model takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layer.attention.ring_attention import CUT_ALONG_TOKENS
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.epilogue import step_costs
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.mixed_nodes import MixedCost
from hdpsim.cost_models.step.step_costs import Epilogue, StepCosts
from hdpsim.simulator.plan import Plan


def plan_costs(
    cost: MicroBatchCost, mixed: MixedCost | None, plan: Plan, *, data_s: float, traffic: bool = False
) -> StepCosts:
    """What everything in a plan takes; *mixed*: on nodes of several kinds; *traffic*: say, too, what is sent."""
    if mixed is None:
        distinct = distinct_micro_batches(cost, plan)
        return step_costs(cost, distinct, plan.ranks, data_s=data_s, traffic=traffic)
    batches = plan_micro_batches(cost, plan)
    return mixed.step_costs(batches, plan.member_ranks, plan.member_offsets, data_s=data_s)


def plan_micro_batches(cost: MicroBatchCost, plan: Plan, first: int | None = None) -> MicroBatches:
    """The plan's micro-batches as the cost model takes them, with the way of every group's ring.

    *first*: so many of them alone; None: all.
    """
    stride, share = cost.layout.parallel.rank_stride, cost.layout.parallel.expert_ranks
    count = plan.micro_batches if first is None else first
    segments, members = plan.segment_offsets[: count + 1], plan.member_offsets[: count + 1]
    gpus = plan.member_ranks[: members[-1]] * stride
    return MicroBatches(
        segment_tokens=plan.segment_tokens[: segments[-1]],
        segment_offsets=segments,
        group_size=np.diff(members),
        tier=cost.fabric.ring_tiers(gpus, members),
        offload_ratio=plan.offload_ratio[:count],
        padding_tokens=None if plan.padding_tokens is None else plan.padding_tokens[:count],
        crossing=cost.fabric.ring_crossing(gpus, members, stride),
        routed_tokens=_routed_tokens(plan, share) if share > 1 and not plan.in_step else None,
    )


def cut_by(cost: MicroBatchCost, plan: Plan) -> list[str]:
    """What the ranks of every micro-batch have cut: every document, or the pack; empty where there is no choice."""
    batches, held = plan_micro_batches(cost, plan), np.diff(plan.segment_offsets)
    by_pack = cost.attention.by_pack(batches)
    chosen = (batches.group_size > 1) & (held > 1) & (cost.layout.context.kind in CUT_ALONG_TOKENS)
    words: list[str] = np.where(chosen, np.where(by_pack, "pack", "document"), "").tolist()
    return words


def _routed_tokens(plan: Plan, share: int) -> Floats | None:
    """[n]: tokens of a rank in the mean over the *share* ranks that hold its experts together, at the same slot.

    Experts get tokens of all these ranks alike, whoever has how many. Of a group that spans several such blocks the
    fullest block counts. None: all ranks have as many as the mean.
    """
    _, rank, slot, micro_batch = plan.entries
    room = slot * (plan.ranks // share) + rank // share
    own = plan.tokens / plan.group_size
    mean = np.bincount(room, weights=own[micro_batch]) / share
    routed = np.zeros(plan.micro_batches)
    np.maximum.at(routed, micro_batch, mean[room])
    return None if np.array_equal(routed, own) else routed


def distinct_micro_batches(cost: MicroBatchCost, plan: Plan) -> MicroBatches:
    """Return the micro-batches to price: of a plan in step only the first, which stands for all."""
    if not plan.in_step:
        return plan_micro_batches(cost, plan)
    return replace(plan_micro_batches(cost, plan, first=1), copies=plan.micro_batches)


def plain_costs(
    stages: int,
    forward_s: Floats,
    backward_s: Floats,
    *,
    chunks: int = 1,
    schedule: Schedule = "1f1b",
    weight_share: float | None = None,
) -> StepCosts:
    """Costs of micro-batches that take so long on every stage and chunk, with nothing between or around them.

    *weight_share*: of the backward, where the schedule runs weight gradients apart.
    """
    none = np.zeros(stages)
    backward = backward_s[None, None]
    return StepCosts(
        stages=stages,
        chunks=chunks,
        schedule=schedule,
        terms=("gemm",),
        forward_terms_s=forward_s[None, None],
        backward_terms_s=backward,
        weight_terms_s=None if weight_share is None else backward * weight_share,
        kind=np.zeros((stages, chunks), dtype=np.int64),
        transfer_s=np.zeros(len(forward_s)),
        epilogue=Epilogue(data_s=0.0, parameter_gather_s=none, gradient_sync_s=none, optimizer_s=none),
    )
