"""Updates of delayed 8-bit scales: kernels and launches by hand, and which layers have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ideal_hardware import GPU, IDEAL, MODEL

from cost_models.launches import backward_launches, forward_launches
from cost_models.layout import Layout
from cost_models.scale_updates import scale_update_kernels, scale_update_launches, scale_updates_s
from cost_models.small_kernels import SmallKernels

SEPARATE = Layout(precision="fp8", separate_scale_updates=True)
PLAIN = replace(SEPARATE, separate_scale_updates=False)


def test_three_modules_of_ten_kernels() -> None:
    assert scale_update_kernels(SEPARATE) == 30
    assert scale_updates_s(SEPARATE) == pytest.approx(90e-6)


@pytest.mark.parametrize(
    "layout",
    [
        PLAIN,
        replace(SEPARATE, precision="bf16"),
        replace(SEPARATE, precision="mxfp8"),
        replace(SEPARATE, fp8_scaling="tensor"),
    ],
)
def test_only_delayed_scales_of_fp8_have_a_history(layout: Layout) -> None:
    assert scale_update_launches(layout) == 0
    assert scale_updates_s(layout) == 0.0


@pytest.mark.parametrize("backward", [False, True])
def test_every_pass_pays_whatever_its_tokens(backward: bool) -> None:
    tokens = np.array([1.0, 4096.0])
    separate, plain = (
        SmallKernels(MODEL, layout, GPU, IDEAL, moe=False).seconds(tokens, backward=backward)
        for layout in (SEPARATE, PLAIN)
    )
    assert separate - plain == pytest.approx([90e-6, 90e-6])


def test_both_passes_launch_them_once() -> None:
    for count in (forward_launches, backward_launches):
        assert count(MODEL, SEPARATE, moe=False) - count(MODEL, PLAIN, moe=False) == 6


def test_a_fifth_of_the_host_s_forward_is_theirs() -> None:
    model = replace(MODEL, learned_positions=True)
    separate = replace(SEPARATE, tp=4)
    share = scale_update_launches(separate) / forward_launches(model, separate, moe=False)
    assert share == pytest.approx(0.2, abs=0.02)


def test_graphs_launch_none() -> None:
    graphed = replace(SEPARATE, cuda_graphs=True)
    assert forward_launches(MODEL, graphed, moe=False) == 0
    assert backward_launches(MODEL, graphed, moe=False) == 0
