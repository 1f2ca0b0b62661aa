"""The step that a campaign repeats, without slow nodes and flaps that come and go; and what slow nodes do to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.experiments.studies.money import costs_of

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.power import Power
    from hdpsim.simulator.step import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class UndisturbedStep:
    """A step, and where its figures come from.

    Attributes:
        sampling: standard error of the seconds per token, of them: other batches would have given another mean.
        memory: of the fullest stage, for the batch that needs most; None of a step that was not simulated.
        power: mean while it runs; None of a step that was not simulated.
        band: how well steps like it were predicted; None of one that was not simulated.
    """

    seconds: float
    tokens: float
    note: str
    sampling: float = 0.0
    memory: MemoryReport | None = None
    power: Power | None = None
    band: Band | None = None


def without_what_comes_and_goes(scenario: Scenario, values: Mapping[str, Any], stragglers: bool) -> Scenario:
    """The scenario whose step is undisturbed: slow nodes and link flaps of the campaign are no part of it."""
    if stragglers:
        scenario = _with_slow_nodes(scenario, 0, 1.0)
    if values["link_flaps_per_day"]:
        scenario = replace(scenario, execution=replace(scenario.execution, link_flaps_per_hour=0.0))
    return scenario


def undisturbed_step(scenario: Scenario, fixed_s: float | None) -> UndisturbedStep:
    """The step as it is simulated, or as the scenario states it."""
    budget = scenario.data.batch.tokens
    if fixed_s is not None:
        if budget is None:
            budget = int(np.mean([int(lengths.sum()) for lengths in scenario.batches()]))
        return UndisturbedStep(seconds=fixed_s, tokens=float(budget), note="fixed by campaign.step")
    outcome = run_batches(scenario, scenario.batches())
    if not outcome.results:
        raise InfeasibleError(f"the step of {scenario.name} cannot be simulated: {outcome.reason}")
    tokens = float(np.mean([result.tokens for result in outcome.results]))
    count = len(outcome.results)
    batches = "one global batch" if count == 1 else f"{count} global batches"
    return UndisturbedStep(
        seconds=outcome.step_s.mean,
        tokens=tokens,
        note=f"simulated, mean over {batches} ({outcome.strategy})",
        sampling=sampling_error(outcome.results) if outcome.independent else 0.0,
        memory=max((result.memory for result in outcome.results), key=lambda memory: memory.total_bytes),
        power=costs_of(outcome, scenario.costs).power,
        band=outcome.band,
    )


def sampling_error(steps: Sequence[StepResult]) -> float:
    """Relative standard error of the seconds per token of a mean over batches that were drawn independently.

        r = sum of seconds / sum of tokens
        error = s / (sqrt(n) * mean seconds), s^2 = sum (seconds - r * tokens)^2 / (n - 1)

    The error of a ratio of means (Cochran, Sampling Techniques, 3rd ed., 6.3), as batches differ in tokens, too.
    Limits: 0 of a single batch, of which nobody knows how far others would be off.
    """
    if len(steps) < 2:
        return 0.0
    seconds = np.array([step.step_s for step in steps])
    tokens = np.array([step.tokens for step in steps], dtype=np.float64)
    rest = seconds - seconds.sum() / tokens.sum() * tokens
    return float(math.sqrt(float(rest @ rest) / (len(steps) - 1) / len(steps)) / seconds.mean())


def _with_slow_nodes(scenario: Scenario, nodes: int, factor: float) -> Scenario:
    execution = replace(
        scenario.execution, slow_node_share=nodes / scenario.cluster.nodes, slow_node_factor=factor
    )
    return replace(scenario, execution=execution)


def slow_steps_of(scenario: Scenario, factor: float) -> tuple[tuple[int, float], ...]:
    """What 1, 4, 16, ... and all nodes that are slower by *factor* do to the step: simulated, as `simulate` would.

    A slow node holds up its own stage, and the job only as far as the others do not wait anyway.
    """
    outcomes = {}
    nodes = sorted({*(4**i for i in range(12) if 4**i < scenario.cluster.nodes), scenario.cluster.nodes})
    batches = scenario.batches()
    for slow in (0, *nodes):
        outcome = run_batches(_with_slow_nodes(scenario, slow, factor), batches)
        if not outcome.results:
            raise InfeasibleError(f"the step of {scenario.name} cannot be simulated: {outcome.reason}")
        outcomes[slow] = outcome.step_s.mean
    return tuple((slow, max(1.0, outcomes[slow] / outcomes[0])) for slow in nodes)
