"""Ranks that share nothing and run equal micro-batches, in plain Python: all that a lockstep plan needs.

What replay, program and accounts do for any plan, for the one case in which a rank is its number of slots: a pipeline
of plain forwards and backwards (1F1B, interleaved) with asynchronous transfers. Numpy's fixed price per call exceeds
that of the few numbers there are. The order of the operations follows from four small integers and is kept.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.layout import Schedule
from cost_models.micro_batch import StepCosts
from cost_models.pipeline import SPLIT_SCHEDULES, virtual_stage_table
from simulator.chain import make_chain
from simulator.execution import WAITS, Execution
from simulator.schedules import FORWARD, stage_order

__all__ = ["Played", "can_play", "play_rank", "run_lone_ranks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
    transfer_s: list[float],
    opening_s: list[float],
) -> Played:
    """Play the pipeline of one rank; the arguments are those of a Program, stage_of by link.

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
            if arrival_s > now_s:
                waited_s[stage] += arrival_s - now_s
                now_s = arrival_s
            start_s[operation] = now_s
            now_s += operation_s[operation]
            end_s[operation] = now_s
            at += 1
            following = operation + units
            if following < size:
                link, unit = divmod(following, units)
                other = stage_of[link]
                if other != stage:
                    input_s[following] = now_s + transfer_s[unit]
                    todo.append(other)
                else:
                    input_s[following] = now_s
        place[stage], free_s[stage] = at, now_s
    return Played(start_s, end_s, free_s, waited_s, place == last)


def can_play(costs: StepCosts) -> bool:
    """Whether run_lone_ranks knows the schedule of these costs."""
    return costs.alike and costs.pp_overlap and costs.schedule not in SPLIT_SCHEDULES


def run_lone_ranks(costs: StepCosts, counts: list[int]) -> Execution:
    """The execution of ranks with counts[i] equal micro-batches each; nothing but gradients ties them together."""
    forward_s, backward_s = costs.forward_terms_s[:, :, 0], costs.backward_terms_s[:, :, 0]
    chain = make_chain(costs.schedule, costs.stages, costs.chunks)
    epilogue, terms = costs.epilogue, len(costs.terms)
    opening_s: list[float] = (epilogue.data_s + epilogue.parameter_gather_s).tolist()
    link_s = _link_seconds(costs, forward_s, backward_s)
    if len(link_s) == 1:  # nothing to wait for
        done = [[opening_s[0] + count * link_s[0]] for count in counts]
        waited = [[0.0]] * len(counts)
    else:
        transfer_s, stage_of, slots = float(costs.transfer_s[0]), chain.stage[0].tolist(), max(counts)
        played = [
            play_rank(
                count,
                *_parts(costs.schedule, costs.stages, costs.chunks, slots, count),
                stage_of,
                [seconds for seconds in link_s for _ in range(count)],
                [transfer_s] * count,
                opening_s,
            )
            for count in counts
        ]
        assert all(rank.finished for rank in played), "a pipeline alone cannot stop"
        done, waited = [rank.done_s for rank in played], [rank.waited_s for rank in played]
    done_s = np.array(done)
    sync_start_s = done_s.max(axis=0)
    synced_s = sync_start_s + epilogue.gradient_sync_s
    updated_s = synced_s.max() + epilogue.optimizer_s
    step_s = float(updated_s.max())
    waits = {
        "data": epilogue.data_s - epilogue.planning_s,
        "planning": epilogue.planning_s,
        "parameter_gather": epilogue.parameter_gather_s,
        "wait_pipeline": np.array(waited),
        "wait_group": 0.0,
        "wait_gradients": sync_start_s - done_s,
        "gradient_sync": epilogue.gradient_sync_s,
        "wait_stages": synced_s.max() - synced_s,
        "optimizer": epilogue.optimizer_s,
        "wait_step_end": step_s - updated_s,
    }
    account_s = np.empty((terms + len(WAITS), len(counts), costs.stages))
    stage_s = (forward_s + backward_s)[:, costs.kind].sum(axis=2)  # [terms, stages] of one micro-batch
    account_s[:terms] = stage_s[:, None] * np.array(counts)[:, None]
    for row, name in enumerate(WAITS, start=terms):
        account_s[row] = waits[name]
    return Execution(step_s=step_s, accounts=costs.terms + WAITS, account_s=account_s)


def _link_seconds(costs: StepCosts, forward_s: Floats, backward_s: Floats) -> list[float]:
    """Duration of every link of the chain (see chain.Chain.along: the last forward and backward are one)."""
    kind = costs.kind.tolist()
    place = {
        virtual: kind[stage][chunk]
        for stage, chunks in enumerate(virtual_stage_table(costs.schedule, costs.stages, costs.chunks))
        for chunk, virtual in enumerate(chunks)
    }
    forward, backward = forward_s.sum(axis=0).tolist(), backward_s.sum(axis=0).tolist()
    kinds = [place[virtual] for virtual in range(len(place))]
    down = [forward[kind] for kind in kinds]
    down[-1] += backward[kinds[-1]]
    return down + [backward[kind] for kind in kinds[-2::-1]]


@lru_cache(maxsize=64)
def _parts(
    schedule: Schedule, stages: int, chunks: int, slots: int, count: int
) -> tuple[list[int], list[int]]:
    """Operations by stage in order, and where each stage starts, of a rank with *count* of *slots* slots."""
    chain = make_chain(schedule, stages, chunks)
    table = np.array(virtual_stage_table(schedule, stages, chunks))
    operations: list[int] = []
    offsets = [0]
    for stage in range(stages):
        order = stage_order(schedule, stages, chunks, stage, slots)
        virtual = table[stage, order.chunk]
        # The merged backward on the last virtual stage is part of the forward just before it.
        kept = ((order.op == FORWARD) | (virtual != chain.virtual_stages - 1)) & (order.slot < count)
        operations += (chain.link_of(order.op, virtual)[kept] * count + order.slot[kept]).tolist()
        offsets.append(len(operations))
    return operations, offsets
