"""The prediction of one row: a step of its scenario, or its attention alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.reading.units import TERA
from hdpsim.cost_models.transformer.flop import sequence_flop
from hdpsim.errors import HdpSimError, InfeasibleError
from hdpsim.experiments.bands.memory_fit import fits_probability
from hdpsim.experiments.records.longctx.attention import predicted_attention
from hdpsim.experiments.records.longctx.rows import LongRow
from hdpsim.experiments.records.longctx.systems import Document, Source, merged, source_of
from hdpsim.experiments.records.setup import calibrated
from hdpsim.experiments.scenario.scenario import resolve_scenario
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.traces import load_trace

GB = 1e9
TRIMMED = 0.1
"""Share of the batches that a trimmed mean leaves out at either end."""
LIKELY = 0.5
"""A layout that a source may have tuned to fits at least so surely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrediction:
    """What a row should have said. None: it cannot be predicted, see `reason`.

    Attributes:
        source, system: as tables name them.
        value: in the row's own unit.
        step_s: seconds of the step behind it.
        fits: whether the step fits into memory.
        peak_mem_gb: what it needs, 1e9 bytes.
        settings: keys of the choice that counts, where there are several.
        reason: why there is no value.
    """

    source: str = ""
    system: str = ""
    value: float | None = None
    step_s: float | None = None
    fits: bool | None = None
    peak_mem_gb: float | None = None
    settings: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Means over the batches of one scenario."""

    setup: Setup
    seconds: float
    trimmed_s: float
    """Without the fastest and slowest tenth of the batches."""
    tokens: float
    flop: float
    memory: MemoryReport
    settings: str = ""


class LongPredictor:
    """Predicts rows one after the other; scenarios that several rows share are played once.

    Args:
        lengths: the column dataset -> a trace (name or path), where a source's own lengths are not shipped.
        calibration: constants for the GPUs of its generation, instead of the shipped ones.
    """

    def __init__(self, lengths: Mapping[str, str], calibration: Calibration | None) -> None:
        self._lengths, self._calibration = lengths, calibration
        self._played: dict[str, _Step | str] = {}

    def predict(self, row: LongRow) -> LongPrediction:
        """The prediction of a row; what cannot be predicted has a reason, nothing is raised."""
        try:
            source = source_of(row)
        except HdpSimError as error:
            return LongPrediction(reason=str(error))
        prediction = LongPrediction(source=source.name, system=row.text("strategy"))
        try:
            if row.text("metric") == "speedup_x":
                return self._speedup(prediction, source, row)
            system = source.system(row)
            prediction = replace(prediction, system=system.name or prediction.system)
            if system.refused:
                raise InfeasibleError(system.refused)
            if row.text("metric").startswith("attention_"):
                layout = merged(source.scenario, system.keys(row)).get("layout", {})
                value = predicted_attention(row, source, layout, self._calibration)
                return replace(prediction, value=value)
            return self._of_step(prediction, source, row)
        except HdpSimError as error:
            return replace(prediction, reason=str(error))

    def _of_step(self, prediction: LongPrediction, source: Source, row: LongRow) -> LongPrediction:
        metric = row.text("metric")
        try:
            step = self._step(source, row)
        except InfeasibleError:
            if metric != "fits_in_memory":
                raise
            return replace(prediction, value=0.0, fits=False)  # a layout that cannot be runs no better
        memory = step.memory
        prediction = replace(
            prediction,
            step_s=step.seconds,
            fits=memory.fits,
            peak_mem_gb=memory.total_bytes / GB,
            settings=step.settings,
        )
        gpus = step.setup.cluster.gpus
        values = {
            "seconds_per_iteration": step.seconds,
            "ms_per_iteration": step.seconds * 1e3,
            "tokens_per_s_per_gpu": step.tokens / step.seconds / gpus,
            "tokens_per_s_total": step.tokens / step.seconds,
            "tflops_per_gpu": step.flop / step.seconds / gpus / TERA,
            "fits_in_memory": float(memory.fits),
            "peak_mem_gb": memory.allocated_bytes / GB,
        }
        if metric == "ms_per_iteration_trimmed_mean":
            return replace(prediction, value=step.trimmed_s * 1e3)
        metric = metric.removesuffix("_mean")
        if metric not in values:
            raise InfeasibleError(f"{row.text('metric')} is not predicted")
        return replace(prediction, value=values[metric])

    def _speedup(self, prediction: LongPrediction, source: Source, row: LongRow) -> LongPrediction:
        """The ratio of "one / other": the other's seconds over the one's."""
        names = [name.strip() for name in row.text("strategy").split("/")]
        if len(names) != 2:
            raise InfeasibleError("speedup_x: expected two systems, written as one / other")
        one, other = (
            self._step(source, LongRow(where=row.where, columns={**row.columns, "strategy": name}))
            for name in names
        )
        return replace(prediction, value=other.seconds / one.seconds, step_s=one.seconds)

    def _step(self, source: Source, row: LongRow) -> _Step:
        """The fastest choice of a row's system that probably fits, or the fastest if none does."""
        system, steps, reasons = source.system(row), [], []
        if system.refused:
            raise InfeasibleError(system.refused)
        row = replace(row, columns={**row.columns, **system.columns})
        for choice in system.choices:
            try:
                document = self._document(source, row, merged(system.keys(row), choice))
                step = self._play(document, source, row.where)
            except InfeasibleError as error:
                reasons.append(str(error))
                continue
            several = len(system.choices) > 1 and not row.whole_number("cp")
            steps.append(replace(step, settings=_words(choice) if several else ""))
        if not steps:
            raise InfeasibleError(reasons[0])
        return min(steps, key=lambda step: (fits_probability(step.memory) < LIKELY, step.seconds))

    def _document(self, source: Source, row: LongRow, own: Mapping[str, Any]) -> Document:
        """The scenario of a row."""
        document = merged(source.scenario, {"model": source.shape(row)}, own)
        gpus = row.whole_number("gpus") or source.gpus or row.needed_number("gpus")
        layout, model = document.setdefault("layout", {}), document["model"]
        if "ffn_of_hidden" in model:
            model["ffn_hidden"] = model.pop("ffn_of_hidden") * model["hidden"]
        if model.get("learned_positions") == "context":
            model["learned_positions"] = row.needed_number("context_tokens")
        degrees = {name: row.whole_number(name) or layout.get(name) or 1 for name in ("tp", "pp")}
        ranks = gpus // (degrees["tp"] * degrees["pp"])
        layout.update(degrees)
        if row.whole_number("cp"):
            layout["cp"] = row.whole_number("cp")
        layout.setdefault("cp", max(1, ranks // (row.whole_number("dp") or 1)))
        document["cluster"] = {"node": source.node(row), "gpus": gpus}
        document["data"] = self._data(row, document.get("data", {}), ranks, layout)
        document["memory"] = {**document.get("memory", {}), "must_fit": False}
        return document

    def _data(self, row: LongRow, data: Mapping[str, Any], ranks: int, layout: Document) -> Document:
        """Lengths and batch: what the source says, else sequences of the context's length, one for every group."""
        context, dataset = row.needed_number("context_tokens"), row.text("dataset")
        known = {"context": context, **data}
        given = data.get("datasets", {}).get(dataset)
        known.pop("datasets", None)
        first, multiple = known.pop("first", None), known.pop("multiple_of", 1)
        if "batch" in data and isinstance(layout["cp"], int):
            layout.setdefault("rank_capacity", -(-context // layout["cp"]))
        if dataset in self._lengths:
            trace = str(self._lengths[dataset])
            return known | (
                {"lengths": _first_lengths(trace, first, multiple, context)} if first else {"trace": trace}
            )
        if given is not None:
            return {**known, **_drawn(given, ranks * layout["tp"] * layout["pp"])}
        if "batch" in data:
            raise InfeasibleError(f"its lengths are not shipped: give them, --lengths {dataset}=TRACE")
        total = row.whole_number("global_batch_tokens")
        sequences = max(1, total // context if total else ranks // layout["cp"])
        layout.setdefault("rank_capacity", -(-context // layout["cp"]))
        return {**known, "lengths": context, "batch": f"{sequences} sequences"}

    def _play(self, document: Document, source: Source, where: str) -> _Step:
        key = json.dumps(document, sort_keys=True)
        if key not in self._played:
            try:
                self._played[key] = self._played_anew(document, source, where)
            except InfeasibleError as error:
                self._played[key] = str(error)
        step = self._played[key]
        if isinstance(step, str):
            raise InfeasibleError(step)
        return step

    def _played_anew(self, document: Document, source: Source, where: str) -> _Step:
        scenario = resolve_scenario(document, source=where)
        setup = calibrated(scenario.setup(), self._calibration)
        drawn: tuple[Ints, ...] = scenario.batches(source.skip + source.batches)[source.skip :]
        results = [simulate_step(setup, lengths) for lengths in drawn]
        seconds, cut = [result.step_s for result in results], int(TRIMMED * len(results))
        return _Step(
            setup=setup,
            seconds=float(np.mean(seconds)),
            trimmed_s=float(np.mean(np.sort(seconds)[cut : len(seconds) - cut])),
            tokens=float(np.mean([lengths.sum() for lengths in drawn])),
            flop=float(np.mean([sequence_flop(setup.model, lengths).sum() for lengths in drawn])),
            memory=max((result.memory for result in results), key=lambda report: report.total_bytes),
        )


def _first_lengths(trace: str, count: int, multiple: int, context: int) -> list[int]:
    """The first lengths of a trace that the context holds, each filled up to a multiple."""
    padded = -(-load_trace(trace).lengths // multiple) * multiple
    kept: list[int] = padded[padded <= context][:count].tolist()
    return kept


def _drawn(given: Mapping[str, Any], gpus: int) -> Document:
    """Data of a scenario; log-normal lengths are drawn here, a round of batches, so many sequences for every GPU.

    ln length ~ N(ln mean - sigma^2 / 2, sigma), clipped
    """
    if "lognormal" not in given:
        return dict(given)
    shape, sequences = given["lognormal"], int(given["sequences_per_gpu"] * gpus)
    rng = np.random.RandomState(0)  # what the sources use
    centre = np.log(shape["mean"]) - shape["sigma"] ** 2 / 2
    drawn = rng.lognormal(centre, shape["sigma"], given["batches"] * sequences)
    lengths = np.clip(drawn.astype(np.int64), shape["low"], shape["high"])
    return {"lengths": lengths.tolist(), "batch": f"{sequences} sequences"}


def _words(choice: Mapping[str, Any]) -> str:
    sections = (keys for keys in choice.values() if isinstance(keys, Mapping))
    return " ".join(f"{name}={value}" for keys in sections for name, value in keys.items())
