"""Checks that a plan keeps every promise of the contract in simulator/plan.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hdpsim.arrays import Bools, Ints
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.errors import PlanError
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.plan_micro_batches import plain_costs
from hdpsim.simulator.play.meetings import check_common_slots
from hdpsim.simulator.play.shortcuts.equal_ranks import members_in_step

from .program import compile_program
from .waves import find_waves


@contextmanager
def promise(name: str) -> Iterator[None]:
    """A PlanError of this block, or function, says which promise it is about, unless it knows better."""
    try:
        yield
    except PlanError as error:
        error.promise = error.promise or name
        raise


def validate_plan(plan: Plan, sequence_lengths: Ints, stages: int, *, meets: bool = False) -> None:
    """Raise unless *plan* is a complete plan for the batch that can be played through *stages* pipeline stages.

    * Every token of every sequence is placed exactly once.
    * No rank holds more tokens at a time than its capacity; with offloading the planner answers for it.
    * Every micro-batch is once in the order of each of its members and in no other's.
    * With a pipeline, and where ranks meet in every layer (*meets*), it has the same slot on all members; else there
      are no holes.
    * The orders are free of deadlock.
    * What is said to be in step is (but for the groups' places, which a plan does not know).

    Raises:
        PlanError: the first promise that is broken, and where.
        DeadlockError: the cycle of ranks that wait for each other.
    """
    _check_arrays(plan)
    _check_members(plan)
    _check_tokens(plan, np.asarray(sequence_lengths, dtype=np.int64))
    _check_capacity(plan)
    _check_order(plan, stages, in_slots=stages > 1 or meets)
    if plan.in_step:
        _check_in_step(plan)
    if stages == 1 and not meets:
        # Common slots, checked above, already exclude a deadlock.
        nothing = np.zeros(plan.micro_batches)
        find_waves(compile_program(plan, plain_costs(1, nothing, nothing)))


@promise("order")
def _check_in_step(plan: Plan) -> None:
    batches = MicroBatches(
        segment_tokens=plan.segment_tokens,
        segment_offsets=plan.segment_offsets,
        group_size=plan.group_size,
        tier=np.zeros(plan.micro_batches, dtype=np.int64),
        offload_ratio=plan.offload_ratio,
        padding_tokens=plan.padding_tokens,
    )
    says = "the plan says that it is in step, but"
    _require(batches.alike, f"{says} its micro-batches are not all alike")
    in_step = members_in_step(plan, np.diff(plan.order_offsets))
    _require(in_step, f"{says} members of a group run it at different slots or there are holes")


def _require(holds: bool | np.bool_, message: str) -> None:
    if not holds:
        raise PlanError(message)


def _first_true(bad: Bools) -> int | None:
    """Return the place of the first True, if any."""
    places = np.flatnonzero(bad)
    return int(places[0]) if len(places) else None


@promise("arrays")
def _check_arrays(plan: Plan) -> None:
    n = plan.micro_batches
    _require(plan.ranks >= 1, f"a plan needs at least one rank, this one has {plan.ranks}")
    for name, offsets, rows, values in (
        ("segment", plan.segment_offsets, n, len(plan.segment_tokens)),
        ("member", plan.member_offsets, n, len(plan.member_ranks)),
        ("order", plan.order_offsets, plan.ranks, len(plan.order)),
    ):
        _require(
            len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == values,
            f"{name}_offsets must be {rows + 1} numbers from 0 to {values}",
        )
        _require(np.all(np.diff(offsets) >= 0), f"{name}_offsets must not fall")
    segments = len(plan.segment_tokens)
    for name, column in (("segment_sequence", plan.segment_sequence), ("segment_start", plan.segment_start)):
        _require(len(column) == segments, f"{name} has {len(column)} entries for {segments} segments")
    ratio = plan.offload_ratio
    bad = _first_true(~((ratio >= 0) & (ratio <= 1)))
    if bad is not None:
        raise PlanError(f"offload_ratio of micro-batch {bad} is {ratio[bad]}; it must lie in 0 .. 1")


@promise("members")
def _check_members(plan: Plan) -> None:
    empty = _first_true(plan.group_size == 0)
    if empty is not None:
        raise PlanError(f"micro-batch {empty} has no rank")
    ranks = plan.member_ranks
    outside = _first_true((ranks < 0) | (ranks >= plan.ranks))
    if outside is not None:
        raise PlanError(f"member rank {ranks[outside]} does not exist; there are {plan.ranks} ranks")
    group_starts = np.zeros(len(ranks), dtype=np.bool_)
    group_starts[plan.member_offsets[:-1]] = True
    unordered = _first_true(~group_starts[1:] & (ranks[1:] <= ranks[:-1]))
    if unordered is not None:
        micro_batch = int(np.searchsorted(plan.member_offsets, unordered, side="right")) - 1
        raise PlanError(f"the members of micro-batch {micro_batch} are not strictly ascending")


@promise("tokens")
def _check_tokens(plan: Plan, lengths: Ints) -> None:
    tokens, sequence, start = plan.segment_tokens, plan.segment_sequence, plan.segment_start
    outside = _first_true((sequence < 0) | (sequence >= len(lengths)))
    if outside is not None:
        belongs = f"segment {outside} belongs to sequence {sequence[outside]}"
        raise PlanError(f"{belongs}; the batch has {len(lengths)}")
    empty = _first_true((tokens <= 0) | (start < 0))
    if empty is not None:
        raise PlanError(f"segment {empty} holds {tokens[empty]} tokens from {start[empty]} on")
    # Segments of a sequence by start must follow each other: each starts where the one before it ended.
    order = np.lexsort((start, sequence))
    by_sequence, by_start, end = sequence[order], start[order], (start + tokens)[order]
    expected = np.where(np.diff(by_sequence, prepend=-1) > 0, 0, np.concatenate([[0], end])[:-1])
    wrong = _first_true(by_start != expected)
    if wrong is not None:
        problem = "twice" if by_start[wrong] < expected[wrong] else "nowhere"
        token = min(by_start[wrong], expected[wrong])
        raise PlanError(f"token {token} of sequence {by_sequence[wrong]} is placed {problem}")
    placed = np.zeros(len(lengths), dtype=np.int64)
    placed[by_sequence] = end  # the last segment of a sequence is written last
    wrong = _first_true(placed != lengths)
    if wrong is not None:
        raise PlanError(f"{placed[wrong]} of the {lengths[wrong]} tokens of sequence {wrong} are placed")


@promise("capacity")
def _check_capacity(plan: Plan) -> None:
    tokens = np.diff(np.concatenate([[0], np.cumsum(plan.segment_tokens)])[plan.segment_offsets])
    capacity_tokens = np.full(plan.micro_batches, plan.capacity_tokens)
    if plan.rank_capacity_tokens is not None:
        capacity_tokens = np.minimum.reduceat(
            plan.rank_capacity_tokens[plan.member_ranks], plan.member_offsets[:-1]
        )
    over = _first_true((tokens > capacity_tokens * plan.group_size) & (plan.offload_ratio == 0))
    if over is not None:
        raise PlanError(
            f"micro-batch {over} puts {tokens[over]} tokens on {plan.group_size[over]} ranks "
            f"that hold {capacity_tokens[over]} each"
        )


@promise("order")
def _check_order(plan: Plan, stages: int, *, in_slots: bool) -> None:
    outside = _first_true(((plan.order < 0) & (plan.order != HOLE)) | (plan.order >= plan.micro_batches))
    if outside is not None:
        raise PlanError(f"the order lists micro-batch {plan.order[outside]}; there are {plan.micro_batches}")
    entries = plan.entries
    if not in_slots:
        _require(len(entries.order_index) == len(plan.order), "holes in the order are only for pipelines")
    listed = np.sort(entries.micro_batch * plan.ranks + entries.rank)
    repeated = _first_true(listed[1:] == listed[:-1])
    if repeated is not None:
        micro_batch, rank = divmod(int(listed[repeated]), plan.ranks)
        raise PlanError(f"rank {rank} has micro-batch {micro_batch} twice in its order")
    groups = np.repeat(np.arange(plan.micro_batches), plan.group_size)
    wanted = groups * plan.ranks + plan.member_ranks
    for pairs, problem in (
        (np.setdiff1d(wanted, listed, assume_unique=True), "does not have it in its order"),
        (np.setdiff1d(listed, wanted, assume_unique=True), "has it in its order without being a member"),
    ):
        if len(pairs):
            micro_batch, rank = divmod(int(pairs[0]), plan.ranks)
            raise PlanError(f"micro-batch {micro_batch}: rank {rank} {problem}")
    if in_slots:
        why = "with a pipeline" if stages > 1 else "where ranks meet in every layer"
        check_common_slots(entries, why)
