"""Gradient reduction and parameter gather once a step: what the last backward and the first forward leave exposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.sharded_parameters import overlapped_s
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import as_layer, layer_shards
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import layer_shard, stage_contents, vocabulary_shard

# Megatron-Core, DistributedDataParallelConfig: parameters of a bucket, at least, and per rank that shares it
BUCKET_PARAMETERS = 40e6
BUCKET_PARAMETERS_PER_RANK = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeWindows:
    """[stages]: compute that traffic of the step's edges can run beside, seconds."""

    forward_s: Floats
    backward_s: Floats

    @classmethod
    def of(
        cls, layout: Layout, forward_s: Floats, backward_s: Floats, micro_batches: float
    ) -> ComputeWindows:
        """Windows from the mean forward and backward of a rank's micro-batch on every stage (all its chunks).

            window = ((v - 1) min(p, m) + 1) / v x one micro-batch          p stages, v chunks, m micro-batches a rank

        Counted: the last micro-batch's own backward (first forward); with chunks, which finish their gradients one
        after the other, also the passes of other micro-batches between a chunk's last backward and the next chunk's.
        Ignored: pipeline bubbles, which hide more on all stages but the slowest.
        Source: interleaved 1F1B, arXiv 2104.04473 section 2.2; MegaScale, arXiv 2402.15627 section 3.2.
        """
        chunks = layout.pipeline.vpp
        passes = ((chunks - 1) * min(layout.parallel.pp, micro_batches) + 1) / chunks
        return cls(forward_s=passes * forward_s, backward_s=passes * backward_s)

    @classmethod
    def endless(cls, stages: int) -> ComputeWindows:
        """More compute than any traffic takes."""
        return cls(forward_s=np.full(stages, np.inf), backward_s=np.full(stages, np.inf))


def buckets(parameters: Floats, members: int, layout: Layout) -> Floats:
    """Pieces in which the gradients of a stage are reduced (and its parameters gathered): at least one a chunk."""
    size = max(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * members)
    return np.maximum(layout.pipeline.vpp, np.ceil(np.asarray(parameters) / size))


def edge_pieces(pieces: Floats, layout: Layout) -> Floats:
    """Pieces of which the first gather and the last reduction are one each: buckets, or chunks that interleave.

    An interleaved schedule starts the reduction of a chunk when its last micro-batch is through and the gather of a
    chunk while the one before computes, each as a whole.
    Source: Megatron-Core, pipeline_parallel/schedules.py (grad_sync_func, param_sync_func); MegaScale,
    arXiv 2402.15627, section 3.2.
    """
    if layout.pipeline.schedule == "interleaved" and layout.pipeline.vpp > 1:
        return np.full_like(pieces, layout.pipeline.vpp)
    return np.maximum(pieces, 1.0)


@priced("parameter_gather", "gradient_sync")
def exposed_s(transfer_s: Floats, edge_s: Floats, window_s: Floats, slowdown: float) -> Floats:
    """[stages]: what a step's gather or reduction adds to it.

        exposed = edge + overlapped(window, transfer - edge) - window

    *edge_s*: the part that has no compute to run beside: the last piece of gradients is complete when the backward
    ends; the first parameters are needed when the forward starts (edge_pieces).
    Counted: traffic beyond the window, and the rate that compute loses beside the rest.
    Ignored: contention of gathers and reductions of different groups.
    Limits: no window, everything; an endless one, the edge and what compute loses.
    Source: MegaScale, arXiv 2402.15627 section 3.2 (exposed: the first gather and the last reduction, one chunk each).
    """
    if np.isinf(window_s).all():
        return edge_s + slowdown * (transfer_s - edge_s)
    return edge_s + overlapped_s(window_s, transfer_s - edge_s, slowdown) - window_s


def filled_buckets(tensors: list[int], limit: float) -> int:
    """Buckets that *tensors* fill one after the other; one is closed as soon as it holds *limit* or more.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp (compute_bucket_assignment_by_size).
    """
    count, filled = 0, 0
    for size in tensors:
        filled += size
        if filled >= limit:
            count, filled = count + 1, 0
    return count + (filled > 0)


def stage_buckets(model: Model, layout: Layout, stage: int, limit: float) -> int:
    """Buckets of a pipeline stage's gradients on one GPU.

    Counted: MLP and attention matrices of dense layers in the order of the backward, embedding and head.
    Ignored: norms and biases; a smaller first bucket; the matrices of experts count as one tensor a layer.
    """
    vocabulary = vocabulary_shard(model, layout)
    tensors: list[int] = []
    for part in reversed(stage_contents(model, layout)[stage]):
        if part.head and not (model.tied_embeddings and layout.parallel.pp == 1):
            tensors.append(vocabulary)
        for kind, count in part.by_kind:
            of_kind, moe = as_layer(model, kind)
            shards = reversed(layer_shards(of_kind, layout, moe=moe))
            sizes = (
                [layer_shard(of_kind, layout, moe=True).total] if moe else [shard.weights for shard in shards]
            )
            tensors += count * sizes
        if part.embedding:
            tensors.append(vocabulary)
    return filled_buckets(tensors, limit)
