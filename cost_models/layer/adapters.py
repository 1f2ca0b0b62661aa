"""Low-rank adapters beside frozen weights (LoRA): what they add to a layer, and how little is trained.

Frozen weights have no weight gradients, no optimizer states and no data-parallel traffic; gradients still flow through
them to the adapters of the layers before. Each adapted matrix W (in x out) gets A (in x r) and B (r x out), trained:
y = x W + s (x A) B.

Source: LoRA, arXiv 2106.09685, section 4; NeMo, collections/llm/peft/lora.py and ParallelLinearAdapter
(collections/nlp/modules/common/megatron/adapters/parallel_adapters.py).
"""

from __future__ import annotations

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.casts import LinearOp
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import MatrixShard, layer_shards
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageParameters, parameters_per_gpu, stage_contents

# Passes over the output of an adapted matrix: the adapter's output scaled (2) and added (3).
FORWARD_PASSES = 5
# Backward: the gradient scaled (2, output); the input gradients of matrix and adapter added (3, input).
GRADIENT_PASSES = 2
SUM_PASSES = 3
TENSORS_OF_A_LAYER = 10  # those that step_layer_s of the calibrations stands for
TENSORS_OF_AN_ADAPTER = 2


def adapted_matrices(model: Model, layout: Layout, *, moe: bool) -> tuple[MatrixShard, ...]:
    """The adapted matrices of a layer, as one GPU holds them; none when nothing is frozen.

    Counted: the adapter of a cut matrix has its factor on the cut side cut as well, the other one whole (factors of a
    few columns that GPUs cut further and gather again cost launches, not time).
    """
    if not model.frozen:
        return ()
    return tuple(shard for shard in layer_shards(model, layout, moe=moe) if shard.matrix.adapter_rank)


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
    matrices: tuple[MatrixShard, ...], tokens: Floats, gpu: Gpu, cal: Calibration, *, backward: bool
) -> Floats:
    """Scaling what adapters yield and adding it to what the frozen matrices yield, for a rank's *tokens*.

        forward   2 B x tokens x 5 x columns / HBM
        backward  2 B x tokens x (2 x columns + 3 x inputs) / HBM

    Ignored: dropout before the adapter.  Source: ParallelLinearAdapter.forward (x = x * (alpha / dim)), LoRALinear.
    """
    columns = sum(shard.outputs for shard in matrices)
    inputs = sum(shard.inputs for shard in matrices)
    elements = GRADIENT_PASSES * columns + SUM_PASSES * inputs if backward else FORWARD_PASSES * columns
    return memory_bound_s(BF16_BYTES * elements * tokens, gpu, cal)


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
