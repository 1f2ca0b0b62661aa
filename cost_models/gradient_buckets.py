"""Buckets of gradients as torch's DistributedDataParallel fills them: whole tensors, in the order of the backward."""

from __future__ import annotations

from cost_models.layout import Layout
from cost_models.model import Model
from cost_models.parameters import layer_shard, stage_contents

__all__ = ["filled_buckets", "stage_buckets"]


def filled_buckets(tensors: list[int], limit: float) -> int:
    """Buckets that *tensors* fill one after the other; one is closed as soon as it holds *limit* or more.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp (compute_bucket_assignment_by_size).
    """
    count, held = 0, 0
    for size in tensors:
        held += size
        if held >= limit:
            count, held = count + 1, 0
    return count + (held > 0)


def stage_buckets(model: Model, layout: Layout, stage: int, limit: float) -> int:
    """Buckets of a pipeline stage's gradients on one GPU.

    Counted: MLP and attention matrices of dense layers in the order of the backward, embedding and head.
    Ignored: norms and biases; a smaller first bucket; the matrices of experts count as one tensor a layer.
    """
    width = (model.dense_ffn_hidden if model.experts else model.ffn_hidden) // layout.tp
    heads = (model.heads * model.head_dim, (model.heads + 2 * model.kv_heads) * model.head_dim)
    out, qkv = (model.hidden * columns // layout.tp for columns in heads)
    dense = [model.hidden * width, (2 if model.gated_mlp else 1) * model.hidden * width, out, qkv]
    vocabulary = -(-model.vocab // layout.tp) * model.hidden
    tensors: list[int] = []
    for part in reversed(stage_contents(model, layout)[stage]):
        if part.head and not (model.tied_embeddings and layout.pp == 1):
            tensors.append(vocabulary)
        tensors += part.dense_layers * dense
        if part.moe_layers:
            tensors += part.moe_layers * [sum(layer_shard(model, layout, "moe")[:2])]
        if part.embedding:
            tensors.append(vocabulary)
    return filled_buckets(tensors, limit)
