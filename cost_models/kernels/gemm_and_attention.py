"""How long single GPU kernels take: GEMM, grouped GEMM, attention, memory-bound kernels. All vectorised.

Every rate is datasheet peak x calibrated efficiency x a shape factor that follows from how the kernel tiles its work.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.last_wave import with_last_wave
from hdpsim.cost_models.kernels.number_formats import matrix_unit, power_slowdown
from hdpsim.cost_models.layout.switches import AttentionKernel, ProductPrecision
from hdpsim.cost_models.tracing import priced

BF16_BYTES = 2
FP32_ACCUMULATE_BYTES = 8  # weight gradients: read and write an fp32 accumulator
# 5 matmuls against 2: Dao, FlashAttention-2, arXiv 2307.08691, section 4.1
ATTENTION_BACKWARD_FLOP_RATIO = 2.5
REFERENCE_HEAD_DIM = 128.0  # attention efficiencies are stated for this head dimension
# Share of what an attention kernel does beside matrix work that is exponentials: what the doubled ones of Blackwell
# Ultra gain. cuDNN 9.18, dimension 128, 4,096 to 32,768 causal tokens: GB300 over GB200 1.20 to 1.30 times the
# forward's rate, 1.08 to 1.09 the backward's (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results,
# *_918_only_cudnn); forwards of three engines on B300 over B200: 1.17 to 1.27 (ai-dynamo/aiconfigurator).
FORWARD_EXPONENTIALS, BACKWARD_EXPONENTIALS = 0.53, 0.32

CLASSIC_TILES = ((128, 256), (256, 128), (128, 128), (64, 128), (128, 64))
"""Output tiles (rows, columns) of cuBLAS and CUTLASS up to Ampere (CUTLASS profiler defaults), the largest first."""


@cache
def output_tiles(lengths: float) -> tuple[Floats, Floats, Floats]:
    """Rows and columns of the output tiles that a library has, and the operand bytes that a FLOP loads, over 1 / 128.

    One side of 64 or 128, the other of any of so many *lengths* from 64 to 256, either way round; 0: CLASSIC_TILES.
    Ignored: tiles beyond 128 x 256 (192 x 192, 320 x 128), which load hardly less.
    Source: matrix instructions since Hopper are 64 rows by any multiple of 8 columns up to 256 (PTX ISA, wgmma), and
    names of cuBLAS's kernels there say their tiles: nvjet_tst_192x192, nvjet_hsh_256x128 (NVIDIA/Fuser, issues 3137 and
    3279), 128x192 and 256x96 on Blackwell.
    """
    sides: Iterable[tuple[float, float]] = CLASSIC_TILES
    if lengths:
        one_way = [(short, long) for short in (64.0, 128.0) for long in np.linspace(64, 256, int(lengths))]
        sides = sorted({*one_way, *((long, short) for short, long in one_way)})
    rows, columns = np.array(list(sides), dtype=np.float64).T
    return rows, columns, 128.0 * (1.0 / rows + 1.0 / columns)


def tile_slowdown(cal: Calibration) -> Floats:
    """Rate of the large tile over the rate of each tile: 1, 1, 1.10, 1.31, 1.31 with an operand share of 0.3."""
    share, operands = cal.tile_operand_share, output_tiles(cal.tile_sides)[2]
    return np.asarray((1.0 + share * operands) / (1.0 + share * operands.min()))


def tile_efficiency(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    sm_count: int,
    cal: Calibration,
    *,
    groups: ArrayLike = 1.0,
    splits_k: bool = True,
) -> Floats:
    """Share of its full rate that a GEMM reaches with the best of the library's tiles and schedules.

        w = groups * ceil(m / rows) * ceil(n / columns) / SMs                       waves of tiles
        depth = min( ceil(w) * (k + k_half),                                        whole tiles per SM
                     w * k + max(w, 1) * k_half + fix-up )                          tiles cut along k, if it splits_k
        efficiency = groups * m n k / min over tiles of (SMs * rows * columns * slowdown * depth)

    Counted: partly filled tiles and waves, prologue and epilogue of a tile, splitting along k, slower small tiles.
    Ignored: swizzling, L2 reuse.
    Source: stas00/ml-engineering, "Tile and wave quantization"; NVIDIA "Matrix multiplication background" guide;
    Osama et al., Stream-K, arXiv 2301.03598.
    """
    rows, columns, inner = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    copies = np.asarray(groups, dtype=np.float64)
    ones = (1,) * max(rows.ndim, columns.ndim, inner.ndim, copies.ndim)
    tile_rows, tile_columns, _ = (side.reshape(-1, *ones) for side in output_tiles(cal.tile_sides))
    waves = np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns) * (copies / sm_count)
    whole = np.ceil(waves) * (inner + cal.gemm_half_k)
    if splits_k:
        cut = waves * inner + (np.maximum(waves, 1.0) * cal.gemm_half_k + cal.stream_k_fixup)
        whole = np.minimum(whole, cut)
    slot_flop = (sm_count * tile_rows * tile_columns) * tile_slowdown(cal).reshape(-1, *ones)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = copies * rows * columns * inner / (whole * slot_flop).min(axis=0)
    return np.asarray(share)


@priced()
def gemm_s(
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    gpu: Gpu,
    cal: Calibration,
    *,
    efficiency: ArrayLike = 1.0,
    groups: ArrayLike = 1,
    output_bytes: ArrayLike = BF16_BYTES,
    precision: ProductPrecision = "bf16",
    overlap: ArrayLike = 1.0,
    burst: bool = False,
    splits_k: bool = True,
) -> Floats:
    """Seconds of *groups* equal matrix products (m x k) @ (k x n) in one kernel, operands in *precision*.

        t = tail + overlap * roofline(compute, memory) + (1 - overlap) * (compute + memory)
        compute = groups * 2 m n k / rate
        memory = groups * (operand_bytes (mk + kn) + output_bytes * mn) / (hbm * e_hbm)
        rate = quality * s * r / power_slowdown(r),   r = peak * e * tile_efficiency       s: scales of blocks

    Counted: tensor-core time with tile and wave quantisation, tile prologue (k_half), clocks that the power limit
    allows (of a *burst* of some milliseconds, in part), HBM roofline, start-up of the kernel on the device; nothing at
    all where a dimension is 0. Narrower operands pass the contraction faster: k_half and the stream-K fix-up are
    times, so they grow in elements. *efficiency* is the quality: relative to a plain product under the same limit.
    *splits_k*: the library has the second schedule of tile_efficiency, too.
    Ignored: quantisation of the operands (see LayerGemms), uneven groups.
    Source: roofline with tile model, see tile_efficiency; efficiencies from the calibration.
    """
    unit = matrix_unit(gpu, cal, precision)
    rows, columns, inner = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    copies, quality, hidden, written_bytes = (
        np.asarray(x, dtype=np.float64) for x in (groups, efficiency, overlap, output_bytes)
    )
    depth = inner / unit.speed_up
    share = tile_efficiency(rows, columns, depth, gpu.sm_count, cal, groups=copies, splits_k=splits_k)
    flop = (2.0 * copies) * rows * columns * inner
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = unit.peak_flop_per_s * unit.efficiency * share
        compute_s = flop / (rate * quality * unit.rate)
    slowdown = power_slowdown(rate, unit.joule_per_flop, gpu, cal)
    compute_s = compute_s * (slowdown**cal.burst_power_share if burst else slowdown)
    traffic_bytes = copies * (unit.operand_bytes * (rows + columns) * inner + written_bytes * rows * columns)
    memory_s = memory_bound_s(traffic_bytes, gpu, cal)
    busy_s = roofline_s(compute_s, memory_s, cal)
    if (hidden < 1.0).any():
        busy_s = hidden * busy_s + (1.0 - hidden) * (compute_s + memory_s)
    return np.where(flop > 0, busy_s + cal.kernel_tail_s, 0.0)


def roofline_s(compute_s: Floats, memory_s: Floats, cal: Calibration) -> Floats:
    """Seconds of work that overlaps with its traffic, as tiles do that wait where both are about as long.

        t = (compute^p + memory^p)^(1/p)        one far longer: that; both equal, p = 3: 1.26 of either

    Source: the form is assumed, p is fitted (roofline_power of the calibrations).
    """
    longer = np.maximum(compute_s, memory_s)
    share = np.divide(np.minimum(compute_s, memory_s), longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * (1.0 + share**cal.roofline_power) ** (1.0 / cal.roofline_power))


@priced()
def memory_bound_s(traffic_bytes: ArrayLike, gpu: Gpu, cal: Calibration) -> Floats:
    """Seconds a memory-bound kernel needs for *traffic_bytes* of HBM reads and writes."""
    return np.asarray(
        np.asarray(traffic_bytes, dtype=np.float64) / (gpu.hbm_bytes_per_s * cal.hbm_efficiency)
    )


FLASH1_HEAD_DIMS = (32, 64, 128)
"""FlashAttention 1.0.9, fmha_api.cpp: run_fmha_fwd and run_fmha_bwd choose among kernels of these."""
FLASH1_NARROW = 1.33
"""Its rate over FlashAttention-2's with heads of up to 64, over the same with wider ones.

