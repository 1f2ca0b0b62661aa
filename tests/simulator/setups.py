"""Small setups for the strategies' tests: models of a few layers on a few nodes, builders and Hypothesis strategies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric
from hdpsim.cost_models.layer.host_launches import forward_launches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.simulator.planning import micro_batch_cost
from hdpsim.simulator.setup import ExecutionOptions, Setup, StrategyName, StrategyOptions
from hdpsim.simulator.strategies.problem import PlanningProblem

MODEL = Model(
    name="small", layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn_hidden=2816, vocab=32_000
)
"""Ordinary, and small enough that memory never decides."""
MODELS = (
    MODEL,
    replace(MODEL, name="uneven", layers=9),
    replace(MODEL, name="experts", experts=4, top_k=2),
    replace(MODEL, name="window", sliding_window=512),
)

# Without its sources it prints shorter. Sequences here are short: their kernels, not launches, shall decide.
HOPPER = replace(calibration("hopper"), entries=(), launch_s=4.5e-6)


def launch_bound(layout: Layout) -> Calibration:
    """Launches so slow that a layer's forward takes 2 ms at least: a micro-batch 8 layers x 3 x 2 ms = 48 ms."""
    return replace(HOPPER, name="floor", launch_s=2e-3 / forward_launches(MODEL, layout, moe=False))


FLOOR = launch_bound(Layout())
CONGESTED = replace(
    HOPPER,
    name="congested",
    ring_delay_s=3e-4,
    ring_overlap=0.5,
    micro_batch_fixed_s=0.01,
    host_link_efficiency=0.1,
)
CALIBRATIONS = (HOPPER, FLOOR, CONGESTED)


def small_cluster(nodes: int, nodes_per_block: int = 2, oversubscription: float = 1.0) -> Cluster:
    """Nodes of 8 H100s in small rail-connected blocks, two of which make a pod."""
    fabric = Fabric(nodes_per_block=nodes_per_block, blocks_per_pod=2, leaf_oversubscription=oversubscription)
    return Cluster(name="small", node=catalog.node("hgx-h100-80gb"), nodes=nodes, fabric=fabric)


def small_setup(
    *,
    nodes: int = 2,
    capacity: int = 1024,
    context: int = 4096,
    model: Model = MODEL,
    cal: Calibration = HOPPER,
    cluster: Cluster | None = None,
    execution: ExecutionOptions | None = None,
    layout: Layout | None = None,
    **strategy: object,
) -> Setup:
    """Return a setup; `strategy` are StrategyOptions."""
    return Setup(
        model=model,
        cluster=cluster or small_cluster(nodes),
        layout=(layout or Layout()).changed(rank_capacity_tokens=capacity),
        calibration=cal,
        context_tokens=context,
        strategy=StrategyOptions(**strategy),  # type: ignore[arg-type]
        execution=execution or ExecutionOptions(),
    )


def problem_of(setup: Setup, lengths: list[int] | NDArray[np.int64]) -> PlanningProblem:
    """Return what a strategy is asked for this batch."""
    assert setup.layout.context.rank_capacity_tokens is not None
    return PlanningProblem(
        lengths=np.asarray(lengths, dtype=np.int64),
        ranks=setup.ranks,
        capacity_tokens=setup.layout.context.rank_capacity_tokens,
        context_tokens=setup.context_tokens,
        cost=micro_batch_cost(setup),
        options=setup.strategy,
    )


