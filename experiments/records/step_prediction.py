"""The prediction of one measured step: its documents, played as it was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.errors import HdpSimError, InfeasibleError, UserInputError
from hdpsim.experiments.bands.band import Band
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.records.setup import calibrated
from hdpsim.experiments.records.step_benchmarks import benchmark_of
from hdpsim.experiments.records.steps import MeasuredStep
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, resolve_scenario
from hdpsim.quoting import quoted
from hdpsim.simulator.planning import planning_problem, settled_degree
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, simulate_plan, simulate_step
from hdpsim.simulator.step_memory import check_fits, plan_memory
from hdpsim.simulator.strategies.static.given_packs import plan_given_packs

PACKS = "packs"
"""The strategy of steps whose packs are run as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """What a measured step should have taken. None: it cannot be predicted, see `reason`.

    Attributes:
        strategy: how it was run: strategy, degrees, changes of the scenario.
        machine: what else is equal where two steps are compared: model and GPUs.
        step_s: seconds.
        account_s: mean seconds over ranks and stages by account; they sum to step_s.
        band: where the true step of a run of one's own is expected; None of benchmarks, packs and own strategies.
        notes: of the simulated step.
        assumptions: what the software stack sets that the step does not say.
        reason: why there is no time.
    """

    strategy: str
    machine: str
    step_s: float | None = None
    account_s: Mapping[str, float] | None = None
    band: Band | None = None
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    reason: str = ""


class StepPredictor:
    """Predicts steps one after the other; scenarios are kept for the next ones.

    Args:
        scenario: of steps that name none themselves.
        calibration: constants for the GPUs of its generation, instead of the shipped ones.
        folder: where scenarios that steps name are looked for.
    """

    def __init__(self, scenario: str | None, calibration: Calibration | None, folder: Path) -> None:
        self._scenario, self._calibration, self._folder = scenario, calibration, folder
        self._loaded: dict[tuple[str, tuple[str, ...]], Scenario] = {}
        self._degrees: dict[Setup, int | None] = {}

    def predict(self, step: MeasuredStep) -> StepPrediction:
        """Play a step.

        Raises:
            UserInputError: the step does not say how it was run.
        """
        benchmark = benchmark_of(step)
        if benchmark is None:
            return self._step_of_own_run(step)
        document = benchmark.document(step)
        layers = step.whole_number("num_layers")
        prediction = StepPrediction(
            strategy=benchmark.settings(step),
            machine=f"{document['model']} of {layers} layers on {document['cluster']['gpus']} GPUs",
        )
        try:
            scenario = resolve_scenario(document, source=step.where)
            setup = calibrated(scenario.setup(), self._calibration)
            setup = replace(setup, model=replace(setup.model, layers=layers))
            pack, degree = benchmark.packs(step)
            prediction = replace(prediction, assumptions=_assumed(scenario))
            return _played_packs(prediction, setup, step, pack, degree)
        except UserInputError:
            raise
        except HdpSimError as error:
            return replace(prediction, reason=str(error))

    def _step_of_own_run(self, step: MeasuredStep) -> StepPrediction:
        """A step of a run of one's own: a scenario, changes of it, documents or packs."""
        scenario, changes = self._scenario_of(step)
        strategy = step.columns.get("strategy") or (PACKS if step.packed else None)
        setup = calibrated(scenario.setup(None if strategy == PACKS else strategy), self._calibration)
        setup = replace(setup, context_tokens=max(setup.context_tokens, *step.lengths))
        prediction = StepPrediction(
            strategy=" ".join((str(strategy or setup.strategy.name), *changes)),
            machine=f"{setup.model.name} on {setup.cluster.gpus} GPUs of {setup.cluster.name}",
            assumptions=_assumed(scenario),
        )
        try:
            if strategy != PACKS:
                prediction = _result(
                    prediction,
                    simulate_step(setup, step.lengths, mesh_degree=self._degree(setup, step.lengths)),
                )
                own = setup.strategy.is_own
                return (
                    prediction
                    if own
                    else replace(prediction, band=setup_band(setup, np.asarray(step.lengths)))
                )
            if not step.packed:
                raise UserInputError(f"{step.where}: strategy {PACKS} needs the documents as packs")
            pack = np.repeat(np.arange(len(step.packs)), [len(pack) for pack in step.packs])
            return _played_packs(prediction, setup, step, pack, setup.layout.parallel.cp or 1)
        except InfeasibleError as error:
            return replace(prediction, reason=str(error))

    def _degree(self, setup: Setup, lengths: Sequence[int]) -> int | None:
        """The degree of a static mesh that no layout states: the first step of a run decides, as in `simulate`."""
        if setup not in self._degrees:
            self._degrees[setup] = settled_degree(setup, lengths)
        return self._degrees[setup]

    def _scenario_of(self, step: MeasuredStep) -> tuple[Scenario, tuple[str, ...]]:
        name = step.columns.get("scenario", self._scenario)
        if name is None:
            raise UserInputError(
                f"{step.where}: says neither the mode of a known benchmark nor a scenario; give --scenario SCENARIO, "
                "or a column scenario"
            )
        if not isinstance(name, str):
            raise UserInputError(f"{step.where}: scenario: expected a name or a path, got {quoted(name)}")
        given = step.columns.get("set") or {}
        if not isinstance(given, Mapping):
            raise UserInputError(
                f'{step.where}: set: expected keys of a scenario, such as {{"layout.tp": 8}}'
            )
        changes = tuple(f"{key}={_text(value)}" for key, value in given.items())
        if (name, changes) not in self._loaded:
            own_file = self._folder / name
            self._loaded[name, changes] = load_scenario(own_file if own_file.is_file() else name, changes)
        return self._loaded[name, changes], changes


def _played_packs(
    prediction: StepPrediction, setup: Setup, step: MeasuredStep, pack: Ints, degree: int
) -> StepPrediction:
    """The step with its documents in given packs, each on a group of *degree* ranks."""
    packs, groups = int(pack.max()) + 1, setup.ranks // degree
    if packs < groups:
        raise InfeasibleError(f"{packs} packs leave some of {groups} data-parallel groups without work")
    setup = replace(setup, context_tokens=max(setup.context_tokens, *step.lengths))
    problem = planning_problem(setup, step.lengths)
    plan = plan_given_packs(problem, pack, degree)
    report = plan_memory(setup, plan)
    check_fits(setup, report)
    return _result(prediction, simulate_plan(setup, plan, problem, report))


def _result(prediction: StepPrediction, result: StepResult) -> StepPrediction:
    means_s = result.account_s.mean(axis=(1, 2))
    accounts = dict(zip(result.accounts, means_s.tolist(), strict=True))
    return replace(prediction, step_s=result.step_s, account_s=accounts, notes=result.notes)


def _assumed(scenario: Scenario) -> tuple[str, ...]:
    return tuple(setting.words for setting in scenario.settings if setting.words)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
