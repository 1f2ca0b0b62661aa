"""One stage of a calibration: constants fitted on kernels, or on runs with what kernels say as the prior."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hdpsim.arrays import Bools, Floats
from hdpsim.cost_models.calibration.calibration import Calibration, CalibrationEntry
from hdpsim.experiments.calibration.constants import RUN_CONSTANTS, Constant, prior_of, value_of
from hdpsim.experiments.calibration.file import meaning_of, with_entries
from hdpsim.experiments.calibration.fit import Fit, determined, fit, refit, rounded
from hdpsim.experiments.calibration.model import Linearised, Model, Predictor, Sample, linearised, weights_of

Kind = Literal["kernels", "runs"]

FEWEST = 6
"""Fewer measurements decide nothing."""
FOLDS = 5
"""Parts of the measurements for cross-validation where there is only one source."""
GAIN = 0.05
"""Sources left out of a fit must come out better than at the start by this share, or the start stays."""
NOTICED = 0.05
"""A measurement depends on a constant when the time changes by this share of the constant's relative change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A fit without one source (or one part): values, everyone's residuals with them, who was left out."""

    part: str
    out: Bools
    values: Floats
    residuals: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one kind of measurement says.

    Attributes:
        kind: of measurement.
        base: the calibration before.
        samples: what was fitted on.
        skipped: what could not be, by reason.
        before: log(predicted / measured) of the samples with the base.
        found: the fit; None: nothing was determined.
        undetermined: constants that keep their value, with the half width they would have.
        parts: the fit with one source after the other left out.
    """

    kind: Kind
    base: Calibration
    samples: tuple[Sample, ...]
    skipped: Mapping[str, int]
    before: Floats
    found: Fit | None
    undetermined: Mapping[Constant, float]
    parts: tuple[LeftOut, ...]

    @property
    def sources(self) -> dict[str, int]:
        """Samples by source."""
        return dict(Counter(sample.source for sample in self.samples))

    @property
    def cross_validated(self) -> Floats:
        """Residuals of every sample with the constants that the other parts give."""
        left = np.array(self.before)
        for part in self.parts:
            left[part.out] = part.residuals[part.out]
        return left

    @property
    def taken(self) -> bool:
        """Whether the fit helps those it has not seen: else the constants stay as they were.

        Weighted mean of absolute log residuals: every source has a voice, a few bad runs do not decide.
        """
        if self.found is None:
            return False
        weights = weights_of(self.samples)
        start, left = (float(weights @ np.abs(r)) for r in (self.before, self.cross_validated))
        return left <= (1.0 - GAIN) * start


def run_stage(
    kind: Kind,
    measured: tuple[Sequence[Sample], Mapping[str, int]],
    base: Calibration,
    constants: Sequence[Constant],
    predictor: Predictor,
    pool: ProcessPoolExecutor | None,
    *,
    chunk: int,
    report: Callable[[int], None],
) -> Stage:
    """Fit those of the constants that the measurements determine; the others keep their value in *base*."""
    samples, skipped = measured
    model = Model(samples, base, predictor, pool, chunk=chunk, report=report)
    prior = prior_of(base, constants)
    line = linearised(model, constants, prior.centre)
    kept, dropped = determined(model, constants, prior, line)
    before = model.residuals([{}])[0]
    fitted, parts = None, tuple[LeftOut, ...]()
    if kept:
        chosen, known = [constants[place] for place in kept], prior.of(kept)
        fixed = [place for place in dropped if value_of(base, constants[place].name) != prior.centre[place]]
        begin = linearised(model, chosen, known.centre) if fixed else line.of(slice(None), list(kept))
        fitted = fit(model, chosen, known, begin)
        parts = _left_out(model, fitted)
    return Stage(
        kind=kind,
        base=base,
        samples=tuple(samples),
        skipped=skipped,
        before=before,
        found=fitted,
        undetermined={constants[place]: width for place, width in dropped.items()},
        parts=parts,
    )


