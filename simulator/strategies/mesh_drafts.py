"""Static meshes as candidates of a planner that may run any plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hdpsim.simulator.setup import Packing
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static_mesh import MeshDraft, MeshPacks, divisors

WHOLE_PACKINGS: tuple[Packing, ...] = ("in-order", "first-fit", "best-fit")
"""Packers that keep sequences whole."""
COSTLY = 8
"""Groups so many times the smallest that cost too much: larger ones cost more."""


def mesh_drafts(problem: PlanningProblem, below_s: float) -> list[MeshDraft]:
    """Meshes that may end before *below_s*: of every degree and packer, dealt in turn and longest first.

    The quickest at best come first. Where the longest sequence of the batch is shorter than the context, groups may
    be smaller than the context needs, and so are packs. The first packer takes little time and stands for the others:
    where its work would take too long even in the fewest packs, they would, too.
    """
    ranks = problem.ranks
    packed: dict[tuple[Packing, int, bool], MeshPacks] = {}
    # Packs of one shape hide more of the epilogue than short ones, so that padding may be worth its work.
    paddings = (False, True) if problem.options.padding else (False,)
    # Who lets a static mesh cut sequences accepts it from any plan.
    cut = problem.options.packing == "concatenate"
    packings: tuple[Packing, ...] = (*WHOLE_PACKINGS, "concatenate") if cut else WHOLE_PACKINGS
    drafts = []
    needed = -(-int(problem.lengths.max()) // problem.capacity_tokens)
    for degree in divisors(ranks, needed, problem.most_ranks):
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
            draft = MeshDraft.of(problem, packs, degree)
            if not seen and draft.work_s * fewest / packs.count >= below_s:
                break
            seen.append(packs)
            if draft.least_s < below_s:
                drafts.append(draft)
                if packs.count > ranks // degree:
                    drafts.append(replace(draft, longest_first=True))
        if not seen and degree > COSTLY * needed:
            break
    return sorted(drafts, key=lambda draft: draft.least_s)
