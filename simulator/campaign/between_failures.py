"""Undisturbed stretches of a campaign in closed form: steps, checkpoints, what is safe and what would be lost.

Between two disturbances a job repeats one cycle: some steps, perhaps a wait until the last checkpoint is uploaded,
the blocking stage of the next checkpoint. A stretch draws its cycles as arrays, as many as it is asked for, so that
a day without failures costs one cumulative sum. All times are whole microseconds: sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Ints

TICKS_PER_S = 1_000_000
"""The clock of a campaign counts microseconds in integers, so that its accounts sum exactly."""

CYCLE_ACCOUNTS = ("training", "drift", "stragglers", "checkpoint_wait", "checkpoint")
"""What a cycle is made of, in the order of the columns of its parts."""

_WORK = 3  # of these accounts, the first three are steps
DAY_TICKS = 86400 * TICKS_PER_S
LEAST_JITTER = 1e-6  # below it a step varies by less than the clock can tell
MOST_CYCLES = 1 << 16  # drawn at once; older ones are summed up, so that memory stays small


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a job runs while nothing happens.

    Attributes:
        step_s: an undisturbed step.
        steps_per_cycle: steps between two checkpoints.
        block_ticks: stage 1 of a checkpoint, which stops training.
        upload_ticks: stage 2, in the background; the next checkpoint waits for it.
        jitter: coefficient of variation of a step.
        drift_per_day: growth of the step with every day since the last restart (0.01 = 1 %).
    """

    step_s: float
    steps_per_cycle: int
    block_ticks: int
    upload_ticks: int
    jitter: float = 0.0
    drift_per_day: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCycle:
    """A cycle whose checkpoint is still being uploaded: its ticks by account, and its steps."""

    parts: Ints
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """How a stretch ended.

    Attributes:
        kept: ticks by account (see CYCLE_ACCOUNTS) whose result is safe.
        kept_steps: their steps.
        lost_ticks: everything else since the last safe checkpoint.
        reached_steps: steps beyond those that were safe when the stretch began, lost ones included.
        uploading: the last cycle if its checkpoint still travels (only after `at_checkpoint`).
        cycles: cycles completed.
    """

    kept: Ints
    kept_steps: float
    reached_steps: float
    cycles: int
    lost_ticks: int = 0
    uploading: SavedCycle | None = None


