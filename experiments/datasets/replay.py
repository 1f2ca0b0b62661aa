"""A whole data set, step by step: batches are cut from a stream and simulated in parallel, a few ahead at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.errors import HdpSimError, InfeasibleError, UserInputError
from hdpsim.experiments.output.statistics import CONFIDENCE
from hdpsim.experiments.parallel.dispatch import dispatch
from hdpsim.experiments.scenario.data_use import LongSequences
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import settled_degree, simulate_step
from hdpsim.traces import (
    Distribution,
    GlobalBatch,
    LengthStream,
    RepeatedLengths,
    Trace,
    global_batches,
    load_source,
    open_stream,
    shipped_distributions,
    shipped_traces,
)

if TYPE_CHECKING:
    from hdpsim.experiments.parallel.engines import Engine
    from hdpsim.experiments.scenario.scenario import DataOptions, Scenario
    from hdpsim.experiments.studies.compare import Lengths

LOOK_AHEAD = 4
"""Batches per worker that are cut before the oldest one is done."""

Note = Callable[[int, int | None, str], None]
"""Told (steps done, steps in all if known, remark)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """One simulated step, and the mean of all up to it.

    Attributes:
        sequences: sequences of the batch, or pieces of those longer than the context.
        mean_tokens_per_s: tokens over seconds of this and all earlier steps.
        mean_ci95: half width of its 95 % confidence interval.
    """

    step: int
    tokens: int
    sequences: int
    longest_tokens: int
    step_s: float
    tokens_per_s: float
    mfu: float
    mfu_full: float
    micro_batches: int
    largest_group: int
    mean_tokens_per_s: float
    mean_ci95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReplay:
    """What was played of a data set.

    Attributes:
        stopped: why it ended: "end of the data", "steps", "confidence", "interrupted" or "error".
        error: what went wrong, with "error".
        account_s: seconds of a step in each account, mean over ranks, stages and steps.
        left_out_tokens: tokens of a last batch that did not fill up.
        dropped_tokens: tokens of sequences that the policy left out, up to here.
        truncated_tokens: tokens it cut off.
        long: sequences longer than the context, up to here.
    """

    scenario: Scenario
    source: str
    steps: tuple[ReplayStep, ...]
    throughput: RunningThroughput
    account_s: dict[str, float]
    stopped: str
    error: HdpSimError | None
    left_out_tokens: int
    dropped_tokens: int
    truncated_tokens: int
    long: LongSequences

    @property
    def partial(self) -> bool:
        """Whether it ended before what was asked for."""
        return self.stopped in ("interrupted", "error")


@dataclass(frozen=True, slots=True)
class _Played:
    step_s: float
    mfu: float
    mfu_full: float
    micro_batches: int
    largest_group: int
    account_s: dict[str, float]


def _play(lengths: Lengths, setup: Setup, mesh_degree: int | None) -> _Played | InfeasibleError:
    """One step in a worker."""
    try:
        result = simulate_step(setup, lengths, mesh_degree=mesh_degree)
    except InfeasibleError as error:
        return error
    return _Played(
        step_s=result.step_s,
        mfu=result.mfu,
        mfu_full=result.mfu_full,
        micro_batches=result.plan_micro_batches,
        largest_group=result.largest_group,
        account_s=dict(zip(result.accounts, result.account_s.mean(axis=(1, 2)).tolist(), strict=True)),
    )


class _Batches:
    """Full batches in order, with an account of what is in none.

    Attributes:
        error: why the data ended early. It is not raised on the way: batches before it may still be played.
    """

    def __init__(
        self, data: DataOptions, source: Trace | Distribution | RepeatedLengths | LengthStream
    ) -> None:
        self.rows = source.rows if isinstance(source, LengthStream) else None
        if isinstance(source, Trace):
            self.rows = len(source)
        self.left_out_tokens = 0
        self.error: HdpSimError | None = None
        self.given: dict[int, GlobalBatch] = {}
        self.done = self.sequences = 0
        self._batches = global_batches(
            source,
            context_tokens=data.context_tokens,
            policy=data.policy,
            budget_tokens=data.batch.tokens,
            sequences=data.batch.sequences,
            seed=data.seed if isinstance(source, Distribution) else None,
            wrap=False,
        )

    def __iter__(self) -> Iterator[Lengths]:
        try:
            for batch in self._batches:
                if not batch.complete:
                    self.left_out_tokens = batch.tokens
                    return
                self.given[batch.index] = batch
                self.done += 1
                self.sequences += len(batch.lengths)
                yield batch.lengths
        except HdpSimError as error:
            self.error = error

    def expected(self, most: int | None) -> int | None:
        """About how many steps there will be."""
        if self.rows is None or not self.sequences:
            return most
        about = max(self.done, round(self.rows * self.done / self.sequences))
        return about if most is None else min(about, most)


