"""Scales of 8-bit tensors that follow from earlier steps, updated module by module.

Before one kernel did it, Transformer Engine took every module's new scales from the history of its maxima by operations
of PyTorch: tiny kernels, whatever the tokens, that only small micro-batches notice.
"""

from __future__ import annotations

from cost_models.layout import Layout

__all__ = ["scale_update_kernels", "scale_update_launches", "scale_updates_s"]

# Norm with QKV, output projection, norm with MLP: modules of a layer that keep scales.
MODULES = 3
# Of a module's update: maximum of the history, history moved on and cleared, scale and what guards it, inverse.
KERNELS = 10
KERNEL_S = 3e-6
# What a module's update takes of the host, in calibrated launches: three are a fifth of a forward of 24 others.
LAUNCHES = 2


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


def _separate(layout: Layout) -> bool:
    delayed = layout.precision == "fp8" and layout.fp8_scaling == "delayed"
    return delayed and layout.separate_scale_updates
