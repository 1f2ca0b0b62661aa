"""ByteScale's cells and settings simulated, all on the same global batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice, product
from typing import cast

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout_checks import reasons_against
from hdpsim.cost_models.reading.units import parse_quantity
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.papers.folder import PublishedFigure, paper_folder
from hdpsim.experiments.scenario.references import cluster_of_size
from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.setup import Setup, StrategyName, StrategyOptions
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.static.packing import pack_chunked
from hdpsim.simulator.strategies.static.static_mesh import ring_chunks
from hdpsim.traces import Distribution, global_batches, load_distribution


def tokens(text: str) -> int:
    """The tokens of a quantity such as `8K tokens`."""
    return int(parse_quantity(text.removesuffix(" tokens"), "tokens"))


FOLDER = paper_folder("bytescale")
SETUP = FOLDER.setup
STRATEGIES: tuple[str, ...] = tuple(SETUP["cells"]["columns"]["strategy"])
CONTEXTS_TOKENS = tuple(tokens(text) for text in SETUP["contexts"])
BATCH_TOKENS = tokens(SETUP["batch"])
SEED = 0  # of the sampled lengths; any would do
PLACE = ("model", "dataset", "gpus", "context_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What figures are computed for: a cluster of any size, and the rates of its GPUs."""

    cluster: Cluster
    calibration: Calibration

    @classmethod
    def named(cls, name: str) -> Machine:
        """One that setup.yaml lists: other nodes in the cells' fabric, rates of a calibration or some of their own."""
        entry = SETUP["machines"][name]
        cluster = replace(catalog.cluster(SETUP["cluster"]), node=catalog.node(entry["node"]))
        rates = replace(calibration(entry["calibration"]), **entry.get("rates", {}))
        return cls(cluster=cluster, calibration=rates)


OWN = Machine(cluster=catalog.cluster(SETUP["cluster"]), calibration=calibration(SETUP["calibration"]))
"""The machine of the cells."""


@cache
def layout_of(model: str) -> Layout:
    """How a model of the figure is laid out.

    Gathers and gradient sums run beside compute under every strategy: all three are MegaScale (section 8.1), which
    hides them (arXiv 2402.15627, section 3.2), and HDP reduces gradients over its ranks "similar to DP" (section 5.1).
    """
    entry = SETUP["models"][model]
    return Layout(
        tp=entry["tp"],
        pp=entry["pp"],
        ep=entry["ep"],
        rank_capacity_tokens=tokens(entry["rank_capacity"]),
        cp_ring_kernels="eager",  # Figure 18a: merging takes 0.3 ms, what unfused operations move
    )


