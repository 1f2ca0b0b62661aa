"""Scales of 8-bit tensors that follow from earlier steps, updated module by module, maxima reduced pass by pass.

Before one kernel did it, Transformer Engine took every module's new scales from the history of its maxima by operations
of PyTorch: tiny kernels, whatever the tokens, that only small micro-batches notice. Before that could run beside the
work, all GPUs that hold the same module agreed on its maxima after every pass: as tiny all-reduces, which cost their
latency.
"""

from __future__ import annotations

from cost_models.collectives import Collectives
from cost_models.layout import Layout
from cost_models.tracing import priced

__all__ = ["delayed_scales", "maxima_s", "scale_update_kernels", "scale_update_launches", "scale_updates_s"]

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

        t = AR(bytes, ranks of the stage) + AR(bytes, tensor-parallel group)      bytes = 4 x 12 per layer

    Counted: latencies; three tensors (input, weight, output or gradient) of each of a layer's four products.
    Ignored: ranks that arrive late, beyond the slowest GPU's pace that all of them keep anyway.
    Source: NVIDIA/TransformerEngine, pytorch/fp8.py before version 1.4 (global_amax_reduction at every fp8_autocast
    over fp8_group, the data-parallel ranks, then over the tensor-parallel group; async_op=False unless
    NVTE_ASYNC_AMAX_REDUCTION); NVIDIA/NeMo, megatron/transformer.py (one fp8_autocast around a chunk's layers).
    """
    if not (layout.blocking_maxima and delayed_scales(layout)):
        return 0.0
    ranks = layout.ranks(collectives.fabric.cluster.gpus)
    groups = (collectives.group(ranks, layout.rank_stride), collectives.group(layout.tp))
    return sum(float(collectives.all_reduce_s(MAXIMA_BYTES * layers, group)) for group in groups)


def delayed_scales(layout: Layout) -> bool:
    """Whether scales of 8-bit tensors follow from the maxima of earlier passes."""
    return layout.precision == "fp8" and layout.fp8_scaling == "delayed"


def _separate(layout: Layout) -> bool:
    return delayed_scales(layout) and layout.separate_scale_updates
