"""What `validate` says about memory: would a run have fitted, and how far is the peak off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hdpsim.experiments.output.document import Column
from hdpsim.experiments.records.columns import Record
from hdpsim.experiments.records.memory import GIGABYTE
from hdpsim.experiments.records.prediction import Prediction
from hdpsim.experiments.validation.order import error_of, error_summary, grouped, percent

MEMORY_QUANTITY = "peak_mem_gb"


def memory_columns(record: Record, prediction: Prediction) -> dict[str, Any]:
    """What a record's row says about memory."""
    memory = prediction.memory
    return {
        "predicted_peak_mem_gb": prediction.peak_mem_gb,
        "peak_mem_error": error_of(record.measured.peak_mem_gb, prediction.peak_mem_gb),
        "ran": record.measured.ran,
        "predicted_fits": memory and memory.fits,
        "gpu_memory_gb": memory and memory.fullest.capacity_bytes / GIGABYTE,
        "memory_gauge": memory and memory.gauge,
        "memory_parts_gb": dict(memory.parts_gb) if memory else {},
    }


def memory_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of the peaks, and what ran and did not against what was predicted to fit."""
    verdicts = Counter(
        (row["ran"], row["predicted_fits"])
        for row in rows
        if row["ran"] is not None and row["predicted_fits"] is not None
    )
    right, judged = verdicts[True, True] + verdicts[False, False], sum(verdicts.values())
    ran, failed = (verdicts[how, True] + verdicts[how, False] for how in (True, False))
    return {
        "peak": error_summary(row["peak_mem_error"] for row in rows),
        "ran_predicted_to_fit": verdicts[True, True],
        "ran_predicted_too_large": verdicts[True, False],
        "oom_predicted_to_fit": verdicts[False, True],
        "oom_predicted_too_large": verdicts[False, False],
        "verdicts_right": right / judged if judged else None,
        "right_of_ran": verdicts[True, True] / ran if ran else None,
        "right_of_oom": verdicts[False, False] / failed if failed else None,
    }


FITS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("group", heading=""),
    Column("ran_predicted_to_fit", heading="ran, fits"),
    Column("ran_predicted_too_large", heading="ran, too large"),
    Column("oom_predicted_to_fit", heading="out of memory, fits"),
    Column("oom_predicted_too_large", heading="out of memory, too large"),
)


def fit_rows(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What ran and what did not, against the prediction: by group, and all."""
    groups = grouped(payload["records"], lambda row: " ".join(row["group"]))
    summaries = {name: memory_summary(rows) for name, rows in sorted(groups.items())}
    summaries["all"] = payload["summary"]["memory"]
    return [
        {"group": name, **summary}
        for name, summary in summaries.items()
        if any(summary[column.name] for column in FITS[1:])
    ]


def memory_lines(memory: Mapping[str, Any]) -> tuple[str, ...]:
    """The summary in sentences; none where no memory was measured."""
    lines = []
    if memory["peak"]["count"]:
        peak = memory["peak"]
        lines.append(
            f"peak memory: {peak['count']} records, median error {percent(peak['median_abs_error'])} %, "
            f"p90 {percent(peak['p90_abs_error'])} %"
        )
    if memory["verdicts_right"] is not None:
        by_verdict = ", ".join(
            f"{percent(memory[key])} % of those that {what}"
            for key, what in (("right_of_ran", "ran"), ("right_of_oom", "ran out of memory"))
            if memory[key] is not None
        )
        lines.append(
            f"fits or not: right in {percent(memory['verdicts_right'])} % of the cases ({by_verdict})"
        )
    return tuple(lines)
