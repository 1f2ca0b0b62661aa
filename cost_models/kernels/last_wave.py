"""The last, partly filled wave of an attention kernel: what few heads of short sequences leave idle."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu

BACKWARD_TILE_TOKENS = 128.0  # blocks of keys of the FlashAttention-2 and -3 backwards


def with_last_wave(
    work: ArrayLike,
    longest_row: ArrayLike,
    keys: ArrayLike,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool,
    causal: ArrayLike,
) -> Floats:
    """*work* of a kernel with what SMs idle at its end, in its own unit (seconds, or pairs of queries and keys).

        longest = SMs x rows of a tile x longest row                    every SM works on a longest tile
        t       = max( work + idle x longest, longest )
        idle    = a share of the calibration's
                  causal backward: x min( 1, factor (1 - tiles of a head / (2 SMs)) ), 0 at least

    *longest_row*: the query of one head that meets most keys, with all of them; *keys* of its sequence, 0 where tiles
    are no blocks of keys.
    Counted: tiles that go out head by head leave each SM idle for half of a longest tile (0.5 to 0.6 when such a list
    is played on 108 and 148 SMs), with the longest tiles first for a tenth; no kernel ends before a longest tile. Tiles
    of a causal backward are blocks of keys: the first meets all queries, so every head ends with its shortest
    (attention_backward_tail_factor).
    Limits: many heads or sequences, work; one head of one sequence on more SMs than it has tiles, a longest tile.
    Ignored: two blocks that share an SM (they end later: 0.7 to 1.1 when played), kernels on other streams that run in
    the gap.
    Source: arXiv 2307.08691, section 3.2 (work partitioning: blocks of heads x sequences x rows of tiles);
    Dao-AILab/flash-attention, csrc/flash_attn/src/flash_bwd_kernel.h (n_block, m_block_min).
    """
    tile_tokens = cal.attention_tile_tokens
    if backward:
        tile_tokens = min(tile_tokens, BACKWARD_TILE_TOKENS)
    longest = gpu.sm_count * tile_tokens * np.asarray(longest_row, dtype=np.float64)
    of_causal = np.asarray(cal.attention_backward_tail if backward else cal.attention_forward_tail)
    if backward:
        tiles = np.asarray(keys, dtype=np.float64) / tile_tokens
        of_causal = of_causal * np.clip(
            cal.attention_backward_tail_factor * (1.0 - tiles / (2.0 * gpu.sm_count)), 0.0, 1.0
        )
    idle = np.where(causal, of_causal, cal.attention_forward_tail)
    return np.asarray(np.maximum(np.asarray(work) + idle * longest, longest))