It takes 256 keys at a time, not 128 (fmha_fwd_hdim64.cu, fmha_fwd_hdim128.cu).
Source: figures of FlashAttention-2 (forward and backward, 1,024 tokens and more): 0.54 to 0.66 with heads of 64, 0.41
to 0.47 with heads of 128, on A100 and on H100, causal or not (Dao-AILab/flash-attention, assets)."""


TRITON_HEAD_DIMS = (16, 32, 64, 128)
"""Dao-AILab/flash-attention, flash_attn_triton.py (BLOCK_HEADDIM: the next power of two)."""
TRITON_SLOWDOWN = (1.4, 2.0)
"""Of FlashAttention in Triton beside FlashAttention-2, forward and backward: "around 1.3-1.5x" and "around 2x" on A100,
arXiv 2307.08691, section 4.1."""


class KernelRate(NamedTuple):
    """An older attention kernel, or one in 8 bits, beside the generation's best.

    FlashAttention-2 does matrix work more slowly; what a row of tiles costs besides, and an exponential, is the same,
    so that in units of its matrix work both half values shrink by the rate. FlashAttention of 2022 lets the warps of a
    tile exchange results in every part of its work (arXiv 2307.08691, section 3.3), so its ramp is FlashAttention-2's.
    cuDNN's of 2025 loses in the backward of heads of 192 and 128 alone, whose five accumulators tensor memory cannot
    hold: 768 columns for tiles of 128 x 128, of 512 (640 with heads of 128, two of which take turns).
    In MXFP8 matrix work is faster and the rest as slow, so both half values grow. cuDNN's backward in 8 bits visits
    all keys before a query, whatever the window: 2.07 ms with 4,096 tokens, 107 with 32,768, where 16 bits take 0.46
    and 3.6 (GB200, window 128; NVIDIA/cudnn-frontend, sdpa_benchmark_training/results/gpt_oss, May 2026).
    """

    forward: float = 1.0
    """Rate of long sequences."""
    backward: float = 1.0
    ramp: float = 1.0
    """Half lengths over the best kernel's."""
    head_dims: tuple[int, ...] = ()
    """Head dimensions that it was compiled for; others are filled up to the next. None: any is as good."""
    descending: bool = True
    """A causal backward deals out blocks of keys, longest first (see with_last_wave): not whole heads, or either."""
    windowed_backward: bool = True
    """A backward skips keys beyond a sliding window."""

    @classmethod
    def of(
        cls, kernel: AttentionKernel, cal: Calibration, head_dim: float = REFERENCE_HEAD_DIM
    ) -> KernelRate:
        """The kernel of that name in a layout; unfused attention has none, and asks for no rate."""
        second = cal.flash2_rate
        match kernel:
            case "flash1":
                first = cal.flash1_rate * (FLASH1_NARROW if head_dim <= 64 else 1.0)
                return cls(first, first, second, FLASH1_HEAD_DIMS, descending=False)
            case "flash2":
                return cls(second, second, second)
            case "triton":
                forward, backward = (second / slowdown for slowdown in TRITON_SLOWDOWN)
                return cls(forward, backward, second, TRITON_HEAD_DIMS, descending=False)
            case "mxfp8":
                forward, backward = cal.mxfp8_attention_rate, cal.mxfp8_attention_backward_rate
                return cls(forward, backward, forward, windowed_backward=False)
            case "cudnn2025":
                return cls(backward=cal.cudnn2025_rate if head_dim > REFERENCE_HEAD_DIM else 1.0)
            case "flash" | "unfused":
                return BEST_KERNEL
            case _:
                assert_never(kernel)

    def rate_of(self, *, backward: bool) -> float:
        """Rate of long sequences in a direction."""
        return self.backward if backward else self.forward

    def filled(self, head_dim: float) -> float:
        """The head dimension that the kernel works with."""
        return next((float(dim) for dim in self.head_dims if dim >= head_dim), head_dim)


