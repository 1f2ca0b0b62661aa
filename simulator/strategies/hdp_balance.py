"""Balanced HDP (ByteScale, Algorithm 2): equal work at every time step, unequal numbers of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.plan import Plan
from simulator.strategies.assembly import Pieces, assemble
from simulator.strategies.dealing import (
    Packs,
    RankLoads,
    deal_packs,
    deal_sequences,
    deal_singles,
    fill_packs,
)
from simulator.strategies.group_size import choose_groups
from simulator.strategies.lower_bound import lower_bound_s
from simulator.strategies.problem import PlanningProblem

__all__ = ["plan_balanced"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Dealer = Callable[[PlanningProblem, RankLoads, Packs], tuple[Ints, Ints, Ints]]


def plan_balanced(problem: PlanningProblem) -> Plan:
    """Long sequences first, each as a gang on the least-loaded ranks; then everything else, sequence by sequence.

    1. Group sizes: the smallest that memory (with offload) and a time limit allow.
    2. Gangs in descending time; a gang starts when its last member is free, so members with similar loads are
       taken, whole nodes when it spans nodes. Longest first leaves the light ranks more, shorter micro-batches.
    3. Sequences that fit one rank are dealt to the ranks that are free first, as full packs or one by one
       (see dealing).
    With a pipeline a rank's longest micro-batch also costs (p - 1) / v bubbles of its length: it counts as load.
    Several time limits and both ways of dealing are tried; the plan with the smallest estimated makespan wins.
    """
    bound_s = lower_bound_s(problem)
    packs = fill_packs(problem)
    best: _Draft | None = None
    for share in _limit_shares(problem):
        for dealer in (deal_packs, deal_sequences):
            draft = _draft(problem, packs, share * bound_s, dealer)
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
            notes=(f"largest group {int(np.diff(self.member_offsets).max())} ranks",),
        )


def _draft(problem: PlanningProblem, packs: Packs, limit_s: float, dealer: _Dealer) -> _Draft:
    lengths = problem.lengths
    inside = lengths <= problem.capacity_tokens
    long = np.flatnonzero(~inside)
    sizes, ratios = choose_groups(problem, lengths[long], limit_s, limit_s)
    times = problem.sequence_s(lengths[long], sizes)
    usual_s = max(problem.token_s * problem.capacity_tokens, problem.floor_s) + problem.fixed_s
    loads = RankLoads(
        free_s=np.full(problem.ranks, problem.bubble_weight * usual_s),
        slot=np.zeros(problem.ranks, dtype=np.int64),
        longest_s=np.full(problem.ranks, usual_s),
    )
    in_order = np.lexsort((-sizes, -times))
    members: list[Ints] = []
    slots: list[int] = []
    # Without a pipeline single ranks can be filled without gaps; in a pipeline longest first keeps bubbles small.
    groups = int((sizes > 1).sum()) if problem.stages == 1 else len(sizes)
    if problem.stages == 1:
        in_order = np.concatenate((in_order[sizes[in_order] > 1], in_order[sizes[in_order] == 1]))
    for gang in in_order[:groups].tolist():
        chosen = _least_loaded(loads.free_s, int(sizes[gang]), problem.ranks_per_node)
        members.append(chosen)
        slots.append(_place(loads, chosen, float(times[gang]), problem.bubble_weight))
    singles = deal_singles(problem, loads, times[in_order[groups:]], inside_s=packs.seconds.sum())
    members += list(singles[0][:, None])
    slots += singles[1].tolist()
    gang_sizes = sizes[in_order]
    bins, bin_rank, bin_slot = dealer(problem, loads, packs)
    bubble_s = problem.bubble_weight * loads.longest_s
    micro_batch = np.empty(len(lengths), dtype=np.int64)
    micro_batch[long[in_order]] = np.arange(len(long))
    micro_batch[packs.sequence] = len(long) + bins
    ones = np.ones(len(bin_rank), dtype=np.int64)
    return _Draft(
        makespan_s=float(loads.free_s.max()),
        work_s=_without_bubble(loads.free_s, bubble_s),
        pieces=Pieces(
            tokens=lengths,
            sequence=np.arange(len(lengths), dtype=np.int64),
            start=np.zeros(len(lengths), dtype=np.int64),
            micro_batch=micro_batch,
        ),
        member_ranks=np.concatenate((*members, bin_rank)),
        member_offsets=np.concatenate(([0], np.cumsum(np.concatenate((gang_sizes, ones))))),
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


def _place(loads: RankLoads, members: Ints, time_s: float, bubble_weight: float) -> int:
    """Add a gang: it starts when the last member is free, at the first slot free on all of them."""
    slot = int(loads.slot[members].max())
    bubble_s = bubble_weight * np.maximum(0.0, time_s - loads.longest_s[members])
    loads.free_s[members] = (loads.free_s[members] + bubble_s).max() + time_s
    loads.slot[members] = slot + 1
    loads.longest_s[members] = np.maximum(loads.longest_s[members], time_s)
    return slot
