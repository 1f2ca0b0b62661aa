"""What surrounds the micro-batches of a step: data, planning, parameter gather, gradient sync, optimizer."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.kernels.gemm import BF16_BYTES
from hdpsim.cost_models.layer.adapters import trained_per_gpu
from hdpsim.cost_models.layer.host_launches import check_s, step_checks_s, step_host_s
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.collectives import GroupShape
from hdpsim.cost_models.step.data_parallel import (
    ComputeWindows,
    buckets,
    edge_pieces,
    exposed_s,
    stage_buckets,
)
from hdpsim.cost_models.step.deferred_head import deferred_head_s
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.muon import muon_s
from hdpsim.cost_models.step.optimizer import gradient_buffer_s, optimizer_s
from hdpsim.cost_models.step.sharded_parameters import ShardGroups
from hdpsim.cost_models.step.step_costs import Epilogue, StepCosts, StepSums
from hdpsim.cost_models.step.step_traffic import StepTraffic, SumTraffic
from hdpsim.cost_models.tracing import priced, remembered
from hdpsim.cost_models.transformer.layers import LayerKind, as_layer, layer_counts, layer_tensors
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import stage_contents
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES, chunks_per_stage

METADATA_BYTES_PER_SEQUENCE = 16  # length, id to the planner; rank, slot back: our own plan, 4 x 4 B


class PlanningTimes(NamedTuple):
    """What a batch passes at the one controller that plans it."""

    gather_s: float
    """Metadata of all loaders to the controller."""
    plan_s: float
    send_s: float
    """To every rank its part of the plan."""


def planning_times(cost: MicroBatchCost, sequences: int) -> PlanningTimes:
    """The parts of planning_s: metadata and plan take the same way, so each takes half of the exchange."""
    cal = cost.cal
    nodes = max(1, cost.cluster.nodes)
    hops = np.ceil(np.log2(nodes)) if nodes > 1 else 0.0
    tier = cost.fabric.pair_tier(0, cost.cluster.gpus - 1)
    wire_s = sequences * METADATA_BYTES_PER_SEQUENCE / cal.metadata_bytes_per_s
    one_way_s = float(wire_s + hops * float(cost.fabric.latency_s(tier)))
    return PlanningTimes(one_way_s, float(sequences * cal.planner_s_per_sequence), one_way_s)


@priced("planning")
def planning_s(cost: MicroBatchCost, sequences: int) -> float:
    """Gathering the batch's metadata at one controller, planning, and sending every rank its part.

        t = n * planner + 2 * n * 16 B / rate + 2 * log2(nodes) * latency

    Counted: CPU time per sequence, metadata both ways, a tree of messages over all nodes.
    Ignored: the controller's own network queueing.  Source: ByteScale, section 5.4 (single scheduler on worker 0).
    """
    return sum(planning_times(cost, sequences))


@priced("data")
def loading_s(cost: MicroBatchCost, tokens: int) -> float:
    """Reading and preprocessing when every node reads the whole batch to pick its ranks' sequences.

    Source: ByteScale, section 5.4: without a remote loader a rank cannot know which sequences it gets before the
    plan, so all read everything.
    """
    return tokens / cost.cal.loader_tokens_per_s


@priced("parameter_gather", "gradient_sync", "optimizer")
def epilogue(
    cost: MicroBatchCost, ranks: int, *, data_s: float, windows: ComputeWindows | None = None
) -> Epilogue:
    """Per stage: parameter all-gather, gradient reduce-scatter (exposed parts) and optimizer.

    none: all-reduce of gradients. zero1, zero2: reduce-scatter of gradients, all-gather of BF16 parameters, once a
    step. zero3: both happen in every layer of every micro-batch (see sharded_parameters); whole gradients are reduced
    here, once a step, beside the last backward. With shard_ranks both stay
    among so many neighbours, and shards are summed over their replicas here, once a step.
    Experts have ranks * tp / expert_gpus copies. Of a frozen model only adapters are summed, gathered and updated.
    Counted: collectives over all ranks at one TP index, what the first forward and the last backward
    hide of them (*windows*; None: nothing), tied embeddings, the optimizer on its shard.
    Source: ZeRO, arXiv 1910.02054, section 7.
    """
    return exposed_epilogue(cost.layout, step_sums(cost, ranks), cost.cal.overlap_slowdown, data_s, windows)


def exposed_epilogue(
    layout: Layout, sums: StepSums, slowdown: float, data_s: float, windows: ComputeWindows | None
) -> Epilogue:
    """What *windows* of compute (None: nothing) and loading leave of the sums; see epilogue.

    Source: MegaScale, arXiv 2402.15627, section 3.2 (the first gather is prefetched beside data loading).
    """
    gather, sync = sums.gather_s, sums.sync_s
    if layout.sharding.overlap and windows is not None:
        beside_data_s = data_s if layout.sharding.prefetch_gather else 0.0
        first_gather = np.maximum(0.0, sums.first_gather_s - beside_data_s)
        if layout.sharding.gather_overlap:
            gather = exposed_s(gather, first_gather, windows.forward_s, slowdown)
        if layout.sharding.gradient_overlap:
            free_s = np.maximum(0.0, windows.backward_s - sums.backward_gathers_s)
            sync = exposed_s(sync, sums.last_sync_s, free_s, slowdown)
    return Epilogue(
        data_s=data_s,
        parameter_gather_s=gather.copy(),
        gradient_sync_s=sync + sums.tied_sync_s,
        optimizer_s=sums.optimizer_s.copy(),
    )


def step_sums(cost: MicroBatchCost, ranks: int) -> StepSums:
    """What the layout alone decides, kept with the costs: the steps of a data set ask for the same again and again."""
    return remembered(cost.step_sums, ranks, partial(_summed, cost))


def _summed(cost: MicroBatchCost, ranks: int) -> StepSums:
    """Add up gathers, gradient sums and optimizers of a step by stage; epilogue says what of them is waited for."""
    model, layout, cal = cost.model, cost.layout, cost.cal
    gather, sync, first_gather, last_sync, optimizer = (np.zeros(layout.parallel.pp) for _ in range(5))
    all_at_once = layout.sharding.kind == "zero3" and not layout.sharding.sums_layers
    for counts, members, stride, _ in _sharers(cost, ranks):
        if layout.sharding.kind == "zero3":
            groups = ShardGroups.of(layout, cost.collectives, members, stride)
            shards = counts / groups.shard.ranks
            reduced_s = _sync_s(cost, counts, groups, np.ones_like(counts))
            layers = np.maximum(1, cost.layers_by_stage)  # of whole gradients a layer is summed at once
            sync += reduced_s
            last_sync += reduced_s / (layers if all_at_once else buckets(counts, members, layout))
        else:
            group = cost.collectives.group(members, stride=stride)
            plain = layout.changed(shard_ranks=None) if layout.sharding.kind == "none" else layout
            groups = ShardGroups.of(plain, cost.collectives, members, stride)
            pieces = _pieces(cost, counts, members)
            everyone = ShardGroups(shard=group, replicas=None)
            summed = everyone if layout.sharding.all_reduces else groups
            gathered_s = _gather_s(cost, counts, groups.shard)
            reduced_s = _sync_s(cost, counts, summed, pieces)
            optimizer += step_checks_s(group, layout.host, cal.network)
            edges = edge_pieces(pieces, layout)
            gather, first_gather = gather + gathered_s, first_gather + gathered_s / edges
            sync, last_sync = sync + reduced_s, last_sync + reduced_s / edges
            shards = counts / groups.shard.ranks if layout.sharding.kind != "none" else counts
        optimizer += optimizer_s(shards, layout, cost.cluster, cal)
        optimizer += gradient_buffer_s(counts, members, layout, cost.cluster, cal)
    if layout.sharding.muon != "none" and not model.frozen:
        optimizer += muon_s(cost, *_ranks_and_copies(cost, ranks))
    optimizer += step_host_s(model, layout, cost.layers_by_stage, cal)
    return StepSums(
        gather_s=gather,
        first_gather_s=first_gather,
        sync_s=sync,
        last_sync_s=last_sync,
        backward_gathers_s=cost.backward_gathers_s if all_at_once else np.zeros(layout.parallel.pp),
        optimizer_s=optimizer,
        tied_sync_s=_tied_sync_s(cost, ranks),
    )


def step_traffic(cost: MicroBatchCost, batches: MicroBatches, ranks: int) -> StepTraffic:
    """What a step with these micro-batches sends between nodes."""
    layout, collectives = cost.layout, cost.collectives
    sums_s = step_sums(cost, ranks)
    gathers: list[SumTraffic] = []
    sums: list[SumTraffic] = []
    for counts, members, stride, within in _sharers(cost, ranks):
        groups = ShardGroups.of(layout, collectives, members, stride)
        gradients = layout.precision.gradient_bytes * counts
        if layout.sharding.kind in ("zero1", "zero2"):
            gathers.append(_sum_traffic(cost, BF16_BYTES * counts, groups.shard, within))
        if layout.sharding.all_reduces:
            everyone = collectives.group(members, stride=stride)
            if not layout.sharding.sums_layers:
                sums.append(_sum_traffic(cost, 2.0 * gradients, everyone, within))
            continue
        if not layout.sharding.sums_layers:
            sums.append(_sum_traffic(cost, gradients, groups.shard, within))
        if groups.replicas is not None:
            apart = within * groups.shard.ranks
            sums.append(_sum_traffic(cost, 2.0 * gradients / groups.shard.ranks, groups.replicas, apart))
    transfer_bytes, transfer_fixed_s = cost.transfer_traffic(batches, ranks)
    return StepTraffic(
        passes=cost.traffic(batches),
        transfer_bytes=transfer_bytes,
        transfer_fixed_s=transfer_fixed_s,
        node_bytes_per_s=float(cost.fabric.bytes_per_s(0)),
        gathers=tuple(one for one in gathers if one.sent_bytes.any()),
        gather_s=sums_s.gather_s,
        sums=tuple(one for one in sums if one.sent_bytes.any()),
        sync_s=sums_s.sync_s,
        shard_ranks=layout.sharding.ranks or ranks if layout.sharding.by_layer else 1,
        expert_ranks=(layout.parallel.ep, layout.parallel.expert_cut),
    )


def _sum_traffic(cost: MicroBatchCost, volume: Floats, group: GroupShape, stride: int) -> SumTraffic:
    """*stride*: among the GPUs of a stage."""
    return SumTraffic(
        members=group.ranks,
        stride=stride,
        ranks_per_node=group.ranks_per_node,
        sent_bytes=np.asarray([group.sent_to_other_nodes(one) for one in volume.tolist()]),
        bytes_per_s=cost.collectives.wires(group).nic_bytes_per_s,
    )


class _Sharers(NamedTuple):
    """GPUs that hold the same parameters."""

    parameters: Floats
    """[S]: how many of them a GPU of each stage trains."""
    members: int
    stride: int
    """GPUs from a member to the next one."""
    stage_stride: int
    """GPUs from a member to the next one, counting those of one stage only."""


def _sharers(cost: MicroBatchCost, ranks: int) -> list[_Sharers]:
    """The groups that share dense parameters and, where there are any, experts."""
    parallel = cost.layout.parallel
    trained = [trained_per_gpu(cost.model, cost.layout, stage) for stage in range(parallel.pp)]
    dense, experts = np.array([(part.dense, part.experts) for part in trained], dtype=np.float64).T
    spread = parallel.expert_gpus
    copies = max(1, ranks * parallel.tp // spread)
    of_dense = _Sharers(dense, ranks, parallel.rank_stride, parallel.tp)
    of_experts = _Sharers(experts, copies, spread, spread)
    return [one for one in (of_dense, of_experts) if one.parameters.any()]


def _ranks_and_copies(cost: MicroBatchCost, ranks: int) -> tuple[GroupShape, GroupShape]:
    """GPUs that share dense parameters, and those that share experts: with shard_ranks those of one copy."""
    layout, parallel = cost.layout, cost.layout.parallel
    layout = layout.changed(shard_ranks=None) if layout.sharding.kind == "none" else layout
    copies = max(1, ranks * parallel.tp // parallel.expert_gpus)
    dense, experts = (
        ShardGroups.of(layout, cost.collectives, members, stride).shard
        for members, stride in ((ranks, parallel.rank_stride), (copies, parallel.expert_gpus))
    )
    return dense, experts


@priced("gradient_sync")
def _tied_sync_s(cost: MicroBatchCost, ranks: int) -> Floats:
    """Per stage: summing the gradients of an embedding that serves as head too, where the two sit on different stages.

        t = all-reduce(gradient bytes x ceil(V / tp) x h) between first and last stage

    Counted: after the last backward, since the first stage's comes last; nothing hides it.
    Source: Megatron-LM, finalize_model_grads (_allreduce_embedding_grads, or allreduce_word_embedding_grads).
    """
    model, layout = cost.model, cost.layout
    seconds = np.zeros(layout.parallel.pp)
    if not model.tied_embeddings or model.frozen:
        return seconds
    contents = stage_contents(model, layout)
    first, last = (
        next(stage for stage, chunks in enumerate(contents) if any(getattr(c, part) for c in chunks))
        for part in ("embedding", "head")
    )
    if first != last:
        pair = cost.collectives.group(2, stride=abs(last - first) * layout.parallel.stage_stride(ranks))
        volume = layout.precision.gradient_bytes * -(-model.vocab // layout.parallel.tp) * model.hidden
        seconds[[first, last]] = cost.collectives.all_reduce_s(volume, pair)
    return seconds


@priced("parameter_gather")
def _gather_s(cost: MicroBatchCost, parameters: Floats, group: GroupShape) -> Floats:
    """One gather, or the owners' broadcasts: as many as there are owners, at most one for each matrix of the stage.

    Ignored: tensors of unequal size, norms and biases on ranks of their own.
    Source: ZeRO-1 by whole tensors: InternEvo, solver/optimizer/hybrid_zero_optim.py (broadcast_params).
    """
    if cost.layout.sharding.kind == "none":
        return np.zeros_like(parameters)
    if cost.layout.sharding.owner_broadcasts:
        matrices = _matrices_of_a_layer(cost.model, cost.layout) * cost.layers_by_stage + 2
        owners = np.minimum(group.ranks, matrices)
        return np.asarray(owners * cost.collectives.broadcast_s(BF16_BYTES * parameters / owners, group))
    return cost.collectives.all_gather_s(BF16_BYTES * parameters, group, in_place=True)


def _matrices_of_a_layer(model: Model, layout: Layout) -> float:
    """Matrices of a layer of the usual kind; in a hybrid the mean of all layers."""
    kinds = layer_counts(model) if model.layer_pattern else ((LayerKind(bool(model.experts)), model.layers),)
    total = 0
    for kind, count in kinds:
        of_kind, moe = as_layer(model, kind)
        total += count * layer_tensors(of_kind, layout, moe=moe)
    return total / model.layers


def _pieces(cost: MicroBatchCost, parameters: Floats, members: int) -> Floats:
    """Buckets of each stage: by the layout's limit, or by Megatron-Core's rule."""
    limit = cost.layout.sharding.bucket_parameters
    if limit is None or cost.model.frozen:
        return buckets(parameters, members, cost.layout)
    counts = [stage_buckets(cost.model, cost.layout, stage, limit) for stage in range(len(parameters))]
    return np.array(counts, dtype=np.float64)


@priced("gradient_sync")
def _sync_s(cost: MicroBatchCost, parameters: Floats, groups: ShardGroups, pieces: Floats) -> Floats:
    """One collective over everything; buckets of stated size pay its latency each, and its check.

    Sharded, unless every rank gets all sums: a reduce-scatter among those that share the states, an all-reduce of the
    shards among their replicas. This alone where every backward sums layers (sharded_parameters).
    Reduce-scatters are not checked: they take lists of tensors (measured: they are as fast as without checks).
    """
    layout = cost.layout
    buckets_of_stage = pieces if layout.sharding.bucket_parameters is not None else np.ones_like(pieces)
    volume = layout.precision.gradient_bytes * parameters / np.maximum(buckets_of_stage, 1.0)
    if layout.sharding.sums_layers:
        if groups.replicas is None:
            return np.zeros_like(parameters)
        return cost.collectives.all_reduce_s(volume / groups.shard.ranks, groups.replicas)
    if layout.sharding.all_reduces:
        once_s = cost.collectives.all_reduce_s(volume, groups.shard)
        if layout.host.checked_collectives:
            once_s = np.maximum(once_s, check_s(groups.shard, cost.cal.network))
    else:
        once_s = cost.collectives.reduce_scatter_s(volume, groups.shard, in_place=True)
        if groups.replicas is not None:
            once_s = once_s + cost.collectives.all_reduce_s(volume / groups.shard.ranks, groups.replicas)
    return np.asarray(buckets_of_stage * once_s)


def step_costs(
    cost: MicroBatchCost, batches: MicroBatches, ranks: int, *, data_s: float, traffic: bool = False
) -> StepCosts:
    """Everything an executor needs to play a plan with these micro-batches.

    Args:
        cost: what a micro-batch costs.
        batches: the plan's micro-batches.
        ranks: ranks of the job: they share gradients and parameters.
        data_s: planning and loading.
        traffic: say, too, what is sent between nodes.
    """
    layout = cost.layout
    alike = batches.alike
    priced = batches.first if alike else batches
    forward, backward = cost.both_terms_s(priced)

    # What a rank computes at the edges of a step: a micro-batch that many ranks share counts as often.
    share = None if alike else priced.group_size
    forward_s, backward_s = (
        np.average(terms.sum(axis=0), axis=-1, weights=share)[cost.visited].sum(axis=1)
        for terms in (forward, backward)
    )
    micro_batches = float(batches.group_size.sum()) * batches.copies / ranks
    windows = ComputeWindows.of(layout, forward_s, backward_s, micro_batches)
    weight = cost.weight_terms_s(priced) if layout.pipeline.schedule in SPLIT_SCHEDULES else None
    epilogue_costs = epilogue(cost, ranks, data_s=data_s, windows=windows)
    if layout.defers_head_gradient:
        epilogue_costs.optimizer_s[-1] += deferred_head_s(cost, priced, micro_batches, backward_s)
    costs = StepCosts(
        stages=layout.parallel.pp,
        chunks=chunks_per_stage(layout.pipeline.schedule, layout.pipeline.vpp),
        terms=TERMS,
        forward_terms_s=forward,
        backward_terms_s=backward,
        kind=cost.kind,
        transfer_s=cost.transfer_s(priced, ranks),
        epilogue=epilogue_costs,
        schedule=layout.pipeline.schedule,
        weight_terms_s=weight,
        overlapped_term=TERMS.index("expert_all_to_all") if layout.pipeline.schedule == "dualpipe" else None,
        pp_overlap=layout.pipeline.overlap or layout.parallel.pp == 1,
        drains_every=layout.pipeline.call or 0,
        meeting_ranks=layout.meeting_ranks(ranks),
        meets_after=cost.meets_after,
        traffic=step_traffic(cost, priced, ranks) if traffic else None,
    )
    return costs.repeated(batches.count * batches.copies) if alike else costs
