"""Low-rank adapters beside frozen weights (LoRA): what they add to a layer, and how little is trained.

Frozen weights have no weight gradients, no optimizer states and no data-parallel traffic; gradients still flow through
them to the adapters of the layers before. Each adapted matrix W (in x out) gets A (in x r) and B (r x out), trained:
y = x W + s (x A) B.

Source: LoRA, arXiv 2106.09685, section 4; NeMo, collections/llm/peft/lora.py and ParallelLinearAdapter
(collections/nlp/modules/common/megatron/adapters/parallel_adapters.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.products import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layer.gemms import LinearOp
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.model import Model, dense_width
from hdpsim.cost_models.transformer.parameters import (
    LayerKind,
    StageParameters,
    parameters_per_gpu,
    stage_contents,
)

Floats = NDArray[np.float64]

# Passes over the output of an adapted matrix: the adapter's output scaled (2) and added (3).
FORWARD_PASSES = 5
# Backward: the gradient scaled (2, output); the input gradients of matrix and adapter added (3, input).
GRADIENT_PASSES = 2
SUM_PASSES = 3
TENSORS_OF_A_LAYER = 10  # those that step_layer_s of the calibrations stands for
TENSORS_OF_AN_ADAPTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedMatrix:
    """A matrix of a layer that has an adapter: its shard on one GPU."""

    name: str
    inner: int
    columns: int


def adapted_matrices(model: Model, layout: Layout, *, moe: bool) -> tuple[AdaptedMatrix, ...]:
    """The adapted matrices of a layer, as one GPU holds them; none when nothing is frozen.

        qkv        what makes queries, keys and values (of latent attention all four or three matrices)
        attention  these and attention's output projection
        all        these and both matrices of the MLP; experts get none

    Counted: the adapter of a cut matrix has its factor on the cut side cut as well, the other one whole (factors of a
    few columns that GPUs cut further and gather again cost launches, not time).
    """
    if not model.frozen:
        return ()
    tp, hidden, latent = layout.tp, model.hidden, model.latent_attention
    if latent is None:
        found = [("qkv", hidden, (model.heads + 2 * model.kv_heads) * model.head_dim // tp)]
    else:
        heads = model.heads // tp
        queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
        rank = latent.q_lora_rank
        found = (
            [("query_down", hidden, rank), ("query_up", rank, queries)]
            if rank
            else [("query", hidden, queries)]
        )
        found += [
            ("kv_down", hidden, latent.kv_lora_rank + latent.qk_rope_head_dim),
            ("kv_up", latent.kv_lora_rank, heads * (latent.qk_nope_head_dim + latent.v_head_dim)),
        ]
    if model.adapter_targets != "qkv":
        value_dim = latent.v_head_dim if latent else model.head_dim
        found.append(("attention_out", model.heads * value_dim // tp, hidden))
    if model.adapter_targets == "all" and not moe:
        width = dense_width(model) // tp
        found += [("mlp_up", hidden, (2 if model.gated_mlp else 1) * width), ("mlp_down", width, hidden)]
    return tuple(AdaptedMatrix(name=name, inner=inner, columns=columns) for name, inner, columns in found)


def adapter_ops(model: Model, layout: Layout, *, moe: bool) -> tuple[LinearOp, ...]:
    """The two products of every adapter; they stay in 16 bits."""
    rank = model.adapter_rank
    return tuple(
        LinearOp(name=f"{matrix.name}_{factor}", columns=columns, inner=inner, always_bf16=True)
        for matrix in adapted_matrices(model, layout, moe=moe)
        for factor, inner, columns in (("a", matrix.inner, rank), ("b", rank, matrix.columns))
    )


@priced("small_kernels")
def adapter_s(
    matrices: tuple[AdaptedMatrix, ...], tokens: Floats, gpu: Gpu, cal: Calibration, *, backward: bool
) -> Floats:
    """Scaling what adapters yield and adding it to what the frozen matrices yield, for a rank's *tokens*.

        forward   2 B x tokens x 5 x columns / HBM
        backward  2 B x tokens x (2 x columns + 3 x inputs) / HBM

    Ignored: dropout before the adapter.  Source: ParallelLinearAdapter.forward (x = x * (alpha / dim)), LoRALinear.
    """
    columns = sum(matrix.columns for matrix in matrices)
    inputs = sum(matrix.inner for matrix in matrices)
    elements = GRADIENT_PASSES * columns + SUM_PASSES * inputs if backward else FORWARD_PASSES * columns
    return memory_bound_s(BF16_BYTES * elements * tokens, gpu, cal)


def trained_per_gpu(model: Model, layout: Layout, stage: int) -> StageParameters:
    """Parameters with gradients on each GPU of a stage: all, or r (in + out) of every adapted matrix."""
    if not model.frozen:
        return parameters_per_gpu(model, layout, stage)
    count = 0
    for part in stage_contents(model, layout)[stage]:
        layers: tuple[tuple[LayerKind, int], ...] = (("dense", part.dense_layers), ("moe", part.moe_layers))
        for kind, layers_of_kind in layers:
            for matrix in adapted_matrices(model, layout, moe=kind == "moe"):
                count += layers_of_kind * model.adapter_rank * (matrix.inner + matrix.columns)
    return StageParameters(dense=count, experts=0, largest_unit=count, matrices=count)


def step_tensors(model: Model, layout: Layout) -> float:
    """Trained tensors of a layer over those of a layer that is trained whole: what the host does for each of them."""
    if not model.frozen:
        return 1.0
    moe = bool(model.experts)
    return len(adapted_matrices(model, layout, moe=moe)) * TENSORS_OF_AN_ADAPTER / TENSORS_OF_A_LAYER
