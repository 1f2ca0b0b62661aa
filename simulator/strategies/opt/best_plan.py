"""The best of several plans: balanced ones with packs of several sizes, meshes of equal groups, and naive waves.

Group sizes follow from time as well as from memory: what a rank can hold is a limit and no aim. Where sequences are
few, packs smaller than memory allows leave more sequences to be shared, and more slots to fill a pipeline with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hdpsim.errors import InfeasibleError, PlanError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.call_own_strategy import check_plan
from hdpsim.simulator.strategies.compare_plans import NEARLY, Contest
from hdpsim.simulator.strategies.hdp.balance import plan_balanced
from hdpsim.simulator.strategies.hdp.groups import paper_groups
from hdpsim.simulator.strategies.hdp.naive import naive_drafts, naive_waves
from hdpsim.simulator.strategies.megatron.pipelined import balanced_with_pp
from hdpsim.simulator.strategies.megatron.schedulers import dynamic_cp
from hdpsim.simulator.strategies.opt.group_choices import usual_s
from hdpsim.simulator.strategies.opt.hdp_opt import WORTH_IT, Draft, balanced_draft, draft_below
from hdpsim.simulator.strategies.opt.long_sequences import LongSequences, ideal_step_s
from hdpsim.simulator.strategies.opt.rounds import Rounds
from hdpsim.simulator.strategies.opt.second_opinion import WeighedError
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.static_mesh import likely_degrees, mesh_degrees, mesh_drafts
from hdpsim.simulator.strategies.static.wlb_llm import plan_equal_work, plan_wlb_llm, work_s

SLOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Packs of a rank that are considered: each of a share of the tokens that a rank gets on average."""
CONTEXT_SHARES = (1, 2, 4, 8)
"""Parts of the context that are considered as packs, too: sizes that do not depend on what memory allows."""
ALIKE = 0.9
"""Sizes this close make much the same plans of many sequences; of few plans differ by up to 1.4 %."""
FEW_TOKENS = 0.02
"""Share of the tokens in packs below which their size does not matter, where sequences are many."""
SMALL = 4096
"""Sequences and ranks up to which planning once more takes some milliseconds.

Above, packs smaller than the capacity were better by 0.01 % at most (17 batches of shipped scenarios and others like
them), and took two to fifteen times as long to plan.
"""
FEW = 1024
"""Sequences up to which Megatron-Core's dynamic CP, in pure Python, takes some hundredths of a second."""
PLANNED = (12, 4)
"""Sizes of packs that are planned at most: of a large batch few, and none after one that is balanced."""
SHARING_SAVES = 0.9
"""Work on the best groups over that on one rank, at least: tiles and short kernels fit better or worse."""
ALIKE_LATER = 0.95
"""What plans of one kind take over the planner's times differs little: so much of the least ratio is expected of the
next one. With 0.95 no plan of 150 random batches on 8 to 512 ranks ended later (742 sizes of packs, 537 ways of
rounds); with 0.96 one did, by 3 %."""
UNBALANCED = 1.1
"""Of many sequences a plan that ends this close to its ideal is hardly beaten: only meshes are held against it."""


def plan_best(problem: PlanningProblem) -> Plan:
    """Plan with the capacity as the size of packs, then whatever else may end earlier, and take the best.

    A candidate is planned where its ideal (all ranks filled without gaps) ends before the best plan so far. The
    planner's own times leave out transfers, what distinguishes stages and what the epilogue hides behind, so a plan
    that may be the best is priced and played as the step will be, without noise. A quick plan, or one of many
    sequences that is balanced, is the balanced one, or a mesh that ends earlier. Estimates that are known to err are
    held against counts of FLOP first (second_opinion.py).
    """
    if problem.error is not None:
        problem = replace(problem, error=WeighedError.of(problem, problem.error))
    draft = balanced_draft(problem)
    unbalanced = _unbalanced(problem, draft)
    small = len(problem.lengths) + problem.ranks <= SMALL and not problem.quick
    thorough = small or (unbalanced and not problem.quick)
    contest = Contest(problem, draft.plan(), draft.end_s, reorders=True)
    if thorough or problem.meets:
        contest.judge()
    if thorough:
        _enter_other_packs(contest, draft, small=small)
    if thorough and len(problem.lengths) <= 2 * SMALL:
        _enter_equal_work(contest)
        if problem.in_slots:
            _enter_rounds(contest)
    _enter_meshes(contest)
    if small or unbalanced:
        naive = naive_waves(problem).plan()
        contest.enter(naive, naive.makespan_s)
    if small and problem.cost.layout.context.rank_capacity_tokens is None:
        _enter_waves(contest)
    _enter_other_planners(contest, draft.ideal_s, everything=thorough or problem.meets)
    return contest.best