BEST_KERNEL = KernelRate()


@priced()
def attention_rate_flop_per_s(
    tokens: ArrayLike,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool,
    head_dim: float = REFERENCE_HEAD_DIM,
    causal: bool = True,
    kernel: KernelRate = BEST_KERNEL,
) -> Floats:
    """Rate of flash attention at full clock on sequences of *tokens* tokens (infinity: the long-sequence rate).

        rate = peak * e * q * s / (s + p s_half) * g(d) / g(128),   g(d) = d / (d + q d_half [/ 2.5 backward])
        x times the exponentials: d_half in g(d), not in g(128), shrinks to 1 - share (1 - 1 / x)

    Counted: the ramp with sequence length (few tiles, masked half-tiles on the diagonal), longer in the backward;
    exponentials, whose number does not depend on the head dimension d while the matrix work does, and as many in
    the backward, which has 2.5 times the matrix work; a slower *kernel* of rate q and ramp p, see KernelRate; work on
    what fills a head up to a dimension that the kernel knows (rate x d / filled d, g of the filled d); GPUs with faster
    exponentials than the calibrated ones (not older kernels).
    Ignored: number of heads (see attention_s), the power limit (see power_slowdown).
    Source: shape of the published FlashAttention-2/3 curves (Dao-AILab/flash-attention); constants calibrated; NVIDIA,
    "Making Softmax More Efficient with NVIDIA Blackwell Ultra".
    """
    length = np.asarray(tokens, dtype=np.float64)
    efficiency = cal.attention_backward_efficiency if backward else cal.attention_forward_efficiency
    half = cal.attention_half_tokens if causal else cal.attention_block_half_tokens
    if backward:
        half *= cal.attention_backward_ramp
    half *= kernel.ramp
    slower = kernel.rate_of(backward=backward)
    dim_half = cal.attention_half_head_dim * slower
    if backward:
        dim_half /= ATTENTION_BACKWARD_FLOP_RATIO
    share = BACKWARD_EXPONENTIALS if backward else FORWARD_EXPONENTIALS
    faster = 1.0 - share * (1.0 - 1.0 / gpu.exponentials) if slower >= 1.0 else 1.0
    filled = kernel.filled(head_dim)
    dims = head_dim / (filled + dim_half * faster) * (REFERENCE_HEAD_DIM + dim_half) / REFERENCE_HEAD_DIM
    with np.errstate(divide="ignore"):
        return np.asarray(gpu.bf16_flop_per_s * efficiency * slower * dims / (1.0 + half / length))


