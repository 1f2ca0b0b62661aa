"""A scenario that cannot run: why, where memory goes, and the nearest change that makes it run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from hdpsim.cost_models.memory.peak import CAPACITY_STEP_TOKENS
from hdpsim.errors import HdpSimError, InfeasibleError, OutOfMemoryError
from hdpsim.experiments.scenario.overrides import apply_overrides
from hdpsim.experiments.scenario.scenario import load_scenario, written_document
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.simulator.step_memory import held_tokens, memory_of
from hdpsim.simulator.strategies.static.static_mesh import divisors

from .observed import halves
from .trials import Overrides, overrides_of

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport
    from hdpsim.experiments.scenario.scenario import Scenario, ScenarioSource
    from hdpsim.experiments.studies.comparing.compare import Lengths
    from hdpsim.simulator.setup import Setup

    from .trials import Changes

LARGEST_POWER = 12
"""Of two, times a server: the most GPUs that are tried for a model that is far too large."""
BUDGET_S = 20.0
"""Seconds after which no further change is tried."""

_NEUTRAL: Changes = {
    "layout.tp": 1, "layout.pp": 1, "layout.vpp": 1, "layout.schedule": "1f1b", "layout.cp": "auto", "layout.ep": 1,
    "layout.etp": "auto", "layout.shard_ranks": "all", "layout.precision": "bf16", "layout.order": "tp-dp-pp",
    "layout.pipeline_layout": "auto",
}  # fmt: skip
"""Degrees with which every model is cut and every cluster divides."""

_GIB = 2.0**30


class Repair(NamedTuple):
    """A change with which the scenario runs, and how fast."""

    change: Overrides
    step_s: float
    tokens_per_s_per_gpu: float


def explained(error: InfeasibleError, source: ScenarioSource, overrides: Overrides) -> InfeasibleError:
    """The error with where memory goes and the nearest change that makes the scenario run, if one is found."""
    lines = [str(error), *_memory_lines(error, source, overrides)]
    repairs, tried = _repairs(source, overrides)
    if repairs:
        best = max(repairs, key=lambda repair: repair.tokens_per_s_per_gpu)
        keys = "one key" if len(best.change) == 1 else f"{len(best.change)} keys"
        sets = " ".join(f"--set '{text}'" if " " in text else f"--set {text}" for text in best.change)
        lines.append(
            f"The nearest change that makes it run: {sets} (simulated: the first batch takes {best.step_s:.3f} s; of "
            f"{tried} changes tried, {len(repairs)} of {keys} run, and this is the fastest)"
        )
    else:
        lines.append(f"None of {tried} changes that were tried makes it run.")
    return InfeasibleError("\n".join(lines))


def _memory_lines(error: InfeasibleError, source: ScenarioSource, overrides: Overrides) -> Iterator[str]:
    """What every stage needs, and its largest parts, where memory is the reason."""
    try:
        setup = load_scenario(source, overrides).setup()
    except HdpSimError:
        return
    if not isinstance(error, OutOfMemoryError) and "GiB" not in str(error):
        return
    tp = setup.layout.parallel.tp
    tokens = setup.layout.context.rank_capacity_tokens or CAPACITY_STEP_TOKENS * tp
    stages = range(setup.layout.parallel.pp)
    tokens = held_tokens(setup, tokens)
    reports = [memory_of(setup, tokens, stage=stage) for stage in stages]
    beyond = [report for report in reports if not report.fits]
    yield (
        f"With {tokens:,} tokens of a micro-batch on a rank and a full pipeline {len(beyond)} of {len(reports)} "
        f"stages do not fit:"
    )
    for report in sorted(beyond, key=lambda report: -report.total_bytes)[:3]:
        yield f"  stage {report.stage}: {_stage_words(report)}"


def _stage_words(report: MemoryReport) -> str:
    host = ""
    if report.host_bytes > report.host_capacity_bytes:
        host = f"; host {report.host_bytes / _GIB:.1f} of {report.host_capacity_bytes / _GIB:.1f} GiB"
    return f"{report.total_bytes / _GIB:.1f} of {report.capacity_bytes / _GIB:.1f} GiB ({report.largest_parts()}){host}"


def _repairs(source: ScenarioSource, overrides: Overrides) -> tuple[list[Repair], int]:
    """Changes of as few keys as possible with which the scenario runs, and how many were tried."""
    try:
        neutral = load_scenario(source, (*overrides, *overrides_of(_NEUTRAL)))
        lengths = neutral.draw(1).lengths[0]
    except HdpSimError:
        return [], 0
    written = apply_overrides(written_document(source), overrides)
    tried, until_s = 0, time.monotonic() + BUDGET_S
    for level in _levels(neutral, written):
        repairs = []
        for change in dict.fromkeys(map(overrides_of, level)):
            if time.monotonic() > until_s:
                break
            tried += 1
            repair = _tried(source, overrides, change, lengths)
            repairs += [repair] if repair else []
        if repairs:
            return repairs, tried
    return [], tried


def _tried(
    source: ScenarioSource, overrides: Overrides, change: Overrides, lengths: Lengths
) -> Repair | None:
    try:
        changed = load_scenario(source, (*overrides, *change))
        outcome = run_batches(changed, (lengths,))
    except HdpSimError:
        return None
    if not outcome.results or not outcome.results[0].memory.fits:
        return None
    step = outcome.results[0]
    return Repair(change=change, step_s=step.step_s, tokens_per_s_per_gpu=step.tokens_per_s / step.gpus)


def _levels(neutral: Scenario, written: Mapping[str, Any]) -> Iterator[Iterable[Changes]]:
    """Changes of one key, of two, of the number of GPUs, of that and another."""
    single = [
        change
        for change in _singles(neutral, written)
        if any(_written_value(written, key, None) != value for key, value in change.items())
    ]
    sizes = [{"gpus": gpus} for gpus in _sizes(neutral, written)]
    yield single
    yield ({**one, **other} for one, other in combinations(single, 2) if one.keys() != other.keys())
    yield sizes
    yield ({**size, **one} for size in sizes for one in single)
    for gpus in (neutral.cluster.node.gpus * 2**power for power in range(LARGEST_POWER)):
        if gpus > neutral.cluster.gpus:
            yield _simplest(neutral, gpus)


def _simplest(neutral: Scenario, gpus: int) -> Iterator[Changes]:
    """Layouts for a model that is far too large: tensor parallelism in a server, pipelines, as many tokens as fit."""
    tp = next((tp for tp in halves(2 * neutral.cluster.node.gpus) if neutral.model.heads % tp == 0), 1)
    for pp in divisors(gpus // tp, 1, neutral.model.layers):
        yield {"gpus": gpus, "layout.tp": tp, "layout.pp": pp, "layout.rank_capacity": "auto"}


def _singles(neutral: Scenario, written: Mapping[str, Any]) -> Iterator[Changes]:
    setup, model = neutral.setup(), neutral.model
    gpus = neutral.cluster.gpus
    for tp in divisors(model.heads, 1, 4 * setup.cluster.node.gpus):
        yield {"layout.tp": tp}
    for pp in divisors(gpus, 1, model.layers):
        yield {"layout.pp": pp}
    for ep in divisors(model.experts or 1, 1, gpus):
        yield {"layout.ep": ep}
    for key in ("cp", "etp", "vpp", "schedule", "shard_ranks", "precision", "order", "pipeline_layout"):
        yield {f"layout.{key}": _NEUTRAL[f"layout.{key}"]}
    yield from ({"layout.recompute": kind} for kind in ("selective", "full"))
    yield from ({"layout.sharding": kind} for kind in ("zero1", "zero2", "zero3"))
    yield from _smaller_capacities(setup, written)
    yield from ({"strategy.name": name} for name in ("static", "hdp-opt"))
    yield from ({"strategy.activation_offload": share} for share in (0.5, 1))
    yield {"layout.optimizer_offload": True}
    if model.learned_positions and neutral.data.context_tokens > model.learned_positions:
        yield {"data.context": f"{model.learned_positions} tokens"}


def _smaller_capacities(setup: Setup, written: Mapping[str, Any]) -> Iterator[Changes]:
    yield {"layout.rank_capacity": "auto"}
    capacity, step = (
        setup.layout.context.rank_capacity_tokens,
        CAPACITY_STEP_TOKENS * int(_written_value(written, "layout.tp", 1)),
    )
    while capacity is not None and capacity // 2 >= step:
        capacity = capacity // 2 // step * step
        yield {"layout.rank_capacity": f"{capacity} tokens"}


def _sizes(neutral: Scenario, written: Mapping[str, Any]) -> list[int]:
    """Numbers of GPUs that the degrees divide: the next ones, then twice as many and so on."""
    block = int(_written_value(written, "layout.tp", 1)) * int(_written_value(written, "layout.pp", 1))
    node, gpus = neutral.cluster.node.gpus, neutral.cluster.gpus
    if block % node and node % block:
        return []
    step = max(block, node)
    below = gpus // step * step
    return [size for size in (below, below + step, 2 * gpus, 4 * gpus, 8 * gpus) if size and size % step == 0]


def _written_value(written: Mapping[str, Any], key: str, default: object) -> Any:
    """The value of a key in a document; the *default* where it is not written."""
    section, _, leaf = key.partition(".")
    inner = written.get(section)
    return inner.get(leaf, default) if isinstance(inner, Mapping) else default
