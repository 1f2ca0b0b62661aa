"""A plan and its costs as flat arrays of operations: what both executors play.

Operations of a unit form a chain (see chain.py): forwards on virtual stages 0 .. K-2, then forward and backward on the
last one (K-1; one operation, because all schedules but DualPipe run them back to back), then backwards on K-2 .. 0. A
unit is a micro-batch. Without a pipeline (K = 1) neighbouring micro-batches of a rank that nobody shares form one unit,
named after the first of them: no other rank can observe what happens between them. For the same reason weight
gradients that a schedule runs apart are no operations but work on the way to the next one (see parts.py).

A *process* is one pipeline stage of one rank, number stage * ranks + rank. The part a process takes in an operation
is one entry of the part_* arrays; the members of a dynamic group take part in the same operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import HOLE, Entries, Plan
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.play.meetings import Meetings, meetings_of

from .chain import Chain, make_chain
from .common_ends import CommonEnds
from .durations import Durations
from .extras import Extras, make_extras
from .parts import Parts, pipeline_parts


class UnitOrder(NamedTuple):
    """What Parts say, where a micro-batch is one operation."""

    operation: Ints
    offsets: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Operations, who takes part in them and in which order. Operation c * units + u is link c of unit u's chain."""

    plan: Plan
    costs: StepCosts
    chain: Chain
    way: Ints | None
    """[units]: which way of the chain a unit takes; None = there is only one."""
    entries: Entries
    times: Durations
    operation_s: Floats
    """Duration of each operation, the slowest member's."""
    parties: Ints
    """What each operation waits for: its members, one for its predecessor in the chain and one for each feed."""
    result_delay_s: Floats
    """By operation: from its end to the arrival of its result at the next one of its chain."""
    order: Callable[[], UnitOrder | Parts]
    """What each process runs; found when somebody asks, once: few schedules need it to play a step."""
    part_own_s: Floats | None
    """The duration each part would have without slower members; None = operation_s."""
    unit_entries: Ints
    """Where a micro-batch is one operation: the entry at which each part of part_operation starts; else empty."""
    extras: Extras | None
    """What only some schedules have."""
    common_ends: CommonEnds | None = None
    """Of ranks that meet after passes."""
    met: Meetings | None = None
    """Of ranks that meet in every layer: whose meetings the units are."""
    given: tuple[Plan, StepCosts, Noise | None] | None = None
    """With meetings: the plan as it was given, its costs and noise."""

    @property
    def part_operation(self) -> Ints:
        """Operations by process, in the order in which the process runs them."""
        return self.order().operation

    @property
    def part_offsets(self) -> Ints:
        """[processes + 1]: where each process starts in the part_* arrays."""
        return self.order().offsets

    @property
    def ranks(self) -> int:
        """Ranks of the plan."""
        return self.plan.ranks

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.costs.stages

    @property
    def units(self) -> int:
        """Micro-batches of the plan."""
        return self.plan.micro_batches

    @property
    def processes(self) -> int:
        """Stages of all ranks."""
        return self.stages * self.ranks

    @property
    def opening_s(self) -> Floats:
        """[stages]: when the processes of a stage can start their first operation."""
        return self.costs.epilogue.data_s + self.costs.epilogue.parameter_gather_s

    @property
    def stage_by_stage(self) -> bool:
        """Whether a stage begins its next step without waiting for the others."""
        return self.extras is not None and self.extras.stage_by_stage

    @property
    def part_process(self) -> Ints:
        """The process of each part."""
        return np.repeat(np.arange(self.processes), np.diff(self.part_offsets))

    def stage_of(self, link: Ints, unit: Ints) -> Ints:
        """The stage that runs that link of that unit's chain."""
        return np.asarray(self.chain.stage[0 if self.way is None else self.way[unit], link])