def _left_out(model: Model, fitted: Fit) -> tuple[LeftOut, ...]:
    """Every source (or every fifth sample of a single one) left out in turn.

    The others are fitted again with residuals linearised round the fit; then all samples are predicted for real.
    """
    names = [sample.source for sample in model.samples]
    if len(set(names)) == 1:
        names = [f"part {number % FOLDS + 1}" for number in range(len(names))]
    parts = sorted(set(names))
    outs = [np.array(names) == part for part in parts]
    values = [refit(fitted, ~out) for out in outs]
    settings = [dict(zip(fitted.constants, value.tolist(), strict=True)) for value in values]
    residuals = model.residuals(settings)
    return tuple(
        LeftOut(part=part, out=out, values=value, residuals=row)
        for part, out, value, row in zip(parts, outs, values, residuals, strict=True)
    )


def without_runs(base: Calibration) -> Calibration:
    """*base* as it was before runs were fitted on: values of what was known before."""
    entries: dict[str, CalibrationEntry] = {}
    ties = {constant.name: constant.tied for constant in RUN_CONSTANTS}
    for name, entry in base.entries:
        if entry.prior is None:
            continue
        entries[name] = replace(entry, value=entry.prior, runs="")
        for tied in ties.get(name, ()):
            scaled = value_of(base, tied) * (entry.prior / entry.value if entry.value else 1.0)
            entries[tied] = replace(_entry(base, tied), value=rounded(scaled), runs="")
    return with_entries(base, entries)


def entries_of(stage: Stage, words: str) -> Calibration:
    """The base with what the stage found: values, and in words what the measurements say. *words*: their origin."""
    entries: dict[str, CalibrationEntry] = {}
    fitted = stage.found
    for place, constant in enumerate(fitted.constants if fitted else ()):
        assert fitted is not None
        value, half, error = (
            float(column[place]) for column in (fitted.values, fitted.half_width, fitted.error)
        )
        begun = value_of(stage.base, constant.name)
        text = f"{value:.3g} +- {half:.2g} (95 %) by {_depending(stage, fitted.line, place)}{words}"
        if not stage.taken:
            value, text = begun, f"{text}; no better for sources left out of the fit, so {begun:.3g} stays"
        entries[constant.name] = _fitted(
            stage, constant, value, error, text, float(fitted.prior.centre[place])
        )
        for tied in constant.tied if stage.taken else ():
            scaled = rounded(value_of(stage.base, tied) * (value / begun if begun else 1.0))
            entry = _entry(stage.base, tied)
            entries[tied] = replace(
                entry, value=scaled, runs=f"keeps its ratio to {constant.name}: {scaled:.3g}"
            )
    for constant, width in stage.undetermined.items():
        if constant.name in dict(stage.base.entries) and math.isfinite(width):
            text = f"left open by {len(stage.samples):,} {stage.kind}{words}: +- {width:.2g}"
            entries[constant.name] = _worded(_entry(stage.base, constant.name), stage.kind, text)
    return with_entries(stage.base, entries)


def _entry(base: Calibration, name: str) -> CalibrationEntry:
    known = dict(base.entries).get(name)
    return known or CalibrationEntry(
        value=value_of(base, name),
        meaning=meaning_of(base, name),
        source="The default of a healthy H100 cluster (cost_models/calibration/network.py)",
    )


def _worded(entry: CalibrationEntry, kind: Kind, text: str) -> CalibrationEntry:
    return replace(entry, kernels=text) if kind == "kernels" else replace(entry, runs=text)


def _fitted(
    stage: Stage, constant: Constant, value: float, error: float, text: str, centre: float
) -> CalibrationEntry:
    entry = _worded(_entry(stage.base, constant.name), stage.kind, text)
    if stage.kind == "runs":
        return replace(entry, value=value, prior=centre, doubt=entry.doubt or constant.doubt)
    entry = replace(entry, value=value, fitted_on="" if stage.taken else entry.fitted_on)
    later = next((run.doubt for run in RUN_CONSTANTS if run.name == constant.name), None)
    if later is None:
        return entry
    return replace(entry, prior=value, doubt=float(f"{math.hypot(later, error):.2g}"), runs="")


def _depending(stage: Stage, line: Linearised, place: int) -> str:
    """How many samples depend on a constant and whose they are."""
    value = float(line.values[place])
    noticed = np.abs(line.jacobian[:, place]) * (value or 1.0) > NOTICED
    if not noticed.any():
        noticed[:] = True
    names = sorted({sample.source for sample, seen in zip(stage.samples, noticed, strict=True) if seen})
    return f"{int(noticed.sum()):,} {stage.kind} ({', '.join(names)})"