def replay_dataset(
    scenario: Scenario,
    engine: Engine,
    *,
    steps: int | None = None,
    until: float | None = None,
    report: Note = lambda done, total, note: None,
) -> DatasetReplay:
    """Play the scenario's trace from its first sequence to its last.

    The result does not depend on the engine: steps are counted in their order, and those that were already under way
    when the interval became tight are thrown away. Memory: a block of the file and LOOK_AHEAD batches a worker, and a
    hundred bytes for each step's row.

    Args:
        scenario: what to play; a trace file is streamed, in the order of the file.
        engine: where steps are simulated; entered and left here.
        steps: stop after so many; None: at the end of the data.
        until: stop when the half width of the interval is below this share of the mean.
        report: told after every step.

    Raises:
        UserInputError: there is not one full batch, or a distribution has no end.
    """
    source = _source(scenario.data)
    if isinstance(source, Distribution | RepeatedLengths) and steps is None and until is None:
        raise UserInputError(f"the source ({source.name}) has no end: give --steps N or --until-ci")
    batches = _Batches(scenario.data, source)
    throughput = RunningThroughput()
    rows: list[ReplayStep] = []
    accounts: dict[str, float] = {}
    long = LongSequences.of((), scenario.data.context_tokens, scenario.data.policy)
    lost = np.zeros(2, dtype=np.int64)
    stopped, error = "end of the data" if steps is None else "steps", None
    try:
        with engine:
            for batch, played in _in_order(batches, steps, scenario.setup(), engine):
                throughput.add(batch.tokens, played.step_s)
                lost += (batch.dropped_tokens, batch.truncated_tokens)
                long = long.with_batch(batch)
                for account, seconds in played.account_s.items():
                    accounts[account] = accounts.get(account, 0.0) + seconds
                rows.append(_row(batch, played, throughput))
                relative = throughput.relative_half_width()
                report(len(rows), batches.expected(steps), _note(throughput, relative))
                if until is not None and relative is not None and relative <= until:
                    stopped = "confidence"
                    break
        if batches.error is not None and stopped != "confidence":
            raise batches.error
    except KeyboardInterrupt:
        stopped = "interrupted"
    except HdpSimError as reason:
        if not rows:
            raise
        stopped, error = "error", reason
    if stopped == "steps" and steps is not None and len(rows) < steps:
        stopped = "end of the data"
    if not rows and stopped != "interrupted":
        raise UserInputError(
            f"{scenario.data.source_name}: the data end before one batch of {scenario.data.batch} is full "
            f"({batches.left_out_tokens:,} tokens are there); lower data.batch"
        )
    return DatasetReplay(
        scenario=scenario,
        source=scenario.data.source_name,
        steps=tuple(rows),
        throughput=throughput,
        account_s={name: seconds / len(rows) for name, seconds in accounts.items()},
        stopped=stopped,
        error=error,
        left_out_tokens=batches.left_out_tokens if stopped == "end of the data" else 0,
        dropped_tokens=int(lost[0]),
        truncated_tokens=int(lost[1]),
        long=long,
    )


def _source(data: DataOptions) -> Trace | Distribution | RepeatedLengths | LengthStream:
    if data.lengths_tokens is not None:
        return RepeatedLengths(data.lengths_tokens)
    name = str(data.trace or data.distribution)
    if data.distribution is not None or name in (*shipped_traces(), *shipped_distributions()):
        return load_source(name)
    return open_stream(name, data.column)


def _in_order(
    batches: _Batches, steps: int | None, setup: Setup, engine: Engine
) -> Iterator[tuple[GlobalBatch, _Played]]:
    """Batches with their results, in order; results that come early wait."""
    early: dict[int, _Played | InfeasibleError] = {}
    following = 0
    asked = islice(iter(batches), steps)
    first = list(islice(asked, 1))
    finished = dispatch(
        engine,
        partial(_play, setup=setup, mesh_degree=_mesh_degree(setup, first)),
        chain(first, asked),
        window=LOOK_AHEAD * engine.slots,
    )
    for task in finished:
        if task.killed:
            raise UserInputError(f"step {task.number + 1}: {task.killed}")
        early[task.number] = task.value
        while following in early:
            played = early.pop(following)
            if isinstance(played, InfeasibleError):
                raise InfeasibleError(f"step {following + 1} cannot run: {played}")
            yield batches.given.pop(following), played
            following += 1


