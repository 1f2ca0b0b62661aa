"""Rounds: sequences of like length run at the same time, on equal groups, whose size every round has of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints, ranges
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.packing import Pieces, assemble
from hdpsim.simulator.strategies.static.static_mesh import divisors
from hdpsim.simulator.strategies.static.wlb_llm import fitting_packs, work_s

CUTS = 32
"""Places between rounds that are looked at: so many by number of sequences (closer among the longest), and by work."""
MOST_ROUNDS = 16
"""Where there are more, other plans are balanced."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a round takes that holds the sequences between two cuts, longest first, as one pack for every group.

        time = max(least, min over d of max(work of the longest on d ranks, work of all on d ranks x d / ranks))

    Counted: memory, the least time of a micro-batch (launches, gathers of sharded parameters).
    Ignored: what whole sequences leave over on a group.

    Attributes:
        order: sequences, longest first.
        cuts: places in it.
        degrees: sizes of groups.
        work_s: [degrees, sequences].
        time_s: [cuts, cuts] of a round from one to the other, infinite where it has no room.
        best: [cuts, cuts], the degree that takes least.
    """

    problem: PlanningProblem
    order: Ints
    cuts: Ints
    degrees: list[int]
    work_s: Floats
    time_s: Floats
    best: Ints

    @classmethod
    def of(cls, problem: PlanningProblem) -> Rounds:
        """Price every round."""
        order = np.argsort(-problem.lengths, kind="stable")
        lengths, count = problem.lengths[order], len(order)
        degrees = divisors(problem.ranks, 1, problem.most_ranks)
        size = np.array(degrees)[:, None]
        work = np.stack([work_s(problem, degree)[order] for degree in degrees])
        done_s = np.hstack([np.zeros((len(degrees), 1)), np.cumsum(work * size, axis=1) / problem.ranks])
        by_work = np.searchsorted(done_s[0], done_s[0, -1] * np.arange(1, CUTS) / CUTS)
        cuts = np.unique(np.concatenate(([0, count], by_work, np.geomspace(1, count, CUTS).astype(np.int64))))
        first, until_s = np.minimum(cuts, count - 1), done_s[:, cuts]
        longest_s = np.where(lengths[first] <= size * problem.capacity_tokens, work[:, first], np.inf)
        every_s = np.maximum(longest_s[:, :, None], until_s[:, None, :] - until_s[:, :, None])
        least_s = float(problem.cost.busy_s(MicroBatches.single(np.ones(1, dtype=np.int64)))[0])
        time_s = np.maximum(every_s.min(axis=0) + problem.fixed_s, least_s)
        held = np.concatenate(([0], np.cumsum(lengths)))[cuts]
        full = held[None, :] - held[:, None] > problem.ranks * problem.capacity_tokens
        time_s[full | (cuts[None, :] <= cuts[:, None])] = np.inf
        return cls(problem, order, cuts, degrees, work, time_s, every_s.argmin(axis=0))

    def ways(self) -> list[tuple[float, list[tuple[int, int]]]]:
        """Of every number of rounds those that take least together: when they end and their cuts; the shortest first.

        A pipeline idles w times the longest round besides.
        """
        found = []
        until_s, came_from = self.time_s[0], list[Ints]()
        for _ in range(MOST_ROUNDS):
            if np.isfinite(until_s[-1]):
                cuts = [len(self.cuts) - 1]
                for before in reversed(came_from):
                    cuts.append(int(before[cuts[-1]]))
                rounds = list(zip([0, *cuts[:0:-1]], cuts[::-1], strict=True))
                longest_s = max(float(self.time_s[one]) for one in rounds)
                found.append((float(until_s[-1]) + self.problem.bubble_weight * longest_s, rounds))
            then_s = until_s[:, None] + self.time_s
            came_from.append(then_s.argmin(axis=0))
            until_s = then_s.min(axis=0)
        return sorted(found)

    def plan(self, rounds: list[tuple[int, int]]) -> Plan:
        """The plan: in every round packs of equal work; one that memory makes too many comes after the others."""
        problem, micro_batch = self.problem, np.empty(len(self.order), dtype=np.int64)
        sizes, first_ranks, slots, made, slot = list[Ints](), list[Ints](), list[Ints](), 0, 0
        for begin, end in rounds:
            row, part = int(self.best[begin, end]), slice(self.cuts[begin], self.cuts[end])
            degree, sequences = self.degrees[row], self.order[part]
            groups, room = problem.ranks // degree, degree * problem.capacity_tokens
            pack = fitting_packs(problem.lengths[sequences], self.work_s[row, part], groups, groups, room)
            micro_batch[sequences] = made + pack
            number = np.arange(int(pack.max()) + 1)
            sizes.append(np.full(len(number), degree))
            first_ranks.append(number % groups * degree)
            slots.append(slot + number // groups)
            made, slot = made + len(number), int(slots[-1][-1]) + 1
        size = np.concatenate(sizes)
        return assemble(
            problem,
            Pieces.of_whole(problem.lengths, micro_batch),
            group_size=size,
            member_ranks=ranges(np.concatenate(first_ranks), size),
            slot=np.concatenate(slots),
            offload_ratio=np.zeros(made),
            keep_holes=problem.in_slots,
            makespan_s=float(sum(self.time_s[one] for one in rounds)),
            notes=(
                f"{len(rounds)} rounds of equal groups of {', '.join(str(one[0]) for one in sizes)} ranks",
            ),
        )
