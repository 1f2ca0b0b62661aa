"""Predictions held against single measured steps: errors by group of equal settings, and who is named the faster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from hdpsim.cost_models.calibration.calibration import load_calibration
from hdpsim.experiments.output.document import Column, Document, Table
from hdpsim.experiments.records.step_prediction import StepPrediction, StepPredictor
from hdpsim.experiments.records.steps import MeasuredStep, read_steps
from hdpsim.experiments.studies.comparing.compare import reported, silent
from hdpsim.experiments.validation.order import error_of, grouped, median, percent, signed_summary, spearman
from hdpsim.experiments.validation.report import BIAS, MEDIAN, P90, signed_column
from hdpsim.experiments.validation.units import unit_lines

FEW_STEPS = 30
"""So many are shown one by one."""
APART = 0.03
"""Two strategies differ on a batch if the slower one takes so much longer, measured."""

Row = dict[str, Any]


def run(
    path: str,
    *,
    scenario: str | None = None,
    calibration: str | None = None,
    report: Callable[[int, int], None] = silent,
) -> Document:
    """Predict every step of a file of JSON lines.

    Args:
        path: the steps, see docs/how-to/measured.md.
        scenario: of the steps that do not say how they were run.
        calibration: file of constants for the GPUs of its generation, instead of the shipped ones.
        report: told (done, total) after every step.

    Raises:
        UserInputError: an unusable file, or a step that does not say how it was run.
    """
    steps = read_steps(path)
    own = None if calibration is None else load_calibration(calibration)
    predictor = StepPredictor(scenario, own, Path(path).parent)
    rows = [_row(step, predictor.predict(step)) for step in reported(steps, report, len(steps))]
    groups = _groups(rows)
    batches = [tuple(sorted(step.lengths)) for step in steps]
    payload: Row = {
        "kind": "validate-steps",
        "file": Path(path).name,
        "calibration": own and own.name,
        "records": rows,
        "summary": _summary(rows),
        "groups": groups,
        "faster": _faster(rows, batches),
    }
    times = [
        {name: row[name] for name in ("record", "quantity", "predicted_step_s")}
        | {"measured_step_s": row["measured"]}
        for row in rows
    ]
    lines = (*_sentences(payload), *unit_lines(times))
    return Document(
        kind="validate-steps",
        payload=payload,
        blocks=_tables(payload),
        notes=lines,
        title="Predictions against measured steps",
        readme=lines,
    )


def _row(step: MeasuredStep, prediction: StepPrediction) -> Row:
    """A step's columns, its prediction and its error."""
    lengths = step.lengths
    return {
        **step.columns,
        "record": step.name,
        "group": _group(step, prediction),
        "counts": step.clean,
        "clean": step.clean,
        "quantity": "step_s",
        "settings": prediction.strategy,
        "machine": prediction.machine,
        "documents": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "measured": step.measured_s,
        "predicted": prediction.step_s,
        "error": error_of(step.measured_s, prediction.step_s),
        "band_s": _band_s(prediction),
        "reason": prediction.reason or None,
        "predicted_step_s": prediction.step_s,
        "account_s": prediction.account_s,
        "assumptions": list(prediction.assumptions),
        "notes": list(prediction.notes),
    }


def _band_s(prediction: StepPrediction) -> list[float] | None:
    """P10 and P90 of the true step."""
    step_s, band = prediction.step_s, prediction.band
    return None if step_s is None or band is None else [step_s * band.low, step_s * band.high]


def _group(step: MeasuredStep, prediction: StepPrediction) -> str:
    """Steps of equal settings: as the file groups them, and nothing that was run otherwise among them."""
    group = step.columns.get("group") or step.columns.get("file")
    return f"{group}: {prediction.strategy}" if group else f"{prediction.strategy}, {prediction.machine}"


def _summary(rows: Sequence[Row]) -> Row:
    return {
        **_errors(rows),
        "clean": _errors([row for row in rows if row["clean"]]),
        "by_mode": {
            mode: _errors([row for row in rows if row["clean"] and _mode(row) == mode])
            for mode in sorted({_mode(row) for row in rows})
        },
        "unpredicted_reasons": dict(Counter(row["reason"] for row in rows if row["reason"]).most_common()),
    }


def _mode(row: Row) -> str:
    """The strategy without its degrees."""
    return str(row["settings"]).partition(" ")[0]


def _errors(rows: Sequence[Row]) -> Row:
    """Error figures of some steps: size, sign, spread and order."""
    judged = [row for row in rows if row["error"] is not None]
    errors = [row["error"] for row in judged]
    ends = np.percentile(errors, [10, 90]).tolist() if errors else None
    return {
        **signed_summary(errors),
        "p10_error": ends and ends[0],
        "p90_error": ends and ends[1],
        "spread": ends and ends[1] - ends[0],
        "with_band": len(bands := [row for row in judged if row["band_s"]]),
        "in_band": sum(row["band_s"][0] <= row["measured"] <= row["band_s"][1] for row in bands),
        "rank_correlation": spearman([(row["measured"], row["predicted"]) for row in judged]),
        "unpredicted": len(rows) - len(judged),
    }


