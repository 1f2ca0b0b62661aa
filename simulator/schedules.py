"""Pipeline schedules: in which order a stage runs the forwards and backwards of its slots."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from cost_models.layout import Schedule

__all__ = [
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "STAGE_BY_STAGE",
    "Order",
    "operation_order",
    "stage_order",
    "warm_up_forwards",
]

Ints = NDArray[np.int64]

FORWARD = 0
BACKWARD = 1
"""A whole backward: input gradient and weight gradient together."""
BACKWARD_INPUT = 3
BACKWARD_WEIGHT = 4

STAGE_BY_STAGE: frozenset[Schedule] = frozenset({"zb-h2", "zb-v"})
"""Schedules whose steps follow each other stage by stage: the optimizer of a stage does not wait for the others (the
gradient norm is validated afterwards). Without it there is no schedule without bubbles: arXiv 2401.10241, section 4."""


class Order(NamedTuple):
    """Operations of a stage in the order in which it runs them, one array entry each. Shared and read-only."""

    op: Ints
    chunk: Ints
    slot: Ints
    paired: NDArray[np.bool_]
    """A forward and the backward after it that run overlapped (DualPipe)."""
    batch: Ints
    """Operations of the same number have no blocking transfer between them: an interleaved schedule sends and
    receives for a forward and a backward at once, 1F1B for every operation."""


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
    table = _in_turn(stages, chunks, stage, slots)
    return table[0], table[1], table[2]


@lru_cache(maxsize=4096)
def _in_turn(stages: int, chunks: int, stage: int, slots: int) -> Ints:
    """The rows op, chunk, slot, batch of operation_order, read-only."""
    if stages < 1 or chunks < 1 or not 0 <= stage < stages or slots < 0:
        raise ValueError(f"no stage {stage} of {stages} with {chunks} chunks and {slots} slots")
    group = 1 if chunks == 1 else stages
    rounded = -(-slots // group) * group
    index = np.arange(rounded * chunks, dtype=np.int64)
    chunk = index // group % chunks
    slot = index // (group * chunks) * group + index % group
    warm_up = min(warm_up_forwards(stages, chunks, stage), len(index))
    table = _alternating(
        warm_up, np.stack([chunk, slot, index]), np.stack([chunks - 1 - chunk, slot, index + warm_up])
    )
    if chunks == 1:
        table[3] = np.arange(table.shape[1])
    table = np.ascontiguousarray(table[:, table[2] < slots])
    table.setflags(write=False)
    return table


def _alternating(warm_up: int, forwards: Ints, backwards: Ints) -> Ints:
    """Columns (op, rows of a forward or backward): warm-up, forwards and backwards in turn, remaining backwards."""
    count = forwards.shape[1]
    index = np.arange(count, dtype=np.int64)
    warm_up = min(warm_up, count)
    # The place of forward i and of backward j in the order: before forward i run all forwards up to i and all
    # backwards that the alternation has let through; after the last forward only backwards are left.
    table = np.empty((1 + len(forwards), 2 * count), dtype=np.int64)
    table[:, index + np.maximum(index - warm_up, 0)] = np.stack([np.full_like(index, FORWARD), *forwards])
    table[:, index + np.minimum(index + warm_up + 1, count)] = np.stack(
        [np.full_like(index, BACKWARD), *backwards]
    )
    return table


@lru_cache(maxsize=4096)
def stage_order(schedule: Schedule, stages: int, chunks: int, stage: int, slots: int) -> Order:
    """Return the operations of *stage* in their order under any schedule.

    In the schedules that split the backward every slot has a forward, a BACKWARD_INPUT (in DualPipe partly a whole
    BACKWARD) and a BACKWARD_WEIGHT. Leaving out the weight gradients, which no other process can observe, the order
    of few slots is again the order of many without the missing ones; DualPipe is the exception: its second half
    depends on their number. DualPipe's slots take turns: even ones start at the first stage (chunk 0), odd ones at
    the last (chunk 1).
    """
    if schedule == "1f1b" or schedule == "interleaved":  # mypy narrows by ==, not by in
        op, chunk, slot, batch = _in_turn(stages, chunks, stage, slots)
        return Order(op, chunk, slot, np.zeros(len(op), dtype=np.bool_), batch)
    if stages < 2 or not 0 <= stage < stages or slots < 0:
        raise ValueError(f"no stage {stage} of {stages} with {slots} slots in {schedule}")
    match schedule:
        case "zb-v":
            rows = _v_order(stages, stage, slots)
        case "dualpipe":
            rows = _dualpipe_order(stages, stage, slots)
        case "zb-h1" | "zb-h2":
            rows = _handcrafted_order(schedule, stages, stage, slots)
        case _:
            assert_never(schedule)
    table = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    op, chunk, slot, paired = (np.ascontiguousarray(row) for row in table[:, table[2] < slots])
    for column in (op, chunk, slot):
        column.setflags(write=False)
    return Order(op, chunk, slot, paired.astype(np.bool_), np.arange(len(op)))


_Row = tuple[int, int, int, int]


def _handcrafted_order(schedule: Schedule, stages: int, stage: int, slots: int) -> list[_Row]:
    """ZB-H1 and ZB-H2.

    H1: the forwards and backwards of 1F1B; the weight gradient of a slot comes *stage* backwards later, so that
    every stage keeps the activations of *stages* micro-batches.
    H2: twice the warm-up of 1F1B less one; every backward is followed by its weight gradient, until in the last
    2 stages - 1 slots the input gradients hurry ahead: the first 2 * stage of them put theirs off.
    Source: Qi et al., arXiv 2401.10241, sections 3.1 and 3.2 (figures 2 and 3).
    """
    number = np.zeros(slots, dtype=np.int64), np.arange(slots, dtype=np.int64)
    both = np.stack(number)
    warm_up = (stages - 1 - stage) * (2 if schedule == "zb-h2" else 1)
    rows: list[_Row] = []
    behind = 0  # weight gradients put off
    most = stage if schedule == "zb-h1" else 2 * stage
    hurry = 0 if schedule == "zb-h1" else slots - 2 * stages + 1
    for op, _, slot in _alternating(warm_up, both, both).T.tolist():
        if op == FORWARD:
            rows.append((FORWARD, 0, slot, 0))
            continue
        rows.append((BACKWARD_INPUT, 0, slot, 0))
        if slot >= hurry and behind < most:
            behind += 1
        else:
            rows.append((BACKWARD_WEIGHT, 0, slot - behind, 0))
    rows += [(BACKWARD_WEIGHT, 0, slot, 0) for slot in range(slots - behind, slots)]
    return rows


class _Counted:
    """Writes rows and numbers the slots of every kind of operation in turn."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.count: dict[tuple[int, int], int] = {}

    def next(self, op: int, chunk: int) -> int:
        """How many of these there have been."""
        number = self.count.get((op, chunk), 0)
        self.count[op, chunk] = number + 1
        return number

    def add(self, op: int, chunk: int) -> None:
        """The next slot of that operation on that chunk."""
        self.rows.append((op, chunk, self.next(op, chunk), 0))

    def of(self, op: int, chunk: int) -> int:
        """How many there are by now."""
        return self.count.get((op, chunk), 0)


