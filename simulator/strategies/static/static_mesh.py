"""The static mesh: packed sequences, one fixed context-parallel degree, equal micro-batch counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import isqrt

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ContextParallelKind
from hdpsim.cost_models.layout_checks import uneven_scan
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.errors import InfeasibleError
from hdpsim.quoting import counted
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.setup import Packing
from hdpsim.simulator.strategies.compare_plans import NEARLY, Contest
from hdpsim.simulator.strategies.problem import PlanningProblem

from .given_packs import in_turn, mesh_plan
from .packing import Pieces, in_chunks, pack_chunked, split_packs

WHOLE_PACKINGS: tuple[Packing, ...] = ("in-order", "first-fit", "best-fit")
"""Packers that keep sequences whole."""
QUICK_PACKING: Packing = "best-fit"
"""The one of them that a quick plan looks at. With all, steps of ten layouts of Mixtral ended up to 1.3 % earlier."""
COSTLY = 8
"""Groups so many times the smallest that cost too much: larger ones cost more."""
RINGS: tuple[ContextParallelKind, ...] = ("ring", "double-ring")
HOPELESS = 1.5
"""So many times the work that would do is too much on larger groups, too, whose pieces are shorter and rings longer."""


def divisors(number: int, least: int, most: int) -> list[int]:
    """Divisors of *number* from *least* to *most*, ascending."""
    small = [factor for factor in range(1, isqrt(number) + 1) if number % factor == 0]
    every = sorted({*small, *(number // factor for factor in small)})
    return [divisor for divisor in every if least <= divisor <= most]


def likely_degrees(problem: PlanningProblem, below_s: float) -> list[int]:
    """Sizes of equal groups that hold the longest sequence whole and take it through all stages before *below_s*."""
    longest = int(problem.lengths.max())
    degrees = divisors(problem.ranks, -(-longest // problem.capacity_tokens), problem.most_ranks)
    alone_s = problem.sequence_s(np.full(len(degrees), longest), degrees)
    return [
        degree
        for degree, time_s in zip(degrees, alone_s.tolist(), strict=True)
        if time_s * (1.0 + NEARLY * problem.bubble_weight) < below_s
    ]


def mesh_degrees(problem: PlanningProblem) -> list[int]:
    """Context-parallel degrees the mesh may have: the one asked for, else every divisor of the ranks that fits."""
    needed = -(-problem.context_tokens // problem.capacity_tokens)
    asked = problem.cost.layout.parallel.cp
    most = problem.most_ranks
    if asked is not None:
        if problem.ranks % asked:
            raise InfeasibleError(f"{problem.ranks} ranks do not divide by cp = {asked}")
        if asked < needed:
            raise InfeasibleError(
                f"cp = {asked}: {counted(asked, 'rank')} of {problem.capacity_tokens} tokens cannot hold a context of "
                f"{problem.context_tokens} tokens; cp must be at least {needed}"
            )
        if asked > most:
            raise InfeasibleError(f"cp = {asked} is too many ranks: {problem.spread_reason}")
        return [asked]
    if needed > problem.ranks:
        raise InfeasibleError(
            f"a context of {problem.context_tokens} tokens needs {needed} ranks of {problem.capacity_tokens} tokens, "
            f"but there are only {problem.ranks}: gpus / (tp x pp); a rank has the tokens of layout.rank_capacity"
        )
    cost = problem.cost
    every = divisors(problem.ranks, needed, most)
    degrees = [degree for degree in every if not uneven_scan(cost.model, cost.layout, degree)]
    if every and not degrees:
        raise InfeasibleError(uneven_scan(cost.model, cost.layout, every[0]))
    if not degrees:
        room = f"{needed} ranks of {problem.capacity_tokens} tokens"
        needs = f"a context of {problem.context_tokens} tokens needs {room}"
        if needed > most:
            raise InfeasibleError(f"{needs}; {problem.spread_reason}")
        none = f"none of {needed} to {most} divides the {problem.ranks} ranks"
        raise InfeasibleError(f"{needs} or more; {problem.spread_reason}, and {none}")
    return degrees


def ring_chunks(layout: Layout, degree: int) -> int:
    """Chunks into which *degree* ranks cut every sequence of a pack (see in_chunks): one where they are no ring."""
    by_document = layout.context.sharding in (None, "document")
    return 2 * degree if degree > 1 and by_document and layout.context.kind in RINGS else 1


def plan_static(problem: PlanningProblem) -> Plan:
    """Pack to the context length and deal the packs round robin to the data-parallel groups.

    Without a degree asked for, the mesh has the one that makes the step of this batch shortest, of all that hold the
    context: more memory adds degrees and takes none away.

    Micro-batches of a static mesh have one shape (pipelines exchange fixed buffers, kernels and graphs are built
    once): with `padding` a pack that is not full is computed and sent round the ring as if it were, attention apart.

    DualPipe wants the same even number of packs everywhere: packs are split until there are so many.

    With `balancing` and without dynamic groups (an HDP ablation) packs go to the least-loaded group instead,
    longest first; the mesh itself stays.
    """
    first, *others = _static_drafts(problem)
    if not others:
        return first.plan()
    contest = Contest(problem, first.plan(), first.least_s)
    contest.judge()
    for draft in others:
        if draft.least_s * NEARLY < contest.end_s:
            contest.enter(draft.plan(), draft.least_s * NEARLY)
    return contest.best


def _static_drafts(problem: PlanningProblem) -> list[MeshDraft]:
    """A mesh of every degree that can run, the quickest at best first.

    Raises:
        InfeasibleError: no degree can run.
    """
    options = problem.options
    longest_first = options.name != "static" and options.balancing
    drafts: list[MeshDraft] = []
    reason: InfeasibleError | None = None
    known: dict[tuple[int, int], MeshPacks] = {}
    packed = partial(MeshPacks.of, problem, options.packing, padding=options.padding)
    by_groups = problem.cost.layout.pipeline.schedule == "dualpipe"  # whose packs depend on them
    for degree in mesh_degrees(problem):
        key = (ring_chunks(problem.cost.layout, degree), degree * by_groups)
        try:
            packs = known.get(key) or packed(degree=degree)
        except InfeasibleError as error:
            reason = reason or error
            continue
        known[key] = packs
        drafts.append(MeshDraft.of(problem, packs, degree, longest_first=longest_first))
    if reason and not drafts:
        raise reason
    return sorted(drafts, key=lambda draft: draft.least_s)


@dataclass(frozen=True, slots=True)
class MeshPacks:
    """Sequences packed up to the context.

    Attributes:
        pieces: by pack.
        offsets: of every pack's first piece.
        padding_tokens: per pack; None: packs stay as they are.
    """

    pieces: Pieces
    offsets: Ints
    padding_tokens: Ints | None

    @classmethod
    def of(cls, problem: PlanningProblem, packing: Packing, *, padding: bool, degree: int) -> MeshPacks:
        """The packs of a batch for groups of *degree* ranks."""
        context, chunks = problem.context_tokens, ring_chunks(problem.cost.layout, degree)
        pieces = pack_chunked(problem.lengths, context, packing, chunks)
        if (pieces.micro_batch[1:] < pieces.micro_batch[:-1]).any():  # some packers choose from all sequences
            pieces = pieces.at(np.argsort(pieces.micro_batch, kind="stable"))
        if problem.cost.layout.pipeline.schedule == "dualpipe":
            pieces = _both_ways(problem, pieces, problem.ranks // degree)
        counts = np.bincount(pieces.micro_batch)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        held = np.add.reduceat(pieces.tokens, offsets[:-1])
        fill = np.add.reduceat(in_chunks(pieces.tokens, context, packing, chunks), offsets[:-1]) - held
        return cls(pieces, offsets, context - held if padding else fill if fill.any() else None)

    @property
    def count(self) -> int:
        """Number of packs."""
        return len(self.offsets) - 1

    def same_as(self, other: MeshPacks) -> bool:
        """Do both hold the same pieces in the same packs, padded or not?"""
        return (
            (self.padding_tokens is None) == (other.padding_tokens is None)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.pieces.sequence, other.pieces.sequence)
        )

    def batches(self, problem: PlanningProblem, degree: int) -> MicroBatches:
        """The packs on neighbouring groups of *degree* ranks."""
        return MicroBatches(
            segment_tokens=self.pieces.tokens,
            segment_offsets=self.offsets,
            group_size=np.full(self.count, degree, dtype=np.int64),
            tier=np.full(self.count, problem.compact_tier(degree), dtype=np.int64),
            offload_ratio=np.full(self.count, problem.mesh_offload_ratio),
            padding_tokens=self.padding_tokens,
        )

    def times_s(self, problem: PlanningProblem, degree: int) -> Floats:
        """Time of every pack on *degree* neighbouring ranks."""
        return problem.cost.busy_s(self.batches(problem, degree))


@dataclass(frozen=True, slots=True)
class MeshDraft:
    """A mesh: its groups, its packs and how they are dealt.

    Attributes:
        work_s: mean work of a rank.
        least_s: a time before which the mesh does not end.
    """

    problem: PlanningProblem
    packs: MeshPacks
    degree: int
    times_s: Floats
    longest_first: bool
    work_s: float
    least_s: float

    @classmethod
    def of(
        cls, problem: PlanningProblem, packs: MeshPacks, degree: int, *, longest_first: bool = False
    ) -> MeshDraft:
        """Work out what packs take on groups of *degree* ranks."""
        times_s = packs.times_s(problem, degree)
        shortest_s = float(times_s.min())
        work_s = float(times_s.sum()) * degree / problem.ranks
        slots = -(-packs.count // (problem.ranks // degree))
        least_s = max(work_s, float(times_s.max()), slots * shortest_s) + problem.bubble_weight * shortest_s
        return cls(problem, packs, degree, times_s, longest_first, work_s, least_s)

    def plan(self) -> Plan:
        """Deal packs to groups, in turn or longest first."""
        problem, packed, degree, times_s = self.problem, self.packs, self.degree, self.times_s
        groups, packs, pieces = problem.ranks // degree, packed.count, packed.pieces
        if self.longest_first:
            group, slot = _longest_first(times_s, groups)
            dealt = group, np.lexsort((slot, group)), np.bincount(group, minlength=groups)
            alike = False
        else:
            alike = packed.batches(problem, degree).alike
            dealt = in_turn(packs, groups)
        if alike:  # groups that cross a node or a block are slower
            stride = problem.cost.layout.parallel.rank_stride
            alike = rings_alike(problem.cost.fabric, min(groups, packs), degree, stride)
        full = int(pieces.tokens.sum()) / packs / problem.context_tokens
        return mesh_plan(
            problem,
            pieces._replace(tokens=pieces.tokens.copy()),  # may be the caller's lengths
            packed.offsets,
            degree,
            dealt,
            capacity_tokens=problem.capacity_tokens,
            padding_tokens=packed.padding_tokens,
            makespan_s=float(np.bincount(dealt[0], weights=times_s, minlength=groups).max()),
            in_step=alike,
            notes=(
                f"static mesh: cp {degree} x dp {groups}, {packs} packs, {full:.1%} full",
                *_refused_elsewhere(problem, packs, groups),
            ),
        )


REFUSED_BY_OTHERS = "training programs refuse that"
"""In notes: the mesh can be simulated, but not started."""


def _refused_elsewhere(problem: PlanningProblem, packs: int, groups: int) -> Iterator[str]:
    """Numbers of micro-batches that frameworks do not take.

    Equal sequences make so many in every step; of others a loader packs as many as the groups take.
    Source: megatron/core/num_microbatches_calculator.py (a global batch divides by micro-batch times groups);
    megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving (the last group of
    micro-batches has none or at least pp).
    """
    layout, slots = problem.cost.layout, -(-packs // groups)
    turns = layout.pipeline.schedule == "interleaved"
    whole = groups * (layout.parallel.pp if turns else 1)
    fits = " or ".join(
        f"{count:,}" for count in (packs // whole * whole, -(-packs // whole) * whole) if count
    )
    advice = f"{REFUSED_BY_OTHERS}; {fits} micro-batches suit (data.batch)"
    if packs < groups:
        yield (
            f"{groups - packs} of {groups} data-parallel groups have no micro-batch: the batch makes {packs}; {advice}"
        )
    elif turns and slots % layout.parallel.pp:
        yield f"interleaved: {slots} micro-batches of a group are no multiple of pp = {layout.parallel.pp}; {advice}"
    elif packs % groups and (problem.lengths == problem.lengths[0]).all():
        yield f"{packs:,} micro-batches do not divide among {groups:,} data-parallel groups; {advice}"


def mesh_drafts(problem: PlanningProblem, below_s: float) -> list[MeshDraft]:
    """Meshes that may end before *below_s*: of every degree and packer, dealt in turn and longest first.

    The quickest at best come first. Where the longest sequence of the batch is shorter than the context, groups may
    be smaller than the context needs, and so are packs. The first packer takes little time and stands for the others:
    where its work would take too long even in the fewest packs, with the bubble of a mean one, they would, too.
    """
    ranks = problem.ranks
    packed: dict[tuple[Packing, int, bool, int], MeshPacks] = {}
    # Packs of one shape hide more of the epilogue than short ones, so that padding may be worth its work.
    paddings = (False, True) if problem.options.padding else (False,)
    # Who lets a static mesh cut sequences accepts it from any plan.
    cut: tuple[Packing, ...] = ("concatenate",) if problem.options.packing == "concatenate" else ()
    packings = ((QUICK_PACKING,) if problem.quick else WHOLE_PACKINGS) + cut
    drafts = []
    needed = -(-int(problem.lengths.max()) // problem.capacity_tokens)
    for degree in likely_degrees(problem, np.inf if cut else below_s):
        full, groups = min(problem.context_tokens, degree * problem.capacity_tokens), ranks // degree
        fewest = -(-int(problem.lengths.sum()) // full)
        # A mean pack's bubble over a group's work.
        idle = NEARLY * problem.bubble_weight / -(-fewest // groups)
        seen: list[MeshPacks] = []
        hopeless, alone_s = False, np.inf
        chunks = ring_chunks(problem.cost.layout, degree)
        for packing, padding in product(packings, paddings):
            if padding and alone_s >= below_s:  # nothing ends earlier with padding
                continue
            key = (packing, full, padding, chunks)
            if key not in packed:
                shorter = replace(problem, context_tokens=full)
                packed[key] = MeshPacks.of(shorter, packing, padding=padding, degree=degree)
            packs = packed[key]
            if any(packs.same_as(other) for other in seen):
                continue
            draft = MeshDraft.of(problem, packs, degree)
            alone_s = alone_s if padding else draft.least_s
            at_best_s = draft.work_s * fewest / packs.count * (1.0 + idle)
            if not seen and at_best_s >= below_s:
                hopeless = at_best_s >= HOPELESS * below_s
                break
            seen.append(packs)
            if draft.least_s < below_s:
                drafts.append(draft)
                if packs.count > groups:
                    drafts.append(replace(draft, longest_first=True))
        if not seen and (hopeless or degree > COSTLY * needed):
            break
    return sorted(drafts, key=lambda draft: draft.least_s)


@lru_cache(maxsize=1024)
def rings_alike(fabric: FabricModel, groups: int, degree: int, stride: int) -> bool:
    """Whether the rings of the first *groups* groups of neighbouring ranks, *stride* GPUs apart, are equally fast."""
    if degree == 1:
        return True
    gpus = np.arange(groups * degree, dtype=np.int64) * stride
    offsets = np.arange(groups + 1, dtype=np.int64) * degree
    tiers, crossing = fabric.ring_tiers(gpus, offsets), fabric.ring_crossing(gpus, offsets, stride)
    return bool((tiers == tiers[0]).all() and (crossing is None or (crossing == crossing[0]).all()))


def _both_ways(problem: PlanningProblem, pieces: Pieces, groups: int) -> Pieces:
    """Packs for DualPipe, which starts micro-batches at both ends: every group gets the same even number of them.

    Packs of several sequences are taken apart until there are enough: at least 2 pp for each group.

    Raises:
        InfeasibleError: there are fewer sequences than that takes packs.
    """
    packs, pairs = int(pieces.micro_batch[-1]) + 1, 2 * groups
    needed = max(problem.stages, -(-packs // pairs)) * pairs
    if needed > len(pieces.tokens):
        raise InfeasibleError(
            f"layout.schedule = dualpipe needs the same even number of micro-batches on each of {groups} data-parallel "
            f"groups, at least 2 pp = {2 * problem.stages}: {needed} in all, and the batch has "
            f"{len(pieces.tokens)} sequences to make them of; take a larger data.batch, a larger cp or another schedule"
        )
    return split_packs(pieces, needed - packs)


def _longest_first(times: Floats, groups: int) -> tuple[Ints, Ints]:
    load, count = np.zeros(groups), np.zeros(groups, dtype=np.int64)
    group, slot = np.zeros(len(times), dtype=np.int64), np.zeros(len(times), dtype=np.int64)
    for number in np.argsort(-times, kind="stable"):
        where = int(load.argmin())
        group[number], slot[number] = where, count[where]
        load[where] += times[number]
        count[where] += 1
    return group, slot
