"""What a calibration found, as data, tables and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.experiments.calibration.constants import value_of
from hdpsim.experiments.calibration.fit import Fit
from hdpsim.experiments.calibration.stage import LeftOut, Stage
from hdpsim.experiments.output.document import Column, Document, OutputFile, Table, files_of
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.plots.runs import plot_error_shares
from hdpsim.experiments.validation.order import error_summary

Row = dict[str, Any]

STRONG = 0.5
"""Correlations beyond this are worth a line."""
AT_BOUND = 1e-3
"""A value this near to a bound, in shares of their distance, is told to be at it."""


def refusal(stages: Sequence[Stage], names: Sequence[str] | None) -> str:
    """Why the calibration is refused: nothing is determined, or not what was asked for by name. Empty: it is not."""
    fitted = {constant.name for stage in stages if stage.found for constant in stage.found.constants}
    missing = set(names or ()) - fitted
    if fitted and not missing:
        return ""
    lines = [
        f"\n  {constant.name}: {_why(width, stage)}; would be decided by {constant.decided_by}"
        for stage in stages
        for constant, width in stage.undetermined.items()
        if constant.name not in fitted and (names is None or constant.name in names)
    ]
    known = {constant.name for stage in stages for constant in stage.undetermined}
    lines += [
        f"\n  {name}: is decided by the other kind of measurement, see --kernels"
        for name in sorted(missing - known)
    ]
    counts = " and the ".join(f"{len(stage.samples)} {_noun(stage)}" for stage in stages) or "measurements"
    return f"the {counts} do not determine what was to be fitted:{''.join(lines)}"


def _noun(stage: Stage) -> str:
    return "records" if stage.kind == "runs" else "kernels"


def _why(width: float, stage: Stage) -> str:
    if not np.isfinite(width):
        return f"no {_noun(stage)[:-1]} depends on it"
    return f"its 95 % interval from the {_noun(stage)} alone would be +- {width:.2g}"


def calibration_document(stages: Sequence[Stage], *, file: str, gpu: Gpu, written: str) -> Document:
    """The stages in words; as data the last one at the top and the one on kernels under its name."""
    in_words = [_stage(stage) for stage in stages]
    return Document(
        kind="calibrate",
        payload={
            "file": file if stages[-1].kind == "runs" else None,
            "gpu": gpu.name,
            "generation": gpu.calibration,
            **in_words[-1],
            "kernels": in_words[0] if stages[0].kind == "kernels" else None,
            "written": written,
        },
        blocks=tuple(block for stage in in_words for block in _blocks(stage)),
        notes=(f"wrote {written}",),
        title=f"Calibration of {gpu.calibration} for {gpu.name}",
        files=tuple(file for stage, row in zip(stages, in_words, strict=True) for file in _files(stage, row)),
    )


def _files(stage: Stage, row: Row) -> tuple[OutputFile, ...]:
    series = {"at the start": stage.before, "cross-validated": stage.cross_validated}
    series |= {"fitted": stage.found.residuals} if stage.found else {}
    contents: dict[str, Callable[[], object]] = {
        f"constants_{stage.kind}.csv": lambda: [
            {name: value for name, value in one.items() if name != "tied"} for one in row["constants"]
        ],
        f"errors_{stage.kind}": lambda: plot_error_shares(
            {name: np.abs(np.expm1(errors)) for name, errors in series.items()},
            title=f"Errors before and after, {len(stage.samples)} {_noun(stage)}",
        ),
    }
    return files_of("calibrate", contents)


def _stage(stage: Stage) -> Row:
    fitted = stage.found
    return {
        "fitted_on": stage.kind,
        "taken": stage.taken,
        "records": len(stage.samples),
        "sources": stage.sources,
        "left_out": dict(Counter(stage.skipped).most_common()),
        "constants": _constants(fitted, stage) if fitted else [],
        "undetermined": [
            {
                "name": constant.name,
                "kept_at": value_of(stage.base, constant.name),
                "half_width": width if np.isfinite(width) else None,
                "reason": _why(width, stage),
                "decided_by": constant.decided_by,
            }
            for constant, width in stage.undetermined.items()
        ],
        "correlation": fitted.correlation.tolist() if fitted else [],
        "strong_correlations": _strong(fitted) if fitted else [],
        "noise": fitted.scale.noise if fitted else None,
        "error_at_start": _summary(stage.before),
        "error_fitted": _summary(fitted.residuals if fitted else stage.before),
        **_cross_validation(stage),
    }


def _summary(residuals: Floats) -> Row:
    return dict(error_summary(np.expm1(residuals).tolist()))


def _constants(fitted: Fit, stage: Stage) -> list[Row]:
    prior = fitted.prior
    columns = (fitted.constants, prior.centre, prior.doubt, fitted.values, fitted.half_width)
    return [
        {
            "name": constant.name,
            "start": value_of(stage.base, constant.name),
            "prior": float(centre),
            "doubt": float(doubt) if np.isfinite(doubt) else None,
            "value": float(value) if stage.taken else value_of(stage.base, constant.name),
            "fitted": float(value),
            "half_width": float(half),
            **attributes(constant, "low high"),
            "at_bound": bool(min(value - constant.low, constant.high - value) < AT_BOUND * constant.span),
            "tied": list(constant.tied),
        }
        for constant, centre, doubt, value, half in zip(*columns, strict=True)
    ]


def _strong(fitted: Fit) -> list[Row]:
    names = [constant.name for constant in fitted.constants]
    return [
        {"first": names[i], "second": names[j], "correlation": float(fitted.correlation[i, j])}
        for i in range(len(names))
        for j in range(i)
        if abs(fitted.correlation[i, j]) >= STRONG
    ]


def _cross_validation(stage: Stage) -> Row:
    """Every part predicted with the constants that the others give.

    `largest_shift`: how far leaving a part out moves the median error of another source, in shares of the measurement.
    """
    fitted = stage.found
    how = "leave one source out" if len(stage.sources) > 1 else f"{len(stage.parts)} parts of the one source"
    return {
        "cross_validation": how if fitted else "",
        "error_cross_validated": _summary(stage.cross_validated),
        "left_out_one_by_one": [_part(part, stage, fitted) for part in stage.parts] if fitted else [],
    }


def _part(part: LeftOut, stage: Stage, fitted: Fit) -> Row:
    names = np.array([sample.source for sample in stage.samples])
    shifts = {
        source: _median(part.residuals[names == source]) - _median(fitted.residuals[names == source])
        for source in stage.sources
        if source != part.part
    }
    most = max(shifts, key=lambda source: abs(shifts[source]), default="")
    return {
        "left_out": part.part,
        "records": int(part.out.sum()),
        "median_abs_error": _median(part.residuals[part.out]),
        "median_abs_error_fitted": _median(fitted.residuals[part.out]),
        "median_abs_error_at_start": _median(stage.before[part.out]),
        "values": dict(zip((one.name for one in fitted.constants), part.values.tolist(), strict=True)),
        "largest_shift": abs(shifts.get(most, 0.0)),
        "shifted": most,
    }


def _median(residuals: Floats) -> float:
    return float(np.median(np.abs(np.expm1(residuals))))


def _blocks(stage: Row) -> tuple[Table[Row] | str, ...]:
    noun = "records" if stage["fitted_on"] == "runs" else "kernels"
    sources = len(stage["sources"])
    fitted: tuple[Column[Row], ...] = (
        Column("name", heading="constant"),
        Column("start", format=".4g"),
        Column("prior", known_before, heading="known before"),
        Column("fitted", format=".4g"),
        Column("half_width", heading="95 %", format="+- {:.2g}".format),
        Column("", lambda row: f"{row['low']:g} to {row['high']:g}", heading="allowed"),
        Column("at_bound", lambda row: "at its bound" if row["at_bound"] else "", heading="", left=True),
    )
    left_out: tuple[Column[Row], ...] = (
        Column("left_out"),
        Column("records", heading=noun),
        Column("median_abs_error_at_start", heading="start", format=_percent),
        Column("median_abs_error_fitted", heading="fitted", format=_percent),
        Column("median_abs_error", heading="left out of the fit", format=_percent),
        Column("largest_shift", heading="moves another by", format=_percent),
        Column("shifted", heading="", left=True),
    )
    title = f"Fitted on {stage['records']} {noun} of {sources} source{'' if sources == 1 else 's'}"
    crossed = f"Cross-validation: {stage['cross_validation']}; median error in %"
    return (
        Table(title=title, columns=fitted, rows=stage["constants"]),
        Table(title=crossed, columns=left_out, rows=stage["left_out_one_by_one"]),
        "\n".join(_lines(stage)),
    )


def known_before(row: Row) -> str:
    """What was known of a constant before it was fitted; empty where nothing was."""
    return "" if row["doubt"] is None else f"{row['prior']:.3g} +- {1.96 * row['doubt']:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _lines(stage: Row) -> list[str]:
    lines = [
        f"{words}: median {100 * stage[key]['median_abs_error']:.1f} %, "
        f"p90 {100 * stage[key]['p90_abs_error']:.1f} %, worst {100 * stage[key]['max_abs_error']:.1f} %"
        for words, key in (
            ("at the start", "error_at_start"),
            ("fitted", "error_fitted"),
            ("cross-validated", "error_cross_validated"),
        )
    ]
    if stage["constants"] and not stage["taken"]:
        lines.append(
            "not taken: sources left out of the fit come out no better than at the start, which stays"
        )
    lines += [
        f"{row['first']} and {row['second']} move together: correlation {row['correlation']:+.2f}"
        for row in stage["strong_correlations"]
    ]
    lines += [
        f"kept at {row['kept_at']:.4g}: {row['name']} ({row['reason']}); would be decided by {row['decided_by']}"
        for row in stage["undetermined"]
    ]
    return [*lines, *(f"left out, {count} x: {reason}" for reason, count in stage["left_out"].items())]
