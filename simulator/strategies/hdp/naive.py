"""HDP with communication optimisation only (ByteScale, Algorithm 1): equal tokens per rank, unequal work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hdpsim.arrays import Floats, Ints, ranges
from hdpsim.errors import InfeasibleError
from hdpsim.quoting import counted
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.compare_plans import NEARLY, Contest
from hdpsim.simulator.strategies.plan_ideal import plan_ideal_s
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.packing import Pieces, assemble, best_fit

from .groups import capacities_below, paper_groups


def naive_micro_batches(problem: PlanningProblem, average_s: float) -> tuple[Pieces, Ints, Floats, Floats]:
    """Micro-batches in order of their first sequence: pieces, group sizes, offload ratios, times.

    *average_s*: a rank's average work.
    """
    lengths = problem.lengths
    inside = lengths <= problem.capacity_tokens
    short, long = np.flatnonzero(inside), np.flatnonzero(~inside)
    sizes, ratios = paper_groups(problem, lengths[long], average_s)
    bins = best_fit(lengths[short], problem.capacity_tokens)
    packs = int(bins.max()) + 1 if len(bins) else 0
    first = np.full(packs, len(lengths), dtype=np.int64)
    np.minimum.at(first, bins, short)
    arrival = np.argsort(np.concatenate((first, long)), kind="stable")
    rank_of_batch = np.empty_like(arrival)
    rank_of_batch[arrival] = np.arange(len(arrival))
    micro_batch = np.empty(len(lengths), dtype=np.int64)
    micro_batch[short] = rank_of_batch[bins]
    micro_batch[long] = rank_of_batch[packs + np.arange(len(long))]
    group = np.concatenate((np.ones(packs, dtype=np.int64), sizes))[arrival]
    ratio = np.concatenate((np.zeros(packs), ratios))[arrival]
    attention_s = problem.piece_s(lengths[short]) - problem.token_s * lengths[short]
    pack_s = problem.micro_batch_s(
        np.bincount(bins, weights=attention_s, minlength=packs),
        np.bincount(bins, weights=lengths[short], minlength=packs),
    )
    time_s = np.concatenate((pack_s, problem.sequence_s(lengths[long], sizes)))[arrival]
    return Pieces.of_whole(lengths, micro_batch), group, ratio, time_s


def plan_naive(problem: PlanningProblem) -> Plan:
    """Plan waves with the rank capacity stated, or with the one that makes the step of this batch shortest.

    Every sequence gets the fewest ranks that hold it, so a large capacity means few, long micro-batches.
    """
    if problem.cost.layout.context.rank_capacity_tokens is not None:
        return naive_waves(problem).plan()
    drafts = naive_drafts(problem)
    first = next(drafts, None)
    if first is None:
        return naive_waves(problem).plan()
    contest = Contest(problem, first.plan(), first.least_s)
    contest.judge()
    for draft in drafts:
        if draft.work_s >= contest.end_s:  # and smaller capacities mean more work
            break
        if draft.least_s < contest.end_s:
            contest.enter(draft.plan(), draft.least_s)
    return contest.best


def naive_drafts(problem: PlanningProblem) -> Iterator[NaiveWaves]:
    """Waves of every capacity that can run, the largest first."""
    for capacity in capacities_below(problem):
        try:
            yield naive_waves(replace(problem, capacity_tokens=capacity))
        except InfeasibleError:  # too many ranks for a long sequence
            return


@dataclass(frozen=True, slots=True)
class NaiveWaves:
    """Micro-batches dealt to ranks wave by wave.

    Attributes:
        group: ranks of every micro-batch.
        ratio: share of its activations that goes to host memory.
        time_s: seconds that the micro-batch takes.
        first: its first rank.
        wave: its slot on all its ranks.
        ideal_s: see Plan.
    """

    problem: PlanningProblem
    pieces: Pieces
    group: Ints
    ratio: Floats
    time_s: Floats
    first: Ints
    wave: Ints
    ideal_s: float

    @property
    def load_s(self) -> Floats:
        """Work of every rank."""
        members, times_s = ranges(self.first, self.group), np.repeat(self.time_s, self.group)
        return np.bincount(members, weights=times_s, minlength=self.problem.ranks).astype(np.float64)

    @property
    def work_s(self) -> float:
        """Mean work of a rank."""
        return float(self.time_s @ self.group) / self.problem.ranks

    @property
    def least_s(self) -> float:
        """A time before which the waves do not end."""
        return float(self.load_s.max()) * NEARLY + self.problem.bubble_weight * float(self.time_s.min())

    def plan(self) -> Plan:
        """The plan."""
        problem, largest = self.problem, counted(int(self.group.max()), "rank")
        return assemble(
            problem,
            self.pieces,
            group_size=self.group,
            member_ranks=ranges(self.first, self.group),
            slot=self.wave,
            offload_ratio=self.ratio,
            keep_holes=problem.in_slots,
            ideal_s=self.ideal_s,
            makespan_s=float(self.load_s.max()),
            padding_tokens=problem.padding_tokens(self.pieces.totals(len(self.group)), self.group),
            notes=(f"largest group {largest}, {len(self.group)} micro-batches",),
        )


def naive_waves(problem: PlanningProblem) -> NaiveWaves:
    """Deal micro-batches to ranks in order, wave by wave: every rank takes one micro-batch per wave.

    The ranks keep the static mesh's division: blocks of as many as the context needs, its context-parallel groups. A
    group needs neighbouring free ranks of one block; what does not fit goes to the first later block with room.
    Equal slots in a group come for free (the wave is the slot), so pipelines need nothing else.
    Source: ByteScale, arXiv 2502.21231: naive HDP has the ranks of the mesh, d_dp x d_cp, and its number of
    micro-batches, and optimises communication alone (sections 8.1 and 8.3). The blocks are inferred: Algorithm 1 does
    not say where a group lies.
    """
    ideal_s = plan_ideal_s(problem)
    pieces, group, ratio, time_s = naive_micro_batches(problem, ideal_s)
    block = -(-problem.context_tokens // problem.capacity_tokens)
    first, wave = _waves(group, problem.ranks, block)
    return NaiveWaves(problem, pieces, group, ratio, time_s, first, wave, ideal_s)


def _waves(group: Ints, ranks: int, block: int) -> tuple[Ints, Ints]:
    """First rank and wave of every micro-batch: the first block of a wave whose free tail is wide enough.

    Blocks have *block* ranks, the last one what is left; no group is larger than a block.
    """
    block = min(block, ranks)
    blocks = -(-ranks // block)
    used: list[int] = []
    # Blocks only fill up: where a size did not fit once, it never will again.
    open_from: dict[int, int] = {}
    first, wave = np.zeros(len(group), dtype=np.int64), np.zeros(len(group), dtype=np.int64)
    for number, size in enumerate(group.tolist()):
        where = open_from.get(size, 0)
        while True:
            if where == len(used):
                used.append(0)
            begin = where % blocks * block
            if used[where] + size <= min(block, ranks - begin):
                break
            where += 1
        first[number], wave[number] = begin + used[where], where // blocks
        used[where] += size
        open_from[size] = where
    return first, wave
