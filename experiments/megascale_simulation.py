"""Predicting MegaScale's and Megatron-LM's steps: shipped scenarios with a few keys changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from experiments.compare import run_batches
from experiments.megascale_data import Cell, model_flop_per_token
from experiments.scenario import Scenario, load_scenario
from hdpsim.errors import HdpSimError
from simulator.simulate import StepResult

__all__ = ["ABLATION", "CONTEXT_TOKENS", "Step", "predict", "scenario_of"]

CONTEXT_TOKENS = 2048

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
    ("DP overlap", ("layout.dp_overlap=true",)),
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
    outcome = run_batches(scenario, scenario.batches(1))
    if not outcome.results:
        return Step(reason=outcome.reason)
    return _step(scenario, outcome.results[0])


def _step(scenario: Scenario, result: StepResult) -> Step:
    flop = model_flop_per_token(scenario.model, scenario.data.context_tokens) * result.tokens
    peak = scenario.cluster.gpus * scenario.cluster.gpu.bf16_flop_per_s
    seconds = result.account_s.mean(axis=(1, 2)).tolist()
    return Step(
        step_s=result.step_s,
        mfu=100.0 * flop / (peak * result.step_s),
        tokens_per_s=result.tokens_per_s,
        account_s=tuple(zip(result.accounts, seconds, strict=True)),
    )
