"""Steps that follow each other stage by stage: when each stage begins one, and how soon all can repeat.

ZB-H2 and ZB-V have no barrier between steps: a stage begins the next when its own optimizer is done. The end of stage t
is the latest of all ways to it, begin of stage s + L(s, t); L is what operations on the longest way take. Steps that
repeat at the least period P have begins v with

    max over s of v(s) + L(s, t)  <=  v(t) + P        for every stage t

and P is the largest mean of L over any round of stages (one or more) that come back to where they began. So P grows
with every duration: no faster operation makes it longer. Begins as early as possible would not do: a first operation
that comes earlier does not make the last one earlier, and the stage would seem to be busy for longer.
Source: Cuninghame-Green, Minimax Algebra, 1979; R. M. Karp, Discrete Mathematics 23, 1978 (largest mean of a round).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.play.accounts import StepEnd
from hdpsim.simulator.play.pipeline.schedules import STAGE_BY_STAGE

EQUAL = 1e-12
"""Stages whose steps differ by less, relative to the step, repeat alike."""


class PlayedStep(Protocol):
    """A step that was played."""

    @property
    def step_end(self) -> StepEnd:
        """When its stages ended it."""


T = TypeVar("T", bound=PlayedStep)


def steady_step(costs: StepCosts, play: Callable[[Floats], T]) -> T:
    """A step with these *costs*, whose stages begin at once or as they do when such steps repeat.

    *play*: the step whose stages begin at the given times.
    """
    timeline = play(np.zeros(costs.stages))
    if costs.schedule not in STAGE_BY_STAGE:
        return timeline

    def ends(begin_s: Floats) -> Floats:
        nonlocal timeline
        if not np.array_equal(begin_s, timeline.step_end.begin_s):
            timeline = play(begin_s)
        return timeline.step_end.optimizer_start_s + costs.epilogue.optimizer_s

    ends(steady_begins(costs.stages, ends))
    return timeline


def steady_begins(stages: int, ends: Callable[[Floats], Floats]) -> Floats:
    """[stages]: begins from which steps repeat at the least period, the first one 0.

    *ends*: when each stage ends a step that it began at the given times. Played again and again, a pipeline mostly
    repeats after a few steps; if it has not after as many steps as stages, Karp's theorem gives the period.
    """
    steps = [np.zeros(stages)]
    for _ in range(stages):
        steps.append(ends(steps[-1]))
        took_s = steps[-1] - steps[-2]
        if np.ptp(took_s) <= EQUAL * took_s.max():
            return np.asarray(steps[-2] - steps[-2].min())
    until_s = np.array(steps)
    number = np.arange(stages)[:, None]
    period_s = float(((until_s[-1] - until_s[:-1]) / (stages - number)).min(axis=0).max())
    begins_s = (until_s[:-1] - number * period_s).max(axis=0)
    return np.asarray(begins_s - begins_s.min())
