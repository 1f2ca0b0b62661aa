"""Predicting MegaScale's and Megatron-LM's steps: shipped scenarios with a few keys changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from hdpsim.errors import HdpSimError
from hdpsim.experiments.papers.megascale_data import Cell, model_flop_per_token
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.studies.compare import run_batches
from hdpsim.simulator.play.noise import clean_probability
from hdpsim.simulator.setup import ExecutionOptions
from hdpsim.simulator.step import StepResult

CONTEXT_TOKENS = 2048
NEGLIGIBLE = 0.01  # a chance not worth a simulation
DRAWN_GPUS, MOST_DRAWS = 4096, 4  # small jobs are drawn several times: the slowest of few GPUs varies

SCENARIOS = {
    ("megatron-lm", "megascale-175b"): "megatron-175b-12k",
    ("megascale", "megascale-175b"): "megascale-175b-12k",
    ("megatron-lm", "megascale-530b"): "megatron-530b-11k",
    ("megascale", "megascale-530b"): "megascale-530b-11k",
}

ABLATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Megatron-LM", ()),
    ("parallel block", ("model.parallel_block=true",)),
    ("sliding window", ("model.sliding_window=768",)),
    ("TP overlap", ("layout.tp_overlap=true",)),
    ("PP overlap", ("layout.pp_overlap=true",)),
    ("DP overlap", ("layout.dp_overlap=true", "layout.prefetch_gather=true")),
    ("efficient operators", ("layout.attention_kernel=flash2", "layout.fused_kernels=true")),
    ("data pipeline", ("data.loader=shared", "data.asynchronous_loading=true")),
    ("LAMB (3 x batch)", ("data.batch=1536K tokens",)),
)
"""Steps of Table 3, each on top of those before it; from the baseline to MegaScale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A predicted step, or the reason why there is none.

    Attributes:
        step_s: seconds.
        mfu: %, in the paper's convention.
        tokens_per_s: of the whole cluster.
        account_s: mean seconds over ranks and stages by account; they sum to step_s.
        reason: empty when it ran.
    """

    step_s: float | None = None
    mfu: float | None = None
    tokens_per_s: float | None = None
    account_s: tuple[tuple[str, float], ...] = ()
    reason: str = ""


def scenario_of(cell: Cell, changes: Sequence[str] = ()) -> Scenario:
    """The shipped scenario of the cell's system and model, on its GPUs and with its batch.

    Raises:
        UserInputError, InfeasibleError: GPUs or batch that the layout cannot take.
    """
    sized = (f"gpus={cell.gpus}", f"data.batch={cell.global_batch * CONTEXT_TOKENS} tokens")
    return load_scenario(SCENARIOS[cell.system, cell.model], (*sized, *changes))


def predict(cell: Cell, changes: Sequence[str] = ()) -> Step:
    """Simulate one step; its measurement has no part in it."""
    return _predict(cell.key, tuple(changes))


@cache
def _predict(key: tuple[str, str, int, int], changes: tuple[str, ...]) -> Step:
    system, model, gpus, global_batch = key
    try:
        scenario = scenario_of(
            Cell(system=system, model=model, gpus=gpus, global_batch=global_batch), changes
        )
    except HdpSimError as error:
        return Step(reason=str(error))
    parts = []
    batches = scenario.batches(1)
    for weight, execution in _draws(scenario):
        outcome = run_batches(replace(scenario, execution=execution), batches)
        if not outcome.results:
            return Step(reason=outcome.reason)
        parts.append((weight, outcome.results[0]))
    return _mean_step(scenario, parts)


def _draws(scenario: Scenario) -> list[tuple[float, ExecutionOptions]]:
    """What a job may meet on its GPUs, and how likely: several draws of a small job's, one of a large one's.

    A job takes its nodes at random from a fleet of which a share is slow: it meets none, or as many as are expected
    (one at least). Whether it meets one decides its step, how many hardly matters.
    """
    execution, nodes = scenario.execution, scenario.cluster.nodes
    if not (execution.gpu_spread or execution.slow_node_share):
        return [(1.0, execution)]
    count = min(MOST_DRAWS, max(1, DRAWN_GPUS // scenario.cluster.gpus))
    share = execution.slow_node_share
    none = clean_probability(nodes, share)
    some = max(1, round(share * nodes)) / nodes
    shares = [(chance, at) for chance, at in ((none, 0.0), (1.0 - none, some)) if chance > NEGLIGIBLE]
    total = count * sum(chance for chance, _ in shares)
    return [
        (chance / total, replace(execution, slow_node_share=at, seed=execution.seed + number))
        for chance, at in shares
        for number in range(count)
    ]


def _mean_step(scenario: Scenario, parts: list[tuple[float, StepResult]]) -> Step:
    step_s = sum(weight * result.step_s for weight, result in parts)
    seconds = sum(weight * result.account_s.mean(axis=(1, 2)) for weight, result in parts)
    tokens = parts[0][1].tokens
    flop = model_flop_per_token(scenario.model, scenario.data.context_tokens) * tokens
    peak = scenario.cluster.gpus * scenario.cluster.gpu.bf16_flop_per_s
    return Step(
        step_s=step_s,
        mfu=100.0 * flop / (peak * step_s),
        tokens_per_s=tokens / step_s,
        account_s=tuple(zip(parts[0][1].accounts, np.asarray(seconds).tolist(), strict=True)),
    )
