"""The best of several plans: balanced ones with packs of several sizes, meshes of equal groups, and naive waves.

Group sizes follow from time as well as from memory: what a rank can hold is a limit and no aim. Where sequences are
few, packs smaller than memory allows leave more sequences to be shared, and more slots to fill a pipeline with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.contest import NEARLY, Contest
from hdpsim.simulator.strategies.hdp.naive import naive_drafts, naive_waves
from hdpsim.simulator.strategies.opt.group_choices import usual_s
from hdpsim.simulator.strategies.opt.hdp_opt import WORTH_IT, balanced_draft
from hdpsim.simulator.strategies.opt.long_sequences import LongSequences, ideal_step_s
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.static_mesh import mesh_drafts

SLOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Packs of a rank that are considered: each of a share of the tokens that a rank gets on average."""
CONTEXT_SHARES = (1, 2, 4, 8)
"""Parts of the context that are considered as packs, too: sizes that do not depend on what memory allows."""
SMALL = 4096
"""Sequences and ranks up to which planning once more takes some milliseconds.

Above, packs smaller than the capacity were better by 0.01 % at most (17 batches of shipped scenarios and others like
them), and took two to fifteen times as long to plan.
"""
LOOKED_AT, PLANNED = 24, 12
"""Sizes of packs whose ideal step is worked out at most, and that are planned at most."""
SHARING_SAVES = 0.9
"""Work on the best groups over that on one rank, at least: tiles and short kernels fit better or worse."""
UNBALANCED = 1.3
"""Naive waves of many micro-batches are no better than a plan that ends this close to its ideal."""


def plan_best(problem: PlanningProblem) -> Plan:
    """Plan with the capacity as the size of packs, then whatever else may end earlier, and take the best.

    A candidate is planned where its ideal (all ranks filled without gaps) ends before the best plan so far. The
    planner's own times leave out transfers, what distinguishes stages and what the epilogue hides behind, so a plan
    that may be the best is priced and played as the step will be, without noise. A quick plan, or one of many
    sequences, is the balanced one, or a mesh that ends earlier.
    """
    small = len(problem.lengths) + problem.ranks <= SMALL and not problem.quick
    draft = balanced_draft(problem)
    contest = Contest(problem, draft.plan(), draft.end_s, reorders=True)
    if small:
        contest.judge()
    for target in _targets(problem, contest.end_s / WORTH_IT) if small else []:
        if target.step_s * WORTH_IT < contest.end_s:
            other = balanced_draft(target.problem)
            contest.enter(other.plan(), other.end_s * NEARLY)
    for mesh in mesh_drafts(problem, contest.end_s):
        if mesh.least_s < contest.end_s:
            contest.enter(mesh.plan(), mesh.least_s)
    if small or contest.end_s > UNBALANCED * (draft.ideal_s + draft.bubbles_s):
        naive = naive_waves(problem).plan()
        contest.enter(naive, naive.makespan_s)
    if small and problem.cost.layout.context.rank_capacity_tokens is None:
        for waves in naive_drafts(problem):
            if waves.least_s < contest.end_s:
                contest.enter(waves.plan(), waves.least_s)
    return contest.best


@dataclass(frozen=True, slots=True)
class _Target:
    """The problem with packs of a certain size, and a step that its plans hardly undercut."""

    problem: PlanningProblem
    step_s: float


def _targets(problem: PlanningProblem, below_s: float) -> list[_Target]:
    """Sizes of packs below the capacity whose ideal step is below *below_s*, the shortest first."""
    mean = int(problem.lengths.sum()) / problem.ranks
    sizes = {int(np.ceil(mean / slots)) for slots in SLOTS}
    sizes |= {problem.context_tokens // share for share in CONTEXT_SHARES} - {0}
    alone_s = problem.cost.sequence_s(problem.lengths, 1, 0)
    if problem.error is not None:
        alone_s = problem.piece_s(problem.lengths) - problem.token_s * problem.lengths
    # Sharing takes hardly less work than one rank would.
    work_s = np.maximum(alone_s + problem.token_s * problem.lengths, problem.floor_s) + problem.fixed_s
    likely = []
    for size in sorted((size for size in sizes if size < problem.capacity_tokens), reverse=True):
        smaller = replace(problem, pack_tokens=size)
        inside = problem.lengths <= size
        packs = float(problem.lengths[inside].sum()) / size
        short_s = 0.0
        if packs:
            short_s = packs * float(smaller.micro_batch_s(float(alone_s[inside].sum()) / packs, size))
        usual = usual_s(smaller) if packs else 0.0
        at_best_s = (short_s + float(work_s[~inside].sum())) / problem.ranks
        if at_best_s * SHARING_SAVES + problem.bubble_weight * usual < below_s:
            likely.append(
                (at_best_s + problem.bubble_weight * usual, -size, smaller, usual, short_s, at_best_s)
            )
        if not packs:  # smaller packs are none either
            break
    likely.sort(key=lambda entry: entry[:2])
    targets = []
    for *_, smaller, usual, short_s, at_best_s in likely[:LOOKED_AT]:
        step_s, _ = ideal_step_s(smaller, LongSequences(smaller), usual, short_s, at_best_s * SHARING_SAVES)
        if step_s < below_s:
            targets.append(_Target(smaller, step_s))
    return sorted(targets, key=lambda target: target.step_s)[:PLANNED]
