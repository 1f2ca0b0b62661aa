"""MegaScale's and Megatron-LM's steps: shipped scenarios with a few keys changed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hdpsim.cost_models.reading.units import parse_quantity
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import HdpSimError
from hdpsim.experiments.papers.folder import PublishedFigure, paper_folder
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.play.randomness.slow_machines import clean_probability
from hdpsim.simulator.setup import ExecutionOptions
from hdpsim.simulator.step import StepResult, simulate_plan

FOLDER = paper_folder("megascale")
SETUP = FOLDER.setup
CONTEXT_TOKENS = int(parse_quantity(SETUP["context"].removesuffix(" tokens"), "tokens"))
NEGLIGIBLE = 0.01  # a chance not worth a simulation
DRAWS = 4  # of a job that may meet slow GPUs: which of its stages they serve decides what they cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A predicted step, or the reason why there is none.

    Attributes:
        step_s: seconds.
        mfu: %, in the paper's convention.
        mfu_full: %, as if there was no window: full attention's FLOP whatever is attended to.
        tokens_per_s: tokens per second of the whole cluster.
        account_s: mean seconds over ranks and stages by account; they sum to step_s.
        reason: empty when it ran.
    """

    step_s: float | None = None
    mfu: float | None = None
    mfu_full: float | None = None
    tokens_per_s: float | None = None
    account_s: tuple[tuple[str, float], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepJob:
    """One step of a system's shipped scenario, on so many GPUs and with that batch."""

    system: str
    model: str
    gpus: int
    global_batch: int
    changes: tuple[str, ...] = ()

    def scenario(self) -> Scenario:
        """The scenario that is simulated.

        Raises:
            UserInputError, InfeasibleError: GPUs or batch that the layout cannot take.
        """
        sized = (f"gpus={self.gpus}", f"data.batch={self.global_batch * CONTEXT_TOKENS} tokens")
        return load_scenario(SETUP["scenarios"][self.system][self.model], (*sized, *self.changes))

    def run(self) -> Step:
        """Simulate one step; of a job that may meet slow GPUs, the mean over what it may meet."""
        try:
            scenario = self.scenario()
            setup, (lengths,) = scenario.setup(), scenario.batches(1)
            planned = plan_batch(setup, lengths)  # which knows nothing of what a job may meet
        except HdpSimError as error:
            return Step(reason=str(error))
        drawn = [
            (weight, simulate_plan(replace(setup, execution=execution), *planned))
            for weight, execution in _draws(scenario)
        ]
        return _mean_step(scenario, drawn)


def _draws(scenario: Scenario) -> list[tuple[float, ExecutionOptions]]:
    """What a job may meet on its GPUs, and how likely.

    A job takes its nodes at random from a fleet of which a share is slow: it meets none, or as many as are expected
    (one at least). Whether it meets one, and where, decides its step; how many hardly matters.
    """
    execution, nodes = scenario.execution, scenario.cluster.nodes
    if not (execution.gpu_spread or execution.slow_node_share):
        return [(1.0, execution)]
    share = execution.slow_node_share
    none = clean_probability(nodes, share)
    slow_share = max(1, round(share * nodes)) / nodes
    shares = [(chance, at) for chance, at in ((none, 0.0), (1.0 - none, slow_share)) if chance > NEGLIGIBLE]
    total = DRAWS * sum(chance for chance, _ in shares)
    return [
        (chance / total, replace(execution, slow_node_share=at, seed=execution.seed + number))
        for chance, at in shares
        for number in range(DRAWS)
    ]


def _mean_step(scenario: Scenario, drawn: list[tuple[float, StepResult]]) -> Step:
    step_s = sum(weight * result.step_s for weight, result in drawn)
    seconds = sum(weight * result.account_s.mean(axis=(1, 2)) for weight, result in drawn)
    tokens = drawn[0][1].tokens
    peak = scenario.cluster.gpus * scenario.cluster.gpu.bf16_flop_per_s
    mfu, mfu_full = (
        100.0 * model_flop_per_token(model, scenario.data.context_tokens) * tokens / (peak * step_s)
        for model in (scenario.model, replace(scenario.model, sliding_window=None))
    )
    return Step(
        step_s=step_s,
        mfu=mfu,
        mfu_full=mfu_full,
        tokens_per_s=tokens / step_s,
        account_s=tuple(zip(drawn[0][1].accounts, np.asarray(seconds).tolist(), strict=True)),
    )


def model_flop_per_token(model: Model, context_tokens: int) -> float:
    """FLOP per token behind the paper's MFU.

        72 l h^2 (1 + r s / 6h + V / 12 l h),   r = 2 (w / s) - (w / s)^2 with a window of w < s tokens, else 1

    Counted: full attention (both triangles), of which a window keeps the share r; vocabulary; no recomputation.
    Source: Table 2 of arXiv 2402.15627. MFU x GPUs x 312 TFLOP/s x seconds / tokens is 1.0766e12 in Megatron-LM's rows,
        this formula with r = 1 (1.0774e12), and 1.0653e12 in MegaScale's, where r is 0.6.
    """
    share = 1.0
    if model.sliding_window is not None and model.sliding_window < context_tokens:
        reach = model.sliding_window / context_tokens
        share = 2.0 * reach - reach * reach
    layers, hidden = model.layers, model.hidden
    attention = share * context_tokens / (6.0 * hidden)
    return 72.0 * layers * hidden**2 * (1.0 + attention + model.vocab / (12.0 * layers * hidden))


def job_of(cell: PublishedFigure, batches: int = 1) -> StepJob:
    """What predicts a cell; the metric decides only which figure of the step is compared."""
    return StepJob(
        system=cell["system"], model=cell["model"], gpus=cell["gpus"], global_batch=cell["global_batch"]
    )
