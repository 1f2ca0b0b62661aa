"""The best HDP plan we know how to make: groups from time, gangs of least waste, drafts that are rehearsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.quoting import counted
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.plan_micro_batches import plain_costs
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.replay import play
from hdpsim.simulator.strategies.hdp.groups import needed_ratio
from hdpsim.simulator.strategies.opt.dealing import (
    Packs,
    deal_packs,
    deal_sequences,
    deal_singles,
    exchange,
    fill_packs,
)
from hdpsim.simulator.strategies.opt.gangs import RankLoads, place_gangs
from hdpsim.simulator.strategies.opt.group_choices import (
    FEW_LONG,
    Choice,
    ideal_choice,
    least_limit_s,
    promising_choices,
    turn_choices,
    usual_s,
)
from hdpsim.simulator.strategies.opt.long_sequences import LongSequences
from hdpsim.simulator.strategies.plan_ideal import plan_ideal_s
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.packing import Pieces, assemble

BACKWARD_SHARE = 0.7
"""Backward over forward and backward: twice the matrix products, 2.5 times the attention."""

WEIGHT_SHARE = 3.0 / 7.0
"""Weight gradient over backward, where a schedule splits it: as much as the forward."""
_Dealer = Callable[[PlanningProblem, Floats, Packs], tuple[Ints, Ints, Floats]]

DRAFTS = (4, 8)
"""Most promising time limits that are planned in full; more of them for few long sequences."""
QUICK_DRAFTS = 2
"""The same of a quick plan: with one alone, pipelines came out up to half slower than with all."""
GOOD_ENOUGH = (1.03, 1.1)
"""A draft this close to the ideal of its limit ends the search: the first, and with many long sequences a later one."""
SLACK = (1.01, 1.05, 1.1)
"""How much later than the ideal step gangs may end; more than the first is tried for the best limit of a pipeline, as
long as it ends earlier for it."""
TURN_DRAFTS = 2
"""So many ways to run the long sequences in turns are planned in full, as long as their ideal step is shorter."""
NEARLY_IDEAL = 1.02
"""How much later than its ideal step a pipeline's draft ends at best."""
WORTH_IT = 1.002
"""So many times what a plan takes at best the best one so far must take for it to be planned."""
REHEARSALS = 4
"""How often a draft is rehearsed at most; after each time ranks that end late give micro-batches to others."""
AS_PLANNED = 1.001
"""What is this close to a bound has reached it: a draft what whole micro-batches allow, a step its longest sequence."""
SMALL = 1e-9
FLOOR_SHARES = (0.25, 0.8)
"""Least time of a micro-batch over the time of a full one: below, sequences are dealt, above, packs; both between."""


def balanced_draft(problem: PlanningProblem) -> Draft:
    """The draft of draft_below, however late it ends."""
    draft = draft_below(problem, np.inf)
    assert draft is not None, "the first draft ends before infinity"
    return draft


def draft_below(problem: PlanningProblem, below_s: float) -> Draft | None:
    """Long sequences first, each as a gang of ranks; then everything else to the ranks that are free first.

    1. A time limit gives every sequence the smallest group that memory (with offload) and the limit allow. For each
       limit the ideal step is estimated (see group_choices); the most promising ones are planned in full.
    2. Gangs, longest sequence first (see place_gangs); light ranks end up with more, shorter micro-batches.
    3. Sequences that fit a pack are dealt to the ranks that are free first, as full packs or one by one,
       and exchanged between the busiest and the least busy ranks (see dealing).
    With a pipeline a rank's longest micro-batch also costs (p - 1) / v bubbles of its length: it counts as load.
    The draft with the smallest estimated makespan wins; None where all limits have an ideal step past *below_s*.
    """
    return _Search(problem, below_s).best()


