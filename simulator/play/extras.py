"""What only some schedules have: weight gradients apart, blocking transfers, overlapped pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.micro_batch import StepCosts
from hdpsim.simulator.play.chain import Chain
from hdpsim.simulator.play.durations import Durations
from hdpsim.simulator.play.parts import (
    Entries,
    Feeds,
    Parts,
    Weights,
    blocking_feeds,
    blocking_gaps_s,
    offsets_of,
    pair_feeds,
)
from hdpsim.simulator.play.schedules import STAGE_BY_STAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Weight gradients apart, blocking transfers, overlapped pairs, steps that follow each other stage by stage."""

    part_work_s: Floats
    """By part: weight gradients its process runs before it."""
    part_wait_s: Floats
    """By part: part_work_s and the transfers that hold the process before it."""
    tail_s: Floats
    """By process: weight gradients behind its last part."""
    hidden_s: Floats
    """By part: how much of it overlaps with its pair."""
    late_s: Floats
    """By operation: what its result leaves later than its own end (its pair's end)."""
    feeds: Feeds
    """Sorted by `before`."""
    feed_offsets: Ints
    """[operations + 1]: the feeds of each operation that others wait for."""
    weights: Weights
    weight_s: Floats
    """Of each weight gradient."""
    stage_by_stage: bool


def make_extras(
    costs: StepCosts,
    chain: Chain,
    parts: Parts,
    entries: Entries,
    times: Durations,
    operation_s: Floats,
    part_own_s: Floats | None,
) -> Extras:
    """What the schedule adds; whole backwards and overlapped pairs change the durations in place."""
    count, processes, size = len(costs.transfer_s), len(parts.offsets) - 1, len(parts.operation)
    weights, factors = parts.weights, times.factors
    weight_s = (
        times.own[2][weights.virtual, entries.micro_batch[weights.entry]]
        if len(weights.entry)
        else np.zeros(0)
    )
    if factors is not None and len(weight_s):
        weight_s = weight_s * factors[1][weights.entry, weights.virtual]
    behind = weights.before == parts.offsets[weights.process + 1]
    part_work_s = np.bincount(weights.before[~behind], weight_s[~behind], size).astype(np.float64)
    tail_s = np.bincount(weights.process[behind], weight_s[behind], processes).astype(np.float64)
    part_wait_s, feeds = part_work_s, []
    if not costs.pp_overlap:
        part_wait_s = part_work_s + blocking_gaps_s(parts, chain, costs.transfer_s)
        feeds.append(blocking_feeds(parts, chain, costs.transfer_s))
    hidden_s, late_s = np.zeros(size), np.zeros(len(operation_s))
    if not chain.merged:
        _add_whole(parts, chain, count, times, operation_s, part_own_s)
        hidden_s = _hide(costs, parts, chain, times, operation_s, part_own_s)
        forward = np.flatnonzero(parts.paired)[::2]
        late_s[parts.operation[forward]] = operation_s[parts.operation[forward + 1]]
        feeds.append(pair_feeds(parts, chain, count, costs.transfer_s))
    before, after, delay_s = (np.concatenate(c) for c in zip(Feeds(*_NO_FEEDS), *feeds, strict=True))
    order = np.argsort(before, kind="stable")
    feeds_of = np.bincount(before, minlength=len(operation_s))
    return Extras(
        part_work_s=part_work_s,
        part_wait_s=part_wait_s,
        tail_s=tail_s,
        hidden_s=hidden_s,
        late_s=late_s,
        feeds=Feeds(before[order], after[order], delay_s[order]),
        feed_offsets=offsets_of(feeds_of),
        weights=weights,
        weight_s=weight_s,
        stage_by_stage=costs.schedule in STAGE_BY_STAGE,
    )


_NO_FEEDS = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


def _add_whole(
    parts: Parts, chain: Chain, count: int, times: Durations, operation_s: Floats, part_own_s: Floats | None
) -> None:
    """Add the weight gradient to the backwards that are not split."""
    part = np.flatnonzero(parts.whole)
    link, unit = np.divmod(parts.operation[part], count)
    virtual = chain.virtual[link]
    members = np.unique(parts.operation[part], return_index=True)[1]
    operation_s[parts.operation[part[members]]] += times.slowest[2][virtual, unit][members]
    if part_own_s is not None and times.factors is not None:
        part_own_s[part] += times.own[2][virtual, unit] * times.factors[1][parts.entry[part], virtual]


def _hide(
    costs: StepCosts,
    parts: Parts,
    chain: Chain,
    times: Durations,
    operation_s: Floats,
    part_own_s: Floats | None,
) -> Floats:
    """Take from both operations of a pair what communication the computation of the other hides; return it by part.

        hidden = min(communication of the one, all the rest of the other)

    Source: arXiv 2412.19437, section 3.2.1.  Ignored: the multiprocessors that communication takes from computation.
    """
    hidden_s = np.zeros(len(parts.operation))
    term = costs.overlapped_term
    forward = np.flatnonzero(parts.paired)[::2]
    if term is None or not len(forward):
        return hidden_s
    first = slice(0, chain.virtual_stages)
    kinds = costs.kind[chain.stage[0, first], chain.chunk[0, first]]
    sides = []
    for part, terms_s in ((forward, costs.forward_terms_s), (forward + 1, costs.backward_terms_s)):
        link, unit = np.divmod(parts.operation[part], len(costs.transfer_s))
        row = kinds[chain.virtual[link]]
        sides.append(
            (part, chain.virtual[link], unit, terms_s[term, row, unit], terms_s[:, row, unit].sum(axis=0))
        )
    for side, (part, virtual, unit, communication_s, _) in enumerate(sides):
        *_, other_communication_s, other_s = sides[1 - side]
        base_s = np.minimum(communication_s, other_s - other_communication_s)
        own, slowest = (all_s[side][virtual, unit] for all_s in (times.own, times.slowest))
        ratio = np.divide(slowest, own, out=np.ones_like(own), where=own > 0)
        operations, members = np.unique(parts.operation[part], return_index=True)
        operation_s[operations] -= (base_s * ratio)[members]
        hidden_s[part] = base_s
        if part_own_s is not None and times.factors is not None:
            hidden_s[part] *= times.factors[side][parts.entry[part], virtual]
            part_own_s[part] -= hidden_s[part]
    return hidden_s
