"""The prediction of one record: step time, throughput, FLOP rates in every convention, peak memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.kernels.number_formats import matrix_unit
from hdpsim.cost_models.layout.switches import RecomputeKind
from hdpsim.cost_models.reading.units import TERA
from hdpsim.cost_models.transformer.flop import model_flop_per_token
from hdpsim.errors import HdpSimError
from hdpsim.experiments.bands.features import Features, configuration_key, features_of
from hdpsim.experiments.records.columns import Measured
from hdpsim.experiments.records.completion import completed
from hdpsim.experiments.records.memory import MemoryPrediction, predict_memory
from hdpsim.experiments.records.setup import PreparedRun, prepare
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.planning import plan_batch, planning_problem
from hdpsim.simulator.playing import play_plan
from hdpsim.simulator.pricing import price_plan

Convention = Literal["model, full attention", "model, causal attention", "hardware, full attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a record's configuration should do. None: it cannot be predicted, see `reason`.

    Attributes:
        step_s: seconds of a step.
        tokens_per_s_per_gpu: throughput.
        convention: how the record's source counts FLOP.
        rates: TFLOP/s per GPU in every convention.
        peak_tflops_per_gpu: the datasheet's dense peak of the GPU in the format of the run's products.
        adapters: only adapters are trained, so that weights have no gradients.
        account_s: mean seconds over ranks and stages by account; they sum to step_s.
        memory: what the configuration needs, and what the source would have read.
        features: what its fidelity is judged by.
        key: of its configuration, see experiments.bands.features.
        reason: why there is no time (or nothing at all).
        assumptions: what the source does not say and was filled in.
        not_modelled: what the run did and the prediction does not.
        rule_kinds: classes of the software rules that were applied: stated, release, inferred.
    """

    convention: Convention
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    rates: Mapping[Convention, float] = field(default_factory=dict)
    peak_tflops_per_gpu: float | None = None
    adapters: bool = False
    account_s: tuple[tuple[str, float], ...] = ()
    memory: MemoryPrediction | None = None
    features: Features | None = None
    key: str = ""
    reason: str = ""
    assumptions: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    rule_kinds: frozenset[str] = frozenset()

    @property
    def tflops_per_gpu(self) -> float | None:
        """The FLOP rate in the record's own convention."""
        return self.rates.get(self.convention)

    @property
    def mfu_pct(self) -> float | None:
        """That rate over the GPU's peak in the format of the run's products, in percent: what sources call MFU."""
        rate, peak = self.tflops_per_gpu, self.peak_tflops_per_gpu
        return None if rate is None or peak is None else 100.0 * rate / peak

    @property
    def peak_mem_gb(self) -> float | None:
        """What the source would have read as the peak, in 1e9 bytes."""
        return None if self.memory is None else self.memory.peak_gb


def convention_of(config: RunConfig) -> Convention:
    """How the record's source counts FLOP; full attention without recomputation when nothing tells."""
    said = setting_of(Run(config), "flop_convention")
    return "model, full attention" if said is None else cast(Convention, said.value)


def predict(
    config: RunConfig,
    *,
    memory_only: bool = False,
    calibration: Calibration | None = None,
    without: frozenset[str] = frozenset(),
) -> Prediction:
    """Predict a record from its configuration alone. What cannot be predicted has a reason; nothing is raised.

    Whole sequences go to micro-batches in order, these to the data-parallel ranks in turn; the tokens of a micro-batch
    are spread over its context-parallel group.
    """
    convention = convention_of(config)
    try:
        config, filled = completed(config)
        prepared = prepare(config, calibration, without)
        memory = predict_memory(prepared)
        peak_tflops = _peak_tflops(prepared)
    except HdpSimError as error:
        return Prediction(convention=convention, reason=str(error))
    step_s: float | None = None
    accounts: tuple[tuple[str, float], ...] = ()
    reason = prepared.blocked
    if not reason and not memory_only:
        try:
            step_s, accounts = predict_step(prepared)
        except HdpSimError as error:
            reason = str(error)
    assumptions = (*filled, *prepared.assumptions)
    if not memory.fits and step_s is not None:
        assumptions = (*assumptions, "fits into memory, against the prediction of memory")
    tokens_per_s, rates = (None, {}) if step_s is None else _rates(prepared, step_s)
    micro_batch_tokens = prepared.micro_batch * prepared.seq_len
    return Prediction(
        convention=convention,
        step_s=step_s,
        tokens_per_s_per_gpu=tokens_per_s,
        rates=rates,
        peak_tflops_per_gpu=peak_tflops,
        adapters=prepared.setup.model.adapter_rank > 0,
        account_s=accounts,
        memory=memory,
        features=features_of(prepared.setup, prepared.seq_len, missing=bool(prepared.not_modelled)),
        key=configuration_key(prepared.setup, prepared.sequences, prepared.seq_len, micro_batch_tokens),
        reason=reason,
        assumptions=assumptions,
        not_modelled=prepared.not_modelled,
        rule_kinds=prepared.rule_kinds,
    )


def predict_step(
    prepared: PreparedRun, cal: Calibration | None = None, plan: Plan | None = None
) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Seconds of the step and of its accounts: what `hdpsim simulate` makes of the record's scenario.

    Args:
        prepared: the record, ready to predict.
        cal: a calibration instead of the run's own.
        plan: of the run's batch, where it is known: no calibration changes it.
    """
    setup = prepared.setup if cal is None else replace(prepared.setup, calibration=cal)
    lengths = prepared.lengths
    if plan is None:
        plan, problem, _ = plan_batch(setup, lengths)
    else:
        problem = planning_problem(setup, lengths)
    execution = play_plan(setup, plan, price_plan(setup, problem, plan))
    seconds = execution.account_s.mean(axis=(1, 2)).tolist()
    return execution.step_s, tuple(zip(execution.accounts, seconds, strict=True))


def measured_step_s(config: RunConfig, prepared: PreparedRun, measured: Measured) -> float | None:
    """Seconds of a step as measured: directly, from tokens/s, else from TFLOP/s in the source's convention, or MFU."""
    if measured.measured_step_s is not None:
        return measured.measured_step_s
    tokens_per_s, tflops = _rates(prepared, 1.0)
    if measured.measured_tokens_per_s_per_gpu is not None:
        return tokens_per_s / measured.measured_tokens_per_s_per_gpu
    rate = measured.measured_tflops_per_gpu
    if rate is None and measured.measured_mfu_pct is not None:
        rate = _peak_tflops(prepared) * measured.measured_mfu_pct / 100.0
    return None if rate is None else tflops[convention_of(config)] / rate


def _peak_tflops(prepared: PreparedRun) -> float:
    """The GPU's peak for matrix products in the run's format."""
    setup = prepared.setup
    unit = matrix_unit(setup.cluster.gpu, setup.calibration, setup.layout.precision.products)
    return unit.peak_flop_per_s / TERA


def _rates(prepared: PreparedRun, step_s: float) -> tuple[float, dict[Convention, float]]:
    """Tokens per second and GPU, and TFLOP/s per GPU in every convention."""
    setup = prepared.setup
    tokens_per_s = prepared.sequences * prepared.seq_len / step_s / setup.cluster.gpus

    def rate(causal: bool, recompute: RecomputeKind) -> float:
        flop = model_flop_per_token(setup.model, prepared.seq_len, causal=causal, recompute=recompute)
        return flop.total * tokens_per_s / TERA

    return tokens_per_s, {
        "model, causal attention": rate(True, "none"),
        "model, full attention": rate(False, "none"),
        "hardware, full attention": rate(False, setup.layout.recompute.kind),
    }