def all_cells() -> tuple[PublishedFigure, ...]:
    """Every cell of Figure 17, with its measurement where the shipped copy has it."""
    measured = {tuple(cell.inputs.values()): cell.measured for cell in FOLDER.published_cells()}
    return tuple(
        PublishedFigure(
            inputs=dict(zip(FOLDER.columns, inputs, strict=True)),
            measured=measured.get(inputs),
            unit="tokens_per_s",
        )
        for (model, entry), dataset, context, strategy in product(
            SETUP["models"].items(), SETUP["datasets"], CONTEXTS_TOKENS, STRATEGIES
        )
        for inputs in [(model, dataset, entry["gpus"], context, strategy)]
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSteps:
    """What a job yields, or the reason why it cannot run.

    Attributes:
        tokens: tokens of all batches together.
        step_s: seconds of the step of every batch.
        mfu: model FLOP utilisation, causal attention.
        over_plan_ideal: how far the plans' busiest ranks are above the ideal of their kind (0.03 = 3 %), mean; None for
            a static mesh.
        memory_bytes: bytes in use on the fullest GPU.
        busy_s: [batches, ranks] seconds a rank (mean over its stages) spends in forward and backward, exposed
            communication inside them included, waits and gradient synchronisation not; only with keep_ranks.
        reason: why it cannot run; empty when it ran.
    """

    tokens: int = 0
    step_s: tuple[float, ...] = ()
    mfu: float = 0.0
    over_plan_ideal: float | None = None
    memory_bytes: float = 0.0
    busy_s: Floats | None = None
    reason: str = ""

    @property
    def total_s(self) -> float:
        """Seconds of all steps."""
        return math.fsum(self.step_s)

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the whole cluster over all batches."""
        return self.tokens / self.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsJob:
    """The steps of one configuration on a number of global batches.

    Attributes:
        keep_ranks: keep the busy time of every rank.
        machine: on which they run.
        split: of the last buckets of lengths, one of the data set's in setup.yaml; empty: the one we assume.
    """

    model: str
    dataset: str
    gpus: int
    context_tokens: int
    options: StrategyOptions
    batches: int
    keep_ranks: bool = False
    machine: Machine = OWN
    split: str = ""

    def setup(self) -> Setup:
        """What is simulated.

        Raises:
            InfeasibleError: degrees that do not divide, or a context longer than the global batch.
        """
        layout, model = layout_of(self.model), catalog.model(self.model)
        cluster = cluster_of_size(self.machine.cluster, self.gpus)
        against = reasons_against(model, cluster, layout, self.context_tokens)
        if against:
            raise InfeasibleError("; ".join(against))
        if self.context_tokens > BATCH_TOKENS:
            raise InfeasibleError(
                f"a context of {self.context_tokens} tokens is longer than the global batch of {BATCH_TOKENS} tokens"
            )
        return Setup(
            model=model,
            cluster=cluster,
            layout=layout,
            calibration=self.machine.calibration,
            context_tokens=self.context_tokens,
            # Section 4: every rank of a group, and every micro-batch, holds as many tokens.
            strategy=replace(self.options, fixed_shape=True),
        )

    def lengths(self) -> tuple[Ints, ...]:
        """The sequence lengths of every batch."""
        of_data = (self.dataset, self.context_tokens, self.batches, self.split)
        if self.options.name != "static":
            return batches_of(*of_data)
        layout, context = layout_of(self.model), self.context_tokens
        degree = -(-context // (layout.context.rank_capacity_tokens or context))
        return packed_batches_of(*of_data, ring_chunks(layout, degree))

    def run(self) -> JobSteps:
        """Simulate the batches one after the other."""
        try:
            setup = self.setup()
            results = [simulate_step(setup, lengths) for lengths in self.lengths()]
        except InfeasibleError as error:
            return JobSteps(reason=str(error))
        busy = [
            result.account_s[[name not in WAITS for name in result.accounts]].sum(axis=0).mean(axis=1)
            for result in results
            if self.keep_ranks
        ]
        over_ideal = [r.makespan_s / r.plan_ideal_s - 1.0 for r in results if r.plan_ideal_s]
        return JobSteps(
            tokens=sum(result.tokens for result in results),
            step_s=tuple(result.step_s for result in results),
            mfu=float(np.average([r.mfu for r in results], weights=[r.step_s for r in results])),
            over_plan_ideal=float(np.mean(over_ideal)) if over_ideal else None,
            memory_bytes=max(result.memory.total_bytes for result in results),
            busy_s=np.array(busy) if busy else None,
        )


def distribution_of(dataset: str, split: str = "") -> Distribution:
    """The lengths of a data set, its last buckets split as we assume or as *split* says, their sum unchanged."""
    published = load_distribution(SETUP["datasets"][dataset])
    if not split:
        return published
    parts = SETUP["splits"][dataset][split]
    kept, cut = published.token_shares[: -len(parts)], published.token_shares[-len(parts) :]
    shares = (*kept, *(sum(cut) * part / sum(parts) for part in parts))
    return replace(published, name=f"{published.name}, {split}", token_shares=shares)


@lru_cache(maxsize=8)
def _sample(dataset: str, tokens: int, split: str) -> Ints:
    """At least *tokens* tokens of sequences at evenly spaced quantiles of the data set's lengths."""
    distribution = distribution_of(dataset, split)
    count = math.ceil(tokens / distribution.mean_tokens)
    while True:
        lengths = distribution.stratified_sample(count, np.random.default_rng(SEED))
        missing = tokens - int(lengths.sum())
        if missing <= 0:
            return lengths
        count += math.ceil(missing / distribution.mean_tokens)


@lru_cache(maxsize=8)
def batches_of(dataset: str, context_tokens: int, count: int, split: str = "") -> tuple[Ints, ...]:
    """The first *count* global batches of a data set: the same sequences for every model, strategy and context.

    The paper reports means over 200 iterations. Evenly spaced quantiles represent the lengths as well with few
    batches; longer sequences are cut to the context.
    """
    cut = global_batches(
        [_sample(dataset, count * BATCH_TOKENS, split)],
        context_tokens=context_tokens,
        budget_tokens=BATCH_TOKENS,
    )
    return tuple(batch.lengths for batch in islice(cut, count))


@lru_cache(maxsize=8)
def packed_batches_of(
    dataset: str, context_tokens: int, count: int, split: str, chunks: int
) -> tuple[Ints, ...]:
    """Cut the same sequences into batches for a static mesh: as many packs as 32M tokens fill, so a few tokens less.

    A loader that hands out packs gives every group as many: 8 micro-batches of 2M in Figure 18. 32M tokens of whole
    sequences fill one or two packs more than that.
    """
    sequences = np.concatenate(batches_of(dataset, context_tokens, count, split))
    packs = pack_chunked(sequences, context_tokens, StrategyOptions().packing, chunks).micro_batch
    step = packs // max(1, BATCH_TOKENS // context_tokens)
    return tuple(sequences[step == number] for number in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """A cell: its steps, and what they may be, for all that the paper says of the lengths."""

    steps: StepsJob

    def run(self) -> tuple[JobSteps, tuple[float, ...]]:
        """The steps, and tokens/s with every split of the last buckets; none where no split is open.

        Contexts up to the first of these buckets cut what they hold to equal pieces.
        """
        own = self.steps.run()
        splits = SETUP["splits"].get(self.steps.dataset, {})
        last = distribution_of(self.steps.dataset).edges_tokens
        open_ = [name for name, parts in splits.items() if self.steps.context_tokens > last[-len(parts)]]
        if own.reason or not open_:
            return own, ()
        others = [replace(self.steps, split=name).run() for name in open_]
        return own, tuple(one.tokens_per_s for one in (own, *others))


def job_of(cell: PublishedFigure, batches: int) -> StepsJob:
    """What predicts a cell."""
    place = {name: cell[name] for name in PLACE}
    return StepsJob(**place, options=StrategyOptions(name=cell["strategy"]), batches=batches)


def case_steps(batches: int, machine: Machine = OWN) -> dict[str, StepsJob]:
    """The setting of Figure 18 under every strategy."""
    options = {name: StrategyOptions(name=cast("StrategyName", name)) for name in STRATEGIES}
    return {name: case_job(option, batches, machine) for name, option in options.items()}


def case_job(options: StrategyOptions, batches: int, machine: Machine = OWN) -> StepsJob:
    """The setting of Figures 18 and 20 under these options."""
    case = SETUP["case_study"]
    return StepsJob(
        model=case["model"],
        dataset=case["dataset"],
        gpus=SETUP["models"][case["model"]]["gpus"],
        context_tokens=tokens(case["context"]),
        options=options,
        batches=batches,
        keep_ranks=True,
        machine=machine,
    )
