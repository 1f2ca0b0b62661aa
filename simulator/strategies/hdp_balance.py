"""Balanced HDP (ByteScale, Algorithm 2): equal work at every time step, unequal numbers of micro-batches."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.plan import Plan
from simulator.strategies.assembly import Pieces, assemble
from simulator.strategies.group_size import choose_groups, lower_bound_s
from simulator.strategies.problem import PlanningProblem

__all__ = ["plan_balanced"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class _Loads:
    """Per rank: time until it is free (waiting and pipeline bubble included), next free slot, longest micro-batch."""

    free_s: Floats
    slot: Ints
    longest_s: Floats


def plan_balanced(problem: PlanningProblem) -> Plan:
    """Long sequences first, each as a gang on the least-loaded ranks; then everything else, sequence by sequence.

    1. Group sizes: the smallest that memory (with offload) and a time limit allow.
    2. Gangs in descending time; a gang starts when its last member is free, so members with similar loads are
       taken, whole nodes when it spans nodes. Longest first leaves the light ranks more, shorter micro-batches.
    3. Sequences that fit one rank go, longest first, to the rank with least work (LPT), and each rank packs its
       own into micro-batches of at most C tokens and similar work.
    With a pipeline a rank's longest micro-batch also costs (p - 1) / v bubbles of its length: it counts as load.
    Several time limits are tried; the plan with the smallest estimated makespan wins.
    """
    bound_s = lower_bound_s(problem)
    best: _Draft | None = None
    for share in _limit_shares(problem):
        draft = _draft(problem, share * bound_s)
        if best is None or draft.makespan_s < best.makespan_s:
            best = draft
    assert best is not None
    return best.plan(problem, bound_s)


def _limit_shares(problem: PlanningProblem) -> tuple[float, ...]:
    """Candidate limits for one sequence's time, as shares of the lower bound."""
    return (0.95, 0.6, 0.3) if problem.stages == 1 else (0.5, 0.35, 0.25)


@dataclass(frozen=True, slots=True)
class _Draft:
    """Micro-batches of one candidate, before they become a Plan."""

    makespan_s: float
    work_s: float
    pieces: Pieces
    member_ranks: Ints
    member_offsets: Ints
    slot: Ints
    offload_ratio: Floats

    def plan(self, problem: PlanningProblem, bound_s: float) -> Plan:
        return assemble(
            strategy=problem.options.name,
            ranks=problem.ranks,
            capacity_tokens=problem.capacity_tokens,
            pieces=self.pieces,
            member_ranks=self.member_ranks,
            member_offsets=self.member_offsets,
            slot=self.slot,
            offload_ratio=self.offload_ratio,
            keep_holes=problem.stages > 1,
            lower_bound_s=bound_s,
            makespan_s=self.work_s,
            notes=(f"{len(self.offload_ratio)} micro-batches, largest group {int(np.diff(self.member_offsets).max())}",),
        )


def _draft(problem: PlanningProblem, limit_s: float) -> _Draft:
    lengths = problem.lengths
    inside = lengths <= problem.capacity_tokens
    long = np.flatnonzero(~inside)
    sizes, ratios = choose_groups(problem, lengths[long], limit_s, limit_s)
    times = problem.sequence_s(lengths[long], sizes)
    usual_s = problem.token_s * problem.capacity_tokens + problem.fixed_s
    loads = _Loads(
        free_s=np.full(problem.ranks, problem.bubble_weight * usual_s),
        slot=np.zeros(problem.ranks, dtype=np.int64),
        longest_s=np.full(problem.ranks, usual_s),
    )
    in_order = np.lexsort((-sizes, -times))
    members: list[Ints] = []
    slots: list[int] = []
    for gang in in_order.tolist():
        chosen = _least_loaded(loads.free_s, int(sizes[gang]), problem.ranks_per_node)
        members.append(chosen)
        slots.append(_place(loads, chosen, float(times[gang]), problem.bubble_weight))
    gang_sizes = sizes[in_order]
    short = np.flatnonzero(inside)
    short = short[np.argsort(-lengths[short], kind="stable")]
    rank_of = _spread(problem, loads, lengths[short])
    bins, bin_rank, bin_slot = _pack_ranks(problem, loads, lengths[short], rank_of)
    bubble_s = problem.bubble_weight * loads.longest_s
    micro_batch = np.empty(len(lengths), dtype=np.int64)
    micro_batch[long[in_order]] = np.arange(len(long))
    micro_batch[short] = len(long) + bins
    return _Draft(
        makespan_s=float(loads.free_s.max()),
        work_s=_without_bubble(loads.free_s, bubble_s),
        pieces=Pieces(
            tokens=lengths,
            sequence=np.arange(len(lengths), dtype=np.int64),
            start=np.zeros(len(lengths), dtype=np.int64),
            micro_batch=micro_batch,
        ),
        member_ranks=np.concatenate((*members, bin_rank)) if members else bin_rank,
        member_offsets=np.concatenate(
            ([0], np.cumsum(np.concatenate((gang_sizes, np.ones(len(bin_rank), dtype=np.int64)))))
        ),
        slot=np.concatenate((np.repeat(np.array(slots, dtype=np.int64), gang_sizes), bin_slot)),
        offload_ratio=np.concatenate((ratios[in_order], np.zeros(len(bin_rank)))),
    )


