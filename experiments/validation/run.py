"""Predictions held against published training runs: errors by record, by source and GPU, and all together."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hdpsim.cost_models.calibration.calibration import Calibration, load_calibration
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.bands.band import VIEWS, Residual, Residuals, View
from hdpsim.experiments.bands.residuals import bands_of, residual_lines, rewrite_residuals
from hdpsim.experiments.output.document import Document
from hdpsim.experiments.records.columns import Record, misspelt_columns, read_records, shipped_records
from hdpsim.experiments.records.prediction import Prediction, convention_of, predict
from hdpsim.experiments.records.switches import unknown_words
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import KINDS
from hdpsim.experiments.studies.comparing.compare import reported, silent
from hdpsim.experiments.validation.computed_step_times import computed
from hdpsim.experiments.validation.memory import MEMORY_QUANTITY, memory_columns, memory_summary
from hdpsim.experiments.validation.order import error_of, error_summary, grouped, median, rank_correlation
from hdpsim.experiments.validation.report import ENOUGH_RECORDS, SOUND, blocks, files, summary_lines
from hdpsim.experiments.validation.views import is_plain, plain, rules_of_families

QUANTITIES = {
    "step_s": "measured_step_s",
    "tokens_per_s_per_gpu": "measured_tokens_per_s_per_gpu",
    "tflops_per_gpu": "measured_tflops_per_gpu",
    "mfu_pct": "measured_mfu_pct",
}
"""What a record is judged by, the first that was measured: predicted quantity -> column."""

FEW_RECORDS = 30
"""So many are shown one by one."""

Row = dict[str, Any]


def run(
    path: str | None = None,
    *,
    memory: bool = False,
    calibration: str | None = None,
    residuals: str | None = None,
    without: frozenset[str] = frozenset(),
    view: View = "published",
    report: Callable[[int, int], None] = silent,
) -> Document:
    """Predict every record of a file and hold the predictions against what was measured.

    Args:
        path: CSV of records; None: the runs shipped with hdpsim.
        calibration: file of constants for the GPUs of its generation, instead of the shipped ones.
        memory: judge peak memory and whether a run fits, not its time.
        residuals: file to write with features and log errors of the runs judged.
        without: classes of rules about software that are not asked.
        view: what a prediction sees of a record, see hdpsim.experiments.validation.views.
        report: told (done, total) after every record.

    Raises:
        UserInputError: an unusable file of records.
    """
    records = read_records(shipped_records() if path is None else path)
    own = None if calibration is None else load_calibration(calibration)
    predictions = _predictions(records, view, memory, own, without, report)
    rows = _rows(records, predictions, memory, view)
    payload: Row = {
        "kind": "validate-memory" if memory else "validate",
        "file": Path(path).name if path is not None else "shipped runs.csv",
        "records": rows,
        "calibration": own and own.name,
        "without": sorted(without),
        "as": view,
        "summary": _summary(rows),
        "groups": _groups(rows),
        "families": _families(rows),
    }
    lines = (*misspelt_columns(records[0].columns), *_unknown_words(records), *summary_lines(payload))
    outside = [row["record"] for row in rows if row["in_band"] is False]
    if path is not None and outside and len(rows) <= FEW_RECORDS:
        asked = shlex.join(("hdpsim", "validate", path, "--scenario-of", outside[0], "-o", "run.yaml"))
        lines = (
            *lines,
            f"outside their bands: {', '.join(outside)}; to take one apart (docs/how-to/measured.md):",
            f"{asked} && hdpsim explain run.yaml",
        )
    if residuals is not None:
        view_residuals = [row for seen in VIEWS for row in residuals_seen_as(seen, records, own, without)]
        written = rewrite_residuals(residuals, view_residuals)
        lines = (*lines, *residual_lines(written, residuals))
    return Document(
        kind=payload["kind"],
        payload=payload,
        blocks=blocks(payload, FEW_RECORDS),
        notes=lines,
        title="Predictions against published runs",
        files=files(payload),
        readme=lines,
    )


def _unknown_words(records: Sequence[Record]) -> tuple[str, ...]:
    """What records call their stacks and policies and no rule knows, each once, with the first record that does."""
    words_and_records = [
        (setting.words, record.name) for record in records for setting in unknown_words(Run(record.config))
    ]
    first = dict(reversed(words_and_records))
    return tuple(f"{name}: {words}" for words, name in reversed(first.items()))


def why_none(document: Document) -> InfeasibleError | None:
    """Why no record has a prediction, neither of time nor of memory; None: some have one."""
    rows: Any = document.payload["records"]
    if any(row["predicted"] is not None or row["predicted_fits"] is not None for row in rows):
        return None
    reasons = dict.fromkeys(f"  {row['record']}: {row['reason']}" for row in rows)
    return InfeasibleError("no record can be predicted:\n" + "\n".join(list(reasons)[:FEW_RECORDS]))


def _predictions(
    records: Sequence[Record],
    view: View,
    memory: bool,
    own: Calibration | None,
    without: frozenset[str],
    report: Callable[[int, int], None],
) -> list[Prediction]:
    """The predictions of records, which no measurement comes near, in the conventions of their sources."""
    of_families = rules_of_families(records) if view == "unseen" else {}
    predictions: list[Prediction] = []
    for record in reported(records, report, len(records)):
        left_out = without | of_families.get(record.config.family, frozenset())
        config = plain(record.config) if view == "plain" else record.config
        prediction = predict(config, memory_only=memory, calibration=own, without=left_out)
        predictions.append(replace(prediction, convention=convention_of(record.config)))
    return predictions


def _rows(
    records: Sequence[Record], predictions: Sequence[Prediction], memory: bool, view: View
) -> list[Row]:
    put_together = computed([record.columns for record in records])
    return [
        _row(record, prediction, memory, _bands_of(record, view), lies_on_a_line)
        for record, prediction, lies_on_a_line in zip(records, predictions, put_together, strict=True)
    ]


def _bands_of(record: Record, view: View) -> Residuals:
    """What the band of a record rests on."""
    guessed = view == "plain" or (view == "published" and is_plain(record.config))
    return bands_of(_source(record), guessed=guessed, unseen=view == "unseen")


def _row(record: Record, prediction: Prediction, memory: bool, bands: Residuals, put_together: bool) -> Row:
    """A record's columns, its prediction and its error."""
    measured = record.measured
    if memory:
        quantity, true, predicted = MEMORY_QUANTITY, measured.peak_mem_gb, prediction.peak_mem_gb
    else:
        quantity = next(
            (q for q, column in QUANTITIES.items() if getattr(measured, column) is not None), "step_s"
        )
        true, predicted = getattr(measured, QUANTITIES[quantity]), getattr(prediction, quantity)
    error, of_peak = error_of(true, predicted), None
    if not memory and error is not None:
        of_peak = _measured_share_of_peak(prediction, error, quantity)
    possible = of_peak is None or of_peak <= 1.0
    return {
        **record.columns,
        "record": record.name,
        "group": [_source(record), record.config.gpu],
        "counts": record.counts and possible and not put_together,
        "computed": put_together,
        "quantity": quantity,
        "measured": true,
        "predicted": predicted,
        "error": error,
        "measured_share_of_peak": of_peak,
        "reason": (prediction.reason or None) if predicted is None else None,
        **{f"predicted_{quantity}": getattr(prediction, quantity) for quantity in QUANTITIES},
        "flop_convention": prediction.convention,
        "predicted_model_tflops_causal": prediction.rates.get("model, causal attention"),
        "predicted_model_tflops_full": prediction.rates.get("model, full attention"),
        "predicted_hardware_tflops_full": prediction.rates.get("hardware, full attention"),
        "tflops_error": error_of(measured.measured_tflops_per_gpu, prediction.tflops_per_gpu),
        **memory_columns(record, prediction),
        **_fidelity(prediction, true, predicted, quantity, bands, _source(record)),
        "account_s": dict(prediction.account_s),
        "rules": sorted(prediction.rule_kinds),
        "assumptions": list(prediction.assumptions),
        "not_modelled": list(prediction.not_modelled),
    }


