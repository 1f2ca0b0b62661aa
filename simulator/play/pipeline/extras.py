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

from dataclasses import dataclass, replace
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


class Exchanges(NamedTuple):
    """Transfers that hold the stages of a rank, one after the other; -1: there is no such part."""

    process: Ints
    """That sends."""
    result: Ints
    """The operation whose result is sent."""
    left: Ints
    """The part that ends the batch of the sender."""
    came: Ints
    """The part that ends the batch which the receiver runs before."""
    takes: Ints
    """The part that begins the batch of the receiver."""
    goes_on: Ints
    """The part that begins the next batch of the sender."""

    def feeds(self, operation: Ints, seconds: Floats) -> Feeds:
        """What holds a stage besides its own operations and inputs; *operation*: of every part, *seconds*: of each."""
        on = self.goes_on >= 0
        before = np.concatenate([self.left, np.where(self.came >= 0, self.came, self.left)[on]])
        after = np.concatenate([self.takes, self.goes_on[on]])
        return Feeds(operation[before], operation[after], np.concatenate([seconds, seconds[on]]))

    def gaps_s(self, parts: int, seconds: Floats) -> Floats:
        """By part: how long the transfers after the process's operation before it hold the process."""
        on = self.goes_on >= 0
        sends = np.bincount(self.goes_on[on], seconds[on], parts)
        return np.maximum(sends, np.bincount(self.takes, seconds, parts))


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
    """Seconds of each weight gradient."""
    stage_by_stage: bool
    """Whether steps follow each other stage by stage."""
    exchanges: Exchanges | None = None
    """Transfers that hold stages."""

    def with_delays(self, operation: Ints, result_delay_s: Floats) -> Extras:
        """Return the extras where results take so long to the next stage; *operation*: of every part."""
        if self.exchanges is None:
            return self
        seconds = result_delay_s[self.exchanges.result]
        return replace(
            self,
            part_wait_s=self.part_work_s + self.exchanges.gaps_s(len(operation), seconds),
            feeds=_in_order(self.exchanges.feeds(operation, seconds)),
        )


def _in_order(feeds: Feeds) -> Feeds:
    order = np.argsort(feeds.before, kind="stable")
    return Feeds(feeds.before[order], feeds.after[order], feeds.delay_s[order])


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
    part_wait_s, feeds, exchanges = part_work_s, Feeds(none, none, np.zeros(0)), None
    if not costs.pp_overlap:
        exchanges = exchanges_of(parts, chain, program.units)
        seconds = transfer_s[exchanges.result % program.units]
        part_wait_s = part_work_s + exchanges.gaps_s(size, seconds)
        feeds = exchanges.feeds(parts.operation, seconds)
    hidden_s = np.zeros(size)
    if costs.schedule == "dualpipe":
        _add_unsplit_weights(program, parts)
        hidden_s = _overlap_pairs(program, parts)
        forward = np.flatnonzero(parts.paired)[::2]  # its result leaves at the end of its pair
        program.result_delay_s[parts.operation[forward]] += operation_s[parts.operation[forward + 1]]
        feeds = _pair_feeds(parts, chain, transfer_s)
    return Extras(
        part_work_s=part_work_s,
        part_wait_s=part_wait_s,
        tail_s=tail_s,
        hidden_s=hidden_s,
        feeds=_in_order(feeds),
        feed_offsets=offsets_of(np.bincount(feeds.before, minlength=len(operation_s))),
        weights=weights,
        weight_s=weight_s,
        stage_by_stage=costs.schedule in STAGE_BY_STAGE,
        exchanges=exchanges,
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


def exchanges_of(parts: Parts, chain: Chain, units: int) -> Exchanges:
    """Return every transfer between stages whose sends and receives block."""
    link, _ = np.divmod(parts.operation, units)
    part_at = np.full((chain.links, int(parts.entry.max(initial=-1)) + 1), -1, dtype=np.int64)
    part_at[link, parts.entry] = np.arange(len(link))
    process = np.repeat(np.arange(len(parts.offsets) - 1), np.diff(parts.offsets))
    new = np.ones(len(process), dtype=np.bool_)
    new[1:] = (np.diff(process) != 0) | (np.diff(parts.batch) != 0)
    first, batch = np.flatnonzero(new), np.cumsum(new) - 1
    sender = np.flatnonzero(chain.sends[link])
    receiver = part_at[link[sender] + 1, parts.entry[sender]]
    left, takes = (np.append(first[1:], len(process)) - 1)[batch[sender]], first[batch[receiver]]
    # The receiver's first batch is ready from the start; behind a sender's last batch nothing waits for the send.
    return Exchanges(
        process=process[sender],
        result=parts.operation[sender],
        left=left,
        came=np.where(takes > parts.offsets[process[takes]], takes - 1, -1),
        takes=takes,
        goes_on=np.where(left + 1 < parts.offsets[process[left] + 1], left + 1, -1),
    )