def _v_order(stages: int, stage: int, slots: int) -> list[_Row]:
    """ZB-V: chunk 0 going down the stages, chunk 1 coming back.

    Source: Qi et al., arXiv 2401.10241, section 6; PyTorch's ScheduleZBVZeroBubble
    (torch/distributed/pipelining/schedules.py), which this follows phase by phase.
    """
    made = _Counted()
    F, B, W = FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT
    most = max(2 * stages - 1, slots)
    for _ in range(2 * (stages - stage) - 1):
        made.add(F, 0)
    for _ in range(stage):
        made.add(F, 1)
        made.add(F, 0)
    for _ in range(stages - stage):
        for op in (F, B, W):
            made.add(op, 1)
    while made.of(F, 1) < made.of(F, 0) or made.of(F, 0) < most:
        if made.of(F, 0) < most:
            made.add(F, 0)
        for op, chunk in ((B, 0), (W, 0), (F, 1), (B, 1), (W, 1)):
            made.add(op, chunk)
    for _ in range(stage):
        made.add(B, 0)
        made.add(B, 1)
    for _ in range(stages - stage):
        made.add(B, 0)
        made.add(W, 0)
    for chunk in (1, 0):
        while made.of(W, chunk) < made.of(B, chunk):
            made.add(W, chunk)
    return made.rows


def _dualpipe_order(stages: int, stage: int, slots: int) -> list[_Row]:
    """DualPipe: micro-batches from both ends; a forward of one direction overlaps a backward of the other.

    Source: DeepSeek-AI, arXiv 2412.19437 section 3.2.1; github.com/deepseek-ai/DualPipe, dualpipe.py, whose eight
    steps these are.
    """
    made = _Counted()
    near = min(stage, stages - 1 - stage)
    swap = int(stage >= stages // 2)  # the second half of the stages sees the directions the other way round
    half = stages // 2
    waiting: list[tuple[int, int]] = []  # weight gradients put off

    def forward(way: int, paired: int = 0) -> None:
        chunk = way ^ swap
        made.rows.append((FORWARD, chunk, 2 * made.next(FORWARD, chunk) + chunk, paired))

    def backward(way: int, *, split: bool = False, paired: int = 0) -> None:
        chunk = way ^ swap
        slot = 2 * made.next(BACKWARD, chunk) + chunk
        made.rows.append((BACKWARD_INPUT if split else BACKWARD, chunk, slot, paired))
        if split:
            waiting.append((chunk, slot))

    def weight() -> None:
        chunk, slot = waiting.pop(0)
        made.rows.append((BACKWARD_WEIGHT, chunk, slot, 0))

    def both(forward_way: int, backward_way: int) -> None:
        forward(forward_way, 1)
        backward(backward_way, paired=1)

    for _ in range(2 * (half - near - 1)):
        forward(0)
    for _ in range(near + 1):
        forward(0)
        forward(1)
    for _ in range(half - near - 1):
        backward(1, split=True)
        weight()
        forward(1)
    for number in range(slots // 2 - stages + near + 1):
        if (
            number == 0 and near == half - 1
        ):  # on the two stages in the middle the first pair is not overlapped
            forward(0)
            backward(1)
        else:
            both(0, 1)
        both(1, 0)
    for _ in range(half - near - 1):
        backward(1)
        both(1, 0)
    split = False
    for number in range(near + 1):
        middle = number == (near + 1) // 2
        split |= middle and near % 2 == 1
        backward(1, split=split)
        split |= middle and near % 2 == 0
        backward(0, split=split)
    for _ in range(half - near - 1):
        weight()
        backward(0, split=True)
    while waiting:
        weight()
    return made.rows
