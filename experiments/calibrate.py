"""Constants of one GPU generation fitted on records of runs: which can be, their values, what to believe of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models import catalog
from cost_models.calibration import Calibration, CalibrationEntry, calibration
from experiments.calibrate_constants import Constant, chosen, value_of
from experiments.calibrate_file import meaning_of, write_calibration
from experiments.calibrate_fit import Fit, Model, Sample, determined, fit, linear_refit
from experiments.compare import silent
from experiments.record_errors import error_summary
from experiments.record_prediction import measured_step_s, predict_step
from experiments.record_setup import job_of
from experiments.records import Record, read_records, shipped_records
from experiments.run_directory import SCHEMA_VERSION
from experiments.worker_pool import worker_pool
from hdpsim import __version__
from hdpsim.errors import CatalogError, HdpSimError, InfeasibleError

__all__ = ["Calibrated", "calibrate"]

Document = dict[str, Any]
Floats = NDArray[np.float64]

FEWEST = 6
"""Fewer records decide nothing."""
FOLDS = 5
"""Parts of the records for cross-validation where there is only one source."""
STRONG = 0.5
"""Correlations beyond this are worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The fit as a JSON document; the file is written."""

    document: Mapping[str, Any]


def calibrate(
    path: str | None,
    gpu: str,
    out: str,
    *,
    constants: Sequence[str] | None = None,
    workers: int = 1,
    report: Callable[[int, int], None] = silent,
) -> Calibrated:
    """Fit the constants of a GPU's generation on the records of a file and write the calibration.

    Args:
        path: CSV of records; None: the runs shipped with hdpsim.
        gpu: a GPU of the catalog; records of all GPUs of its generation count.
        out: YAML file to write.
        constants: names to fit; None: those that the records determine.
        workers: processes.
        report: told (predictions made, 0).

    Raises:
        InfeasibleError: the records do not determine the constants; the message says which records would.
        UserInputError, CatalogError: unusable file, unknown GPU or constant.
    """
    generation = catalog.gpu(gpu).calibration
    base = calibration(generation)
    wanted = chosen(constants)
    records = read_records(shipped_records() if path is None else path)
    samples, left_out = _samples(records, generation)
    if len(samples) < FEWEST:
        raise InfeasibleError(_too_few(samples, left_out, gpu))
    with _pool(workers, len(samples)) as pool:
        model = Model(samples, base, pool, lambda done: report(done, 0))
        start = np.array([value_of(base, constant.name) for constant in wanted])
        kept, dropped = determined(model, wanted, start)
        _refuse_undetermined(kept, dropped, named=constants is not None, count=len(samples))
        found = fit(model, kept, np.array([value_of(base, constant.name) for constant in kept]))
        before = model.residuals([{}])[0]
        validated = _cross_validation(model, found, pool)
    name = Path(path).name if path is not None else "the runs shipped with hdpsim"
    _write(out, base, generation, found, name)
    document: Document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "calibrate",
        "hdpsim_version": __version__,
        "file": name,
        "gpu": catalog.gpu(gpu).name,
        "generation": generation,
        "records": len(samples),
        "sources": dict(Counter(sample.source for sample in samples)),
        "left_out": dict(left_out.most_common()),
        "constants": _constants(found, base),
        "undetermined": [_undetermined(constant, width, base) for constant, width in dropped.items()],
        "correlation": found.correlation.tolist(),
        "strong_correlations": _strong(found),
        "error_at_start": error_summary(np.expm1(before).tolist()),
        "error_fitted": error_summary(np.expm1(found.residuals).tolist()),
        **validated,
        "written": out,
    }
    return Calibrated(document=document)


@contextmanager
def _pool(workers: int, samples: int) -> Iterator[ProcessPoolExecutor | None]:
    if workers <= 1 or samples < 4 * FEWEST:
        yield None
        return
    with worker_pool(workers) as pool:
        yield pool


def _samples(records: Sequence[Record], generation: str) -> tuple[list[Sample], Counter[str]]:
    """What can be fitted on, and why the rest cannot.

    A run with a mechanism that is not modelled would bend a constant that is; suspect, incomplete and fine-tuning
    records would too.
    """
    samples: list[Sample] = []
    left_out: Counter[str] = Counter()
    for record in records:
        try:
            if catalog.gpu(record.config.gpu).calibration != generation:
                continue
            if not record.counts:
                raise InfeasibleError("not a complete, undoubted pretraining run")
            job = job_of(record.config)
            if job.blocked:
                raise InfeasibleError(job.blocked)
            if job.not_modelled:
                raise InfeasibleError(f"not modelled: {job.not_modelled[0]}")
            measured = measured_step_s(record.config, job, record.measured)
            if measured is None:
                raise InfeasibleError("no time measured")
            predict_step(job)
        except CatalogError:
            left_out["a GPU that the catalog does not know"] += 1
        except HdpSimError as error:
            left_out[str(error)] += 1
        else:
            source = str(record.columns.get("family") or record.columns.get("source") or "-")
            samples.append(Sample(name=record.name, source=source, job=job, measured_step_s=measured))
    return samples, left_out


def _too_few(samples: Sequence[Sample], left_out: Counter[str], gpu: str) -> str:
    reasons = "".join(f"\n  {count} x {reason}" for reason, count in left_out.most_common(5))
    return f"{len(samples)} records of {gpu}'s generation can be fitted on, at least {FEWEST} are needed" + (
        f"; left out:{reasons}" if reasons else ""
    )


def _refuse_undetermined(
    kept: Sequence[Constant], dropped: Mapping[Constant, float], *, named: bool, count: int
) -> None:
    """Exit 3 when nothing is determined, or something that was asked for by name is not."""
    if kept and not (named and dropped):
        return
    lines = "".join(
        f"\n  {constant.name}: {_why(width)}; would be decided by {constant.decided_by}"
        for constant, width in dropped.items()
    )
    raise InfeasibleError(f"the {count} records do not determine what was to be fitted:{lines}")


def _why(width: float) -> str:
    if not np.isfinite(width):
        return "no record depends on it"
    return f"its 95 % interval would be +- {100 * min(width, 9.99):.0f} % of the range it may have"


def _constants(found: Fit, base: Calibration) -> list[Document]:
    return [
        {
            "name": constant.name,
            "start": value_of(base, constant.name),
            "value": float(value),
            "half_width": float(half),
            "low": constant.low,
            "high": constant.high,
            "at_bound": bool(
                min(value - constant.low, constant.high - value) < 1e-3 * (constant.high - constant.low)
            ),
            "tied": list(constant.tied),
        }
        for constant, value, half in zip(found.constants, found.values, found.half_width, strict=True)
    ]


def _undetermined(constant: Constant, width: float, base: Calibration) -> Document:
    return {
        "name": constant.name,
        "kept_at": value_of(base, constant.name),
        "reason": _why(width),
        "decided_by": constant.decided_by,
    }


def _strong(found: Fit) -> list[Document]:
    names = [constant.name for constant in found.constants]
    return [
        {"first": names[i], "second": names[j], "correlation": float(found.correlation[i, j])}
        for i in range(len(names))
        for j in range(i)
        if abs(found.correlation[i, j]) >= STRONG
    ]


def _cross_validation(model: Model, found: Fit, pool: ProcessPoolExecutor | None) -> Document:
    """Every source (or every fifth of a single one) predicted with the constants that the others give.

    The others are fitted again with residuals linearised round the fit; what is left out is predicted for real.
    `largest_shift`: how far leaving a source out moves the median error of another one, in shares of the measurement.
    """
    sources = np.array([sample.source for sample in model.samples])
    by_source = len(set(sources.tolist())) > 1
    parts = sources if by_source else np.array([str(number % FOLDS) for number in range(len(sources))])
    left = np.zeros(len(sources))
    rows: list[Document] = []
    for part in sorted(set(parts.tolist())):
        out = parts == part
        values = linear_refit(found, ~out)
        own = Model([model.samples[int(i)] for i in np.flatnonzero(out)], model.base, pool)
        left[out] = own.residuals([dict(zip(found.constants, values.tolist(), strict=True))])[0]
        moved = found.residuals + found.jacobian @ (values - found.values)
        shifts = {
            other: float(
                _median_error(moved[sources == other]) - _median_error(found.residuals[sources == other])
            )
            for other in sorted(set(sources.tolist()))
            if other != part
        }
        rows.append(
            {
                "left_out": part,
                "records": int(out.sum()),
                "median_abs_error": _median_error(left[out]),
                "median_abs_error_fitted": _median_error(found.residuals[out]),
                "values": {
                    constant.name: value
                    for constant, value in zip(found.constants, values.tolist(), strict=True)
                },
                "largest_shift": max((abs(shift) for shift in shifts.values()), default=0.0),
            }
        )
    return {
        "cross_validation": "leave one source out" if by_source else f"{FOLDS} parts of the one source",
        "error_cross_validated": error_summary(np.expm1(left).tolist()),
        "left_out_one_by_one": rows,
    }


def _median_error(residuals: Floats) -> float:
    return float(np.median(np.abs(np.expm1(residuals))))


def _write(out: str, base: Calibration, generation: str, found: Fit, name: str) -> None:
    count = len(found.residuals)
    entries: dict[str, CalibrationEntry] = {}
    for constant, value, half in zip(
        found.constants, found.values.tolist(), found.half_width.tolist(), strict=True
    ):
        begun = value_of(base, constant.name)
        words = f"Fitted by hdpsim calibrate: {value:.4g} +- {half:.2g} (95 %), start {begun:.4g}"
        fitted_on = f"{count} runs of {name}"
        entries[constant.name] = CalibrationEntry(
            value=_rounded(value), meaning=meaning_of(base, constant.name), source=words, fitted_on=fitted_on
        )
        for tied in constant.tied:
            scaled = value_of(base, tied) * (value / begun if begun else 1.0)
            entries[tied] = CalibrationEntry(
                value=_rounded(scaled),
                meaning=meaning_of(base, tied),
                source=f"Keeps its ratio to {constant.name}, which was fitted",
                fitted_on=fitted_on,
            )
    remark = f"Fitted by hdpsim {__version__} calibrate on {name}, from calibration {base.name}."
    write_calibration(out, base, generation, entries, remark)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