def _mesh_degree(setup: Setup, first: list[Lengths]) -> int | None:
    """The degree of the run's mesh; None, too, where the first batch cannot run, which its step says."""
    try:
        return settled_degree(setup, first[0]) if first else None
    except InfeasibleError:
        return None


def _row(batch: GlobalBatch, played: _Played, throughput: RunningThroughput) -> ReplayStep:
    return ReplayStep(
        step=batch.index + 1,
        tokens=batch.tokens,
        sequences=len(batch.lengths),
        longest_tokens=int(batch.lengths.max()),
        step_s=played.step_s,
        tokens_per_s=batch.tokens / played.step_s,
        mfu=played.mfu,
        mfu_full=played.mfu_full,
        micro_batches=played.micro_batches,
        largest_group=played.largest_group,
        mean_tokens_per_s=throughput.tokens_per_s,
        mean_ci95=throughput.half_width(),
    )


def _note(throughput: RunningThroughput, relative: float | None) -> str:
    spread = "" if relative is None else f" ± {relative:.2%}"
    return f"{throughput.tokens_per_s:,.0f} tokens/s{spread}"


FEWEST_STEPS = 16
"""Below this an interval is shown, but nothing is decided by it."""

MOST_GROUPS = 64


@dataclass(slots=True)
class RunningThroughput:
    """Tokens over seconds of all steps so far, with a confidence interval.

        R = sum T / sum S,   half width = t(0.975, k - 1) * sqrt(sum (T_g - R S_g)^2 / (k - 1) / k) / mean(S_g)

    over k groups g of consecutive steps (a ratio estimator with non-overlapping batch means). Groups hold one step each
    until there are 64; then neighbours are joined, and groups hold two, four, ... steps. So k stays between 32 and 64,
    and steps that resemble their neighbours (a data set sorted by source) widen the interval as they should once
    groups are longer than such runs.

    Source: Cochran, Sampling Techniques, 3rd ed., section 6.4 (ratio); Law, Simulation Modeling and Analysis, 5th ed.,
    section 9.5.3 (batch means).
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    _group_steps: int = 1
    _tokens: list[float] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)
    _open_steps: int = 0
    _open_tokens: float = 0.0
    _open_seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count one more step."""
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self._open_steps += 1
        self._open_tokens += tokens
        self._open_seconds += seconds
        if self._open_steps < self._group_steps:
            return
        self._tokens.append(self._open_tokens)
        self._seconds.append(self._open_seconds)
        self._open_steps, self._open_tokens, self._open_seconds = 0, 0.0, 0.0
        if len(self._tokens) == MOST_GROUPS:
            self._tokens = [a + b for a, b in zip(self._tokens[::2], self._tokens[1::2], strict=True)]
            self._seconds = [a + b for a, b in zip(self._seconds[::2], self._seconds[1::2], strict=True)]
            self._group_steps *= 2

    @property
    def tokens_per_s(self) -> float:
        """R."""
        return self.tokens / self.seconds

    def half_width(self) -> float | None:
        """Half width of the 95 % interval around R; None from fewer than two groups."""
        groups = len(self._tokens)
        if groups < 2:
            return None
        ratio = self.tokens_per_s
        squares = math.fsum((t - ratio * s) ** 2 for t, s in zip(self._tokens, self._seconds, strict=True))
        mean_s = math.fsum(self._seconds) / groups
        return _quantile(groups - 1) * math.sqrt(squares / (groups - 1) / groups) / mean_s

    def relative_half_width(self) -> float | None:
        """The half width over R; None while nothing should be decided by it."""
        if self.steps < FEWEST_STEPS:
            return None
        half = self.half_width()
        return None if half is None else half / self.tokens_per_s


_QUANTILES: dict[int, float] = {}


def _quantile(freedom: int) -> float:
    """Student's t; scipy takes 50 us for what a run asks a million times."""
    if freedom not in _QUANTILES:
        from scipy.stats import t

        _QUANTILES[freedom] = float(t.ppf(0.5 + CONFIDENCE / 2, freedom))
    return _QUANTILES[freedom]
