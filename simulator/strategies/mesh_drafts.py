"""Static meshes as candidates of a planner that may run any plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hdpsim.simulator.plan import Plan
from hdpsim.simulator.setup import Packing
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static_mesh import MeshPacks, mesh_plan

WHOLE_PACKINGS: tuple[Packing, ...] = ("in-order", "first-fit", "best-fit")
"""Packers that keep sequences whole."""
COSTLY = 8
"""Groups so many times the smallest that cost too much: larger ones cost more."""


@dataclass(frozen=True, slots=True)
class MeshDraft:
    """A mesh: its groups, its packs and how they are dealt.

    Attributes:
        least_s: a time before which the mesh does not end.
    """

    problem: PlanningProblem
    packs: MeshPacks
    degree: int
    times_s: NDArray[np.float64]
    longest_first: bool
    least_s: float

    def plan(self) -> Plan:
        """The plan."""
        return mesh_plan(
            self.problem, self.packs, self.degree, self.times_s, longest_first=self.longest_first
        )


def mesh_drafts(problem: PlanningProblem, below_s: float) -> list[MeshDraft]:
    """Meshes that may end before *below_s*: of every degree and packer, dealt in turn and longest first.

    The quickest at best come first. Where the longest sequence of the batch is shorter than the context, groups may
    be smaller than the context needs, and so are packs. The first packer takes little time and stands for the others:
    where its work would take too long even in the fewest packs, they would, too.
    """
    ranks, weight = problem.ranks, problem.bubble_weight
    packed: dict[tuple[Packing, int, bool], MeshPacks] = {}
    # Packs of one shape hide more of the epilogue than short ones, so that padding may be worth its work.
    paddings = (False, True) if problem.options.padding else (False,)
    # Who lets a static mesh cut sequences accepts it from any plan.
    cut = problem.options.packing == "concatenate"
    packings: tuple[Packing, ...] = (*WHOLE_PACKINGS, "concatenate") if cut else WHOLE_PACKINGS
    drafts = []
    needed = -(-int(problem.lengths.max()) // problem.capacity_tokens)
    for degree in (degree for degree in range(needed, problem.most_ranks + 1) if ranks % degree == 0):
        full = min(problem.context_tokens, degree * problem.capacity_tokens)
        fewest = -(-int(problem.lengths.sum()) // full)
        seen: list[MeshPacks] = []
        for packing, padding in product(packings, paddings):
            packs = packed.get((packing, full, padding))
            if packs is None:
                packs = MeshPacks.of(
                    replace(problem, context_tokens=full), packing, padding=padding, groups=ranks // degree
                )
                packed[packing, full, padding] = packs
            if any(packs.same_as(other) for other in seen):
                continue
            times_s = packs.times_s(problem, degree)
            shortest_s = float(times_s.min())
            work_s = float(times_s.sum()) * degree / ranks
            if not seen and work_s * fewest / packs.count >= below_s:
                break
            seen.append(packs)
            slots = -(-packs.count // (ranks // degree))
            least_s = max(work_s, float(times_s.max()), slots * shortest_s) + weight * shortest_s
            if least_s < below_s:
                for longest_first in (False, True) if slots > 1 else (False,):
                    drafts.append(MeshDraft(problem, packs, degree, times_s, longest_first, least_s))
        if not seen and degree > COSTLY * needed:
            break
    return sorted(drafts, key=lambda draft: draft.least_s)
