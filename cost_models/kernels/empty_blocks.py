"""Thread blocks of attention that find nothing to do: what a pack of one long and many short sequences costs."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.tracing import priced

# Blocks that an SM holds at once, of FlashAttention-2 at head dimension 128: registers allow two of four warps in the
# forward, shared memory one of eight in the backward.
RESIDENT_BLOCKS = (2, 1)


@priced("attention")
def empty_blocks_s(
    segment_tokens: Floats,
    segment_offsets: Ints,
    heads: Floats | float,
    gpu: Gpu,
    cal: Calibration,
    *,
    backward: bool,
    share: Floats | None = None,
) -> Floats:
    """Seconds of empty blocks of one kernel over every micro-batch, [n].

        all    = heads x segments x ceil(longest / tile)
        empty  = all - heads x sum of ceil(tokens / tile)
        t      = min(empty, all - places) x time of one / places          places = SMs x blocks an SM holds

    A kernel for sequences of several lengths starts as many blocks for each as for the longest; those behind a
    sequence's end leave at once. As long as there are places for all of them they keep nobody waiting.
    Counted: rows of tokens on this GPU (*segment_tokens*). A segment that only a *share* of the ranks holds counts for
    as much: a rank of the average.
    Ignored: half of a ring's steps that start half as many (zig-zag); kernels whose persistent blocks ask for their
    next tile (FlashAttention-3 since 2025): they start none.
    Source: grid of FlashAttention-2's variable-length kernels (Dao-AILab/flash-attention); the calibration's times.
    """
    tiles = np.ceil(segment_tokens / cal.attention_tile_tokens)
    starts = segment_offsets[:-1]
    held = np.ones_like(tiles) if share is None else share
    most, filled = np.maximum.reduceat(tiles, starts), np.add.reduceat(held * tiles, starts)
    started = heads * np.add.reduceat(held, starts) * most
    places = gpu.sm_count * RESIDENT_BLOCKS[backward]
    waiting = np.clip(started - places, 0.0, started - heads * filled)
    life_s = cal.empty_block_backward_s if backward else cal.empty_block_forward_s
    return np.asarray(waiting * life_s / places)
