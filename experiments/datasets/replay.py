"""A whole data set on one clock: batches are cut from a stream and prepared in parallel, a few ahead at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

from hdpsim.errors import HdpSimError, InfeasibleError, UserInputError
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.output.throughput import RunningThroughput
from hdpsim.experiments.parallel.dispatch import in_order
from hdpsim.experiments.scenario.data_use import LongSequences
from hdpsim.experiments.studies.many_steps.run import prepare_numbered
from hdpsim.simulator.many_steps.clock import RunStep, run_of
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.many_steps.prepared_step import PreparedStep
from hdpsim.simulator.planning import settled_degree
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.strategies.static.outlier_queues import OutlierQueues
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
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.parallel.engines import Engine
    from hdpsim.experiments.scenario.scenario import DataOptions, Scenario
    from hdpsim.experiments.studies.comparing.compare import Lengths

LOOK_AHEAD = 4
"""Batches per worker that are cut before the oldest one is done."""

Note = Callable[[int, int | None, str], None]
"""Told (steps done, steps in all if known, remark)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """One simulated step, and the mean of all up to it.

    Attributes:
        sequences: sequences of the batch, or pieces of those longer than the context.
        step_s: from the end of the step before to its own end, what it waited for included; of the first step
            without what it waited for.
        waited_s: for data, plan, checkpoint and host memory.
        mean_tokens_per_s: tokens over seconds of this and all earlier steps.
        mean_ci95: half width of its 95 % confidence interval.
    """

    step: int
    tokens: int
    sequences: int
    longest_tokens: int
    step_s: float
    waited_s: float
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
        startup_s: until the first batch was loaded and planned, which is in no step.
        left_out_tokens: tokens of a last batch that did not fill up.
        waiting_tokens: tokens of long documents that wait for a later batch when it ends (strategy.outlier_queues).
        dropped_tokens: tokens of sequences that the policy left out, up to here.
        truncated_tokens: tokens it cut off.
        long: sequences longer than the context, up to here.
        band: how well steps like the first one were predicted; None of a strategy of one's own.
    """

    scenario: Scenario
    source: str
    steps: tuple[ReplayStep, ...]
    throughput: RunningThroughput
    account_s: dict[str, float]
    startup_s: float
    stopped: str
    error: HdpSimError | None
    left_out_tokens: int
    waiting_tokens: int
    dropped_tokens: int
    truncated_tokens: int
    long: LongSequences
    band: Band | None

    @property
    def partial(self) -> bool:
        """Whether it ended before what was asked for."""
        return self.stopped in ("interrupted", "error")


def _prepare(
    numbered: tuple[int, Lengths], setup: Setup, options: RunOptions, mesh_degree: int | None
) -> PreparedStep | InfeasibleError:
    """One step in a worker."""
    try:
        return replace(prepare_numbered(numbered, setup, options, mesh_degree), program=None)
    except InfeasibleError as error:
        return error


class _Batches:
    """Full batches in order, with an account of what is in none; the strategy's queues carry documents to later ones.

    Attributes:
        waiting: tokens that wait after the batch of that number, and those after the last that was played.
        error: why the data ended early. It is not raised on the way: batches before it may still be played.
    """

    def __init__(
        self,
        data: DataOptions,
        source: Trace | Distribution | RepeatedLengths | LengthStream,
        queues: OutlierQueues | None = None,
    ) -> None:
        self.rows = source.rows if isinstance(source, LengthStream) else None
        if isinstance(source, Trace):
            self.rows = len(source)
        self.left_out_tokens = 0
        self.error: HdpSimError | None = None
        self.given: dict[int, GlobalBatch] = {}
        self.waiting: dict[int, int] = {}
        self._queues = queues
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
                self.done += 1
                self.sequences += len(batch.lengths)
                lengths = batch.lengths
                if self._queues is not None:
                    lengths = self._queues.batch(lengths)
                    self.waiting[batch.index] = int(self._queues.waiting.sum())
                self.given[batch.index] = replace(batch, lengths=lengths)
                yield lengths
        except HdpSimError as error:
            self.error = error

    def expected(self, most: int | None) -> int | None:
        """About how many steps there will be."""
        if self.rows is None or not self.sequences:
            return most
        about = max(self.done, round(self.rows * self.done / self.sequences))
        return about if most is None else min(about, most)


class _Played:
    """What the steps add up to, as they end one after the other. Attributes: see DatasetReplay."""

    def __init__(self, scenario: Scenario, setup: Setup) -> None:
        self._setup = setup
        self.throughput = RunningThroughput()
        self.rows: list[ReplayStep] = []
        self.account_s: dict[str, float] = {}
        self.startup_s = 0.0
        self.dropped_tokens = self.truncated_tokens = 0
        self.long = LongSequences.of((), scenario.data.context_tokens, scenario.data.policy)
        self.band: Band | None = None

    def add(self, batch: GlobalBatch, row: RunStep) -> None:
        self.dropped_tokens += batch.dropped_tokens
        self.truncated_tokens += batch.truncated_tokens
        self.long = self.long.with_batch(batch)
        if row.number == 1:  # nobody could begin its batch before it: the start of the run is no step
            self.startup_s, row = row.waited_s, row.without_waits()
            self.band = None if self._setup.strategy.is_own else setup_band(self._setup, batch.lengths)
        self.throughput.add(batch.tokens, row.period_s)
        for account, seconds in row.account_s.items():
            self.account_s[account] = self.account_s.get(account, 0.0) + seconds
        self.rows.append(_row(batch, row, self.throughput))


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
    setup = scenario.setup()
    batches = _Batches(scenario.data, source, OutlierQueues.of(setup))
    played = _Played(scenario, setup)
    waiting_tokens = 0
    stopped, error = "end of the data" if steps is None else "steps", None
    try:
        with engine:
            for batch, row in _on_one_clock(batches, steps, scenario, engine):
                waiting_tokens = batches.waiting.pop(batch.index, 0)
                played.add(batch, row)
                relative = played.throughput.relative_half_width()
                report(len(played.rows), batches.expected(steps), _note(played.throughput, relative))
                if until is not None and relative is not None and relative <= until:
                    stopped = "confidence"
                    break
        if batches.error is not None and stopped != "confidence":
            raise batches.error
    except KeyboardInterrupt:
        stopped = "interrupted"
    except HdpSimError as reason:
        if not played.rows:
            raise
        stopped, error = "error", reason
    if stopped == "steps" and steps is not None and len(played.rows) < steps:
        stopped = "end of the data"
    if not played.rows and stopped != "interrupted":
        raise UserInputError(
            f"{scenario.data.source_name}: the data end before one batch of {scenario.data.batch} is full "
            f"({batches.left_out_tokens:,} tokens are there); lower data.batch"
        )
    return DatasetReplay(
        scenario=scenario,
        source=scenario.data.source_name,
        steps=tuple(played.rows),
        throughput=played.throughput,
        account_s={name: seconds / len(played.rows) for name, seconds in played.account_s.items()},
        startup_s=played.startup_s,
        stopped=stopped,
        error=error,
        left_out_tokens=batches.left_out_tokens if stopped == "end of the data" else 0,
        waiting_tokens=waiting_tokens,
        dropped_tokens=played.dropped_tokens,
        truncated_tokens=played.truncated_tokens,
        long=played.long,
        band=played.band,
    )


def _source(data: DataOptions) -> Trace | Distribution | RepeatedLengths | LengthStream:
    if data.lengths_tokens is not None:
        return RepeatedLengths(data.lengths_tokens)
    name = str(data.trace or data.distribution)
    if data.distribution is not None or name in (*shipped_traces(), *shipped_distributions()):
        return load_source(name)
    return open_stream(name, data.column)


def _on_one_clock(
    batches: _Batches, steps: int | None, scenario: Scenario, engine: Engine
) -> Iterator[tuple[GlobalBatch, RunStep]]:
    """Batches with their steps, in order."""
    setup, begun = scenario.setup(), deque[GlobalBatch]()

    def prepared() -> Iterator[PreparedStep]:
        for batch, step in _in_order(batches, steps, setup, scenario.run, engine):
            begun.append(batch)
            yield step

    for row in run_of(setup, prepared(), scenario.run):
        yield begun.popleft(), row


def _in_order(
    batches: _Batches, steps: int | None, setup: Setup, options: RunOptions, engine: Engine
) -> Iterator[tuple[GlobalBatch, PreparedStep]]:
    """Batches with their steps, in order; steps that are prepared early wait."""
    asked = islice(iter(batches), steps)
    first = list(islice(asked, 1))
    prepared = in_order(
        engine,
        partial(_prepare, setup=setup, options=options, mesh_degree=_mesh_degree(setup, first)),
        enumerate(chain(first, asked)),
        window=LOOK_AHEAD * engine.slots,
    )
    for number, step in enumerate(prepared):
        if isinstance(step, InfeasibleError):
            raise InfeasibleError(f"step {number + 1} cannot run: {step}")
        yield batches.given.pop(number), step


def _mesh_degree(setup: Setup, first: list[Lengths]) -> int | None:
    """The degree of the run's mesh; None, too, where the first batch cannot run, which its step says."""
    try:
        return settled_degree(setup, first[0]) if first else None
    except InfeasibleError:
        return None


def _row(batch: GlobalBatch, row: RunStep, throughput: RunningThroughput) -> ReplayStep:
    step = row.step
    return ReplayStep(
        step=batch.index + 1,
        tokens=batch.tokens,
        sequences=len(batch.lengths),
        longest_tokens=int(batch.lengths.max()),
        step_s=row.period_s,
        waited_s=row.waited_s,
        tokens_per_s=batch.tokens / row.period_s,
        mfu=step.model_flop / (step.peak_flop_per_s * row.period_s),
        mfu_full=step.model_flop_full / (step.peak_flop_per_s * row.period_s),
        micro_batches=step.micro_batches,
        largest_group=step.largest_group,
        mean_tokens_per_s=throughput.tokens_per_s,
        mean_ci95=throughput.half_width(),
    )


def _note(throughput: RunningThroughput, relative: float | None) -> str:
    spread = "" if relative is None else f" ± {relative:.2%}"
    return f"{throughput.tokens_per_s:,.0f} tokens/s{spread}"
