"""Low-rank adapters beside frozen weights (LoRA): what they add to a layer, and how little is trained.

Frozen weights have no weight gradients, no optimizer states and no data-parallel traffic; gradients still flow through
them to the adapters of the layers before. Each adapted matrix W (in x out) gets A (in x r) and B (r x out), trained:
y = x W + s (x A) B.

Stacks differ in which matrices have one of their own and in the types of what adapters read and write
(`adapter_kernels`).

Source: LoRA, arXiv 2106.09685, section 4; NeMo, collections/llm/peft/lora.py and ParallelLinearAdapter
(collections/nlp/modules/common/megatron/adapters/parallel_adapters.py); PEFT, tuners/lora/layer.py (Linear.forward).
"""

from __future__ import annotations

from typing import NamedTuple

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.casts import LinearOp
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import AdapterKernels
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import MatrixShard, layer_shards, matrices_apart
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageParameters, parameters_per_gpu, stage_contents

TENSORS_OF_A_LAYER = 10  # those that step_layer_s of the calibrations stands for
TENSORS_OF_AN_ADAPTER = 2
MASK_BYTES = 1.0  # of a dropout, per element


class AdapterPasses(NamedTuple):
    """Elements of 16 bits that one pass reads and writes, per element of what an adapted matrix reads and puts out."""

    inputs: float
    outputs: float
    dropout: float
    """More of the inputs where the adapter has dropout before it."""


# Forward and backward. In 16 bits: output scaled (2) and added (3); its gradient scaled (2), the input gradients of
# matrix and adapter added (3). Dropout reads, writes and has a mask of a byte (2.5), as its gradient has.
_NARROW = (AdapterPasses(0.0, 5.0, 2.5), AdapterPasses(3.0, 2.0, 2.5))
PASSES = {
    "joined": _NARROW,
    "separate": _NARROW,
    # Weights of 32 bits under autocast. The input is copied to the weights' type (1 + 2), dropout has 32 bits (4.5),
    # autocast copies back (2 + 1). Backward: the same two copies the other way.
    "autocast": (AdapterPasses(6.0, 5.0, 4.5), AdapterPasses(9.0, 2.0, 4.5)),
    # Weights of 32 bits and nothing that casts. The input is copied (1 + 2), A reads two passes, not one; B writes two,
    # not one, the output is scaled (2 + 2), added to 16 bits in 32 (1 + 2 + 2) and copied back (2 + 1). Backward: the
    # gradient copied (1 + 2), for the frozen matrix back (2 + 1), scaled (2 + 2), read in 32 bits by both products of B
    # (2 more); A's input gradient and what its weight gradient reads have 32 bits (2 more), the former is copied back
    # (2 + 1) and added (3).
    "wide": (AdapterPasses(4.0, 13.0, 4.5), AdapterPasses(8.0, 12.0, 4.5)),
}
"""By adapter_kernels. Beside what the two products of 16 bits move."""

# Bytes of the copy of its input that an adapter keeps for the gradient of A: it reads the matrix's own input in 16
# bits where nothing has changed it. Under autocast each adapter has its own copy of it.
_KEPT_BYTES = {"joined": 0.0, "separate": 0.0, "autocast": 2.0, "wide": 4.0}
_BEHIND_DROPOUT_BYTES = {"joined": 2.0, "separate": 2.0, "autocast": 2.0, "wide": 4.0}


def adapted_matrices(model: Model, layout: Layout, *, moe: bool) -> tuple[MatrixShard, ...]:
    """The adapted matrices of a layer, as one GPU holds them; none when nothing is frozen.

    Counted: the adapter of a cut matrix has its factor on the cut side cut as well, the other one whole (factors of a
    few columns that GPUs cut further and gather again cost launches, not time). `joined` adapters: one for queries,
    keys and values, one for gate and up; others: one for each of them.
    """
    if not model.frozen:
        return ()
    adapted = tuple(shard for shard in layer_shards(model, layout, moe=moe) if shard.matrix.adapter_rank)
    if layout.kernels.adapters == "joined":
        return adapted
    return tuple(part for shard in adapted for part in matrices_apart(shard, layout.parallel.tp))