def compile_program(plan: Plan, costs: StepCosts, noise: Noise | None = None) -> Program:
    """Return the operations of *plan* with their durations.

    Raises:
        InfeasibleError: the schedule cannot run this plan (DualPipe needs equally many micro-batches everywhere).
        PlanError: ranks meet in every layer, and members of a group have it at different slots.
    """
    met, given = meetings_of(plan, costs, noise), (plan, costs, noise)
    if met is not None:
        plan, costs, noise = met.plan, met.costs, met.noise
    count = plan.micro_batches
    chain = make_chain(costs.schedule, costs.stages, costs.chunks, meets=costs.meets_after != "step")
    entries = plan.entries
    way = _ways(plan, entries, costs.stages) if len(chain.stage) > 1 else None
    times = Durations.of(costs, chain, entries, way, noise)
    forward_s, backward_s, _ = times.slowest
    parties = (plan.group_size + (np.arange(chain.links) > 0)[:, None]).ravel()
    unit_entries = np.zeros(0, dtype=np.int64)
    part_own_s: Floats | None = None
    shape = costs.schedule, costs.stages, costs.chunks
    parts = cache(partial(pipeline_parts, plan, entries, chain, *shape, costs.drains_every))
    order: Callable[[], UnitOrder | Parts] = parts
    if chain.links == 1:
        unit_entries = _merge_unshared(plan.group_size, entries)
        operations = entries.micro_batch[unit_entries]
        offsets = offsets_of(np.bincount(entries.rank[unit_entries], minlength=plan.ranks))
        order = partial(UnitOrder, operations, offsets)
        operation_s = np.zeros(count)
        both_s = forward_s[0] + backward_s[0]
        operation_s[operations] = add_runs(both_s[entries.micro_batch], unit_entries)
        if times.factors is not None:
            part_own_s = add_runs(times.own_along(chain, entries)[0], unit_entries)
    else:
        operation_s = chain.along(forward_s, backward_s).ravel()
        if times.factors is not None:
            part_own_s = times.own_along(chain, entries)[parts().operation // count, parts().entry]
    program = Program(
        plan=plan,
        costs=costs,
        chain=chain,
        way=way,
        entries=entries,
        times=times,
        operation_s=operation_s,
        parties=parties,
        result_delay_s=np.outer(chain.sends, costs.transfer_s).ravel(),
        order=order,
        part_own_s=part_own_s,
        unit_entries=unit_entries,
        extras=None,
        common_ends=CommonEnds.of(costs, chain, entries, count),
        met=met,
        given=None if met is None else given,
    )
    if chain.links == 1 or (costs.pp_overlap and costs.schedule not in SPLIT_SCHEDULES):
        return program
    extras = make_extras(program, parts())
    np.add.at(parties, extras.feeds.after, 1)
    return replace(program, extras=extras)


def _ways(plan: Plan, entries: Entries, stages: int) -> Ints:
    """DualPipe: micro-batches in even slots start at the first stage, those in odd ones at the last."""
    slots = np.diff(plan.order_offsets)
    if np.any(plan.order == HOLE) or np.any(slots != slots[0]) or slots[0] % 2 or slots[0] < 2 * stages:
        raise InfeasibleError(
            f"schedule dualpipe needs an even number of micro-batches, at least 2 pp = {2 * stages} and on every "
            f"rank the same; this plan has {int(slots.min())} to {int(slots.max())}"
        )
    way = np.zeros(plan.micro_batches, dtype=np.int64)
    way[entries.micro_batch] = entries.slot % 2
    return way


def add_runs(values: Floats, starts: Ints) -> Floats:
    """The sums of *values* from each start to the next."""
    return np.add.reduceat(values, starts) if len(starts) else values[:0]


def _merge_unshared(group_size: Ints, entries: Entries) -> Ints:
    """Return the entries at which a unit starts: shared ones, those after a shared one, and a rank's first."""
    shared = group_size[entries.micro_batch] > 1
    starts = shared.copy()
    starts[:1] = True
    starts[1:] |= shared[:-1] | (entries.rank[1:] != entries.rank[:-1])
    return np.flatnonzero(starts)
