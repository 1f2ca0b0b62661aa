"""Which process takes part in which operation of a pipeline, in which order, and what it does or waits for in between.

Weight gradients are no operations: no other process can observe them, so a process runs them on its way to its next
operation. Two things may tie an operation to others than its predecessor in the chain (`Feeds`):

* With blocking transfers (pp_overlap off) a stage exchanges data between two batches of operations: it sends the
  results of the batch before, receives the inputs of the next and goes on when all that is done. A batch is one
  operation; in the steady state of an interleaved schedule a forward and a backward (Megatron-LM's
  send_forward_backward_recv_forward_backward). A send holds its stage until the receiver has come to it. With g the
  batch before, n the next, and for every result that n's stage sends from g to batch h of another stage

      start(n) >= end(g) + max(sum of sends of g, sum of receives of n)
      start(n) >= end(batch before h) + transfer
      start(h) >= end(g) + transfer

  Number batches by the time at which a pipeline of equal durations runs them: all three lead from a lower number to
  a higher one, also where slots are missing. So no plan with common slots can deadlock.
* An overlapped forward and backward (DualPipe) start together and end together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.chain import Chain
from hdpsim.simulator.play.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD, Order


class Entries(NamedTuple):
    """The entries of plan.order that are not holes, by rank and slot."""

    order_index: Ints
    """Place in plan.order."""
    rank: Ints
    slot: Ints
    micro_batch: Ints


class Weights(NamedTuple):
    """Weight gradients by process, in the order in which it runs them."""

    before: Ints
    """The part each one comes before; that of the next process if it is behind the last part of its own."""
    process: Ints
    entry: Ints
    chunk: Ints
    virtual: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that processes take in operations, by process and in order. Operation c * units + u."""

    operation: Ints
    offsets: Ints
    entry: Ints
    whole: Bools
    """Backwards whose weight gradient is part of them."""
    paired: Bools
    """A forward and the backward after it that overlap."""
    batch: Ints
    """Parts of a process with the same number have no blocking transfer between them."""
    weights: Weights


class Feeds(NamedTuple):
    """Operations that wait for others besides their chain: `after` starts at the earliest *delay_s* after `before`."""

    before: Ints
    after: Ints
    delay_s: Floats


