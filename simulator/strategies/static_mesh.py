"""The static mesh: packed sequences, one fixed context-parallel degree, equal micro-batch counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cost_models.micro_batch import MicroBatches
from hdpsim.errors import InfeasibleError
from simulator.plan import Plan
from simulator.strategies.assembly import Pieces, assemble, ranges
from simulator.strategies.lower_bound import lower_bound_s
from simulator.strategies.packing import pack
from simulator.strategies.problem import PlanningProblem

__all__ = ["plan_static", "static_group_size"]

Ints = NDArray[np.int64]


def static_group_size(problem: PlanningProblem) -> int:
    """The mesh's CP degree: as asked, else the smallest divisor of the ranks that supports the context."""
    needed = -(-problem.context_tokens // problem.capacity_tokens)
    asked = problem.cost.layout.cp
    if asked is not None:
        if problem.ranks % asked:
            raise InfeasibleError(f"{problem.ranks} ranks do not divide by cp = {asked}")
        if asked < needed:
            raise InfeasibleError(
                f"cp = {asked} ranks of {problem.capacity_tokens} tokens cannot hold a context of "
                f"{problem.context_tokens} tokens; cp must be at least {needed}"
            )
        return asked
    if needed > problem.ranks:
        raise InfeasibleError(
            f"a context of {problem.context_tokens} tokens needs {needed} ranks of {problem.capacity_tokens} tokens, "
            f"but there are only {problem.ranks}"
        )
    return next(degree for degree in range(needed, problem.ranks + 1) if problem.ranks % degree == 0)


def plan_static(problem: PlanningProblem) -> Plan:
    """Pack to the context length and deal the packs round robin to the data-parallel groups.

    Micro-batches of a static mesh have one shape (pipelines exchange fixed buffers, kernels and graphs are built
    once): with `padding` a pack that is not full is computed and sent round the ring as if it were, attention apart.

    With `balancing` and without dynamic groups (an HDP ablation) packs go to the least-loaded group instead,
    longest first; the mesh itself stays.
    """
    degree = static_group_size(problem)
    groups = problem.ranks // degree
    pieces = pack(problem.lengths, problem.context_tokens, problem.options.packing)
    packs = int(pieces.micro_batch.max()) + 1
    held = np.bincount(pieces.micro_batch, weights=pieces.tokens, minlength=packs).astype(np.int64)
    padding = problem.context_tokens - held if problem.options.padding else None
    times = _pack_s(problem, pieces, packs, degree, padding)
    numbers = np.arange(packs, dtype=np.int64)
    group, slot = numbers % groups, numbers // groups
    if problem.options.name != "static" and problem.options.balancing:
        group, slot = _longest_first(times, groups)
    member_ranks = ranges(group * degree, np.full(packs, degree, dtype=np.int64))
    return assemble(
        strategy=problem.options.name,
        ranks=problem.ranks,
        capacity_tokens=problem.capacity_tokens,
        pieces=pieces,
        member_ranks=member_ranks,
        member_offsets=np.arange(packs + 1, dtype=np.int64) * degree,
        slot=np.repeat(slot, degree),
        offload_ratio=np.zeros(packs),
        keep_holes=problem.stages > 1,
        lower_bound_s=lower_bound_s(replace(problem, lengths=pieces.tokens)),  # a packer may split sequences
        makespan_s=float(np.bincount(group, weights=times, minlength=groups).max()),
        notes=(
            f"static mesh: cp {degree} x dp {groups}, {packs} packs, {held.mean() / problem.context_tokens:.1%} full",
        ),
        padding_tokens=padding,
    )


def _pack_s(
    problem: PlanningProblem, pieces: Pieces, packs: int, degree: int, padding: Ints | None
) -> NDArray[np.float64]:
    """Time of every pack on its group of neighbouring ranks."""
    by_pack = np.argsort(pieces.micro_batch, kind="stable")
    counts = np.bincount(pieces.micro_batch, minlength=packs)
    return problem.cost.busy_s(
        MicroBatches(
            segment_tokens=pieces.tokens[by_pack],
            segment_offsets=np.concatenate(([0], np.cumsum(counts))),
            group_size=np.full(packs, degree, dtype=np.int64),
            tier=np.full(packs, problem.compact_tier(degree), dtype=np.int64),
            offload_ratio=np.zeros(packs),
            padding_tokens=padding,
        )
    )


def _longest_first(times: NDArray[np.float64], groups: int) -> tuple[Ints, Ints]:
    load, count = np.zeros(groups), np.zeros(groups, dtype=np.int64)
    group, slot = np.zeros(len(times), dtype=np.int64), np.zeros(len(times), dtype=np.int64)
    for number in np.argsort(-times, kind="stable"):
        where = int(load.argmin())
        group[number], slot[number] = where, count[where]
        load[where] += times[number]
        count[where] += 1
    return group, slot
