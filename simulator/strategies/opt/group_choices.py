"""Group sizes for sequences that may be shared: by limits of time, by the ideal step, and in turns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.strategies.opt.long_sequences import LongSequences, ideal_step_s
from hdpsim.simulator.strategies.problem import PlanningProblem

LIMIT_SHARES = (1.1, 1.03, 1.0, 0.7, 0.5, 0.35, 0.25, 0.17, 0.12, 0.08, 0.055, 0.04, 0.028)
"""Time limits of one sequence that are considered, as shares of the longest a step of the bound allows."""
LIMITS_WITHOUT_PIPELINE = 5
"""So many of them without a pipeline and with many long sequences: long micro-batches cost no bubbles there."""
FEW_LONG = 64
"""Long sequences up to which drafts take little time, and up to which what is left over of a rank matters."""
TURNS = (1, 2, 3, 4)
"""Long sequences on all ranks at once, or in so many turns."""
TURNS_MAY_TAKE = 4
"""Turns are looked at for up to so many long sequences per rank: of more, the remainders hardly matter."""
TURN_CLOSE = 1e-3
"""How closely the time of a turn is looked for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Group sizes of the long sequences, the time each takes, and the step they could ideally reach."""

    size: Ints
    time_s: Floats
    step_s: float


def usual_s(problem: PlanningProblem) -> float:
    """Time of a full micro-batch of short sequences."""
    return max(problem.token_s * problem.target_tokens, problem.floor_s) + problem.fixed_s


def _ideal_step_s(problem: PlanningProblem, size: Ints, time_s: Floats, short_s: float) -> float:
    """Step in which all work fits if ranks could be filled without gaps, by levels of micro-batch length.

    A rank whose longest micro-batch takes t has T - w t left for work (w t: bubble), so work of level t takes
    d t / (T - w t) ranks:   sum over sequences of d t / (T - w t) + short work / (T - w u) = ranks
    """
    weight, full_s = problem.bubble_weight, usual_s(problem)
    work_s = np.append(size * time_s, short_s)
    level_s = np.append(time_s, full_s)
    if not weight:
        return max(float(work_s.sum()) / problem.ranks, float(level_s[:-1].max(initial=0.0)))
    low_s = float((weight + 1.0) * level_s[work_s > 0].max())
    high_s = low_s + float(work_s.sum()) / problem.ranks * (1.0 + weight)
    for _ in range(20):
        middle_s = (low_s + high_s) / 2.0
        if float((work_s / (middle_s - weight * level_s)).sum()) > problem.ranks:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def promising_choices(
    problem: PlanningProblem, long: LongSequences, short_s: float, step_s: float, ideal: Choice | None
) -> list[Choice]:
    """Group sizes worth a plan, those with the shortest ideal step first.

    For every limit the smallest groups, and where some are larger than a node the same in whole nodes, which pack
    better; the best of both in turn. *short_s*: work of the packs. *step_s*: a step that is hardly undercut; limits
    are shares of it.
    """
    every = problem.stages > 1 or len(long.tokens) <= FEW_LONG
    limits = len(LIMIT_SHARES) if every else LIMITS_WITHOUT_PIPELINE
    limits_s = [share * step_s / problem.stages for share in LIMIT_SHARES[:limits]]
    seen: set[bytes] = set()
    ways: tuple[list[Choice], list[Choice]] = ([], [])
    for size, time_s in long.within(limits_s):
        whole_nodes = _whole_nodes(problem, size)
        whole_s = time_s if whole_nodes is size else problem.sequence_s(long.tokens, whole_nodes)
        for way, sizes, times_s in zip(ways, (size, whole_nodes), (time_s, whole_s), strict=True):
            if sizes.tobytes() not in seen:
                seen.add(sizes.tobytes())
                ideal_s = max(step_s, _ideal_step_s(problem, sizes, times_s, short_s))
                way.append(Choice(sizes, times_s, ideal_s))
    if ideal is not None and len(long.tokens):
        ways[0].append(ideal)
    for way in ways:
        way.sort(key=lambda choice: choice.step_s)
    in_turn = chain.from_iterable(zip_longest(*ways))
    return [choice for choice in in_turn if choice is not None]


def least_limit_s(problem: PlanningProblem, step_s: float) -> float:
    """The shortest time that anyone wants a long sequence to take; *step_s* as of promising_choices."""
    return LIMIT_SHARES[-1] * step_s / problem.stages


def ideal_choice(problem: PlanningProblem, long: LongSequences, short_s: float, step_s: float) -> Choice:
    """The group sizes with the shortest ideal step (at least *step_s*), every sequence with a limit of its own."""
    ideal_s, size = ideal_step_s(problem, long, usual_s(problem), short_s, step_s)
    return Choice(size, problem.sequence_s(long.tokens, size), ideal_s)


def turn_choices(
    problem: PlanningProblem, long: LongSequences, short_s: float, below_s: float = np.inf
) -> list[Choice]:
    """Group sizes with which all ranks run k micro-batches of one length t, for several k; the shortest step first.

    Those alone whose step may be below *below_s*: k t is no less than all work over all ranks.

    Few sequences on many ranks leave ranks idle that no level of length knows of. Of every sequence the smallest
    group that takes at most t; t is the least for which

        sum over long sequences of d(t) + short work / t <= k x ranks,    and the step is (k + w) t
    """
    if not 0 < len(long.tokens) <= TURNS_MAY_TAKE * problem.ranks:
        return []
    kinds = long.kinds
    least_s = float(np.minimum.reduceat(kinds.times_s, kinds.bounds).max())
    choices = []
    work_s = float(kinds.count @ np.minimum.reduceat(kinds.sizes * kinds.times_s, kinds.bounds)) + short_s
    for turns in TURNS:
        if work_s / problem.ranks * (1.0 + problem.bubble_weight / turns) >= below_s:
            continue
        places = turns * problem.ranks
        if float(kinds.count @ kinds.sizes[kinds.bounds]) >= places:  # on the fewest ranks each
            continue

        def sizes(time_s: float) -> Floats:
            """Sizes of groups that take so long, infinite where they take longer."""
            return np.where(kinds.times_s <= time_s, kinds.sizes, np.inf)

        def fits(time_s: float, places: int = places) -> bool:
            return kinds.least(sizes(time_s)) + short_s / time_s <= places

        low_s = high_s = least_s
        while not fits(high_s):
            low_s, high_s = high_s, high_s * 1.5
        while high_s > low_s * (1.0 + TURN_CLOSE):
            middle_s = (low_s + high_s) / 2.0
            low_s, high_s = (low_s, middle_s) if fits(middle_s) else (middle_s, high_s)
        entry = kinds.cheapest(sizes(high_s))
        assert entry is not None, "what fits has sizes"
        group = kinds.sizes[entry][kinds.kind]
        choices.append(
            Choice(group, problem.sequence_s(long.tokens, group), (turns + problem.bubble_weight) * high_s)
        )
    return sorted(choices, key=lambda choice: choice.step_s)


def _whole_nodes(problem: PlanningProblem, size: Ints) -> Ints:
    """Groups larger than a node rounded up to whole nodes."""
    node = problem.ranks_per_node
    if node == 1 or problem.ranks % node or not (size > node).any():
        return size
    whole_nodes = np.where(size > node, -(-size // node) * node, size)
    return np.where(whole_nodes <= problem.most_ranks, whole_nodes, size)