def _without_bubble(free_s: Floats, bubble_s: Floats) -> float:
    """Makespan without pipeline bubbles: the busiest rank's time less its own bubble, or the average one if larger."""
    busiest = int(free_s.argmax())
    return float(free_s[busiest] - max(bubble_s[busiest], bubble_s.mean()))


def _least_loaded(free_s: Floats, size: int, per_node: int) -> Ints:
    """*size* ranks with little load: in one node if they fit, else whole least-loaded nodes. Ascending."""
    ranks = len(free_s)
    if size >= ranks:
        return np.arange(ranks, dtype=np.int64)
    if per_node == 1 or ranks % per_node:
        return np.sort(np.argpartition(free_s, size - 1)[:size])
    by_node = free_s.reshape(-1, per_node)
    if size <= per_node:
        node = int(np.partition(by_node, size - 1, axis=1)[:, size - 1].argmin())
        inside = np.argsort(by_node[node], kind="stable")[:size]
        return np.sort(node * per_node + inside)
    nodes = -(-size // per_node)
    node_s = by_node.max(axis=1)
    chosen = np.argsort(node_s, kind="stable")[:nodes]
    candidates = (np.sort(chosen)[:, None] * per_node + np.arange(per_node)).ravel()
    drop = len(candidates) - size
    if drop:
        last = int(chosen[-1]) * per_node
        out = last + np.argsort(-by_node[chosen[-1]], kind="stable")[:drop]
        candidates = candidates[~np.isin(candidates, out)]
    return np.asarray(candidates, dtype=np.int64)


def _place(loads: _Loads, members: Ints, time_s: float, bubble_weight: float) -> int:
    """Add a gang: it starts when the last member is free, at the first slot free on all of them."""
    slot = int(loads.slot[members].max())
    bubble_s = bubble_weight * np.maximum(0.0, time_s - loads.longest_s[members])
    loads.free_s[members] = (loads.free_s[members] + bubble_s).max() + time_s
    loads.slot[members] = slot + 1
    loads.longest_s[members] = np.maximum(loads.longest_s[members], time_s)
    return slot


def _spread(problem: PlanningProblem, loads: _Loads, lengths: Ints) -> Ints:
    """LPT: sequences (descending) to the rank with least work and bubble so far."""
    work = problem.piece_s(lengths)
    heap = list(zip(loads.free_s.tolist(), range(problem.ranks), strict=True))
    heapq.heapify(heap)
    rank_of = np.empty(len(lengths), dtype=np.int64)
    fixed = problem.fixed_s / problem.capacity_tokens
    for i, (seconds, tokens) in enumerate(zip(work.tolist(), lengths.tolist(), strict=True)):
        load, rank = heap[0]
        rank_of[i] = rank
        heapq.heapreplace(heap, (load + seconds + fixed * tokens, rank))
    loads.free_s += np.bincount(rank_of, weights=work, minlength=problem.ranks)
    return rank_of


def _pack_ranks(
    problem: PlanningProblem, loads: _Loads, lengths: Ints, rank_of: Ints
) -> tuple[Ints, Ints, Ints]:
    """Each rank's sequences into its micro-batches: longest first, each into the emptiest that has room."""
    by_rank = np.argsort(rank_of, kind="stable")
    bounds = np.searchsorted(rank_of[by_rank], np.arange(problem.ranks + 1))
    tokens_sorted = lengths[by_rank].tolist()
    bins = np.empty(len(lengths), dtype=np.int64)
    bin_rank: list[int] = []
    bin_slot: list[int] = []
    capacity = problem.capacity_tokens
    placed = [0] * len(lengths)
    for rank in range(problem.ranks):
        begin, end = int(bounds[rank]), int(bounds[rank + 1])
        if begin == end:
            continue
        mine = tokens_sorted[begin:end]
        opened = len(bin_rank)
        count = -(-sum(mine) // capacity)
        room = [(-capacity, opened + i) for i in range(count)]
        for offset, tokens in enumerate(mine):
            free, where = room[0]
            if -free >= tokens:
                heapq.heapreplace(room, (free + tokens, where))
            else:
                where = opened + count
                count += 1
                heapq.heappush(room, (tokens - capacity, where))
            placed[begin + offset] = where
        bin_rank += [rank] * count
        first = int(loads.slot[rank])
        bin_slot += range(first, first + count)
        loads.slot[rank] = first + count
    bins[by_rank] = placed
    loads.free_s += problem.fixed_s * np.bincount(np.array(bin_rank, dtype=np.int64), minlength=problem.ranks)
    return bins, np.array(bin_rank, dtype=np.int64), np.array(bin_slot, dtype=np.int64)
