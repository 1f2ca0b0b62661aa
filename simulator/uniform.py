"""Steps of equal sequences under many layouts: what a search over layouts asks, without a plan for each.

A static mesh of equal sequences does the same on every rank (see play.lockstep), so that one micro-batch, its memory
and the rank with most slots say everything about the step. Numbers and reasons are those of
`simulator.step.simulate_step`, which also runs what is not that simple.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.tracing import shared
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.planning import check_strategy, micro_batch_cost
from hdpsim.simulator.play.replay import replay_lone_step
from hdpsim.simulator.playing import play_with_data
from hdpsim.simulator.pricing import price_micro_batches
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.step_memory import capacity_tokens, check_fits, held_tokens, memory_of
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.static_mesh import mesh_degrees, rings_alike


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPrice:
    """One layout's step of equal sequences, or the reason why there is none.

    Attributes:
        layout: the layout.
        step_s: seconds of the step; 0 where there is none.
        tokens_per_s: throughput of the whole cluster; 0 where there is no step.
        memory: of the fullest stage, whether it fits included; None where there is no step.
        refused: why the layout cannot run; None where it can.
    """

    layout: Layout
    step_s: float = 0.0
    tokens_per_s: float = 0.0
    memory: MemoryReport | None = None
    refused: InfeasibleError | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """*sequences* sequences of *tokens* tokens each."""

    sequences: int
    tokens: int

    @property
    def lengths(self) -> Ints:
        return np.full(self.sequences, self.tokens, dtype=np.int64)

    def packs(self, setup: Setup) -> int:
        """Micro-batches that they make, each filled up to the context."""
        return self.sequences // (setup.context_tokens // self.tokens)


def price_uniform(
    setup: Setup, layouts: Iterable[Layout], *, sequences: int, tokens: int
) -> Iterator[UniformPrice]:
    """The step of each layout, one after the other, on a batch of *sequences* sequences of *tokens* tokens.

    Layouts that agree on what a layer costs should follow each other in a search of many thousands: they share it.

    Args:
        setup: everything but the layout.
        layouts: any number; a layout that cannot run is refused by the same reason as in simulate_step.
        sequences: of a batch.
        tokens: of each sequence, at most the context.
    """
    batch = _Batch(sequences, tokens)
    for layout in layouts:
        try:
            step_s, memory = _step(replace(setup, layout=layout), batch)
        except InfeasibleError as error:
            yield UniformPrice(layout=layout, refused=error)
        else:
            throughput = sequences * tokens / step_s
            yield UniformPrice(layout=layout, step_s=step_s, tokens_per_s=throughput, memory=memory)


def _step(setup: Setup, batch: _Batch) -> tuple[float, MemoryReport]:
    """Seconds and memory of one step; what refuses a layout most cheaply comes first."""
    if not _is_uniform(setup, batch):
        return _simulated(setup, batch)
    check_strategy(setup)
    capacity = capacity_tokens(setup)
    memory = _memory(setup, batch, held_tokens(setup, capacity))
    priced = replace(setup, layout=setup.layout.of_prices)
    cost = micro_batch_cost(priced)
    (degree,) = mesh_degrees(
        PlanningProblem(
            lengths=np.array([batch.tokens]),
            ranks=setup.ranks,
            capacity_tokens=capacity,
            context_tokens=setup.context_tokens,
            cost=cost,
            options=setup.strategy,
        )
    )
    groups = min(setup.ranks // degree, batch.packs(setup))
    if not rings_alike(cost.fabric, groups, degree, setup.layout.parallel.rank_stride):
        return _simulated(setup, batch)
    check_fits(setup, memory)
    return _seconds(priced, batch, degree), memory


def _simulated(setup: Setup, batch: _Batch) -> tuple[float, MemoryReport]:
    result = simulate_step(setup, batch.lengths)
    return result.step_s, result.memory


@shared(most=256)
def _seconds(setup: Setup, batch: _Batch, degree: int) -> float:
    """Seconds of the step of a mesh of that degree: the same for layouts that differ in what ranks may hold."""
    cost, packs = micro_batch_cost(setup), batch.packs(setup)
    stride, held = setup.layout.parallel.rank_stride, setup.context_tokens // batch.tokens
    most = -(-packs // (setup.ranks // degree))  # micro-batches of a rank
    tier, crossing = _ring(cost.fabric, degree, stride)
    padding = setup.context_tokens - held * batch.tokens
    batches = MicroBatches(
        segment_tokens=np.full(held, batch.tokens, dtype=np.int64),
        segment_offsets=np.array([0, held]),
        group_size=np.array([degree]),
        tier=tier,
        offload_ratio=np.array([setup.strategy.activation_offload]),
        padding_tokens=np.array([padding]) if setup.strategy.padding else None,
        crossing=crossing,
        copies=packs,
    )
    tokens = batch.sequences * batch.tokens
    costs = price_micro_batches(setup, cost, batches, tokens=tokens, sequences=batch.sequences)
    return play_with_data(costs, lambda played: replay_lone_step(played, most)).step_s


@lru_cache(maxsize=1024)
def _ring(fabric: FabricModel, degree: int, stride: int) -> tuple[Ints, Floats | None]:
    """Slowest tier of the ring of the first ranks, and shares that cross each; see FabricModel."""
    gpus, ring = np.arange(degree) * stride, np.array([0, degree])
    return fabric.ring_tiers(gpus, ring), fabric.ring_crossing(gpus, ring, stride)


def _memory(setup: Setup, batch: _Batch, held: int) -> MemoryReport:
    """Memory of the step; refused at once is what needs too much for a single micro-batch, as simulate_step does.

    A step has one micro-batch of a rank at least, so one that fits needs no second look.
    """
    degree = setup.layout.parallel.cp
    assert degree is not None, "a uniform step has a stated mesh"
    unfused = setup.layout.kernels.attention == "unfused"
    memory = memory_of(
        setup,
        held,
        micro_batches=-(-batch.packs(setup) // max(1, setup.ranks // degree)),
        sequence_tokens=-(-batch.tokens // degree) if unfused else None,
    )
    if not memory.fits:
        check_fits(setup, memory_of(setup, held, micro_batches=1, sequence_tokens=1))
        # Before anything is priced, unless the mesh itself will be refused.
        if degree == 1 and setup.context_tokens <= held:
            check_fits(setup, memory)
    return memory


def _is_uniform(setup: Setup, batch: _Batch) -> bool:
    """Whether every micro-batch of the static mesh is like the first, and nothing is drawn at random."""
    options, execution = setup.strategy, setup.execution
    plain = options.name == "static" and setup.layout.parallel.cp is not None
    replayed = execution.executor == "replay" and execution.network == "independent"
    replayed = replayed and execution.draws_nothing and not execution.has_tails
    fills = 0 < batch.tokens <= setup.context_tokens and batch.sequences > 0
    mixed = len(setup.cluster.kinds) > 1
    if mixed or not (plain and replayed and fills) or setup.memory.overheads.host_run_ahead:
        return False
    if setup.layout.pipeline.schedule == "dualpipe":  # which takes packs apart
        return False
    cut = options.packing == "concatenate" and setup.context_tokens % batch.tokens
    return not cut and batch.sequences % (setup.context_tokens // batch.tokens) == 0
