"""Blocks of attention without work: by hand, and where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from ideal_hardware import GPU

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.kernels.attention import empty_blocks_s

TILES = calibration("hopper")


def seconds(packs: list[list[int]], *, heads: float = 32.0, backward: bool = False) -> list[float]:
    tokens = np.array([length for pack in packs for length in pack], dtype=np.float64)
    offsets = np.concatenate(([0], np.cumsum([len(pack) for pack in packs])))
    return empty_blocks_s(tokens, offsets, heads, GPU, TILES, backward=backward).tolist()


def test_one_long_and_short_sequences() -> None:
    # 64 tiles of 128 rows, and 15 sequences of one: the kernel starts 16 x 64 blocks a head, 63 x 15 of them empty.
    places = 2 * GPU.sm_count
    empty, started = 32 * 63 * 15, 32 * 16 * 64
    expected = min(empty, started - places) * TILES.empty_block_forward_s / places
    assert seconds([[8192] + [100] * 15]) == [pytest.approx(expected)]


def test_the_backward_holds_half_as_many_blocks() -> None:
    pack = [65_536] + [100] * 500
    longer = TILES.empty_block_backward_s / TILES.empty_block_forward_s
    assert seconds([pack], backward=True)[0] == pytest.approx(2 * longer * seconds([pack])[0], rel=0.01)


def test_equal_sequences_and_single_ones_have_none() -> None:
    assert seconds([[4096] * 8, [1_000_000], [1, 128]]) == [0.0, 0.0, 0.0]


def test_few_blocks_find_places_at_once() -> None:
    assert seconds([[256, 1]], heads=1.0) == [0.0]


def test_micro_batches_do_not_see_each_other() -> None:
    packs = [[9000, 10, 10], [500, 400], [70_000] + [64] * 300]
    assert seconds(packs) == [pytest.approx(seconds([pack])[0]) for pack in packs]
