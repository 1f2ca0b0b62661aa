"""ByteScale's reproduction for people: compact tables of paper and prediction, and lines that sum them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hdpsim.experiments.output.plot_style import format_count, format_tokens
from hdpsim.experiments.output.tables import Table
from hdpsim.experiments.papers.bytescale_data import STRATEGIES, layouts
from hdpsim.experiments.papers.bytescale_summary import Record

Document = Mapping[str, Any]

NONE = "–"


def tables_of(document: Document) -> tuple[Table, ...]:
    """One table per model and number of GPUs, then the ablation and the case study."""
    records: Sequence[Record] = document["records"]
    places = dict.fromkeys((record["model"], record["gpus"]) for record in records)
    cells = (_cell_table(model, gpus, records) for model, gpus in places)
    return (*cells, _ablation_table(document["ablation"]), *_case_tables(document["case_study"]))


def _cell_table(model: str, gpus: int, records: Sequence[Record]) -> Table:
    mine = [record for record in records if (record["model"], record["gpus"]) == (model, gpus)]
    rows: dict[tuple[str, int], dict[str, Record]] = {}
    for record in mine:
        rows.setdefault((record["dataset"], record["context_tokens"]), {})[record["strategy"]] = record
    shown = [strategy for strategy in STRATEGIES if any(strategy in row for row in rows.values())]
    layout = layouts()[model].layout
    degrees = f"TP {layout.tp}, PP {layout.pp}" + (f", EP {layout.ep}" if layout.ep > 1 else "")
    return Table(
        title=f"{model} on {gpus:,} GPUs ({degrees}): tokens/s, paper and prediction",
        columns=(
            "data",
            "context",
            *(head for name in shown for head in (f"{name}: paper", "predicted", "error")),
        ),
        rows=tuple(
            (
                dataset,
                format_tokens(context),
                *(text for name in shown for text in _three(row.get(name))),
            )
            for (dataset, context), row in rows.items()
        ),
    )


def _three(record: Record | None) -> tuple[str, str, str]:
    if record is None:
        return NONE, NONE, NONE
    predicted = "cannot run" if record["predicted"] is None else format_count(record["predicted"])
    measured = NONE if record["measured"] is None else format_count(record["measured"])
    return measured, predicted, _percent(record["error"])


def _percent(error: float | None) -> str:
    return NONE if error is None else f"{error:+.0%}"


def _ablation_table(rows: Sequence[Document]) -> Table:
    return Table(
        title="What each part adds (Figure 20: llama-7b, 2M, Byted, 1,024 GPUs): speed-up and gain of the step",
        columns=("step", "tokens/s", "paper", "predicted", "paper gain", "gain", "error"),
        rows=tuple(
            (
                row["step"],
                format_count(row["tokens_per_s"]),
                f"{row['paper_speed_up']:.2f}×",
                f"{row['speed_up']:.2f}×",
                *(
                    (f"{row['paper_gain']:.2f}×", f"{row['gain']:.2f}×", _percent(row["gain_error"]))
                    if number
                    else ("", "", "")
                ),
            )
            for number, row in enumerate(rows)
        ),
    )


def _case_tables(case: Document) -> tuple[Table, Table]:
    heaviest = f"heaviest batch ({case['heaviest_over_mean_flop']:.2f} × mean FLOP)"
    times = Table(
        title=f"Case study (Figure 18: same setting): seconds; mean of {case['batches']} batches and {heaviest}",
        columns=("strategy", "what", "paper", "mean", "heaviest"),
        rows=tuple(row for name in STRATEGIES for row in _case_rows(name, case)),
        left=frozenset({0, 1}),
    )
    layer = Table(
        title="One layer's forward (Figure 18a): milliseconds, paper / prediction",
        columns=("micro-batch", "attention", "rest", "ring step", "merge", "hop"),
        rows=tuple(
            (
                text,
                *(
                    _pair(case["layer"][name], key)
                    for key in ("attention_s", "rest_s", "ring_step_s", "merge_s", "hop_s")
                ),
            )
            for name, text in (("packed", "2M packed, 256 ranks"), ("single", "312K, 39 ranks"))
        ),
    )
    return times, layer


def _case_rows(name: str, case: Document) -> list[tuple[str, ...]]:
    step, busy = case["step_s"][name], case["busy_s"][name]
    rows: list[tuple[str, ...]] = [
        (name, "step", f"{step['paper']:.0f}", f"{step['mean']:.0f}", f"{step['heaviest']:.0f}")
    ]
    for key, text in (
        ("least", "least busy rank"),
        ("most", "busiest rank"),
        ("deviation", "deviation over ranks"),
    ):
        paper = f"{busy['paper'][key]:.0f}" if key in busy["paper"] else NONE
        rows.append((name, text, paper, f"{busy['mean'][key]:.0f}", f"{busy['heaviest'][key]:.0f}"))
    return rows


def _pair(part: Document, key: str) -> str:
    return f"{1e3 * part['paper'][key]:.3g} / {1e3 * part['predicted'][key]:.3g}"


def lines_of(document: Document) -> tuple[str, ...]:
    """Errors, speed-ups, order, declines, communication; what was assumed comes last."""
    return (
        _errors_line(document["summary"]),
        *_speedup_lines(document["speedups"]["summary"]),
        f"Order static < hdp-naive < hdp-balance: right in {_right(document['order'])}.",
        *_decline_lines(document["decline_per_doubling"]),
        _communication_line(document["case_study"]["communication_share"]),
        *_reason_lines(document["records"]),
        *document["notes"],
    )


def _errors_line(summary: Document) -> str:
    if not summary["count"]:
        return "No cell has both a measurement and a prediction."
    text = (
        f"{summary['count']} cells with a measurement: absolute error median {summary['median_abs_error']:.1%}, "
        f"mean {summary['mean_abs_error']:.1%}, 90 % of them below {summary['p90_abs_error']:.1%}, "
        f"largest {summary['max_abs_error']:.1%}"
    )
    return f"{text}; {summary['unpredicted']} cannot run." if summary["unpredicted"] else f"{text}."


def _speedup_lines(by_strategy: Mapping[str, Document]) -> list[str]:
    return [
        f"Speed-up static -> {strategy}: absolute error median {errors['median_abs_error']:.1%}, "
        f"largest {errors['max_abs_error']:.1%} ({errors['count']} places)."
        for strategy, errors in by_strategy.items()
        if errors["count"]
    ]


def _right(order: Document) -> str:
    return f"{order['count'] - order['wrong']} of {order['count']}"


def _decline_lines(declines: Mapping[str, Document]) -> list[str]:
    return [
        f"{name} loses {row['predicted']:.2f}× per doubling of the context on GitHub data "
        f"({row['least']:.2f}–{row['most']:.2f}; paper {row['paper']:.2f}×)."
        for name, row in declines.items()
        if row["count"]
    ]


def _communication_line(share: Document) -> str:
    return (
        f"Communication of a packed micro-batch at CP 256: {share['predicted']:.1%} of a layer's forward "
        f"(paper {share['paper']:.1%}); {share['exposed']:.1%} is waiting and nothing else."
    )


def _reason_lines(records: Sequence[Record]) -> list[str]:
    reasons = dict.fromkeys(
        f"{record['model']} on {record['gpus']:,} GPUs, context {format_tokens(record['context_tokens'])}: "
        f"{record['reason']}"
        for record in records
        if record["reason"]
    )
    return [f"Cannot run: {reason}" for reason in reasons]
