"""MegaScale's reproduction for people: tables of paper and prediction, and lines that sum them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hdpsim.experiments.output.tables import Table

Document = Mapping[str, Any]

NONE = "–"
HOUR_S = 3600.0


def tables_of(document: Document) -> tuple[Table, ...]:
    """Steps, ratios, ablation, weak scaling, start-up, whole runs, time to failure."""
    return (
        _records(document["records"]),
        *((_ratios(document["ratios"]),) if document["ratios"] else ()),
        _ablation(document["ablation"]),
        _weak_scaling(document["weak_scaling"]),
        _startup(document["startup"]),
        _campaigns(document["campaigns"]),
        _mttf(document["mttf"]),
    )


def _records(records: Sequence[Document]) -> Table:
    return Table(
        title="Steps (Table 2): seconds, or MFU in % in the paper's convention",
        columns=("system", "model", "GPUs", "batch", "metric", "paper", "predicted", "error"),
        rows=tuple(
            (
                r["system"],
                r["model"],
                f"{r['gpus']:,}",
                f"{r['global_batch']:,}",
                r["metric"],
                _number(r["measured"]),
                "cannot run" if r["predicted"] is None else _number(r["predicted"]),
                _percent(r["error"]),
            )
            for r in records
        ),
        left=frozenset({0, 1}),
    )


def _ratios(rows: Sequence[Document]) -> Table:
    return Table(
        title="Megatron-LM's iteration time over MegaScale's",
        columns=("model", "GPUs", "batch", "paper", "predicted"),
        rows=tuple(
            (
                r["model"],
                f"{r['gpus']:,}",
                f"{r['global_batch']:,}",
                _times(r["measured"]),
                _times(r["predicted"]),
            )
            for r in rows
        ),
    )


def _ablation(rows: Sequence[Document]) -> Table:
    return Table(
        title="Every optimisation on top of those before it (Table 3: 175B, 256 GPUs): MFU in %",
        columns=("step", "paper", "predicted", "off by", "paper gain", "gain", "off by"),
        rows=tuple(
            (
                r["step"],
                f"{r['paper_mfu']:.1f}",
                _one(r["mfu"]),
                _signed(_difference(r["mfu"], r["paper_mfu"])),
                _signed(r["paper_gain"]),
                _signed(r["gain"]),
                _signed(_difference(r["gain"], r["paper_gain"])),
            )
            for r in rows
        ),
    )


def _weak_scaling(rows: Sequence[Document]) -> Table:
    return Table(
        title="530B, 140 sequences a pipeline (Figure 9; its numbers are not listed): MFU in %",
        columns=("GPUs", "batch", "Megatron-LM", "MegaScale", "speed-up"),
        rows=tuple(
            (
                f"{r['gpus']:,}",
                f"{r['global_batch']:,}",
                _one(r["megatron-lm_mfu"]),
                _one(r["megascale_mfu"]),
                _times(r["speed_up"]),
            )
            for r in rows
        ),
    )


def _startup(rows: Sequence[Document]) -> Table:
    return Table(
        title="Group initialisation (section 3.5): seconds",
        columns=("GPUs", "method", "paper", "predicted", "error"),
        rows=tuple(
            (
                f"{r['gpus']:,}",
                r["method"],
                _number(r["paper_s"]) if r["paper_s"] is not None else f"< {r['paper_below_s']}",
                _number(r["predicted_s"]),
                _percent(r["error"]),
            )
            for r in rows
        ),
        left=frozenset({1}),
    )


def _campaigns(rows: Sequence[Document]) -> Table:
    return Table(
        title="Whole runs: effective training time and restarts, means over runs",
        columns=("run", "days", "effective", "paper", "restarts", "paper", "unplanned", "paper"),
        rows=tuple(
            (
                r["name"],
                f"{r['days']:.0f}",
                f"{r['effective']:.1%}",
                f"> {r['paper_effective_above']:.0%}",
                f"{r['restarts']:.0f}",
                f"> {r['paper_restarts_above']}"
                if r["paper_restarts_above"]
                else _whole(r["paper_restarts"]),
                f"{r['unplanned']:.0f}",
                _whole(r["paper_unplanned"]),
            )
            for r in rows
        ),
    )


def _mttf(rows: Sequence[Document]) -> Table:
    return Table(
        title="Mean time to failure at 6.5 failures per 1,000 node-days (Meta, RSC-1): hours",
        columns=("GPUs", "paper", "predicted", "error"),
        rows=tuple(
            (f"{r['gpus']:,}", _number(r["paper_hours"]), f"{r['hours']:.3g}", _percent(r["error"]))
            for r in rows
        ),
        left=frozenset(),
    )


def lines_of(document: Document) -> tuple[str, ...]:
    """Errors, ablation, stragglers, reasons; what was assumed comes last."""
    return (
        _errors_line(document["summary"]),
        *_ablation_lines(document["ablation"]),
        *_straggler_lines(document["stragglers"]),
        *dict.fromkeys(
            f"Cannot run: {r['system']} {r['model']} on {r['gpus']:,} GPUs: {r['reason']}"
            for r in document["records"]
            if r["reason"]
        ),
        *document["notes"],
    )


def _errors_line(summary: Document) -> str:
    if not summary["count"]:
        return "No cell has both a measurement and a prediction."
    text = (
        f"{summary['count']} cells with a measurement: absolute error median {summary['median_abs_error']:.1%}, "
        f"mean {summary['mean_abs_error']:.1%}, largest {summary['max_abs_error']:.1%}"
    )
    return f"{text}; {summary['unpredicted']} cannot run." if summary["unpredicted"] else f"{text}."


def _ablation_lines(rows: Sequence[Document]) -> list[str]:
    off = [abs(r["mfu"] - r["paper_mfu"]) for r in rows if r["mfu"] is not None]
    gains = [(r["gain"], r["paper_gain"]) for r in rows if r["gain"] is not None]
    if not off or not gains:
        return []
    right = sum(
        round(gain, 1) * paper > 0 for gain, paper in gains
    )  # a gain that is shown as 0.0 has no sign
    worst = max(abs(gain - paper) for gain, paper in gains)
    return [
        f"Table 3: cumulative MFU off by at most {max(off):.1f} points; {right} of {len(gains)} gains have the right "
        f"sign, the worst is off by {worst:.1f} points."
    ]


def _straggler_lines(part: Document) -> list[str]:
    if part["gain"] is None:
        return []
    return [
        f"Without the {part['share']:.1%} of slow nodes ({part['factor'] - 1:.0%} slower) 12,288 GPUs gain "
        f"{part['gain']:.1f} MFU points (paper: about {part['paper_gain']})."
    ]


def _number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _one(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _whole(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f}"


def _times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×"


def _percent(error: float | None) -> str:
    return NONE if error is None else f"{error:+.1%}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}"


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
