"""Plans whose ranks all do the same: it is enough to play one of them.

When every micro-batch costs the same and the members of a group run it at the same slot and have equally many slots,
nobody ever waits for a member: by induction over the slots all of them arrive at the same time. Then a rank's step
depends on its number of slots alone. This is what a static mesh makes of sequences of one length, at any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of
from hdpsim.cost_models.layout.groups import Schedule
from hdpsim.cost_models.step.micro_batch import StepCosts
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES, virtual_stage_table
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.accounts import StepEnd, book
from hdpsim.simulator.play.chain import make_chain
from hdpsim.simulator.play.execution import Execution, Noise
from hdpsim.simulator.play.repetition import steady_step
from hdpsim.simulator.play.schedules import BACKWARD_WEIGHT, STAGE_BY_STAGE, stage_order


@dataclass(frozen=True, slots=True)
class Lockstep:
    """A small plan that stands for a large one.

    Attributes:
        counts: slots of each rank of the small plan: one rank for each number of slots that occurs; nothing is shared.
        ranks: of the large plan.
        stands_for: [ranks]: the rank of the small plan that does what each rank does; None = the only one.
    """

    counts: Ints
    ranks: int
    stands_for: Ints | None

    def expanded(self, execution: Execution) -> Execution:
        """The large plan's execution from the small one's."""
        accounts, _, stages = execution.account_s.shape
        if self.stands_for is None:
            account_s = np.broadcast_to(execution.account_s, (accounts, self.ranks, stages))
        else:
            account_s = execution.account_s[:, self.stands_for]
        return replace(execution, account_s=account_s)


def plan_of_lone_ranks(counts: Ints) -> Plan:
    """A plan of ranks with so many micro-batches each, which share nothing."""
    count = int(counts.sum())
    numbers = np.arange(count + 1, dtype=np.int64)
    return Plan(
        strategy="static",
        ranks=len(counts),
        capacity_tokens=1,
        segment_tokens=np.ones(count, dtype=np.int64),
        segment_sequence=numbers[:-1],
        segment_start=np.zeros(count, dtype=np.int64),
        segment_offsets=numbers,
        member_ranks=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        member_offsets=numbers,
        offload_ratio=np.zeros(count),
        order=numbers[:-1],
        order_offsets=offsets_of(counts),
    )


def find_lockstep(plan: Plan, costs: StepCosts, noise: Noise | None) -> Lockstep | None:
    """What the ranks of *plan* do that all do the same, or None where they may wait for each other."""
    if noise is not None or not costs.alike:
        return None
    slots = plan.order_offsets[1:] - plan.order_offsets[:-1]
    if not (plan.in_step or members_in_step(plan, slots)):
        return None
    counts, stands_for = slots[:1], None
    if (slots != slots[0]).any():
        counts, stands_for = np.unique(slots, return_inverse=True)
    return Lockstep(counts, plan.ranks, stands_for)


def members_in_step(plan: Plan, slots: Ints) -> bool:
    """Whether all members of every group run it at the same slot and have equally many *slots*, without holes."""
    if (plan.order == HOLE).any():
        return False
    if len(plan.member_ranks) == plan.micro_batches:  # nothing is shared
        return True
    rank = np.repeat(np.arange(plan.ranks), slots)
    place = np.arange(len(plan.order)) - plan.order_offsets[rank]
    for value in (place, slots[rank]):
        expected = np.zeros(plan.micro_batches, dtype=np.int64)
        expected[plan.order] = value  # any member's: the others are held against it
        if np.any(expected[plan.order] != value):
            return False
    return True


class Played(NamedTuple):
    """When a rank alone did what."""

    start_s: list[float]
    """[operations]"""
    end_s: list[float]
    """[operations]: NaN = never played."""
    done_s: list[float]
    """[stages]: when each stage had run its last operation."""
    waited_s: list[float]
    """[stages]: time between operations, waiting for inputs."""
    finished: bool


def play_rank(
    units: int,
    part_operation: list[int],
    part_offsets: list[int],
    stage_of: list[int],
    operation_s: list[float],
    result_delay_s: list[float],
    opening_s: list[float],
    work_s: list[float] | None = None,
) -> Played:
    """Play the pipeline of one rank; the arguments are those of a Program, stage_of by link.

    *work_s*: of each part, the weight gradients that its stage runs before it.

    Each stage runs on until its next input is not there yet; an operation that feeds another stage wakes it up.
    """
    size, stages = len(operation_s), len(opening_s)
    place, last = part_offsets[:-1], part_offsets[1:]
    free_s, waited_s = list(opening_s), [0.0] * stages
    input_s = [0.0] * units + [math.nan] * (size - units)  # NaN: not there yet
    start_s, end_s = [0.0] * size, [math.nan] * size
    todo = list(range(stages))
    while todo:
        stage = todo.pop()
        at, now_s = place[stage], free_s[stage]
        while at < last[stage]:
            operation = part_operation[at]
            arrival_s = input_s[operation]
            if arrival_s != arrival_s:  # NaN
                break
            if work_s is not None:
                now_s += work_s[at]
            if arrival_s > now_s:
                waited_s[stage] += arrival_s - now_s
                now_s = arrival_s
            start_s[operation] = now_s
            now_s += operation_s[operation]
            end_s[operation] = now_s
            at += 1
            following = operation + units
            if following < size:
                input_s[following] = now_s + result_delay_s[operation]
                other = stage_of[following // units]
                if other != stage:
                    todo.append(other)
        place[stage], free_s[stage] = at, now_s
    return Played(start_s, end_s, free_s, waited_s, place == last)


def can_play(costs: StepCosts) -> bool:
    """Whether run_lone_ranks knows the schedule of these costs."""
    return costs.alike and costs.pp_overlap and costs.schedule != "dualpipe"


class _Lone(NamedTuple):
    """A step of ranks that share nothing."""

    step_end: StepEnd
    waited_s: Floats
    """[stages, ranks]: time between operations, waiting for inputs."""


def run_lone_ranks(costs: StepCosts, counts: list[int]) -> Execution:
    """The execution of ranks with counts[i] equal micro-batches each; nothing but gradients ties them together."""
    epilogue, chain = costs.epilogue, make_chain(costs.schedule, costs.stages, costs.chunks)
    forward_s, backward_s = costs.forward_terms_s[:, :, 0], costs.backward_terms_s[:, :, 0]
    weight_s = np.zeros(costs.kind.max() + 1)
    if costs.weight_terms_s is not None:
        weight_s = costs.weight_terms_s[:, :, 0].sum(axis=0)
    kinds = chain.kinds(costs.kind)
    link_s = chain.along(forward_s.sum(axis=0)[kinds], (backward_s.sum(axis=0) - weight_s)[kinds]).tolist()
    stage_of, slots = chain.stage[0].tolist(), max(counts)
    delay_s = (chain.sends * costs.transfer_s[0]).tolist()
    split = costs.schedule in SPLIT_SCHEDULES

    def play_one(count: int, opening_s: list[float]) -> tuple[list[float], list[float]]:
        if len(link_s) == 1:  # nothing to wait for
            return [opening_s[0] + count * link_s[0]], [0.0]
        parts = _parts(costs.schedule, costs.stages, costs.chunks, slots, count)
        by_chunk_s = weight_s[costs.kind]  # [stages, chunks]
        played = play_rank(
            count,
            parts.operation,
            parts.offsets,
            stage_of,
            [seconds for seconds in link_s for _ in range(count)],
            [seconds for seconds in delay_s for _ in range(count)],
            opening_s,
            (parts.weights * by_chunk_s[parts.stage]).sum(axis=1).tolist() if split else None,
        )
        assert played.finished, "a pipeline alone cannot stop"
        tail_s = (parts.weights_behind * by_chunk_s).sum(axis=1)
        return [
            done + tail for done, tail in zip(played.done_s, tail_s.tolist(), strict=True)
        ], played.waited_s

    def play(begin_s: Floats) -> _Lone:
        opening_s = (epilogue.data_s + epilogue.parameter_gather_s + begin_s).tolist()
        done_s, waited_s = zip(*(play_one(count, opening_s) for count in counts), strict=True)
        by_stage = costs.schedule in STAGE_BY_STAGE
        end = StepEnd.after(np.array(done_s).T, epilogue, begin_s, stage_by_stage=by_stage)
        return _Lone(end, np.array(waited_s).T)

    step = steady_step(costs, play)
    stage_s = (forward_s + backward_s)[:, costs.kind].sum(axis=2)  # [terms, stages] of one micro-batch
    return book(costs, step.step_end, stage_s[:, :, None] * np.array(counts), step.waited_s, 0.0)


class _Parts(NamedTuple):
    """What the stages of a rank do: operations by stage in order, and where each stage starts."""

    operation: list[int]
    offsets: list[int]
    stage: Ints
    """Of each operation."""
    weights: Ints
    """[operations, chunks]: weight gradients that the stage runs before each, by chunk."""
    weights_behind: Ints
    """[stages, chunks]: weight gradients behind the last operation."""


@lru_cache(maxsize=256)
def _parts(schedule: Schedule, stages: int, chunks: int, slots: int, count: int) -> _Parts:
    """Of a rank with *count* of *slots* slots."""
    chain = make_chain(schedule, stages, chunks)
    table = np.array(virtual_stage_table(schedule, stages, chunks))
    operations: list[int] = []
    weights = []
    for stage in range(stages):
        order = stage_order(schedule, stages, chunks, stage, slots)
        virtual, exists = table[stage, order.chunk], order.slot < count
        is_weight = order.op == BACKWARD_WEIGHT
        kept = chain.has_link(order.op, virtual) & ~is_weight & exists
        operations += (chain.link_of(order.op, virtual)[kept] * count + order.slot[kept]).tolist()
        before = np.zeros((int(kept.sum()) + 1, chunks), dtype=np.int64)
        weight = np.flatnonzero(is_weight & exists)
        np.add.at(before, (np.cumsum(kept)[weight], order.chunk[weight]), 1)
        weights.append(before)
    sizes = np.array([len(before) - 1 for before in weights])
    return _Parts(
        operation=operations,
        offsets=offsets_of(sizes).tolist(),
        stage=np.repeat(np.arange(stages), sizes),
        weights=np.concatenate([before[:-1] for before in weights]),
        weights_behind=np.array([before[-1] for before in weights]),
    )
