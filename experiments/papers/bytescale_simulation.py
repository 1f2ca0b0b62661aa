"""Predicting ByteScale's cells: the same global batches for all, spread over worker processes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.feasibility import reasons_against
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.papers.bytescale_data import DATASETS, layouts
from hdpsim.experiments.parallel.pool import worker_pool
from hdpsim.experiments.scenario.references import cluster_of_size
from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.setup import Setup, StrategyOptions
from hdpsim.simulator.step import simulate_step
from hdpsim.traces import global_batches, load_distribution

CLUSTER = "bytescale-h20"
CALIBRATION = "bytescale-h20"
BATCH_TOKENS = (
    32 * 2**20
)  # ByteScale section 6.1: 32M tokens; 8 micro-batches x DP 2 x 2M in Figure 18 make it 2^25
DEFAULT_BATCHES = 16
WORKERS = 2  # a cell takes about a second: more processes start longer than they save
SEED = 0  # of the sampled lengths; any would do

Floats = NDArray[np.float64]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One configuration on a number of global batches; everything a prediction may depend on."""

    model: str
    dataset: str
    gpus: int
    context_tokens: int
    options: StrategyOptions
    batches: int
    keep_ranks: bool = False
    """Keep the busy time of every rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a job yields, or the reason why it cannot run.

    Attributes:
        tokens: of all batches.
        step_s: of every batch.
        mfu: model FLOP utilisation, causal attention.
        over_plan_ideal: how far the plans' busiest ranks are above the ideal of their kind (0.03 = 3 %), mean; None for
            a static mesh.
        memory_bytes: of the fullest GPU.
        busy_s: [batches, ranks] seconds a rank (mean over its stages) spends in forward and backward, exposed
            communication inside them included, waits and gradient synchronisation not; only with keep_ranks.
        notes: remarks of the simulator on the first batch.
        reason: why it cannot run; empty when it ran.
    """

    tokens: int = 0
    step_s: tuple[float, ...] = ()
    mfu: float = 0.0
    over_plan_ideal: float | None = None
    memory_bytes: float = 0.0
    busy_s: Floats | None = None
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def total_s(self) -> float:
        """Seconds of all steps."""
        return math.fsum(self.step_s)

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the whole cluster over all batches."""
        return self.tokens / self.total_s


def setup_of(job: Job) -> Setup:
    """The simulator's setup of a job.

    Raises:
        InfeasibleError: degrees that do not divide, or a context longer than the global batch.
    """
    chosen = layouts()[job.model].layout
    model = catalog.model(job.model)
    cluster = cluster_of_size(catalog.cluster(CLUSTER), job.gpus)
    against = reasons_against(model, cluster, chosen, job.context_tokens)
    if against:
        raise InfeasibleError("; ".join(against))
    if job.context_tokens > BATCH_TOKENS:
        raise InfeasibleError(
            f"a context of {job.context_tokens} tokens is longer than the global batch of {BATCH_TOKENS} tokens"
        )
    return Setup(
        model=model,
        cluster=cluster,
        layout=chosen,
        calibration=calibration(CALIBRATION),
        context_tokens=job.context_tokens,
        strategy=job.options,
    )


@lru_cache(maxsize=8)
def _sample(dataset: str, tokens: int) -> Lengths:
    """At least *tokens* tokens of sequences at evenly spaced quantiles of the data set's lengths."""
    distribution = load_distribution(DATASETS[dataset])
    count = math.ceil(tokens / distribution.mean_tokens)
    while True:
        lengths = distribution.stratified_sample(count, np.random.default_rng(SEED))
        missing = tokens - int(lengths.sum())
        if missing <= 0:
            return lengths
        count += math.ceil(missing / distribution.mean_tokens)


@lru_cache(maxsize=8)
def batches_of(dataset: str, context_tokens: int, count: int) -> tuple[Lengths, ...]:
    """The first *count* global batches of a data set: the same sequences for every model, strategy and context.

    The paper reports means over 200 iterations. Evenly spaced quantiles represent the lengths as well with few
    batches; longer sequences are cut to the context.
    """
    cut = global_batches(
        [_sample(dataset, count * BATCH_TOKENS)], context_tokens=context_tokens, budget_tokens=BATCH_TOKENS
    )
    return tuple(batch.lengths for batch in islice(cut, count))


def heaviest_batch(model: str, batches: Sequence[Lengths]) -> tuple[int, float]:
    """Which batch has the most model FLOP, and how many times the mean that is."""
    flop = np.array([sequence_model_flop(catalog.model(model), lengths) for lengths in batches])
    heaviest = int(flop.argmax())
    return heaviest, float(flop[heaviest] / flop.mean())


def run_job(job: Job) -> Outcome:
    """Simulate a job's batches one after the other."""
    try:
        setup = setup_of(job)
        results = [
            simulate_step(setup, lengths)
            for lengths in batches_of(job.dataset, job.context_tokens, job.batches)
        ]
    except InfeasibleError as error:
        return Outcome(reason=str(error))
    busy = [
        result.account_s[[name not in WAITS for name in result.accounts]].sum(axis=0).mean(axis=1)
        for result in results
        if job.keep_ranks
    ]
    over_ideal = [r.makespan_s / r.plan_ideal_s - 1.0 for r in results if r.plan_ideal_s]
    return Outcome(
        tokens=sum(result.tokens for result in results),
        step_s=tuple(result.step_s for result in results),
        mfu=float(np.mean([result.mfu for result in results])),
        over_plan_ideal=float(np.mean(over_ideal)) if over_ideal else None,
        memory_bytes=max(result.memory.total_bytes for result in results),
        busy_s=np.array(busy) if busy else None,
        notes=results[0].notes,
    )


def run_jobs(
    jobs: Sequence[Job], report: Callable[[int, int], None], workers: int | None = None
) -> tuple[Outcome, ...]:
    """Run all jobs in worker processes; outcomes in the order of *jobs*, equal on any number of workers.

    Args:
        jobs: what to run; equal ones run once.
        report: told (done, total) after every job.
        workers: processes; 1 runs everything in this one. Default: two, or one for each processor if fewer.
    """
    different = list(dict.fromkeys(jobs))
    processes = min(workers or WORKERS, os.cpu_count() or 1, len(different))
    found: dict[Job, Outcome] = {}
    if processes <= 1:
        for done, job in enumerate(different, start=1):
            found[job] = run_job(job)
            report(done, len(different))
    else:
        with worker_pool(processes) as pool:
            futures = {pool.submit(run_job, job): job for job in different}
            for done, future in enumerate(as_completed(futures), start=1):
                found[futures[future]] = future.result()
                report(done, len(different))
    return tuple(found[job] for job in jobs)
