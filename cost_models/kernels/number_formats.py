"""Number formats of matrix products: peaks, operand sizes, energy, and the clocks that a power limit leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.layout.switches import Fp8Scaling, Precision, ProductPrecision
from hdpsim.errors import InfeasibleError

# Bytes of an operand's element, scales included: one byte (E8M0) per 32 elements in MXFP8, one (E4M3) per 16 in
# NVFP4. Source: Transformer Engine, user guide, "Low precision training".
OPERAND_BYTES: dict[ProductPrecision, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
# HBM traffic of casting one BF16 element for two products (forward and weight gradient, or both of the backward):
# read it, write it along its rows and along its columns. NVFP4 reads it three times (for the scale of the tensor, along
# rows, and along columns through a Hadamard transform: 7.1 B), at less than the rate of a copy (6.4 of 8 TB/s, 4.5 with
# random rounding), MXFP8 likewise. Source: Transformer Engine, user guide, "Low precision training" (row-wise and
# column-wise copies, two-level scaling), pull requests 2412 and 2555; the bytes are what its GEMM profiling tutorial
# measures on B300: products with their casts less products alone, 12 of a layer, 2.48e9 elements in 2.69 ms (NVFP4) and
# 1.82 ms (MXFP8) at 7.2 TB/s. FP8: delayed scaling; a scale taken from the tensor itself reads it once more (H200 in
# the same tutorial: 3.8 and 6.1 B).
CAST_BYTES: dict[ProductPrecision, float] = {"bf16": 0.0, "fp8": 2.0 + 2 * 1.0, "mxfp8": 5.3, "nvfp4": 7.8}
# What scales of 8-bit tensors add: none where they were known before (delayed), a read for the maximum of the tensor;
# for maxima of every row and every column (each contraction has its own) two. Blocks of 128 lie within what a kernel
# holds: only their scales of 4 B are written, along rows and along columns. Source: as above; pytorch/ao,
# float8/float8_training_tensor.py and config.py (recipes tensorwise and rowwise).
SCALING_BYTES: dict[Fp8Scaling, float] = {"delayed": 0.0, "tensor": 2.0, "row": 4.0, "block": 2 * 4 / 128}
# Forwards take a kernel with scales of rows: "most shapes are within 90-100%" of the one without (pytorch/pytorch,
# issue 147971, use_fast_accum=True); the middle.
ROW_FORWARD_RATE = 0.95
# Products with scales of blocks multiply every promoted sum by them. H200, the same tutorial: a layer's 12 products and
# their casts (2.48e9 elements, 4.06 B each at 4.3 TB/s) take 22.88 ms, without the casts 20.55; with one scale for each
# tensor and nothing promoted 16.79. 0.817 = 0.87 (fp8_gradient_efficiency) x 0.94; forwards, input and weight gradients
# alone 0.819, 0.821 and 0.811. Blackwell takes MXFP8's kernels for them (0.95).
BLOCK_RATE = 0.94
# Products of operands with block scales over those of one scale per tensor, both cast before: tensor cores read
# the scales as well. B300, the 12 products of a layer: 6.81 ms with a scale per tensor, 7.16 ms in MXFP8 (the same
# tutorial); single products of GB200 reach 1.35 and 1.33 of the 16-bit rate (marin-community/marin, issue 7282).
# NVFP4 has a peak and an efficiency of its own.
MXFP8_RATE = 0.951
LEAST_DYNAMIC_SHARE = 0.1  # of the power limit, whatever the calibration says static power is


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """Tensor cores on operands of one format."""

    peak_flop_per_s: float
    efficiency: float
    """Share of the peak that a large product reaches at full clock."""
    operand_bytes: float
    joule_per_flop: float
    speed_up: float
    """Peak over the BF16 peak."""
    rate: float = 1.0
    """What scales of blocks leave of the rate, whatever limits it."""


def block_scaled(precision: Precision) -> bool:
    """Whether scales are of blocks along what a product sums over, so that copies along rows and columns differ."""
    eight_bit = precision.products == "fp8" and precision.fp8_scaling == "block"
    return eight_bit or precision.products in ("mxfp8", "nvfp4")


def cast_bytes(precision: ProductPrecision, scaling: Fp8Scaling = "delayed") -> float:
    """HBM traffic of casting a BF16 element for its two products."""
    return CAST_BYTES[precision] + (SCALING_BYTES[scaling] if precision == "fp8" else 0.0)


def scaled_rates(scaling: Fp8Scaling, cal: Calibration) -> tuple[float, float]:
    """Rates of 8-bit products over those of one scale for each tensor that promote no sums: forwards and gradients.

    Hopper adds up 8-bit products in less than fp32. Gradients promote partial sums; with scales of blocks forwards do.
    Source: Transformer Engine, common/recipe (Float8BlockScaling: "Split accumulator required for fprop").
    """
    promoted = cal.fp8_gradient_efficiency
    match scaling:
        case "block":
            return BLOCK_RATE * promoted, BLOCK_RATE * promoted
        case "row":
            return ROW_FORWARD_RATE, promoted
        case "delayed" | "tensor":
            return 1.0, promoted


def matrix_unit(gpu: Gpu, cal: Calibration, precision: ProductPrecision) -> MatrixUnit:
    """The tensor cores of *gpu* as *precision* uses them.

    Raises:
        InfeasibleError: the GPU has none of that format.
    """
    peak: float | None
    match precision:
        case "bf16":
            peak, efficiency, joule_per_flop = (
                gpu.bf16_flop_per_s,
                cal.gemm_efficiency,
                cal.bf16_joule_per_flop,
            )
        case "nvfp4":
            peak, efficiency, joule_per_flop = (
                gpu.fp4_flop_per_s,
                cal.fp4_gemm_efficiency,
                cal.fp4_joule_per_flop,
            )
        case _:
            peak, efficiency, joule_per_flop = (
                gpu.fp8_flop_per_s,
                cal.fp8_gemm_efficiency,
                cal.fp8_joule_per_flop,
            )
    if peak is None:
        raise InfeasibleError(
            f"layout.precision = {precision}: {gpu.name} has no such tensor cores; use bf16"
        )
    return MatrixUnit(
        peak,
        efficiency,
        OPERAND_BYTES[precision],
        joule_per_flop * gpu.matrix_energy,
        speed_up=peak / gpu.bf16_flop_per_s,
        rate=MXFP8_RATE if precision == "mxfp8" else 1.0,
    )


def power_slowdown(flop_per_s: ArrayLike, joule_per_flop: float, gpu: Gpu, cal: Calibration) -> Floats:
    """How many times longer matrix work takes when the GPU's power limit lowers its clocks (1: it does not).

        slowdown = max( 1, (r * J / (limit - static + boost))^x * slowest GPU of the job over the mean )

    r: rate at full clock, J: energy of a FLOP at full clock, boost: what a board with tensor_boost
    takes from elsewhere. x = 1 where voltage no longer falls with the clock (power proportional to the rate), 1/3
    where it falls as fast (power proportional to its cube).

    Counted: matrix work that lasts; the first tens of milliseconds run at full clock.
    Ignored: power that memory-bound phases between products leave unused, temperature.
    Source: dynamic power a f V^2; constants from the calibration.
    """
    rate = np.asarray(flop_per_s, dtype=np.float64)
    if not joule_per_flop:
        return np.full_like(rate, cal.slowest_gpu)
    boost_w = cal.tensor_boost_w if gpu.tensor_boost else 0.0
    dynamic_w = max(gpu.tdp_w - cal.static_w + boost_w, LEAST_DYNAMIC_SHARE * gpu.tdp_w)
    with np.errstate(invalid="ignore"):
        demand = rate * (joule_per_flop / dynamic_w)
        return np.maximum(1.0, demand**cal.power_exponent * cal.slowest_gpu)
