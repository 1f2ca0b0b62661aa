"""How long matrix products (GEMM, grouped GEMM) and memory-bound kernels take. All vectorised.

Every rate is datasheet peak x calibrated efficiency x a shape factor that follows from how the kernel tiles its work.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.number_formats import matrix_unit, power_slowdown
from hdpsim.cost_models.layout.switches import ProductPrecision
from hdpsim.cost_models.tracing import priced

BF16_BYTES = 2
FP32_ACCUMULATE_BYTES = 8  # weight gradients: read and write an fp32 accumulator

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
    added_axes = (1,) * max(rows.ndim, columns.ndim, inner.ndim, copies.ndim)
    tile_rows, tile_columns, _ = (side.reshape(-1, *added_axes) for side in output_tiles(cal.tile_sides))
    waves = np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns) * (copies / sm_count)
    wave_depth = np.ceil(waves) * (inner + cal.gemm_half_k)
    if splits_k:
        cut = waves * inner + (np.maximum(waves, 1.0) * cal.gemm_half_k + cal.stream_k_fixup)
        wave_depth = np.minimum(wave_depth, cut)
    slot_flop = (sm_count * tile_rows * tile_columns) * tile_slowdown(cal).reshape(-1, *added_axes)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = copies * rows * columns * inner / (wave_depth * slot_flop).min(axis=0)
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