class Stretch:
    """Cycles from *start* on, until somebody closes it.

    Jitter is a gamma process: a step of mean b and coefficient of variation s takes Gamma(1/s^2, s^2 b), a cycle of
    m steps Gamma(m/s^2, s^2 b), exactly the sum of its steps.

    Ignored: drift inside a cycle; jitter that is correlated in time.
    """

    def __init__(
        self,
        pace: Pace,
        start: int,
        random: np.random.Generator,
        *,
        slowness: float = 1.0,
        cycles_since_restart: int = 0,
        uploading: SavedCycle | None = None,
    ) -> None:
        """Begin at tick *start*.

        *slowness* multiplies every step (see `CampaignSetup.slowness`); *uploading* is a cycle of the stretch before
        whose upload began at *start*. Ticks that the methods are asked about must not go back.
        """
        self._pace, self.start, self._random = pace, start, random
        self._slowness, self._first = slowness, cycles_since_restart
        self._before = uploading
        self._parts: Ints = np.zeros((0, len(CYCLE_ACCOUNTS)), dtype=np.int64)
        self._ends: Ints = np.zeros(0, dtype=np.int64)
        self._folded = np.zeros(len(CYCLE_ACCOUNTS), dtype=np.int64)
        self._folded_cycles = 0

    def checkpoint_after(self, tick: int) -> int:
        """The first tick, not before *tick*, at which the blocking stage of a checkpoint ends."""
        self._reach(tick)
        return int(self._ends[np.searchsorted(self._ends, tick, side="left")])

    def fail(self, tick: int) -> Closing:
        """Close at *tick*: what is not yet in remote storage is lost."""
        done = self._completed_cycles(tick)
        safe = done
        if tick < self._end_of(done) + self._pace.upload_ticks:
            safe -= 1  # the last checkpoint has not arrived; -1 when that is the one of the stretch before
        kept, kept_steps = self._sum(safe)
        carried = int(self._before.parts.sum()) if self._before else 0
        return Closing(
            kept=kept,
            kept_steps=kept_steps,
            reached_steps=self._steps_after(done) + self._partial(tick, done)[1],
            cycles=done,
            lost_ticks=tick - self.start + carried - int(kept.sum()),
        )

    def at_checkpoint(self, tick: int) -> Closing:
        """Close at the end of a blocking stage (a value of `checkpoint_after`)."""
        done = self._completed_cycles(tick)
        uploading = None
        if self._pace.upload_ticks:
            parts = self._parts[done - self._folded_cycles - 1]
            uploading = SavedCycle(parts=parts, steps=self._pace.steps_per_cycle)
        kept, kept_steps = self._sum(done - (uploading is not None))
        return Closing(
            kept=kept,
            kept_steps=kept_steps,
            reached_steps=self._steps_after(done),
            cycles=done,
            uploading=uploading,
        )

    def end(self, tick: int) -> Closing:
        """Close because the campaign is over: nothing is lost."""
        done = self._completed_cycles(tick)
        kept, kept_steps = self._sum(done)
        parts, steps = self._partial(tick, done)
        steps += kept_steps
        return Closing(kept=kept + parts, kept_steps=steps, reached_steps=steps, cycles=done)

    def _steps_after(self, done: int) -> int:
        """Steps of so many cycles, and of the one whose upload began with the stretch."""
        return (self._before.steps if self._before else 0) + done * self._pace.steps_per_cycle

    def _sum(self, safe: int) -> tuple[Ints, float]:
        """Ticks and steps of the cycles of this stretch up to *safe*, and of the one before (unless safe is -1)."""
        kept = self._folded + self._parts[: max(safe - self._folded_cycles, 0)].sum(axis=0, dtype=np.int64)
        if safe < 0:
            return kept, 0.0
        return kept + (self._before.parts if self._before else 0), float(self._steps_after(safe))

    def _completed_cycles(self, tick: int) -> int:
        """Cycles completed at *tick*."""
        self._reach(tick)
        return self._folded_cycles + int(np.searchsorted(self._ends, tick, side="right"))

    def _end_of(self, done: int) -> int:
        """Tick at which the last of *done* cycles ended."""
        return int(self._ends[done - self._folded_cycles - 1]) if done else self.start

    def _partial(self, tick: int, done: int) -> tuple[Ints, float]:
        """Ticks by account and steps of the cycle that is under way at *tick*."""
        left = tick - self._end_of(done)
        parts = self._parts[done - self._folded_cycles]
        work = int(parts[:_WORK].sum())
        share = min(1.0, left / work) if work else 1.0
        result = np.zeros_like(parts)
        worked = min(left, work)
        result[1:_WORK] = (parts[1:_WORK] * share).astype(np.int64)
        result[0] = worked - int(result[1:_WORK].sum())
        result[3] = min(left - worked, int(parts[3]))
        result[4] = left - worked - int(result[3])
        return result, share * self._pace.steps_per_cycle

    def _reach(self, tick: int) -> None:
        """Draw cycles until one ends after *tick*."""
        pace = self._pace
        mean = max(1.0, pace.step_s * pace.steps_per_cycle * TICKS_PER_S + pace.block_ticks)
        while not len(self._ends) or self._ends[-1] <= tick:
            last = int(self._ends[-1]) if len(self._ends) else self.start
            if len(self._ends) >= MOST_CYCLES:
                self._fold()
            self._draw(last, min(int((tick - last) / mean * 1.05) + 4, MOST_CYCLES))

    def _fold(self) -> None:
        """Sum up all drawn cycles but the last; they are safe, because every checkpoint waits for the one before."""
        self._folded = self._folded + self._parts[:-1].sum(axis=0, dtype=np.int64)
        self._folded_cycles += len(self._parts) - 1
        self._parts, self._ends = self._parts[-1:], self._ends[-1:]

    def _draw(self, last: int, count: int) -> None:
        """Append *count* cycles after tick *last*."""
        pace, drawn = self._pace, self._folded_cycles + len(self._ends)
        mean = pace.step_s * pace.steps_per_cycle * TICKS_PER_S
        base = np.full(count, mean)
        if pace.jitter > LEAST_JITTER:
            shape = pace.steps_per_cycle / pace.jitter**2
            base = self._random.gamma(shape, mean / shape, count)
        number = self._first + drawn + np.arange(count)
        drifting = base * pace.drift_per_day * number * (mean / DAY_TICKS)
        parts = np.zeros((count, len(CYCLE_ACCOUNTS)), dtype=np.int64)
        parts[:, 0] = np.maximum(1, np.rint(base))
        parts[:, 1] = np.rint(drifting)
        parts[:, 2] = np.rint((base + drifting) * (self._slowness - 1.0))
        parts[:, 3] = np.maximum(0, pace.upload_ticks - parts[:, :_WORK].sum(axis=1))
        if not drawn and self._before is None:
            parts[0, 3] = 0  # nothing travels yet
        parts[:, 4] = pace.block_ticks
        self._parts = np.concatenate([self._parts, parts])
        self._ends = np.concatenate([self._ends, last + np.cumsum(parts.sum(axis=1))])