def adapter_ops(model: Model, layout: Layout, *, moe: bool) -> tuple[LinearOp, ...]:
    """The two products of every adapter; they stay in 16 bits."""
    return tuple(
        LinearOp(name=f"{shard.matrix.name}_{factor}", columns=columns, inner=inner, always_bf16=True)
        for shard in adapted_matrices(model, layout, moe=moe)
        for rank in (shard.matrix.adapter_rank,)
        for factor, inner, columns in (("a", shard.inputs, rank), ("b", rank, shard.outputs))
    )


@priced("small_kernels")
def adapter_s(
    matrices: tuple[MatrixShard, ...],
    tokens: Floats,
    gpu: Gpu,
    cal: Calibration,
    *,
    kernels: AdapterKernels,
    dropout: bool,
    backward: bool,
) -> Floats:
    """What adapters do beside their products, for a rank's *tokens*.

        t = 2 B x tokens x [ (p + q with dropout) x inputs + r x outputs ] / HBM           p, q, r: PASSES

    Counted: copies to another type, dropout, scaling, adding, and what products move more in 32 bits.
    Ignored: that products in 32 bits run on CUDA cores (16 columns on an A100: 0.05 us a token for 16,384 inputs, of
    which half is the time of their traffic); copies of the factors.
    Source: NeMo, ParallelLinearAdapter.forward (x = x * (alpha / dim)), LoRALinear; PEFT, tuners/lora/layer.py
    (Linear.forward: _cast_input_dtype to the type of lora_A.weight, result + lora_B(lora_A(dropout(x))) * scaling,
    result.to(torch_result_dtype)).
    """
    columns = sum(shard.outputs for shard in matrices)
    inputs = sum(shard.inputs for shard in matrices)
    passes = PASSES[kernels][backward]
    elements = (passes.inputs + passes.dropout * dropout) * inputs + passes.outputs * columns
    return memory_bound_s(BF16_BYTES * elements * tokens, gpu, cal)


def kept_bytes(model: Model, layout: Layout, *, moe: bool) -> float:
    """What adapters keep of a token for their own gradients, beside the inputs of the frozen matrices.

        sum over adapters of inputs x (0; 2 under autocast or behind dropout; 4 in 32 bits; + 1 for a mask)

    Source: PyTorch keeps what a product multiplies, and a dropout's mask; PEFT, tuners/lora/layer.py.
    """
    kernels, dropout = layout.kernels.adapters, model.adapter_dropout
    per_input = _BEHIND_DROPOUT_BYTES[kernels] + MASK_BYTES if dropout else _KEPT_BYTES[kernels]
    return per_input * sum(shard.inputs for shard in adapted_matrices(model, layout, moe=moe))


def trained_per_gpu(model: Model, layout: Layout, stage: int) -> StageParameters:
    """Parameters with gradients on each GPU of a stage: all, or r (in + out) of every adapted matrix."""
    if not model.frozen:
        return parameters_per_gpu(model, layout, stage)
    count = 0
    for part in stage_contents(model, layout)[stage]:
        for kind, layers in part.by_kind:
            for shard in adapted_matrices(model, layout, moe=kind.has_experts):
                count += layers * shard.matrix.adapter_rank * (shard.inputs + shard.outputs)
    return StageParameters(dense=count, experts=0, largest_unit=count, matrices=count)


def step_tensors(model: Model, layout: Layout) -> float:
    """Trained tensors of a layer over those of a layer that is trained whole: what the host does for each of them.

    A layer of a hybrid has one part of the two.
    """
    if model.layer_pattern:
        return 0.5
    if not model.frozen:
        return 1.0
    moe = bool(model.experts)
    return len(adapted_matrices(model, layout, moe=moe)) * TENSORS_OF_AN_ADAPTER / TENSORS_OF_A_LAYER
