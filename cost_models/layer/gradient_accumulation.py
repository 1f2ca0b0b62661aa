"""Adding a micro-batch's gradients to those of the step: inside the products of weight gradients, or after them."""

from __future__ import annotations

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageContents, kind_shard, vocabulary_shard


def product_output_bytes(layout: Layout) -> int:
    """Bytes that a weight-gradient product moves per parameter: a read and a write of the sum, or a fresh gradient.

    The sum has the precision in which gradients are reduced (`gradient_bytes`): frameworks that fuse keep one buffer
    for both. Gathered parameters (zero3) have no sum to add to: what is summed are shards, after the
    reduction, unless gradients add up whole.
    Source: Megatron-Core, distributed/param_and_grad_buffer.py (grad_reduce_in_fp32: type of main_grad); Apex,
    contrib/optimizers/distributed_fused_adam.py (grad_sync_dtype: type of the contiguous buffer of gradients).
    """
    adds = layout.kernels.gradient_accumulation == "fused" and not layout.sharding.sums_layers
    return 2 * layout.precision.gradient_bytes if adds else BF16_BYTES


def accumulate_overlap(output_bytes: int, cal: Calibration) -> float:
    """Share of the shorter of matrix work and traffic that a weight-gradient product hides: all but of a read sum's."""
    return cal.accumulate_overlap if output_bytes > BF16_BYTES else 1.0


@priced("small_kernels")
def accumulation_s(model: Model, layout: Layout, held: StageContents, gpu: Gpu, cal: Calibration) -> float:
    """Kernels that add the gradients of one micro-batch to the sum, for what a GPU *held* of a stage.

        fused     nothing: the products add (product_output_bytes)
        separate  parameters x (2 B + 2 g) / HBM              read the gradient and the sum, write the sum
        cast      parameters x (2 B + g + 3 g) / HBM          copy the gradient to the sum's precision first

    g = bytes of a summed gradient (`gradient_bytes`).
    Counted: every micro-batch alike, embedding and head included. Nothing where shards add up (zero3, and zero2 that
    sums in every backward) or adapters of frozen models, which are small.
    Ignored: the first micro-batch, whose gradient some frameworks keep instead of adding.
    Source: Megatron-LM (fused: gradient_accumulation_fusion; separate: param.main_grad.add_(param.grad)); PyTorch's
    AccumulateGrad (separate); DeepSpeed, runtime/bf16_optimizer.py (cast: hp_grad.add_(grad.to(hp_grad.dtype))).
    """
    how = layout.kernels.gradient_accumulation
    if how == "fused" or layout.sharding.sums_layers or model.frozen:
        return 0.0
    parameters = sum(count * kind_shard(model, layout, kind).total for kind, count in held.by_kind)
    tied = model.tied_embeddings and layout.parallel.pp == 1
    vocabularies = 1 if tied else int(held.embedding) + int(held.head)
    parameters += vocabularies * vocabulary_shard(model, layout)
    traffic_bytes = BF16_BYTES + {"separate": 2.0, "cast": 4.0}[how] * layout.precision.gradient_bytes
    return float(memory_bound_s(traffic_bytes * parameters, gpu, cal))