def offsets_of(counts: Ints) -> Ints:
    """0 and the running sum."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])


def pipeline_parts(
    plan: Plan, entries: Entries, chain: Chain, orders: list[Order], table: Ints, slots: int
) -> Parts:
    """The parts of all processes; *table*: virtual stages by stage and chunk; *slots*: of the longest order."""
    place = np.full((plan.ranks, slots), HOLE, dtype=np.int64)
    place[entries.rank, entries.slot] = np.arange(len(entries.rank))
    units = plan.micro_batches
    parts: list[tuple[Ints, Ints, Ints, Bools, Bools, Ints]] = []
    weights: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    made = 0
    for stage, order in enumerate(orders):
        op, virtual = order.op, table[stage, order.chunk]
        is_weight = op == BACKWARD_WEIGHT
        # The merged backward on the last virtual stage is part of the forward just before it.
        kept = ~is_weight
        if chain.merged:
            kept &= (op == FORWARD) | (virtual != chain.virtual_stages - 1)
        link = chain.link_of(op, virtual)
        column = np.flatnonzero(kept)
        entry = place[:, order.slot[column]]
        there = entry != HOLE
        which = np.broadcast_to(column, entry.shape)[there]
        entry = entry[there]
        parts.append(
            (
                link[which] * units + entries.micro_batch[entry],
                entry,
                there.sum(axis=1),
                op[which] == BACKWARD,
                order.paired[which],
                order.batch[which],
            )
        )
        if is_weight.any():
            column = np.flatnonzero(is_weight)
            entry = place[:, order.slot[column]]
            held = entry != HOLE
            # How many parts of its process come before each weight gradient.
            passed = np.cumsum(there, axis=1)
            passed = np.concatenate([np.zeros((plan.ranks, 1), dtype=np.int64), passed], axis=1)
            passed = passed[:, np.cumsum(kept)[column]] + (made + offsets_of(parts[-1][2])[:-1])[:, None]
            rank, at = np.nonzero(held)
            chunk = order.chunk[column[at]]
            weights.append((passed[held], stage * plan.ranks + rank, entry[held], chunk, virtual[column[at]]))
        made += len(which)
    operation, entry, counts, whole, paired, batch = (np.concatenate(c) for c in zip(*parts, strict=True))
    none = np.zeros(0, dtype=np.int64)
    return Parts(
        operation=operation,
        offsets=offsets_of(counts),
        entry=entry,
        whole=whole,
        paired=paired,
        batch=batch,
        weights=Weights(*(np.concatenate(c) for c in zip(*weights, strict=True)))
        if weights
        else Weights(none, none, none, none, none),
    )


def pair_feeds(parts: Parts, chain: Chain, units: int, transfer_s: Floats) -> Feeds:
    """An overlapped forward waits for the input of its backward too."""
    forward = np.flatnonzero(parts.paired)[::2]
    backward = parts.operation[forward + 1]
    link = backward // units
    delay_s = transfer_s[backward % units] * chain.sends[link - 1]
    return Feeds(backward - units, parts.operation[forward], delay_s)


def blocking_feeds(parts: Parts, chain: Chain, transfer_s: Floats) -> Feeds:
    """What holds a stage whose sends and receives block, besides its own operations and inputs; see above."""
    units, size = len(transfer_s), len(parts.operation)
    link, unit = np.divmod(parts.operation, units)
    part_at = np.full((chain.links, int(parts.entry.max(initial=-1)) + 1), -1, dtype=np.int64)
    part_at[link, parts.entry] = np.arange(size)
    batch, first, last, process = _batches(parts)
    sender = np.flatnonzero(chain.sends[link])
    receiver = part_at[link[sender] + 1, parts.entry[sender]]
    seconds = transfer_s[unit[sender]]
    sending, receiving = batch[sender], batch[receiver]
    # The receiver's first batch is there from the start; behind a sender's last batch nothing waits for the send.
    held = (first[receiving] > parts.offsets[process[first[receiving]]]) & (
        last[sending] + 1 < parts.offsets[process[last[sending]] + 1]
    )
    before = np.concatenate([last[sending], first[receiving[held]] - 1])
    after = np.concatenate([first[receiving], last[sending[held]] + 1])
    return Feeds(parts.operation[before], parts.operation[after], np.concatenate([seconds, seconds[held]]))


def _batches(parts: Parts) -> tuple[Ints, Ints, Ints, Ints]:
    """By part: its batch; by batch: its first and last part; by part: its process."""
    process = np.repeat(np.arange(len(parts.offsets) - 1), np.diff(parts.offsets))
    new = np.ones(len(process), dtype=np.bool_)
    new[1:] = (np.diff(process) != 0) | (np.diff(parts.batch) != 0)
    first = np.flatnonzero(new)
    return np.cumsum(new) - 1, first, np.append(first[1:], len(process)) - 1, process


def blocking_gaps_s(parts: Parts, chain: Chain, transfer_s: Floats) -> Floats:
    """By part: how long the transfers after the process's operation before it hold the process."""
    link, unit = np.divmod(parts.operation, len(transfer_s))
    batch, first, _, process = _batches(parts)
    gap_s = np.zeros(len(link))
    if not len(first):
        return gap_s
    sends, receives = (
        np.bincount(batch, moves[link] * transfer_s[unit], len(first))
        for moves in (chain.sends, np.concatenate([[False], chain.sends[:-1]]))
    )
    sent = np.concatenate([[0.0], sends[:-1]])
    sent[np.flatnonzero(np.diff(process[first], prepend=-1))] = 0.0
    gap_s[first] = np.maximum(sent, receives)
    return gap_s