def _measured_share_of_peak(prediction: Prediction, error: float, quantity: str) -> float | None:
    """The FLOP of the model, attention causal and nothing recomputed, as measured, over what the GPU can do.

    Above 1 no such run can be: weights and causal attention are the least work. Adapters need less.
    """
    rate, peak = prediction.rates.get("model, causal attention"), prediction.peak_tflops_per_gpu
    if rate is None or peak is None or prediction.adapters:
        return None
    faster = 1.0 + error if quantity == "step_s" else 1.0 / (1.0 + error)  # measured than predicted
    return rate * faster / peak


def _source(record: Record) -> str:
    """Whose record it is."""
    return str(record.columns.get("family") or record.columns.get("source") or "-")


def _fidelity(
    prediction: Prediction,
    true: float | None,
    predicted: float | None,
    quantity: str,
    bands: Residuals,
    source: str,
) -> Row:
    """The band of a prediction, from the residuals of all other configurations, and whether the truth lies in it."""
    if prediction.step_s is None or prediction.features is None:
        return dict.fromkeys(("step_s_p10", "step_s_p90", "in_band", "fidelity"))
    band = bands.band(prediction.features, prediction.key, source)
    inside = None
    if true is not None and predicted is not None and quantity != MEMORY_QUANTITY:
        step_share = true / predicted if quantity == "step_s" else predicted / true
        inside = band.low <= step_share <= band.high
    ends = {"step_s_p10": prediction.step_s * band.low, "step_s_p90": prediction.step_s * band.high}
    return {**ends, "in_band": inside, "fidelity": band.note}


