"""HBM traffic around narrow matrix products: casting what they read, scaling what they put out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hdpsim.cost_models.kernels.number_formats import OPERAND_BYTES, cast_bytes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.needs import delayed_scales
from hdpsim.cost_models.layout.switches import Fp8Scaling, ProductPrecision
from hdpsim.cost_models.network.collectives import Collectives
from hdpsim.cost_models.tracing import priced

# Scales of rows, per 16-bit weight: a forward reads it and writes 8 bits; a backward, which contracts over the other
# side, transposes it first (2 + 2) and reads it again (2 + 1). Weights with one scale are cast where they are sharded.
# Source: pytorch/ao, roofline_utils.py (get_tensor_memory_traffic_ovhd_s: rowwise, weight) and float8/float8_linear.py
# (arguments of high precision are cast in the forward and again in the backward).
ROW_WEIGHT_BYTES = (3.0, 7.0)
# Gradients promote partial sums, for which there was no usable kernel with scales of rows: the kernel without scales
# runs, another one multiplies its output by them (read 2 B, write 2 B).
# Source: pytorch/ao, float8/float8_ops.py (addmm_float8_unwrapped), pull request 1377 and issue 2184.
ROW_OUTPUT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearOp:
    """A matrix product of *tokens x share* rows with an (inner x columns) weight shard."""

    columns: int
    inner: int
    rows_share: float = 1.0
    """Rows over the rank's tokens (experts: top_k / ep x imbalance, spread over the experts here)."""
    groups: int = 1
    """Number of equal groups the rows are divided into (grouped GEMM)."""
    matrices: int = 1
    """Matrices that stock models keep apart (queries, keys and values; gate and up)."""
    name: str = ""
    always_bf16: bool = False
    """Stays in BF16 whatever the layout's precision (the router; layout.precision.bf16_parts)."""


@dataclass(frozen=True, slots=True)
class OperandCasts:
    """Bytes of one pass of a layer, (forward, backward) each.

    Attributes:
        per_token: whatever a token carries through the products.
        of_weights: once per pass, however many tokens there are.
    """

    per_token: tuple[float, float]
    of_weights: tuple[float, float]

    @classmethod
    def of(
        cls,
        narrow: Sequence[LinearOp],
        precision: ProductPrecision,
        scaling: Fp8Scaling,
        *,
        frozen: bool,
        full_width: int,
        sequence_shards: int,
    ) -> OperandCasts:
        """Traffic of the products *narrow* of *precision*.

            per_token  = cast bytes x (inputs forward, gradients of outputs backward) / sequence shards where gathered
            scales of rows, more: backward 4 B per input gradient of each matrix
            of_weights = (3, 7 + 4 of the weight gradient) B per weight

        Counted: an input once, however many matrices share it; its gradient once per matrix.
        Ignored: casts fused with the kernel before them, extra reads of compilers.
        """
        inputs, gradients = (
            sum(
                op.rows_share * width / (sequence_shards if op.groups == 1 and width == full_width else 1)
                for op in narrow
                for width in (op.columns if backward else op.inner,)
            )
            for backward in (False, True)
        )
        per_element = cast_bytes(precision, scaling)
        if frozen and narrow:
            per_element -= OPERAND_BYTES[precision]
        forward, backward = per_element * inputs, per_element * gradients
        if precision != "fp8" or scaling != "row":
            return cls((forward, backward), (0.0, 0.0))
        weights = sum(op.groups * op.columns * op.inner for op in narrow)
        backward += ROW_OUTPUT_BYTES * sum(op.rows_share * op.matrices * op.inner for op in narrow)
        forward_bytes, backward_bytes = ROW_WEIGHT_BYTES
        backward_bytes += 0.0 if frozen else ROW_OUTPUT_BYTES
        return cls((forward, backward), (forward_bytes * weights, backward_bytes * weights))


# Norm with QKV, output projection, norm with MLP: modules of a layer that keep scales.
MODULES = 3
# Of a module's update: maximum of the history, history moved on and cleared, scale and what guards it, inverse.
KERNELS = 10
KERNEL_S = 3e-6
# What a module's update takes of the host, in calibrated launches: three are a fifth of a forward of 24 others.
LAUNCHES = 2
MAXIMA_BYTES = 4.0 * 12


def scale_update_kernels(layout: Layout) -> int:
    """Operations of one pass, forward or backward, of a layer: 3 modules x 10; one kernel in all counts as nothing.

    Source: NVIDIA/TransformerEngine, pull request 593 (version 1.4, early 2024): "called in every forward pass of
    Linear, LayerNormLinear and LayerNormMLP, and each call involves ~10 small GPU operations"; pytorch/module/base.py
    of before (prepare_forward and _prepare_backward call amax_and_scale_update).
    """
    return MODULES * KERNELS if _separate(layout) else 0


def scale_update_launches(layout: Layout) -> int:
    """The same as launches of the host: operations on a few numbers come without hooks, views and autograd.

    Source: pull request 593: about 20 % of the forward pass of a transformer layer, as Python sees it.
    """
    return MODULES * LAUNCHES if _separate(layout) else 0


def scale_updates_s(layout: Layout) -> float:
    """Time of their kernels on the GPU: 3 us each, start to start.

    Source: NVIDIA/TransformerEngine, pull request 436: 13 such kernels take 39 us.
    """
    return KERNEL_S * scale_update_kernels(layout)


@priced("tp_communication")
def maxima_s(layout: Layout, collectives: Collectives, layers: int) -> float:
    """Agreeing on the maxima of *layers* after one pass, forward or backward.

        t = AR(bytes, GPUs of the stage)                                          bytes = 4 x 12 per layer
        t = AR(bytes, ranks of the stage) + AR(bytes, tensor-parallel group)      with separate_scale_updates

    Counted: latencies; three tensors (input, weight, output or gradient) of each of a layer's four products.
    That all wait for the last rank is a matter of playing (simulator/play/pipeline/common_ends.py).
    Source: NVIDIA/TransformerEngine, pytorch/fp8.py (since version 1.6, pull request 766, fp8_autocast_exit and the end
    of the backward call reduce_and_update_fp8_tensors: all_reduce with async_op=False over fp8_group; before that
    global_amax_reduction over the data-parallel ranks, then over the tensor-parallel group); NVIDIA/Megatron-LM,
    transformer_block.py (one fp8_autocast around a chunk's layers), parallel_state.py (get_amax_reduction_group: TP x
    DP x CP by default).
    """
    if not (layout.precision.blocking_maxima and delayed_scales(layout)):
        return 0.0
    tp, stride = layout.parallel.tp, layout.parallel.rank_stride
    ranks = layout.parallel.ranks(collectives.fabric.cluster.gpus)
    if layout.precision.separate_scale_updates:
        groups = [collectives.group(ranks, stride), collectives.group(tp)]
    else:
        groups = [collectives.group(ranks * tp, stride // tp)]
    return sum(float(collectives.all_reduce_s(MAXIMA_BYTES * layers, group)) for group in groups)


def _separate(layout: Layout) -> bool:
    return delayed_scales(layout) and layout.precision.separate_scale_updates
