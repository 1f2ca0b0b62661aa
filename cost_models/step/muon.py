"""Muon's update: the momentum of every matrix of a layer is made orthogonal by products, on one GPU or on all."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, gemm_s, memory_bound_s
from hdpsim.cost_models.network.collectives import GroupShape
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import MatrixShard, as_layer, layer_shards, matrices_apart
from hdpsim.cost_models.transformer.parameters import stage_contents

ITERATIONS = 5
# Elements of 16 bits that an iteration reads and writes beside its products. Of the square matrix: times c (2), times b
# (2), sum (3); of the whole one: times a (2), sum (3).
SQUARE_PASSES = 7.0
WHOLE_PASSES = 5.0


@priced("optimizer")
def muon_s(cost: MicroBatchCost, ranks: GroupShape, copies: GroupShape) -> Floats:
    """Seconds per stage for the matrices of layers.

    A matrix of m x n weights (m <= n; otherwise its transpose), X of 16 bits, five times:
        A = X Xt      m x m products of n        B = b A + c A A    m x m products of m
        X = a X + B X m x n products of m        beside them 2 B x (7 m m + 5 m n) / HBM

        owners  sum over matrices / ranks, at least the longest one; + what sharding does not already send
        all     sum over matrices; + an all-gather of 2 B x weights where ranks have the sums of their shards alone

    *ranks* share dense matrices, *copies* those of experts; with shard_ranks those that have one copy together.
    Counted: queries, keys, values, gate and up as matrices of their own; a GPU's part of a matrix that tensor
    parallelism cuts is made orthogonal by itself. Sent: zero3, an all-to-all of shards to the owner and one back;
    without sharding a gather of the new weights; zero1 and zero2 gather them anyway.
    Ignored: overlap of the two, matrices of unequal size on the owners, embedding and head (Adam's), the second moment
    of Adam, which these matrices do not have (optimizer_bytes says what the states are).
    Source: KellerJordan/Muon, muon.py (zeropower_via_newtonschulz5, steps=5; Muon.step: rank by rank, then all_gather);
    microsoft/dion, muon.py (all-to-all of shards; "For HSDP, provide the 1D sharded sub-mesh").
    """
    layout = cost.layout
    whole_s, longest_s, weights = np.zeros((3, 2, layout.parallel.pp))  # of dense matrices, of experts'
    for stage, chunks in enumerate(stage_contents(cost.model, layout)):
        for kind, count in (item for chunk in chunks for item in chunk.by_kind):
            model, moe = as_layer(cost.model, kind)
            for joined in layer_shards(model, layout, moe=moe):
                group = int(joined.matrix.block == "experts")
                for shard in matrices_apart(joined, layout.parallel.tp):
                    once_s = _orthogonal_s(shard, cost)
                    whole_s[group, stage] += count * shard.experts * once_s
                    longest_s[group, stage] = max(longest_s[group, stage], once_s)
                    weights[group, stage] += count * shard.weights
    owners = np.array([[ranks.ranks], [copies.ranks]])
    share_s = np.maximum(whole_s / owners, longest_s) if layout.sharding.muon == "owners" else whole_s
    sent_s = [
        _sent_s(BF16_BYTES * held, cost, group) for held, group in zip(weights, (ranks, copies), strict=True)
    ]
    return np.asarray(share_s.sum(axis=0) + sum(sent_s))


def _orthogonal_s(shard: MatrixShard, cost: MicroBatchCost) -> float:
    """Seconds for one matrix."""
    m, n = sorted((shard.inputs, shard.outputs))
    products = gemm_s([m, m, m], [m, m, n], [n, m, m], cost.cluster.gpu, cost.cal)
    elements = SQUARE_PASSES * m * m + WHOLE_PASSES * m * n
    beside = memory_bound_s(BF16_BYTES * elements, cost.cluster.gpu, cost.cal)
    return ITERATIONS * float(products.sum() + beside)


def _sent_s(volume: Floats, cost: MicroBatchCost, ranks: GroupShape) -> Floats:
    """What goes between the ranks of a group for so many bytes of its matrices."""
    sharding, nothing = cost.layout.sharding, np.zeros_like(volume)
    if ranks.ranks == 1:
        return nothing
    if sharding.muon == "all":
        return nothing if sharding.all_reduces else cost.collectives.all_gather_s(volume, ranks)
    match sharding.kind:
        case "zero3":
            return 2.0 * cost.collectives.all_to_all_s(volume / ranks.ranks, ranks)
        case "none":
            return cost.collectives.all_gather_s(volume, ranks)
        case "zero1" | "zero2":
            return nothing
        case _:
            assert_never(sharding.kind)