def _enter_other_packs(contest: Contest, draft: Draft, *, small: bool) -> None:
    """Balanced plans with packs of other sizes; of a large batch few, and none after one that is balanced."""
    problem = contest.problem
    targets = _targets(problem, contest.end_s / WORTH_IT)
    lost = WORTH_IT  # of many sequences about as much by plans of all sizes
    later = [(problem.target_tokens, contest.end_s / draft.end_s)]
    for target in targets[: PLANNED[not small]]:
        if target.step_s * lost < contest.end_s:
            before_s = contest.end_s
            size = target.problem.target_tokens
            # Smaller packs are more micro-batches, of each of which the planner's times leave something out.
            ratios = [ratio * ALIKE_LATER for packs, ratio in later if packs >= size]
            takes = max([NEARLY, *ratios]) if small else NEARLY
            wanted_s = contest.end_s / takes if small else np.inf
            other = draft_below(replace(target.problem, quick=not small), wanted_s)
            if other is None:
                continue
            step_s = contest.enter(other.plan(), other.end_s * takes)
            if np.isfinite(step_s):
                later.append((size, step_s / other.end_s))
            if not small and (other.end_s <= UNBALANCED * target.step_s or contest.end_s >= before_s):
                break
            lost = WORTH_IT if small else other.end_s / target.step_s * NEARLY


def _enter_equal_work(contest: Contest) -> None:
    """Groups of equal size whose packs have equal work."""
    problem = contest.problem
    saved = NEARLY * SHARING_SAVES  # sequences of a pack share the waits of their ring
    for degree in likely_degrees(problem, contest.end_s):
        work = work_s(problem, degree)
        if work.sum() * degree / problem.ranks * saved < contest.end_s:
            filled = plan_equal_work(problem, degree, degree * problem.capacity_tokens, work)
            contest.enter(filled, filled.makespan_s * saved)


def _enter_rounds(contest: Contest) -> None:
    """Slots that all ranks fill together, cut in several ways."""
    rounds, ratios = Rounds.of(contest.problem), list[float]()
    for end_s, cuts in rounds.ways():
        least = min(ratios, default=np.inf)  # infinite where nobody looked
        takes = max(NEARLY, least * ALIKE_LATER) if np.isfinite(least) else NEARLY
        if end_s * takes < contest.end_s:
            ratios.append(contest.enter(rounds.plan(cuts), end_s * takes) / end_s)


def _enter_meshes(contest: Contest) -> None:
    """Static meshes."""
    for mesh in mesh_drafts(contest.problem, contest.end_s):
        least_s = mesh.least_s * (NEARLY if contest.problem.meets else 1.0)
        if least_s < contest.end_s:
            contest.enter(mesh.plan(), least_s)


def _enter_waves(contest: Contest) -> None:
    """Waves of ByteScale's naive planner with other capacities than memory allows."""
    for waves in naive_drafts(contest.problem):
        if waves.least_s < contest.end_s:
            contest.enter(waves.plan(), waves.least_s)


def _enter_other_planners(contest: Contest, ideal_s: float, *, everything: bool) -> None:
    """Plans of other systems' planners; *everything*: also those that are later by the planner's own times."""
    problem = contest.problem
    for planner in _other_planners(problem, everything):
        with suppress(InfeasibleError, PlanError):  # what a planner refuses, or puts where memory has no room
            if _longest_s(problem, planner, ideal_s) * NEARLY >= contest.end_s:
                continue
            plan = planner(problem)
            if everything or plan.makespan_s < contest.end_s:
                check_plan(problem, plan)
                contest.enter(plan, 0.0 if everything else plan.makespan_s)