@dataclass(frozen=True)
class Task:
    """A batch to be trained on a setup."""

    setup: Setup
    lengths: NDArray[np.int64]

    def __repr__(self) -> str:
        """Only what tasks() draws."""
        setup = self.setup
        return (
            f"Task({setup.model.name}, {setup.calibration.name}, {setup.cluster.nodes} nodes, "
            f"leaf {setup.cluster.fabric.leaf_oversubscription}, context {setup.context_tokens}, {setup.layout}, "
            f"{setup.strategy}, {setup.execution}, {self.lengths.tolist()})"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints."""
        printer.text(repr(self))


SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe")
STRATEGIES: tuple[StrategyName, ...] = ("static", "hdp-naive", "hdp-opt")
SHAPES = [(1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (2, 2), (4, 2)]
"""Pipeline stages and chunks of each."""


@st.composite
def tasks(draw: st.DrawFn, *, noise: bool = False) -> Task:
    """Random models, clusters, layouts, capacities, switches and batches; always feasible for every strategy."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp, vpp = draw(st.sampled_from(SHAPES))
    nodes = draw(st.integers(1, 6)) * pp
    ranks = nodes * 8 // (tp * pp)
    capacity = draw(st.sampled_from([256, 640, 1024, 4096]))
    # Up to all ranks for one sequence.
    context = draw(st.integers(1, ranks)) * capacity
    model = draw(st.sampled_from(MODELS))
    if model.layers % (pp * vpp):
        model = MODEL if vpp > 1 else model
    layout = Layout(
        tp=tp,
        pp=pp,
        vpp=vpp,
        ep=draw(st.sampled_from([1, min(tp, 4)])) if model.experts else 1,
        schedule="interleaved" if vpp > 1 else "1f1b",
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )
    execution = ExecutionOptions()
    if noise:
        execution = ExecutionOptions(
            seed=draw(st.integers(0, 9)),
            jitter=draw(st.sampled_from([0.0, 0.1])),
            slow_node_share=draw(st.sampled_from([0.0, 0.3])),
        )
    setup = small_setup(
        capacity=capacity,
        context=context,
        model=model,
        cal=draw(st.sampled_from(CALIBRATIONS)),
        cluster=small_cluster(nodes, oversubscription=draw(st.sampled_from([1.0, 3.0]))),
        layout=layout,
        execution=execution,
        name=draw(st.sampled_from(["static", "hdp-naive", "hdp-opt", "hdp-opt"])),
        packing=draw(st.sampled_from(["in-order", "first-fit", "best-fit", "concatenate"])),
        dynamic_groups=draw(st.sampled_from([True, True, True, False])),
        selective_offloading=draw(st.booleans()),
        balancing=draw(st.sampled_from([True, True, True, False])),
        remote_data_loading=draw(st.booleans()),
    )
    short = st.integers(1, min(capacity, context))
    length = st.one_of(short, short, st.integers(1, context), st.just(context))
    lengths = draw(st.lists(length, min_size=1, max_size=40))
    return Task(setup, np.array(lengths, dtype=np.int64))


@st.composite
def pipelines(draw: st.DrawFn) -> Task:
    """Every schedule under every strategy that it allows, on uneven stages, experts, kinds of context parallelism."""
    schedule = draw(st.sampled_from(SCHEDULES))
    vpp = {"interleaved": 2, "zb-v": 2}.get(schedule, 1)
    pp = draw(st.sampled_from([2, 4]))
    tp = draw(st.sampled_from([1, 2, 4]))
    model = draw(st.sampled_from(MODELS))
    if model.layers % (pp * vpp):
        model = MODEL
    layout = Layout(
        tp=tp,
        pp=pp,
        vpp=vpp,
        ep=tp if model.experts else 1,
        schedule=schedule,
        pp_overlap=schedule in SPLIT_SCHEDULES or draw(st.booleans()),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        cp_kind=draw(
            st.sampled_from(
                ["ring", "all-gather", "gathered-ring", "double-ring", "ulysses", "hybrid", "disaggregated"]
            )
        ),
        cp_sharding=draw(st.sampled_from([None, "document", "pack", "adaptive"])),
        sharding=draw(st.sampled_from(["none", "zero1"])),
        gather_overlap=draw(st.booleans()),
        dp_overlap=draw(st.booleans()),
        loss_average=draw(st.sampled_from(["step", "micro-batch"])),
        schedule_micro_batches=None if schedule == "dualpipe" else draw(st.sampled_from([None, None, 1, 3])),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        blocking_maxima=draw(st.booleans()),
        stage_balance=draw(st.sampled_from(["layers", "flop"])) if vpp == 1 else "layers",
    )
    ranks = draw(st.sampled_from([2, 4, 8]))
    context = draw(st.sampled_from([1, 2])) * 512
    name = "static" if schedule == "dualpipe" else draw(st.sampled_from(STRATEGIES))
    setup = small_setup(
        cluster=small_cluster(max(1, ranks * tp * pp // 8)),
        capacity=512,
        context=context,
        model=model,
        cal=draw(st.sampled_from(CALIBRATIONS)),
        layout=layout,
        name=name,
        packing=draw(st.sampled_from(["in-order", "concatenate"])),
    )
    # DualPipe needs sequences for 2 pp micro-batches of every group, and splits packs for an even number of them.
    least = 2 * setup.ranks * (2 * pp + 2) if schedule == "dualpipe" else 1
    lengths = draw(st.lists(st.integers(1, context), min_size=least, max_size=least + 23))
    return Task(setup, np.array(lengths, dtype=np.int64))


@st.composite
def meetings(draw: st.DrawFn) -> Task:
    """Ranks that wait for each other in every layer: parameters gathered layer by layer, experts beyond TP."""
    tp, pp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 1, 2]))
    sharding = draw(st.sampled_from(["zero1", "zero3"]))
    experts = sharding != "zero3" or draw(st.booleans())
    ranks = draw(st.sampled_from([4, 8]))
    model = next(model for model in MODELS if bool(model.experts) == experts)
    layout = Layout(
        tp=tp, pp=pp, ep=2 * tp if experts else 1, sharding=sharding,
        recompute=draw(st.sampled_from(["none", "full"])),
    )  # fmt: skip
    capacity = draw(st.sampled_from([256, 1024]))
    context = draw(st.integers(1, ranks)) * capacity
    setup = small_setup(
        capacity=capacity,
        context=context,
        model=model,
        cluster=small_cluster(max(1, ranks * tp * pp // 8)),
        layout=layout,
        name=draw(st.sampled_from([*STRATEGIES, "hdp-balance"])),
    )
    short = st.integers(1, capacity)
    lengths = draw(st.lists(st.one_of(short, st.integers(1, context)), min_size=1, max_size=20))
    return Task(setup, np.array(lengths, dtype=np.int64))
