"""Ranks that share nothing and run equal micro-batches: played in plain Python, operation after operation.

In which turn the operations are played does not depend on how long they take: it is found once and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES, virtual_stage_table
from hdpsim.simulator.play.accounts import StepEnd
from hdpsim.simulator.play.pipeline.chain import Chain, make_chain
from hdpsim.simulator.play.pipeline.extras import exchanges_of
from hdpsim.simulator.play.pipeline.parts import pipeline_parts
from hdpsim.simulator.play.pipeline.schedules import BACKWARD_WEIGHT, STAGE_BY_STAGE, stage_order

from .equal_ranks import plan_of_lone_ranks


def can_play(costs: StepCosts) -> bool:
    """Whether LoneRank knows the schedule of these costs."""
    split = costs.schedule in SPLIT_SCHEDULES
    return costs.alike and costs.schedule != "dualpipe" and (costs.pp_overlap or not split)


class Turns(NamedTuple):
    """Operations of a rank in turns: each comes after those that it needs.

    They are named by their places. Stages that open have the places before them, then comes the input of first links,
    which is always there.
    """

    operation: Ints
    """Number of an operation: link x micro-batches + micro-batch."""
    before: Ints
    """The operation, or opening, of its stage before it."""
    source: Ints
    """The operation whose result it takes."""
    steps: list[tuple[int, int, int]]
    """(before, source, link) of each."""
    held: list[tuple[float, list[int]]]
    """Of each, where transfers block: how many hold its stage before it, and whose hold it besides its input's."""
    stage: Ints
    weights: Ints
    """[operations, chunks]: weight gradients that the stage runs before each, by chunk."""
    weights_behind: Ints
    """[stages, chunks]: weight gradients behind the last operation."""
    last: Ints
    """[stages]: the last operation, or opening, of each."""


