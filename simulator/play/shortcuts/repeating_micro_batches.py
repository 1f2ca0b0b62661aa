"""Many equal micro-batches on ranks alone: played until they repeat; the others take what the repeated ones took.

Durations do not change from one micro-batch to the next, so what a pipeline does behind a cut through its operations
depends on when the operations at the cut ended. If all of them ended c later than those of the cut D micro-batches
before, everything behind is c later, too, D by D, until the pipeline drains: m + D micro-batches take c longer than m.

Such a pipeline is a linear system over (max, +), of which it is known that it comes to repeat itself. Its maps are
nonexpansive: ends that repeat up to an error drift by no more than that error with every further D.
Source: Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity, 1992, chapter 3 (it repeats after finitely
many steps) and chapter 4 (nonexpansive).
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.play.accounts import StepEnd, book
from hdpsim.simulator.play.execution import Execution

from .equal_micro_batches import LoneRank, LoneStep, PlayedRank, Turns, rank_turns, turns_of_rank
from .repeating_steps import steady_step

EQUAL = 1e-14
"""Ends that are later by amounts which differ by less, relative to themselves, are later by the same."""

WORTH_A_TRY = 1.25
"""So many times as many micro-batches there must be as those that are played to see whether they repeat."""

DRAINING_STAGES: dict[Schedule, int] = {"1f1b": 0, "interleaved": 0, "zb-h1": 0, "zb-h2": 2}
"""Schedules that repeat, with the micro-batches (in stages) at whose end they run the same operations in another order:
ZB-H2 hurries its input gradients ahead."""


ROUNDING = 1e-13
"""Waits below this share of the time in which they may have been are the rounding of sums."""


def run_lone_ranks(costs: StepCosts, counts: list[int]) -> Execution:
    """The execution of ranks with counts[i] equal micro-batches each; nothing but gradients ties them together."""
    rank, slots = LoneRank.of(costs), max(counts)

    def play(opening_s: Floats) -> list[PlayedRank]:
        return [_play(rank, n, opening_s) if n == slots else rank.play(n, slots, opening_s) for n in counts]

    end = steady_step(costs, partial(LoneStep.of, costs, play)).step_end
    both_s = costs.forward_terms_s[:, :, 0] + costs.backward_terms_s[:, :, 0]
    stage_s = both_s[:, costs.kind].sum(axis=2)  # [terms, stages] of one micro-batch
    return booked(costs, end, stage_s[:, :, None] * np.array(counts))


def booked(costs: StepCosts, end: StepEnd, term_s: Floats, wait_group_s: Floats | float = 0.0) -> Execution:
    """The accounts of ranks that share nothing: what a stage does not compute from its opening on it waits."""
    opening_s = costs.epilogue.data_s + costs.epilogue.parameter_gather_s + end.begin_s
    waited_s = end.done_s - opening_s[:, None] - term_s.sum(axis=0) - wait_group_s
    waited_s[waited_s < ROUNDING * end.done_s] = 0.0
    return book(costs, end, term_s, waited_s, wait_group_s)


def lone_step_end(costs: StepCosts, count: int) -> StepEnd:
    """The end of the step of run_lone_ranks with *count* micro-batches on each rank."""
    rank = LoneRank.of(costs)

    def play(opening_s: Floats) -> list[PlayedRank]:
        return [_play(rank, count, opening_s)]

    return steady_step(costs, partial(LoneStep.of, costs, play)).step_end


def _play(rank: LoneRank, count: int, opening_s: Floats) -> PlayedRank:
    """A rank whose stages open at the given times: when they are done (all else is that of fewer micro-batches)."""
    costs = rank.costs
    drains = 0 < costs.drains_every < count
    is_long = not drains and count > 2 * WORTH_A_TRY * costs.stages  # no cut repeats after fewer
    shape = costs.schedule, costs.stages, costs.chunks
    cut = find_cut(*shape, overlap=costs.pp_overlap) if is_long else None
    few = count if cut is None else cut.least + (count - cut.least) % costs.stages
    while cut is not None and few * WORTH_A_TRY < count:
        played = rank.play(few, few, opening_s)
        turns = rank_turns(costs, few, few)
        end_s = np.empty(len(turns.operation))
        end_s[turns.operation] = played.end_s[-len(end_s) :]
        repetition = find_repetition(cut, end_s.reshape(-1, few))
        if repetition is None:
            break
        more = (count - few) % repetition.micro_batches
        if not more:
            later_s = (count - few) // repetition.micro_batches * repetition.seconds
            return played._replace(done_s=played.done_s + later_s)
        few += more
    return rank.play(count, count, opening_s)


class Cut(NamedTuple):
    """The last backward of a micro-batch and everything before it, on all stages.

    Attributes:
        link, offset: operations in it that others wait for which are not. The offset is that of their micro-batch.
        step: micro-batches from one cut to the next that looks alike.
        first: of the first micro-batch whose cut has no warm-up behind it.
        ahead: how many micro-batches must follow for the operations of the cut to be in their usual order.
        stages: of the pipeline.
    """

    link: Ints
    offset: Ints
    step: int
    first: int
    ahead: int
    stages: int

    @property
    def least(self) -> int:
        """Micro-batches of a rank whose last cut can repeat one of as many micro-batches before as there are stages."""
        return self.first + self.stages + 1 + self.ahead


class Repetition(NamedTuple):
    """How many micro-batches repeat, and how long they take."""

    micro_batches: int
    seconds: float


def find_repetition(cut: Cut, end_s: Floats) -> Repetition | None:
    """After how few micro-batches the last cut of a rank repeats an earlier one; *end_s*: [links, micro-batches]."""
    last = (end_s.shape[1] - cut.ahead) // cut.step * cut.step - 1
    at = np.arange(last, cut.first - 1, -cut.step)  # the micro-batches of all cuts, from behind
    ends_s = end_s[cut.link[:, None], cut.offset[:, None] + at]
    later_s = ends_s[:, :1] - ends_s[:, 1:]
    alike = np.flatnonzero(np.ptp(later_s, axis=0) <= EQUAL * ends_s[:, 0].max())
    if not len(alike):
        return None
    return Repetition(int(alike[0] + 1) * cut.step, float(later_s[:, alike[0]].max()))


@lru_cache(maxsize=256)
def find_cut(schedule: Schedule, stages: int, chunks: int, *, overlap: bool = True) -> Cut | None:
    """The cut of a schedule; None where its order does not repeat, or has nothing to wait for."""
    if schedule not in DRAINING_STAGES or stages == 1:
        return None
    # Half of them before the cut: none is filling or draining
    count = (4 + 2 * DRAINING_STAGES[schedule]) * stages
    turns = turns_of_rank(schedule, stages, chunks, count, count, overlap=overlap)
    link, offset = _cut_at(turns, stages, count, count // 2 - 1)
    return Cut(
        link=link,
        offset=offset,
        step=stages if chunks > 1 else 1,
        first=stages - 1,
        ahead=int(offset.max()) + DRAINING_STAGES[schedule] * stages,
        stages=stages,
    )


def _cut_at(turns: Turns, stages: int, count: int, micro_batch: int) -> tuple[Ints, Ints]:
    """Links and offsets of the cut that the last backward of *micro_batch* closes on a rank with *count* of them."""
    operations = len(turns.operation)
    before, source = turns.before - stages - 1, turns.source - stages - 1
    held = [[place - stages - 1 for place in others] for _, others in turns.held] or [[]] * operations
    inside = turns.operation == operations - count + micro_batch
    for at in range(operations - 1, -1, -1):  # from behind: who needs an operation comes after it
        if inside[at]:
            inside[[needed for needed in (before[at], source[at], *held[at]) if needed >= 0]] = True
    outside = np.flatnonzero(~inside)
    besides = np.array([needed for at in outside for needed in held[at]], dtype=np.int64)
    needed = np.concatenate([before[outside], source[outside], besides])
    closing = np.unique(needed[needed >= 0])
    closing = closing[inside[closing]]
    link, slot = np.divmod(np.sort(turns.operation[closing]), count)
    return link, slot - micro_batch