def residuals_seen_as(
    view: View,
    records: Sequence[Record],
    own: Calibration | None = None,
    without: frozenset[str] = frozenset(),
) -> list[Residual]:
    """Residuals of judged runs that nobody doubts, predicted from what a view sees of them."""
    predictions = _predictions(records, view, False, own, without, silent)
    rows = _rows(records, predictions, False, view)
    residuals = []
    for row, record, prediction in zip(rows, records, predictions, strict=True):
        features = prediction.features
        if features is None or row["error"] is None or record.suspect or row["computed"]:
            continue
        sign = 1.0 if row["quantity"] == "step_s" else -1.0
        residuals.append(
            Residual(
                features=features,
                key=prediction.key,
                source=row["group"][0],
                complete=record.complete,
                log_error=sign * math.log1p(row["error"]),
                view=view,
            )
        )
    return residuals


def _errors(rows: Sequence[Row]) -> Row:
    """Error figures of some rows, with those that have none counted."""
    return {
        **error_summary(row["error"] for row in rows),
        "unpredicted": sum(row["predicted"] is None for row in rows),
        "unmeasured": sum(row["measured"] is None and row["predicted"] is not None for row in rows),
        "band_coverage": _coverage(rows),
    }


def _coverage(rows: Sequence[Row]) -> float | None:
    """Share of those with a band that lie inside."""
    verdicts = [row["in_band"] for row in rows if row["in_band"] is not None]
    return sum(verdicts) / len(verdicts) if verdicts else None


def _summary(rows: Sequence[Row]) -> Row:
    return {
        **_errors(rows),
        "complete_pretraining": _errors([row for row in rows if row["counts"]]),
        "band_coverage_by_source": _coverage_by_source(rows),
        "rank_correlation": rank_correlation(rows),
        "by_doubt": _by_doubt(rows),
        "by_rules": _by_rules(rows),
        "memory": memory_summary(rows),
        "unpredicted_reasons": dict(Counter(row["reason"] for row in rows if row["reason"]).most_common()),
    }


def _coverage_by_source(rows: Sequence[Row]) -> dict[str, float | None]:
    """Share of the sound records inside their bands, of every source that has enough of them to tell."""
    judged = [row for row in rows if row["in_band"] is not None and not row.get("suspect")]
    by_source = grouped(judged, lambda row: str(row["group"][0]))
    return {
        source: _coverage(members)
        for source, members in sorted(by_source.items())
        if len(members) >= ENOUGH_RECORDS
    }


def _by_doubt(rows: Sequence[Row]) -> Row:
    """Errors and order of layouts of the records that nobody doubts ("sound"), and of those with each mark."""
    by_mark = grouped(rows, lambda row: str(row.get("suspect") or SOUND))
    return {
        mark: {**_errors(members), "rank_correlation": rank_correlation(members)}
        for mark, members in sorted(by_mark.items(), key=lambda item: (item[0] != SOUND, item[0]))
    }


def _by_rules(rows: Sequence[Row]) -> Row:
    """Errors of sound records by the least certain class of rules about software that a prediction rests on."""

    def least_certain(row: Row) -> str:
        return next((kind for kind in reversed(KINDS) if kind in row["rules"]), "none")

    by_class = grouped((row for row in rows if row["counts"]), least_certain)
    return {kind: _errors(by_class[kind]) for kind in ("none", *KINDS) if kind in by_class}


def _families(rows: Sequence[Row]) -> list[Row]:
    """Errors of complete pretraining runs that nobody doubts, by source, with share and width of their bands.

    The width: how much longer than its P10 the P90 of a step is, in the median.
    """
    judged = (row for row in rows if row["counts"] and row["error"] is not None)
    by_family = grouped(judged, lambda row: str(row["group"][0]))
    return [
        {
            "family": family,
            "gpus": sorted({row["group"][1] for row in members}),
            **_errors(members),
            "median_error": median(row["error"] for row in members),
            "band_width": median(
                row["step_s_p90"] / row["step_s_p10"] - 1.0 for row in members if row["step_s_p10"]
            ),
        }
        for family, members in sorted(by_family.items())
    ]


def _groups(rows: Sequence[Row]) -> list[Row]:
    """Errors by source family and GPU."""
    groups = []
    for (family, gpu), members in sorted(grouped(rows, lambda row: tuple(row["group"])).items()):
        judged = [row for row in members if row["error"] is not None]
        worst = max(judged, key=lambda row: abs(row["error"]), default=None)
        groups.append(
            {
                "family": family,
                "gpu": gpu,
                "records": len(members),
                **_errors(members),
                "median_error": median(row["error"] for row in judged),
                "worst_record": worst["record"] if worst else None,
                "worst_error": worst["error"] if worst else None,
            }
        )
    return groups