@lru_cache(maxsize=256)
def turns_of_rank(
    schedule: Schedule,
    stages: int,
    chunks: int,
    slots: int,
    count: int,
    *,
    overlap: bool = True,
    drains_every: int = 0,
) -> Turns:
    """What a rank with *count* of *slots* slots does; without *overlap* transfers block."""
    chain = make_chain(schedule, stages, chunks)
    table = np.array(virtual_stage_table(schedule, stages, chunks))
    orders: list[list[int]] = []  # operations of each stage
    weights = []
    for stage in range(stages):
        order = stage_order(schedule, stages, chunks, stage, slots, drains_every)
        virtual, exists = table[stage, order.chunk], order.slot < count
        is_weight = order.op == BACKWARD_WEIGHT
        kept = chain.has_link(order.op, virtual) & ~is_weight & exists
        orders.append((chain.link_of(order.op, virtual)[kept] * count + order.slot[kept]).tolist())
        before = np.zeros((int(kept.sum()) + 1, chunks), dtype=np.int64)
        weight = np.flatnonzero(is_weight & exists)
        np.add.at(before, (np.cumsum(kept)[weight], order.chunk[weight]), 1)
        weights.append(before)
    pairs, gaps = np.empty((2, 0), dtype=np.int64), np.empty(0)
    if not overlap:
        pairs, gaps = _blocking(chain, schedule, stages, chunks, count, drains_every)
    turns = _in_turns(orders, chain.stage[0].tolist(), count, pairs.tolist())
    operation = np.array(turns, dtype=np.int64)
    place = np.empty(len(operation) + count, dtype=np.int64)
    place[:count] = stages  # the input of first links
    place[operation + count] = np.arange(len(operation)) + stages + 1
    stage_of = chain.stage[0][operation // count]
    by_stage = np.argsort(stage_of, kind="stable")
    weights_before = np.empty((len(operation), chunks), dtype=np.int64)
    weights_before[by_stage] = np.concatenate([before[:-1] for before in weights])
    ordered = [place[np.array(order, dtype=np.int64) + count].tolist() for order in orders]
    chains = [[stage, *places] for stage, places in enumerate(ordered)]
    before_place = np.empty(len(operation), dtype=np.int64)
    before_place[by_stage] = np.concatenate([places[:-1] for places in chains])
    source, link = place[operation], operation // count
    held: list[tuple[float, list[int]]] = [(gap, []) for gap in gaps[operation].tolist()] if len(gaps) else []
    for needed, waiting in (place[pairs + count] - [[0], [stages + 1]]).T.tolist():
        held[waiting][1].append(needed)
    return Turns(
        operation=operation,
        before=before_place,
        source=source,
        steps=list(zip(before_place.tolist(), source.tolist(), link.tolist(), strict=True)),
        held=held,
        stage=stage_of,
        weights=weights_before,
        weights_behind=np.array([before[-1] for before in weights]),
        last=np.array([places[-1] for places in chains]),
    )


def rank_turns(costs: StepCosts, slots: int, count: int) -> Turns:
    """What a rank with *count* of *slots* slots does at these costs."""
    shape = costs.schedule, costs.stages, costs.chunks
    return turns_of_rank(*shape, slots, count, overlap=costs.pp_overlap, drains_every=costs.drains_every)


def _blocking(
    chain: Chain, schedule: Schedule, stages: int, chunks: int, count: int, drains_every: int
) -> tuple[Ints, Floats]:
    """Operations (needed, waiting) of a rank whose transfers block, and how many of them hold each."""
    plan = plan_of_lone_ranks(np.array([count]))
    parts = pipeline_parts(plan, plan.entries, chain, schedule, stages, chunks, drains_every)
    exchanges = exchanges_of(parts, chain, count)
    unit_s, gaps = np.ones(len(exchanges.result)), np.zeros(chain.links * count)
    feeds = exchanges.feeds(parts.operation, unit_s)
    gaps[parts.operation] = exchanges.gaps_s(len(parts.operation), unit_s)
    pairs = np.unique([feeds.before, feeds.after], axis=1)
    return pairs[:, pairs[1] - pairs[0] != count], gaps  # without inputs, which wait for the same transfer


def _in_turns(orders: list[list[int]], stage_of: list[int], count: int, pairs: list[list[int]]) -> list[int]:
    """The operations of all stages, each after the one before it on its stage and those that feed it.

    *pairs*: (needed, waiting) besides the chain.
    """
    turns: list[int] = []
    size = len(stage_of) * count
    missing = [0] * count + [1] * (size - count)
    also: dict[int, list[int]] = {}
    for needed, waiting in zip(*pairs, strict=True):
        also.setdefault(needed, []).append(waiting)
        missing[waiting] += 1
    place = [0] * len(orders)
    todo = list(range(len(orders)))
    while todo:
        stage = todo.pop()
        order, at = orders[stage], place[stage]
        while at < len(order) and not missing[order[at]]:
            turns.append(order[at])
            following = order[at] + count
            if following < size:
                missing[following] -= 1
                todo.append(stage_of[following // count])
            for waiting in also.get(order[at], ()):
                missing[waiting] -= 1
                todo.append(stage_of[waiting // count])
            at += 1
        place[stage] = at
    assert len(turns) == size, "a pipeline alone cannot stop"
    return turns


class PlayedRank(NamedTuple):
    """When a rank alone did what."""

    end_s: Floats
    """Of the openings of stages, the input of first links and the operations in turns."""
    done_s: Floats
    """[stages]: when each stage had run its last operation and the weight gradients behind it."""


class LoneRank(NamedTuple):
    """What a rank that shares nothing does with equal micro-batches."""

    costs: StepCosts
    link_s: list[float]
    """[links]: without weight gradients that run apart."""
    delay_s: list[float]
    """[links]: until its input is where it is needed."""
    weight_s: Floats
    """[stages, chunks]: weight gradients that run apart."""

    @classmethod
    def of(cls, costs: StepCosts) -> LoneRank:
        """The rank that runs micro-batches of these costs."""
        chain = make_chain(costs.schedule, costs.stages, costs.chunks)
        both = (costs.forward_terms_s, costs.backward_terms_s)
        forward_s, backward_s = (terms_s[:, :, 0].sum(axis=0) for terms_s in both)
        weight_s = np.zeros(costs.kind.max() + 1)
        if costs.weight_terms_s is not None:
            weight_s = costs.weight_terms_s[:, :, 0].sum(axis=0)
        kinds = chain.kinds(costs.kind)
        return cls(
            costs=costs,
            link_s=chain.along(forward_s[kinds], (backward_s - weight_s)[kinds]).tolist(),
            delay_s=[0.0, *(chain.sends[:-1] * costs.transfer_s[0]).tolist()],
            weight_s=weight_s[costs.kind],
        )

    def play(self, count: int, slots: int, opening_s: Floats) -> PlayedRank:
        """A rank with *count* of *slots* slots, whose stages open at the given times."""
        costs, link_s, delay_s = self.costs, self.link_s, self.delay_s
        if len(link_s) == 1:  # nothing to wait for
            return PlayedRank(np.zeros(0), opening_s + count * link_s[0])
        turns = rank_turns(costs, slots, count)
        ends = [*opening_s.tolist(), 0.0]
        ended = ends.append
        if costs.schedule in SPLIT_SCHEDULES:
            work_s = (turns.weights * self.weight_s[turns.stage]).sum(axis=1)
            for (before, source, link), own_s in zip(turns.steps, work_s.tolist(), strict=True):
                free_s, input_s = ends[before] + own_s, ends[source] + delay_s[link]
                ended((free_s if free_s >= input_s else input_s) + link_s[link])
        elif not costs.pp_overlap:
            hold_s = float(costs.transfer_s[0])
            for (before, source, link), (transfers, others) in zip(turns.steps, turns.held, strict=True):
                start_s = max(ends[before] + transfers * hold_s, ends[source] + delay_s[link])
                for other in others:
                    if ends[other] + hold_s > start_s:
                        start_s = ends[other] + hold_s
                ended(start_s + link_s[link])
        else:
            for before, source, link in turns.steps:
                free_s, input_s = ends[before], ends[source] + delay_s[link]
                ended((free_s if free_s >= input_s else input_s) + link_s[link])
        end_s = np.array(ends)
        return PlayedRank(end_s, end_s[turns.last] + (turns.weights_behind * self.weight_s).sum(axis=1))


class LoneStep(NamedTuple):
    """A step of ranks that share nothing."""

    step_end: StepEnd

    @classmethod
    def of(cls, costs: StepCosts, ranks: Callable[[Floats], list[PlayedRank]], begin_s: Floats) -> LoneStep:
        """The step that *ranks* make whose stages open at the times they are given."""
        epilogue = costs.epilogue
        played = ranks(epilogue.data_s + epilogue.parameter_gather_s + begin_s)
        done_s = np.stack([one.done_s for one in played], axis=1)
        return cls(StepEnd.after(done_s, epilogue, begin_s, stage_by_stage=costs.schedule in STAGE_BY_STAGE))