def attention_s(
    sequences: ArrayLike,
    tokens: ArrayLike,
    heads: ArrayLike,
    head_dim: float,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool = False,
    causal: bool = True,
    kernel: KernelRate = BEST_KERNEL,
    surrounding_bytes: ArrayLike = 0.0,
    burst: bool = False,
) -> Floats:
    """One flash-attention kernel on *sequences* equal sequences: what kernel benchmarks measure.

        t = tail + with_last_wave(w) / rate(s) + bytes / (hbm * e_hbm)
        w = 4 b h s^2 d [/ 2 causal] [x 2.5 backward]

    Counted: the ramp with length; the last, partly filled wave; clocks under the power limit (of a *burst* in part).
    *surrounding_bytes*: HBM traffic of what a benchmark times along, such as writing a key-value cache.
    Ignored: grouped keys and values (they change memory traffic, which is not the limit).
    Source: attention_rate_flop_per_s; arXiv 2307.08691, section 3.2 (work partitioning).
    """
    length = np.asarray(tokens, dtype=np.float64)
    rate = attention_rate_flop_per_s(
        length, gpu, cal, backward=backward, head_dim=head_dim, causal=causal, kernel=kernel
    )
    share = (0.5 if causal else 1.0) * (ATTENTION_BACKWARD_FLOP_RATIO if backward else 1.0)
    pairs = np.asarray(sequences) * np.asarray(heads) * length**2 * share
    row = (ATTENTION_BACKWARD_FLOP_RATIO if backward else 1.0) * length
    keys = kernel.descending * length
    waves = with_last_wave(pairs, row, keys, gpu, cal, backward=backward, causal=causal)
    busy_s = 4.0 * head_dim * waves / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = 4.0 * head_dim * pairs / busy_s
    slowdown = power_slowdown(rate, cal.bf16_joule_per_flop, gpu, cal)
    busy_s = busy_s * (slowdown**cal.burst_power_share if burst else slowdown)
    return np.asarray(busy_s + cal.kernel_tail_s + memory_bound_s(surrounding_bytes, gpu, cal))
