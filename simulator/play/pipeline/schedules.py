"""Pipeline schedules: in which order a stage runs the forwards and backwards of its slots."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple, assert_never

import numpy as np

from hdpsim.arrays import Bools, Ints
from hdpsim.cost_models.layout.switches import Schedule

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
    paired: Bools
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
def _in_turn(stages: int, chunks: int, stage: int, slots: int) -> Ints:
    """The rows op, chunk, slot, batch of 1F1B (one chunk) and of Megatron's interleaved schedule, read-only.

    Interleaved, forwards visit the chunks in turn, *stages* slots at a time; backwards do the same with the chunks
    reversed; after the warm-up one forward and one backward alternate. The schedule is made for slots rounded up to a
    multiple of *stages*, and operations of slots that do not exist are left out. Hence the order of few slots is the
    order of many slots without the missing ones: ranks with different numbers of slots agree on the order of what they
    share. On the last stage the forward of the last chunk is always followed at once by its backward.
    """
    if stages < 1 or chunks < 1 or not 0 <= stage < stages or slots < 0:
        raise ValueError(f"no stage {stage} of {stages} with {chunks} chunks and {slots} slots")
    group = 1 if chunks == 1 else stages
    slot = np.arange(slots, dtype=np.int64)[:, None]
    first = slot // group * (chunks * group) + slot % group
    index = np.sort((first + group * np.arange(chunks, dtype=np.int64)).ravel())  # of the slots that exist
    count = -(-slots // group) * group * chunks
    chunk = index // group % chunks
    slot = index // (group * chunks) * group + index % group
    warm_up = min(warm_up_forwards(stages, chunks, stage), count)
    forwards, backwards = np.array(([chunk, slot, index], [chunks - 1 - chunk, slot, index + warm_up]))
    table = _alternating(warm_up, forwards, backwards, index, count)
    if chunks == 1:
        table[3] = np.arange(table.shape[1])
    table.setflags(write=False)
    return table


def _alternating(warm_up: int, forwards: Ints, backwards: Ints, index: Ints, count: int) -> Ints:
    """Columns (op, rows of a forward or backward): warm-up, forwards and backwards in turn, remaining backwards.

    *index* are the numbers of those that exist, of *count*: the order is that of all, without the missing ones.
    """
    warm_up = min(warm_up, count)
    # The place of forward i and of backward j in the order: before forward i run all forwards up to i and all
    # backwards that the alternation has let through; after the last forward only backwards are left.
    before = np.maximum(index - warm_up, 0), np.minimum(index + warm_up + 1, count)
    place = np.concatenate([index + others for others in before])
    op = np.repeat(np.array([FORWARD, BACKWARD], dtype=np.int64), len(index))
    both = np.concatenate([op[None], np.concatenate([forwards, backwards], axis=1)])
    if len(index) < count:
        return np.ascontiguousarray(both[:, np.argsort(place)])
    table = np.empty_like(both)
    table[:, place] = both
    return table


@lru_cache(maxsize=4096)
def stage_order(
    schedule: Schedule, stages: int, chunks: int, stage: int, slots: int, drains_every: int = 0
) -> Order:
    """Return the operations of *stage* in their order under any schedule.

    *drains_every*: slots after which the pipeline drains and begins anew, as if the schedule were called again; 0: it
    drains once, at the end.

    In the schedules that split the backward every slot has a forward, a BACKWARD_INPUT (in DualPipe partly a whole
    BACKWARD) and a BACKWARD_WEIGHT. Leaving out the weight gradients, which no other process can observe, the order
    of few slots is again the order of many without the missing ones; DualPipe is the exception: its second half
    depends on their number. DualPipe's slots take turns: even ones start at the first stage (chunk 0), odd ones at
    the last (chunk 1).
    """
    if 0 < drains_every < slots:
        return _calls(schedule, stages, chunks, stage, slots, drains_every)
    if schedule == "1f1b" or schedule == "interleaved":  # mypy narrows by ==, not by in
        op, chunk, slot, batch = _in_turn(stages, chunks, stage, slots)
        return Order(op, chunk, slot, np.zeros(len(op), dtype=np.bool_), batch)
    if stages < 2 or not 0 <= stage < stages or slots < 0:
        raise ValueError(f"no stage {stage} of {stages} with {slots} slots in {schedule}")
    match schedule:
        case "zb-v":
            table = _v_order(stages, stage, slots)
        case "dualpipe":
            table = _columns(_dualpipe_order(stages, stage, slots))
        case "zb-h1" | "zb-h2":
            table = _columns(_handcrafted_order(schedule, stages, stage, slots))
        case _:
            assert_never(schedule)
    op, chunk, slot, paired = (np.ascontiguousarray(row) for row in table[:, table[2] < slots])
    for column in (op, chunk, slot):
        column.setflags(write=False)
    return Order(op, chunk, slot, paired.astype(np.bool_), np.arange(len(op)))


def _calls(schedule: Schedule, stages: int, chunks: int, stage: int, slots: int, every: int) -> Order:
    """Calls of *every* slots each, one after the other; the last one has what is left."""
    shape = schedule, stages, chunks, stage
    full_rounds, left = divmod(slots, every)
    calls = [stage_order(*shape, every)] * full_rounds + [stage_order(*shape, left)] * (left > 0)
    op, chunk, slot, paired, batch = (np.concatenate(columns) for columns in zip(*calls, strict=True))
    number = np.repeat(np.arange(len(calls)), [len(call.op) for call in calls])
    batches = 1 + max(int(call.batch.max()) for call in calls)
    order = Order(op, chunk, slot + number * every, paired, batch + number * batches)
    for column in order:
        column.setflags(write=False)
    return order


_Row = tuple[int, int, int, int]


def _columns(rows: list[_Row]) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(-1, 4).T


def _handcrafted_order(schedule: Schedule, stages: int, stage: int, slots: int) -> list[_Row]:
    """ZB-H1 and ZB-H2.

    H1: the forwards and backwards of 1F1B; the weight gradient of a slot comes *stage* backwards later, so that
    every stage keeps the activations of *stages* micro-batches.
    H2: twice the warm-up of 1F1B less one; every backward is followed by its weight gradient, until in the last
    2 stages - 1 slots the input gradients hurry ahead: the first 2 * stage of them put theirs off.
    Source: Qi et al., arXiv 2401.10241, sections 3.1 and 3.2 (figures 2 and 3).
    """
    number = np.arange(slots, dtype=np.int64)
    both = np.stack([np.zeros_like(number), number])
    warm_up = (stages - 1 - stage) * (2 if schedule == "zb-h2" else 1)
    rows: list[_Row] = []
    behind = 0  # weight gradients put off
    most = stage if schedule == "zb-h1" else 2 * stage
    hurry = 0 if schedule == "zb-h1" else slots - 2 * stages + 1
    for op, _, slot in _alternating(warm_up, both, both, number, slots).T.tolist():
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


def _v_order(stages: int, stage: int, slots: int) -> Ints:
    """ZB-V: chunk 0 going down the stages, chunk 1 coming back. Columns op, chunk, slot, 0.

    The schedule is one pattern after the other, each repeated so and so often; slots of a kind are numbered in turn.
    Only those that exist are written down: the schedule itself is made for at least 2 stages - 1.

    Source: Qi et al., arXiv 2401.10241, section 6; PyTorch's ScheduleZBVZeroBubble
    (torch/distributed/pipelining/schedules.py), which this follows phase by phase.
    """
    F0, F1, B0, B1 = (FORWARD, 0), (FORWARD, 1), (BACKWARD_INPUT, 0), (BACKWARD_INPUT, 1)
    W0, W1 = (BACKWARD_WEIGHT, 0), (BACKWARD_WEIGHT, 1)
    above, below = stage, stages - stage
    most = max(2 * stages - 1, slots)
    phases: tuple[tuple[tuple[tuple[int, int], ...], int], ...] = (
        ((F0,), 2 * below - 1),
        ((F1, F0), above),
        ((F1, B1, W1), below),
        ((F0, B0, W0, F1, B1, W1), most - (2 * below - 1 + above)),
        ((B0, W0, F1, B1, W1), below - 1),
        ((B0, B1), above),
        ((B0, W0), below),
        ((W1,), above),
        ((W0,), above),
    )
    seen = dict.fromkeys((F0, F1, B0, B1, W0, W1), 0)
    pieces: list[Ints] = []
    places: list[Ints] = []
    before = 0
    for pattern, times in phases:
        for offset, kind in enumerate(pattern):
            # None where that is negative.
            existing = np.arange(min(times, slots - seen[kind]), dtype=np.int64)
            piece = np.zeros((4, len(existing)), dtype=np.int64)
            piece[0], piece[1], piece[2] = *kind, seen[kind] + existing
            pieces.append(piece)
            places.append(before + offset + len(pattern) * existing)
            seen[kind] += times
        before += len(pattern) * times
    return np.concatenate(pieces, axis=1)[:, np.argsort(np.concatenate(places))]


def _dualpipe_order(stages: int, stage: int, slots: int) -> list[_Row]:
    """DualPipe: micro-batches from both ends; a forward of one direction overlaps a backward of the other.

    Source: DeepSeek-AI, arXiv 2412.19437 section 3.2.1; github.com/deepseek-ai/DualPipe, dualpipe.py, whose eight
    steps these are.
    """
    rows: list[_Row] = []
    slots_so_far: Counter[tuple[int, int]] = Counter()
    near = min(stage, stages - 1 - stage)
    swap = int(stage >= stages // 2)  # the second half of the stages sees the directions the other way round
    half = stages // 2
    waiting: list[tuple[int, int]] = []  # weight gradients put off

    def next_slot(op: int, chunk: int) -> int:
        slots_so_far[op, chunk] += 1
        return 2 * (slots_so_far[op, chunk] - 1) + chunk

    def forward(way: int, paired: int = 0) -> None:
        chunk = way ^ swap
        rows.append((FORWARD, chunk, next_slot(FORWARD, chunk), paired))

    def backward(way: int, *, split: bool = False, paired: int = 0) -> None:
        chunk = way ^ swap
        slot = next_slot(BACKWARD, chunk)
        rows.append((BACKWARD_INPUT if split else BACKWARD, chunk, slot, paired))
        if split:
            waiting.append((chunk, slot))

    def weight() -> None:
        chunk, slot = waiting.pop(0)
        rows.append((BACKWARD_WEIGHT, chunk, slot, 0))

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
        # The first pair of the two stages in the middle is not overlapped.
        if number == 0 and near == half - 1:
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
    return rows
