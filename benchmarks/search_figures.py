"""What a search over layouts measures: fresh layouts of equal sequences, and candidates of variable lengths."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from typing import Any

from figures import Figure, Prepared

from hdpsim.arrays import Ints
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.setup import Setup, StrategyName
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.uniform import price_uniform

LAYOUTS = 500
CANDIDATES = 10
SCENARIO = "demo-8x22b-12k"
CONTEXT = 8192


def _layouts(setup: Setup, *, schedules: tuple[str, ...]) -> list[Layout]:
    """Layouts that divide, some of which memory refuses; layouts that share a layer follow each other."""
    experts = (1, 2, 4, 8) if setup.model.experts else (1,)
    sizes = product(
        (1, 2, 4, 8), experts, (1, 2, 4), ("none", "selective", "full"), (1, 2, 4, 8, 16), (1, 2, 4), schedules,
        ("zero1", "zero2", "zero3"), (None, 4096, 8192),
    )  # fmt: skip
    names = ("tp", "ep", "cp", "recompute", "pp", "vpp", "schedule", "sharding", "rank_capacity_tokens")
    switches: Iterator[dict[str, Any]] = (dict(zip(names, values, strict=True)) for values in sizes)
    legal = [
        one
        for one in switches
        if (one["vpp"] > 1) == (one["schedule"] == "interleaved")
        and (one["pp"] > 1 or one["schedule"] == "1f1b")
        and one["ep"] <= one["tp"]
    ]
    chosen = sorted(random.Random(1).sample(range(len(legal)), LAYOUTS))
    return [setup.layout.changed(**legal[index]) for index in chosen]


def _fresh(setup: Setup, numbers: Iterator[int]) -> Setup:
    """The setup with a model and a cluster of other names: nothing is known of them."""
    number = next(numbers)
    cluster = replace(setup.cluster, name=f"{setup.cluster.name} {number}")
    return replace(setup, cluster=cluster, model=replace(setup.model, name=f"{setup.model.name} {number}"))


def _uniform(model: str, gpus: int, tokens: int) -> Prepared:
    scenario = load_scenario(
        SCENARIO,
        (
            f"model={model}",
            "cluster=llama3-24k",
            f"gpus={gpus}",
            "data.context=8K",
            "strategy.name=static",
            "layout.ep=1",
        ),
    )
    setup, numbers = scenario.setup(), count()
    layouts = _layouts(setup, schedules=("1f1b", "interleaved", "zb-h1"))

    def run() -> int:
        prices = price_uniform(_fresh(setup, numbers), layouts, sequences=tokens // CONTEXT, tokens=CONTEXT)
        return sum(one.refused is None for one in prices)

    return Prepared(
        run=run,
        items=LAYOUTS,
        item="layouts",
        detail=f"{LAYOUTS} fresh layouts of {model} on {gpus:,} GPUs, {run()} of which can run; {tokens:,} tokens",
    )


def _variable(strategy: StrategyName, *, quick: bool = False) -> Prepared:
    scenario = load_scenario(
        SCENARIO,
        ("gpus=1024", "data.batch=4M tokens", "data.context=256K", f"strategy.name={strategy}"),
    )
    setup, lengths, numbers = scenario.setup(), scenario.batches(1)[0], count()
    degrees = product((4, 8), (1, 2, 4), (8192, 16384), (1, 2, 4))
    layouts = [
        setup.layout.changed(tp=tp, ep=ep, rank_capacity_tokens=capacity, pp=pp, cp=None, recompute="full")
        for tp, ep, capacity, pp in degrees
    ]
    layouts = [layout for layout in layouts if _runs(replace(setup, layout=layout), lengths)][:CANDIDATES]

    def run() -> None:
        fresh = _fresh(setup, numbers)
        for layout in layouts:
            simulate_step(replace(fresh, layout=layout), lengths, quick=quick)

    return Prepared(
        run=run,
        items=len(layouts),
        item="candidates",
        detail=f"{len(layouts)} fresh layouts, all of which can run; {len(lengths):,} sequences",
    )


def _runs(setup: Setup, lengths: Ints) -> bool:
    """Whether memory allows a layout; refusals cost next to nothing and would make the mean of the others smaller."""
    try:
        simulate_step(setup, lengths, quick=True)
    except InfeasibleError:
        return False
    return True


def _planning() -> Prepared:
    setup = (scenario := load_scenario("campaign-llama3-16k", ("strategy.name=hdp-opt",))).setup()
    lengths = scenario.batches(1)[0]
    return Prepared(
        run=lambda: plan_batch(setup, lengths),
        detail=f"{setup.ranks} ranks of {setup.layout.parallel.pp} stages, {len(lengths):,} sequences",
    )


SEARCH_FIGURES: tuple[Figure, ...] = (
    Figure(
        "plan-deep-pipeline",
        "a balanced plan of Llama-3 405B on 16,384 GPUs, 16 stages of two chunks",
        _planning,
    ),
    Figure(
        "search-uniform-405b",
        "fresh layouts of Llama-3 405B on 16,384 GPUs, equal sequences, with memory verdicts",
        lambda: _uniform("llama-3-405b", 16384, 16 * 2**20),
        target_s=LAYOUTS * 1e-3,
    ),
    Figure(
        "search-uniform-8x22b",
        "the same of Mixtral 8x22B on 1,024 GPUs",
        lambda: _uniform("mistral-8x22b", 1024, 4 * 2**20),
        target_s=LAYOUTS * 1e-3,
    ),
    Figure(
        "search-static",
        "candidates of variable lengths on 1,024 GPUs, static mesh",
        lambda: _variable("static"),
        target_s=CANDIDATES * 0.06,
    ),
    Figure(
        "search-balance-quick",
        "the same, hdp-opt planned quickly",
        lambda: _variable("hdp-opt", quick=True),
        target_s=CANDIDATES * 0.06,
    ),
    Figure("search-balance", "the same, hdp-opt planned in full", lambda: _variable("hdp-opt")),
)
