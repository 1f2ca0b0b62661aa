"""What only some schedules have: weight gradients apart, blocking transfers, overlapped pairs.

Two things may tie an operation to others than its predecessor in the chain (`Feeds`):

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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of

from .chain import Chain
from .parts import Parts, WeightGradients
from .schedules import STAGE_BY_STAGE

if TYPE_CHECKING:
    from .program import Program


class Feeds(NamedTuple):
    """Operations that wait for others besides their chain: `after` starts at the earliest *delay_s* after `before`."""

    before: Ints
    after: Ints
    delay_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a schedule adds to chains of forwards and backwards."""

    part_work_s: Floats
    """By part: weight gradients its process runs before it."""
    part_wait_s: Floats
    """By part: part_work_s and the transfers that hold the process before it."""
    tail_s: Floats
    """By process: weight gradients behind its last part."""
    hidden_s: Floats
    """By part: how much of it overlaps with its pair."""
    feeds: Feeds
    """Sorted by `before`."""
    feed_offsets: Ints
    """[operations + 1]: the feeds of each operation that others wait for."""
    weights: WeightGradients
    weight_s: Floats
    """Of each weight gradient."""
    stage_by_stage: bool
    """Whether steps follow each other stage by stage."""


def make_extras(program: Program, parts: Parts) -> Extras:
    """What the schedule adds; unsplit backwards and overlapped pairs change durations and delays in place."""
    costs, chain, times, operation_s = program.costs, program.chain, program.times, program.operation_s
    weights, size, transfer_s = parts.weights, len(parts.operation), costs.transfer_s
    weight_s = np.zeros(0)
    if len(weights.entry):
        weight_s = times.own[2][weights.virtual, program.entries.micro_batch[weights.entry]]
        weight_s = weight_s * times.factor(1, weights.entry, weights.virtual)
    behind = weights.before == parts.offsets[weights.process + 1]
    part_work_s = np.bincount(weights.before[~behind], weight_s[~behind], size).astype(np.float64)
    tail_s = np.bincount(weights.process[behind], weight_s[behind], len(parts.offsets) - 1).astype(np.float64)
    none = np.zeros(0, dtype=np.int64)
    part_wait_s, feeds = part_work_s, [Feeds(none, none, np.zeros(0))]
    if not costs.pp_overlap:
        part_wait_s = part_work_s + blocking_gaps_s(parts, chain, transfer_s)
        feeds.append(blocking_feeds(parts, chain, transfer_s))
    hidden_s = np.zeros(size)
    if not chain.merged:
        _add_unsplit_weights(program, parts)
        hidden_s = _overlap_pairs(program, parts)
        forward = np.flatnonzero(parts.paired)[::2]  # its result leaves at the end of its pair
        program.result_delay_s[parts.operation[forward]] += operation_s[parts.operation[forward + 1]]
        feeds.append(_pair_feeds(parts, chain, transfer_s))
    before, after, delay_s = (np.concatenate(c) for c in zip(*feeds, strict=True))
    order = np.argsort(before, kind="stable")
    return Extras(
        part_work_s=part_work_s,
        part_wait_s=part_wait_s,
        tail_s=tail_s,
        hidden_s=hidden_s,
        feeds=Feeds(before[order], after[order], delay_s[order]),
        feed_offsets=offsets_of(np.bincount(before, minlength=len(operation_s))),
        weights=weights,
        weight_s=weight_s,
        stage_by_stage=costs.schedule in STAGE_BY_STAGE,
    )


def _virtual_and_unit(program: Program, part: Ints) -> tuple[Ints, Ints]:
    link, unit = np.divmod(program.part_operation[part], program.units)
    return program.chain.virtual[link], unit


def _lengthen(program: Program, part: Ints, slowest_s: Floats, own_s: Floats) -> None:
    """Add to the operations of *part*, and to the parts themselves."""
    operations, first = np.unique(program.part_operation[part], return_index=True)
    program.operation_s[operations] += slowest_s[first]
    if program.part_own_s is not None:
        program.part_own_s[part] += own_s


def _add_unsplit_weights(program: Program, parts: Parts) -> None:
    """Add the weight gradient to the backwards that are not split."""
    times, part = program.times, np.flatnonzero(parts.unsplit)
    virtual, unit = _virtual_and_unit(program, part)
    own_s = times.own[2][virtual, unit] * times.factor(1, parts.entry[part], virtual)
    _lengthen(program, part, times.slowest[2][virtual, unit], own_s)


def _overlap_pairs(program: Program, parts: Parts) -> Floats:
    """Take from both operations of a pair what communication the computation of the other hides; return it by part.

        hidden = min(communication of the one, all the rest of the other)

    Source: arXiv 2412.19437, section 3.2.1.  Ignored: the multiprocessors that communication takes from computation.
    """
    costs, times = program.costs, program.times
    hidden_s = np.zeros(len(parts.operation))
    term = costs.overlapped_term
    forward = np.flatnonzero(parts.paired)[::2]
    if term is None or not len(forward):
        return hidden_s
    kinds = program.chain.kinds(costs.kind)
    sides = []
    for part, terms_s in ((forward, costs.forward_terms_s), (forward + 1, costs.backward_terms_s)):
        virtual, unit = _virtual_and_unit(program, part)
        row = kinds[virtual]
        sides.append((part, virtual, unit, terms_s[term, row, unit], terms_s[:, row, unit].sum(axis=0)))
    for side, (part, virtual, unit, communication_s, _) in enumerate(sides):
        *_, other_communication_s, other_s = sides[1 - side]
        base_s = np.minimum(communication_s, other_s - other_communication_s)
        own, slowest = (all_s[side][virtual, unit] for all_s in (times.own, times.slowest))
        ratio = np.divide(slowest, own, out=np.ones_like(own), where=own > 0)
        hidden_s[part] = base_s * times.factor(side, parts.entry[part], virtual)
        _lengthen(program, part, -base_s * ratio, -hidden_s[part])
    return hidden_s


def _pair_feeds(parts: Parts, chain: Chain, transfer_s: Floats) -> Feeds:
    """An overlapped forward waits for the input of its backward too."""
    forward = np.flatnonzero(parts.paired)[::2]
    backward = parts.operation[forward + 1]
    link, unit = np.divmod(backward, len(transfer_s))
    delay_s = transfer_s[unit] * chain.sends[link - 1]
    return Feeds(backward - len(transfer_s), parts.operation[forward], delay_s)


def blocking_feeds(parts: Parts, chain: Chain, transfer_s: Floats) -> Feeds:
    """What holds a stage whose sends and receives block, besides its own operations and inputs; see above."""
    size = len(parts.operation)
    link, unit = np.divmod(parts.operation, len(transfer_s))
    part_at = np.full((chain.links, int(parts.entry.max(initial=-1)) + 1), -1, dtype=np.int64)
    part_at[link, parts.entry] = np.arange(size)
    batch, first, last, process = _batches(parts)
    sender = np.flatnonzero(chain.sends[link])
    receiver = part_at[link[sender] + 1, parts.entry[sender]]
    seconds = transfer_s[unit[sender]]
    sending, receiving = batch[sender], batch[receiver]
    # The receiver's first batch is ready from the start; behind a sender's last batch nothing waits for the send.
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