class _Search:
    """Drafts of one batch.

    Attributes:
        step_s: see plan_ideal.
        drafts: those that were planned.
    """

    def __init__(self, problem: PlanningProblem, below_s: float) -> None:
        self.problem, self.step_s, self._below_s = problem, plan_ideal_s(problem), below_s
        loose = problem.stages > 1 and _dealers(problem) == (deal_sequences,)
        self.packs = fill_packs(problem, loose=loose)
        self.long = LongSequences(problem, least_limit_s(problem, self.step_s))
        self._alone_s = self.packs.longest_s(problem)
        self.drafts: list[Draft] = []

    def best(self) -> Draft | None:
        """Try the promising choices of groups and return the draft that ends first; None: see draft_below."""
        problem, long, short_s = self.problem, self.long, self.packs.short_s
        ideal = ideal_choice(problem, long, short_s, self.step_s) if problem.stages > 1 else None
        self._keep_limits(ideal)
        done = problem.quick or self._end_s <= self._alone_s * AS_PLANNED
        turns = [] if done else turn_choices(problem, long, short_s, min(self._end_s, self._below_s))
        for choice in turns[:TURN_DRAFTS]:
            self._add(choice, SLACK[0])
        if not self.drafts:
            return None
        bubbles_s = 0.0 if ideal is None else ideal.step_s - self.step_s
        return replace(self._earliest_draft, ideal_s=self.step_s, bubbles_s=bubbles_s)

    @property
    def _earliest_draft(self) -> Draft:
        """The draft that ends first."""
        return min(self.drafts, key=lambda draft: draft.end_s)

    @property
    def _end_s(self) -> float:
        """When the earliest draft ends; infinite while there is none."""
        return min((draft.end_s for draft in self.drafts), default=np.inf)

    def _keep_limits(self, ideal: Choice | None) -> None:
        """Plans in which every long sequence keeps to one time limit, for the most promising limits."""
        problem, many_long = self.problem, len(self.long.tokens) > FEW_LONG
        most = QUICK_DRAFTS if problem.quick else DRAFTS[not many_long]
        choices = promising_choices(problem, self.long, self.packs.short_s, self.step_s, ideal)[:most]
        least_s = max(self._whole_micro_batches_s(choices), self._alone_s)
        allowed = None
        for number, choice in enumerate(choices):
            self._add(choice, SLACK[0])
            if self._end_s <= least_s * AS_PLANNED:
                return
            if (
                number == 0
                and self.drafts
                and choices[1:2]
                and choices[1].step_s * NEARLY_IDEAL >= choice.step_s * SLACK[1]
            ):
                self._allow_more_time()  # better than another limit, and may spare it
                allowed = choice
            enough = GOOD_ENOUGH[number > 0 and many_long]
            if self._end_s <= choice.step_s * enough:
                break
        if self.drafts and self._earliest_draft.choice is not allowed:
            self._allow_more_time()

    def _allow_more_time(self) -> None:
        """Allow more time to the gangs of a pipeline's best draft, as long as it ends earlier for it."""
        best = self._earliest_draft
        for slack in SLACK[1:] if self.problem.stages > 1 else ():
            if best.end_s <= best.choice.step_s * slack * WORTH_IT:  # gangs alone would end as late
                break
            self._add(best.choice, slack)
            if self._earliest_draft.end_s >= best.end_s:
                break
            best = self._earliest_draft

    def _whole_micro_batches_s(self, choices: list[Choice]) -> float:
        """When the last rank ends at best because a rank runs whole micro-batches; 0 where they have no least time.

        No micro-batch is shorter than the least pack, u: one of t takes t / u places of u, rounded down, on every rank
        of its group, and a rank that ends by T has T / u places, rounded down.
        """
        packs = self.packs
        if self.problem.stages > 1 or not packs.same_time:
            return 0.0
        unit_s = float(packs.seconds.min())
        places = len(packs.seconds) + min(
            float((choice.size * np.floor(choice.time_s / unit_s + SMALL)).sum()) for choice in choices
        )
        return unit_s * float(np.ceil(places / self.problem.ranks))

    def _add(self, choice: Choice, slack: float) -> None:
        """Plans for one time limit: one for every way to deal short sequences that may be the better one.

        None where gangs and short work fill the ranks past the end of the best draft.
        """
        problem, packs = self.problem, self.packs
        below_s = self._end_s
        at_best_s = choice.step_s * (NEARLY_IDEAL * WORTH_IT if problem.stages > 1 else 1.0)
        if at_best_s >= min(below_s, self._below_s):
            return
        placed = _place_long(problem, packs, self.long, choice, slack)
        # When the ranks end if all that is left after the gangs could be cut: it fills those that are free first.
        free_s = np.sort(placed.loads.free_s)
        left_s = packs.short_s + float(placed.single_s.sum())
        filled_s = float(((left_s + np.cumsum(free_s)) / np.arange(1, problem.ranks + 1)).min())
        if max(filled_s, float(free_s[-1])) < below_s:
            self.drafts += [Draft.of(problem, packs, placed, dealer) for dealer in _dealers(problem)]


