"""WLB-LLM's variable-length packing: micro-batches of equal work, not of equal length, on a static mesh's groups."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem

from .given_packs import plan_given_packs
from .static_mesh import mesh_degrees


def plan_wlb_llm(problem: PlanningProblem) -> Plan:
    """As many packs as a static mesh would have at least, of equal predicted work, dealt round robin.

        packs   = groups x ceil(tokens / (groups x context)), more while one holds more than its group can
        work    = attention of the sequence on a group + its share of linear work, as the cost model predicts them
        tokens  <= d x C of a group of d ranks

    The mesh has the degree that layout.cp states, else the smallest that holds the context. Counted: packs longer than
    the context where a group's memory allows them, as in the paper. Whether a group cuts a pack or its documents, its
    price decides (layout.cp_sharding); work is that by document. Documents are not padded to chunks: what is over goes
    round the ranks.
    Ignored: outlier queues that keep long documents for later batches (a plan places every token of its batch).
    Source: WLB-LLM, arXiv 2503.17924, section 4.
    """
    degree = mesh_degrees(problem)[0]
    return plan_equal_work(problem, degree, problem.context_tokens, work_s(problem, degree))


def plan_equal_work(problem: PlanningProblem, degree: int, pack_tokens: int, work: Floats) -> Plan:
    """Deal packs of equal *work*, of *pack_tokens* on average at most, to groups of *degree* ranks."""
    groups, most = problem.ranks // degree, degree * problem.capacity_tokens
    rounds = -(-int(problem.lengths.sum()) // (groups * pack_tokens))
    pack = fitting_packs(problem.lengths, work, groups * rounds, groups, most)
    plan = plan_given_packs(problem, pack, degree)
    busiest_s = np.bincount(pack % groups, weights=work, minlength=groups).max()
    notes = (f"packs of equal work: cp {degree} x dp {groups}, {plan.micro_batches} packs",)
    return replace(plan, capacity_tokens=problem.capacity_tokens, makespan_s=float(busiest_s), notes=notes)


def work_s(problem: PlanningProblem, degree: int) -> Floats:
    """Work of every sequence on a group of *degree* neighbouring ranks."""
    tokens = problem.lengths.astype(np.float64)
    sizes = np.full_like(tokens, degree)
    tiers = np.broadcast_to(problem.compact_tier(degree), tokens.shape)
    work = problem.cost.sequence_s(tokens, sizes, tiers) + problem.token_s * tokens / degree
    return np.asarray(work if problem.error is None else work * problem.error.factors(tokens))


def fitting_packs(lengths: Ints, work: Floats, packs: int, more: int, most_tokens: int) -> Ints:
    """Balance packs, with so many *more* while one holds too much, and leave out those that stay empty."""
    while True:
        pack = balanced_packs(lengths, work, packs, most_tokens)
        held = np.bincount(pack, weights=lengths, minlength=packs)
        if held.max() <= most_tokens:
            return np.asarray((np.cumsum(held > 0) - 1)[pack])
        packs += more


def balanced_packs(lengths: Ints, work: Floats, packs: int, most_tokens: float) -> Ints:
    """The pack of every sequence, longest first: the one with the least work, if the sequence fits it.

        pack = that of least work       if its tokens + length <= most_tokens
               that of fewest tokens    else, if the sequence fits there
        What fits neither goes to the pack of least work when all others are placed, however full that is.

    Ties go to the lower number. *work*: of every sequence, in any unit.
    Source: WLB-LLM, arXiv 2503.17924, section 4, without its delay; hao-ai-lab/distca, tests/test_e2e_combined.py
    (what fits neither is placed by work alone).
    """
    loads, held = [0.0] * packs, [0] * packs
    length_of, work_of = lengths.tolist(), work.tolist()
    chosen = np.empty(len(lengths), dtype=np.int64)
    # What a pack had before stays in the heaps until it comes up.
    lightest = [(0.0, pack) for pack in range(packs)]
    shortest = lightest.copy()

    def place(sequence: int, pack: int) -> None:
        chosen[sequence] = pack
        loads[pack] += work_of[sequence]
        held[pack] += length_of[sequence]
        heapq.heappush(lightest, (loads[pack], pack))
        heapq.heappush(shortest, (held[pack], pack))

    unplaced = []
    for sequence in np.argsort(-lengths, kind="stable").tolist():
        room = most_tokens - length_of[sequence]
        if held[_least(lightest, loads)] <= room:
            place(sequence, lightest[0][1])
        elif held[_least(shortest, held)] <= room:
            place(sequence, shortest[0][1])
        else:
            unplaced.append(sequence)
    for sequence in unplaced:
        place(sequence, _least(lightest, loads))
    return chosen


def _least(heap: list[tuple[float, int]], values: Sequence[float]) -> int:
    """The pack of least value, which comes first then."""
    while heap[0][0] != values[heap[0][1]]:
        heapq.heappop(heap)
    return heap[0][1]