def _groups(rows: Sequence[Row]) -> list[Row]:
    return [
        {
            "group": group,
            **{name: members[0][name] for name in ("settings", "machine")},
            "records": len(members),
            "clean": all(row["clean"] for row in members),
            "bias": _errors(members)["median_error"],
            **_errors(members),
        }
        for group, members in grouped(rows, lambda row: str(row["group"])).items()
    ]


def _faster(rows: Sequence[Row], batches: Sequence[tuple[int, ...]]) -> Row:
    """Of the batches that were measured under several settings on one machine: is the faster one named?

    Every pair of settings of a batch counts whose mean measured times differ by more than APART. Steps in doubt do not.
    """
    times: dict[tuple[str, tuple[int, ...]], dict[str, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row, batch in zip(rows, batches, strict=True):
        if row["clean"] and row["predicted"] is not None:
            times[row["machine"], batch][row["settings"]].append((row["measured"], row["predicted"]))
    pairs = []
    for (machine, _), by_settings in times.items():
        means = {name: np.mean(both, axis=0) for name, both in by_settings.items()}
        for first, second in combinations(sorted(means), 2):
            measured, predicted = means[first] / means[second]
            if max(measured, 1.0 / measured) > 1.0 + APART:
                right = (measured < 1.0) == (predicted < 1.0)
                pairs.append((machine, first, second, float(measured), float(predicted), bool(right)))
    by_pair = grouped(pairs, lambda pair: pair[:3])
    return {
        "apart": APART,
        "pairs": len(pairs),
        "right": sum(pair[-1] for pair in pairs),
        "share": sum(pair[-1] for pair in pairs) / len(pairs) if pairs else None,
        "ratio_median_abs_error": median(abs(pair[4] / pair[3] - 1.0) for pair in pairs),
        "by_settings": [
            {
                **dict(zip(("machine", "first", "second"), settings, strict=True)),
                "pairs": len(members),
                "share": sum(pair[-1] for pair in members) / len(members),
            }
            for settings, members in sorted(by_pair.items())
        ],
    }


_SPREAD: Column[Row] = Column("spread", heading="p10 to p90", format=percent)
_ORDER: Column[Row] = Column("rank_correlation", heading="order", format=".3f")
_GROUP: tuple[Column[Any], ...] = (
    Column("group"),
    Column("records", heading="steps"),
    Column("clean", format=lambda clean: "" if clean else "in doubt", heading="", left=True),
    BIAS,
    MEDIAN,
    P90,
    _SPREAD,
    _ORDER,
)
_STEP: tuple[Column[Any], ...] = (
    Column("record"),
    Column("settings", left=True),
    Column("documents"),
    Column("tokens", format=","),
    Column("longest", format=","),
    Column("measured", unit="s", format=".4g"),
    Column("predicted", unit="s", format=".4g"),
    signed_column("error", "error %"),
)
_REASON: tuple[Column[tuple[str, int]], ...] = (
    Column("steps", lambda reason: reason[1]),
    Column("reason", lambda reason: reason[0], left=True),
)


def _tables(payload: Row) -> tuple[Table[Any], ...]:
    tables: list[Table[Any]] = []
    if len(payload["records"]) <= FEW_STEPS:
        tables.append(Table(title="Steps", columns=_STEP, rows=payload["records"]))
    title = (
        "Errors by group of equal settings, in % of the measurement (bias: with its sign; p10 to p90: how far apart; "
        "order: rank correlation)"
    )
    tables.append(Table(title=title, columns=_GROUP, rows=payload["groups"]))
    reasons = payload["summary"]["unpredicted_reasons"]
    if reasons:
        tables.append(Table(title="Not predicted", columns=_REASON, rows=tuple(reasons.items())))
    return tuple(tables)


def _sentences(payload: Row) -> tuple[str, ...]:
    summary, faster = payload["summary"], payload["faster"]
    lines = [_sentence("all steps", summary)]
    if summary["clean"]["count"] != summary["count"]:
        lines.append(_sentence("steps that nobody doubts", summary["clean"]))
    if len(summary["by_mode"]) > 1:
        lines += [_sentence(mode, errors) for mode, errors in summary["by_mode"].items()]
    if summary["with_band"]:
        lines.append(_band_sentence(summary))
    if faster["pairs"]:
        lines.append(
            f"the faster of two settings on the same documents is named right {faster['right']} of {faster['pairs']} "
            f"times ({faster['share']:.1%}; pairs that differ by more than {APART:.0%})"
        )
    return tuple(lines)


def _band_sentence(summary: Row) -> str:
    outside = summary["in_band"] < summary["with_band"]
    where = "; where to look: docs/how-to/measured.md#our-step-is-slower-than-predicted" if outside else ""
    return (
        f"{summary['in_band']} of {summary['with_band']} measured steps lie in the P10-P90 band that simulate prints "
        f"with the prediction{where}"
    )


def _sentence(what: str, errors: Row) -> str:
    if not errors["count"]:
        return f"{what}: none of {errors['unpredicted']} predicted"
    missing = f", {errors['unpredicted']} not predicted" if errors["unpredicted"] else ""
    return (
        f"{what}: {errors['count']} judged{missing}, median error {percent(errors['median_abs_error'])} %, "
        f"bias {100 * errors['median_error']:+.1f} %, p90 {percent(errors['p90_abs_error'])} %, "
        f"largest {percent(errors['max_abs_error'])} %"
    )