def _unbalanced(problem: PlanningProblem, draft: Draft) -> bool:
    """Whether a draft ends much later than its ideal; where nothing has to be shared, than if all work were."""
    ideal_s = draft.ideal_s + draft.bubbles_s
    if problem.lengths.max() <= problem.target_tokens:
        ideal_s = float(problem.piece_s(problem.lengths).sum()) / problem.ranks
    return draft.end_s > UNBALANCED * ideal_s


def _other_planners(
    problem: PlanningProblem, everything: bool
) -> tuple[Callable[[PlanningProblem], Plan], ...]:
    """Planners by other rules, of which each is the best now and then; of many sequences that fit a pack only one."""
    if not everything:
        fits = problem.lengths.max() <= problem.target_tokens and not problem.quick
        return (plan_wlb_llm,) if fits else ()
    count = len(problem.lengths)
    rounds = (dynamic_cp,) if count <= FEW or (problem.meets and count <= SMALL) else ()
    pipelined = (balanced_with_pp,) if problem.stages > 1 and count <= SMALL else ()
    return (plan_balanced, plan_wlb_llm, *rounds, *pipelined)


def _longest_s(problem: PlanningProblem, planner: Callable[[PlanningProblem], Plan], mean_s: float) -> float:
    """What the longest sequence takes on the group it gets from *planner*: its plan ends no earlier.

    *mean_s*: see plan_ideal_s. 0 where that is not known before the plan is.
    """
    longest = replace(problem, lengths=problem.lengths[[problem.lengths.argmax()]])
    if planner is plan_wlb_llm:
        return float(work_s(longest, mesh_degrees(longest)[0])[0]) * SHARING_SAVES
    if planner is plan_balanced and longest.lengths[0] > problem.capacity_tokens:
        size, _ = paper_groups(longest, longest.lengths, mean_s)
        return float(longest.sequence_s(longest.lengths, size)[0])
    return 0.0


@dataclass(frozen=True, slots=True)
class _Target:
    """The problem with packs of a certain size, and a step that its plans hardly undercut."""

    problem: PlanningProblem
    step_s: float


def _targets(problem: PlanningProblem, below_s: float) -> list[_Target]:
    """Sizes of packs below the capacity whose ideal step is below *below_s*, the shortest first."""
    if problem.lengths.min() > problem.capacity_tokens:  # nothing to pack
        return []
    mean = float(problem.lengths.sum()) / problem.ranks
    sizes = {int(np.ceil(mean / slots)) for slots in SLOTS}
    sizes |= {problem.context_tokens // share for share in CONTEXT_SHARES} - {0}
    alone_s = problem.cost.sequence_s(problem.lengths, 1, 0)
    if problem.error is not None:
        alone_s = problem.piece_s(problem.lengths) - problem.token_s * problem.lengths
    # Sharing takes hardly less work than one rank would.
    work_s = np.maximum(alone_s + problem.token_s * problem.lengths, problem.floor_s) + problem.fixed_s
    likely, many_sequences = [], len(problem.lengths) > FEW
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
        if (
            packs * size <= many_sequences * FEW_TOKENS * mean * problem.ranks
        ):  # smaller packs hardly change anything
            break
    likely.sort(key=lambda entry: entry[:2])
    targets: list[_Target] = []
    kept: list[int] = []
    for _, size, smaller, usual, short_s, at_best_s in likely:
        if many_sequences and any(ALIKE < size / other < 1.0 / ALIKE for other in kept):
            continue
        kept.append(size)
        step_s, _ = ideal_step_s(smaller, LongSequences(smaller), usual, short_s, at_best_s * SHARING_SAVES)
        if step_s < below_s:
            targets.append(_Target(smaller, step_s))
    return sorted(targets, key=lambda target: target.step_s)