def _dealers(problem: PlanningProblem) -> tuple[_Dealer, ...]:
    """What may be the better way to deal short sequences."""
    share = problem.floor_s / (problem.token_s * problem.target_tokens)
    if share < FLOOR_SHARES[0]:
        return (deal_sequences,)
    return (deal_packs,) if share > FLOOR_SHARES[1] else (deal_packs, deal_sequences)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Long sequences on their ranks: gangs with their slots, single ranks still without."""

    choice: Choice
    sequence: Ints
    size: Ints
    time_s: Floats
    offload_ratio: Floats
    gang_ranks: list[Ints]
    gang_slot: Ints
    single_rank: Ints
    single_s: Floats
    loads: RankLoads
    """After the gangs."""


def _place_long(
    problem: PlanningProblem,
    packs: Packs,
    long: LongSequences,
    choice: Choice,
    slack: float,
) -> _Placed:
    weight, full_s = problem.bubble_weight, usual_s(problem)
    loads = RankLoads(
        free_s=np.full(problem.ranks, weight * full_s),
        slot=np.zeros(problem.ranks, dtype=np.int64),
        longest_s=np.full(problem.ranks, full_s),
    )
    # Without a pipeline single ranks are filled without gaps, after the gangs; in one the levels of length stay
    # together. The longest sequences, with the largest groups, find their ranks first.
    single = (choice.size == 1) & (problem.stages == 1)
    gangs, singles = np.flatnonzero(~single), np.flatnonzero(single)
    apart_s = problem.sequence_s(long.tokens[gangs], choice.size[gangs], least_tier=1)
    # No gang may end later than the longest sequence where that alone decides when the step ends.
    alone_s = float(choice.time_s.max(initial=0.0)) * (1.0 + weight)
    deadline_s = alone_s if choice.step_s <= alone_s * AS_PLANNED else choice.step_s * slack
    members, slots, taken_s = place_gangs(
        problem, loads, choice.size[gangs], choice.time_s[gangs], apart_s, deadline_s
    )
    order = np.concatenate((gangs, singles))
    return _Placed(
        choice=choice,
        sequence=long.sequence[order],
        size=choice.size[order],
        time_s=np.concatenate((taken_s, choice.time_s[singles])),
        offload_ratio=needed_ratio(problem, long.tokens[order], choice.size[order]),
        gang_ranks=members,
        gang_slot=slots,
        single_rank=deal_singles(loads.free_s, choice.time_s[singles], packs),
        single_s=choice.time_s[singles],
        loads=loads,
    )


@dataclass(frozen=True, slots=True)
class Draft:
    """One candidate."""

    choice: Choice
    make_plan: Callable[[], Plan]
    end_s: float
    """When the last rank ends: its load, or with a pipeline as the replay plays it."""
    ideal_s: float = 0.0
    """See plan_ideal."""
    bubbles_s: float = 0.0
    """What the bubbles of an ideal pipeline add to that."""

    def plan(self) -> Plan:
        """The plan, with its makespan, bubbles apart."""
        makespan_s = max(self.end_s - self.bubbles_s, self.ideal_s)
        return replace(self.make_plan(), ideal_s=self.ideal_s, makespan_s=makespan_s)

    @classmethod
    def of(cls, problem: PlanningProblem, packs: Packs, placed: _Placed, dealer: _Dealer) -> Draft:
        """Deal the short sequences, then exchange micro-batches of one rank between ranks.

        In a pipeline by what the loads say first, then by when the ranks end in the rehearsal, while that helps.
        """
        base_s, longest_s = placed.loads.free_s, placed.loads.longest_s
        free_s = _loads_s(base_s, placed.single_rank, placed.single_s)
        pack_of, pack_rank, pack_s = dealer(problem, free_s, packs)
        rank = np.concatenate((placed.single_rank, pack_rank))
        seconds = np.concatenate((placed.single_s, pack_s))
        most_s = np.maximum(longest_s, pack_s.max(initial=0.0) if problem.stages > 1 else np.inf)
        rank = exchange(rank, seconds, base_s, most_s)
        if problem.stages == 1:
            make_plan = partial(_assemble, problem, packs, placed, pack_of, rank, seconds)
            return cls(placed.choice, make_plan, float(_loads_s(base_s, rank, seconds).max()))
        best_s, times_s = np.inf, np.concatenate((placed.time_s, pack_s))
        for _ in range(REHEARSALS):
            plan = _assemble(problem, packs, placed, pack_of, rank, seconds)
            ends_s = rehearsed_s(
                plan,
                times_s,
                stages=problem.stages,
                chunks=problem.cost.layout.pipeline.vpp,
                schedule=problem.cost.layout.pipeline.schedule,
            )
            end_s = float(ends_s.max())
            if end_s >= best_s:
                break
            best_s, best = end_s, plan
            if end_s <= placed.choice.step_s * GOOD_ENOUGH[0]:
                break
            # Ranks end earlier or later than their loads say: who meets whom, and when, is known only now.
            unforeseen_s = ends_s - _loads_s(base_s, rank, seconds)
            before, rank = rank, exchange(rank, seconds, base_s + unforeseen_s, most_s)
            if np.array_equal(rank, before):
                break
        return cls(placed.choice, lambda: best, best_s)


def _loads_s(base_s: Floats, rank: Ints, seconds: Floats) -> Floats:
    """What every rank has to do: its *base_s*, and the micro-batches that are on it."""
    return base_s + np.bincount(rank, weights=seconds, minlength=len(base_s))


def _assemble(
    problem: PlanningProblem, packs: Packs, placed: _Placed, pack_of: Ints, rank: Ints, seconds: Floats
) -> Plan:
    """The plan: gangs, then the micro-batches of one rank (single long sequences and packs) on *rank*."""
    count, long = len(problem.lengths), len(placed.sequence)
    micro_batch = np.empty(count, dtype=np.int64)
    micro_batch[placed.sequence] = np.arange(long)
    micro_batch[packs.sequence] = long + pack_of
    size = np.concatenate((placed.size, np.ones(len(rank) - len(placed.single_s), dtype=np.int64)))
    return assemble(
        problem,
        Pieces.of_whole(problem.lengths, micro_batch),
        group_size=size,
        member_ranks=np.concatenate((*placed.gang_ranks, rank)),
        slot=np.concatenate((placed.gang_slot, _slots(placed.loads.slot, rank, seconds))),
        offload_ratio=np.concatenate((placed.offload_ratio, np.zeros(len(size) - long))),
        keep_holes=problem.stages > 1,
        notes=(f"largest group {counted(int(size.max()), 'rank')}",),
    )


def _slots(first: Ints, rank: Ints, seconds: Floats) -> Ints:
    """Slot of every micro-batch of one rank: after the gangs of its rank, longest first."""
    order = np.lexsort((-seconds, rank))
    counts = np.bincount(rank, minlength=len(first))
    slot = np.empty(len(rank), dtype=np.int64)
    slot[order] = np.arange(len(rank)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    return slot


def rehearsed_s(
    plan: Plan, seconds: Floats, *, stages: int, chunks: int, schedule: Schedule = "1f1b"
) -> Floats:
    """When each rank ends, all its stages, if micro-batches take *seconds* on every stage, forward and backward.

    Counted: the schedule with its bubbles, waiting of groups.  Ignored: transfers, what distinguishes stages.
    """
    forward_s, backward_s = (seconds * (share / chunks) for share in (1.0 - BACKWARD_SHARE, BACKWARD_SHARE))
    costs = plain_costs(
        stages, forward_s, backward_s, chunks=chunks, schedule=schedule, weight_share=WEIGHT_SHARE
    )
    program = compile_program(plan, costs)
    _, _, done_s, _ = play(program, np.zeros(stages))
    return np.asarray(done_s.reshape(stages, program.ranks).max(axis=0))
