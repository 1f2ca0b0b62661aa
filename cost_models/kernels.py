"""How long single GPU kernels take: GEMM, grouped GEMM, attention, memory-bound kernels. All vectorised.

Every rate is datasheet peak x calibrated efficiency x a shape factor that follows from how the kernel tiles its work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cost_models.calibration import Calibration
from cost_models.hardware import Gpu

__all__ = [
    "ATTENTION_BACKWARD_FLOP_RATIO",
    "attention_rate_flop_per_s",
    "gemm_s",
    "memory_bound_s",
    "tile_efficiency",
]

Floats = NDArray[np.float64]

TILE_ROWS, TILE_COLUMNS = 128, 256  # cuBLAS/CUTLASS large tile, stas00/ml-engineering "tile and wave quantization"
BF16_BYTES = 2
ATTENTION_BACKWARD_FLOP_RATIO = 2.5  # 5 matmuls against 2: Dao, FlashAttention-2, arXiv 2307.08691, section 4.1


def tile_efficiency(m: ArrayLike, n: ArrayLike, sm_count: int) -> Floats:
    """Useful share of the tiles' work: the better of the two orientations of a 128 x 256 tile.

        tiles = ceil(m / 128) * ceil(n / 256);  waves = tiles / SMs (the last wave counts in full for few waves)
        efficiency = m * n / (ceil(waves) * SMs * 128 * 256)

    Counted: partly filled tiles and a partly filled last wave.
    Ignored: smaller tiles and split-K, which libraries choose for small shapes: they make up for about half of a
    quantisation loss, so the loss is halved (geometric mean of quantised and smooth).
    Source: stas00/ml-engineering, "Tile and wave quantization"; NVIDIA "Matrix multiplication background" guide.
    """
    rows, columns = np.asarray(m, dtype=np.float64), np.asarray(n, dtype=np.float64)
    best = np.zeros(np.broadcast(rows, columns).shape)
    for tile_m, tile_n in ((TILE_ROWS, TILE_COLUMNS), (TILE_COLUMNS, TILE_ROWS)):
        tiles = np.ceil(rows / tile_m) * np.ceil(columns / tile_n)
        slots = np.ceil(tiles / sm_count) * sm_count
        best = np.maximum(best, rows * columns / (slots * tile_m * tile_n))
    return np.sqrt(best)


def gemm_s(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, gpu: Gpu, cal: Calibration, *, efficiency: float = 1.0
) -> Floats:
    """Seconds of a BF16 matrix product (m x k) @ (k x n).

        t = max(2 m n k / (peak * e * tile_efficiency * k / (k + k_half)),  2 (mk + kn + mn) / (hbm * e_hbm))

    Counted: tensor-core time with tile and wave quantisation, tile prologue (k_half), HBM roofline.
    Ignored: L2 reuse between waves, clock throttling beyond the calibrated sustained efficiency.
    Source: roofline with tile model, see tile_efficiency; efficiencies from the calibration.
    """
    rows, columns, inner = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    rate = gpu.bf16_flop_per_s * cal.gemm_efficiency * efficiency * inner / (inner + cal.gemm_half_k)
    with np.errstate(divide="ignore", invalid="ignore"):
        compute_s = 2.0 * rows * columns * inner / (rate * tile_efficiency(rows, columns, gpu.sm_count))
    compute_s = np.where((rows > 0) & (columns > 0), compute_s, 0.0)
    traffic_bytes = BF16_BYTES * (rows * inner + inner * columns + rows * columns)
    memory_s = np.where(rows > 0, memory_bound_s(traffic_bytes, gpu, cal), 0.0)
    return np.maximum(compute_s, memory_s)


def memory_bound_s(traffic_bytes: ArrayLike, gpu: Gpu, cal: Calibration) -> Floats:
    """Seconds a memory-bound kernel needs for *traffic_bytes* of HBM reads and writes."""
    return np.asarray(traffic_bytes, dtype=np.float64) / (gpu.hbm_bytes_per_s * cal.hbm_efficiency)


def attention_rate_flop_per_s(tokens: ArrayLike, gpu: Gpu, cal: Calibration, *, backward: bool) -> Floats:
    """Sustained rate of flash attention on causal sequences (or ring blocks) of *tokens* tokens.

        rate = peak * e * s / (s + s_half)

    Counted: the ramp with sequence length (few tiles, masked half-tiles on the diagonal).
    Ignored: head dimension below 128 (slower), number of heads.
    Source: shape of the published FlashAttention-2/3 curves (Dao-AILab/flash-attention); constants calibrated.
    """
    length = np.asarray(tokens, dtype=np.float64)
    peak = cal.attention_backward_efficiency if backward else cal.attention_forward_efficiency
    return gpu.bf16_flop_per_s * peak * length / (length + cal.attention_half_tokens)
