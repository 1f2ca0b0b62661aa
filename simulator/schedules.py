"""Pipeline schedules: in which order a stage runs the forwards and backwards of its slots."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["BACKWARD", "FORWARD", "operation_order", "warm_up_forwards"]

Ints = NDArray[np.int64]

FORWARD = 0
BACKWARD = 1


def warm_up_forwards(stages: int, chunks: int, stage: int) -> int:
    """Forwards *stage* runs before its first backward, when there are enough of them.

        1F1B:         stages - 1 - stage
        interleaved:  2 * (stages - 1 - stage) + (chunks - 1) * stages

    Source: Narayanan et al., SC 2021 (arXiv:2104.04473), section 2.2; Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py.
    """
    if chunks == 1:
        return stages - 1 - stage
    return 2 * (stages - 1 - stage) + (chunks - 1) * stages


@lru_cache(maxsize=4096)
def operation_order(stages: int, chunks: int, stage: int, slots: int) -> tuple[Ints, Ints, Ints]:
    """Return (op, chunk, slot) of every operation of *stage*, in the order it runs them.

    One chunk gives 1F1B, more give Megatron's interleaved schedule: forwards visit the chunks in turn, *stages*
    slots at a time; backwards do the same with the chunks reversed; after the warm-up one forward and one
    backward alternate. The interleaved schedule is made for slots rounded up to a multiple of *stages*, and
    operations of slots that do not exist are left out. Hence the order of few slots is the order of many slots
    without the missing ones: ranks with different numbers of slots agree on the order of what they share.

    On the last stage the forward of the last chunk is always followed at once by its backward.
    The arrays are shared and read-only.
    """
    if stages < 1 or chunks < 1 or not 0 <= stage < stages or slots < 0:
        raise ValueError(f"no stage {stage} of {stages} with {chunks} chunks and {slots} slots")
    group = 1 if chunks == 1 else stages
    rounded = -(-slots // group) * group
    index = np.arange(rounded * chunks, dtype=np.int64)
    chunk = index // group % chunks
    slot = index // (group * chunks) * group + index % group

    # The place of forward i and of backward j in the order: before forward i run all forwards up to i and all
    # backwards that the alternation has let through; after the last forward only backwards are left.
    warm_up = min(warm_up_forwards(stages, chunks, stage), len(index))
    forward_place = index + np.maximum(index - warm_up, 0)
    backward_place = index + np.minimum(index + warm_up + 1, len(index))

    table = np.empty((3, 2 * len(index)), dtype=np.int64)
    table[:, forward_place] = np.stack([np.full_like(index, FORWARD), chunk, slot])
    table[:, backward_place] = np.stack([np.full_like(index, BACKWARD), chunks - 1 - chunk, slot])
    table = np.ascontiguousarray(table[:, table[2] < slots])
    table.setflags(write=False)
    return table[0], table[1], table[2]
