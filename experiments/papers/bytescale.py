"""ByteScale (arXiv 2502.21231): Figure 17 cell by cell, the ablation of Figure 20, and all other figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.experiments.output.document import Table, files_of
from hdpsim.experiments.output.plots.style import format_count, format_tokens
from hdpsim.experiments.papers.bytescale_case import case_study
from hdpsim.experiments.papers.bytescale_figures.activity import activity, activity_jobs
from hdpsim.experiments.papers.bytescale_figures.bubbles import bubble_jobs, bubbles
from hdpsim.experiments.papers.bytescale_figures.kernels import layer_by_length, loss
from hdpsim.experiments.papers.bytescale_figures.lengths import lengths, packs
from hdpsim.experiments.papers.bytescale_figures.offload import offload, offload_jobs
from hdpsim.experiments.papers.bytescale_steps import (
    FOLDER,
    PLACE,
    SETUP,
    STRATEGIES,
    CellJob,
    JobSteps,
    StepsJob,
    all_cells,
    case_job,
    case_steps,
    job_of,
    layout_of,
)
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.folder import PublishedFigure
from hdpsim.experiments.papers.paper import Paper, Results, Section, of_place, ratio
from hdpsim.experiments.papers.report import FigureRow, Part, column, rows_part
from hdpsim.experiments.validation.order import error_of, error_summary, grouped, median
from hdpsim.simulator.setup import Setup, StrategyOptions

PUBLISHED = FOLDER.published
DECLINE_DATASET = "github"  # section 6.2 states its declines for this data set
ABLATION = {step: StrategyOptions(**options) for step, options in SETUP["ablation"].items()}
"""Steps of Figure 20, each on top of those before it."""


def _prediction(cell: PublishedFigure, simulated: tuple[JobSteps, tuple[float, ...]]) -> FigureRow:
    outcome, of_splits = simulated
    if outcome.reason:
        keys = ("predicted", "lowest", "highest", "step_s", "mfu", "over_plan_ideal", "memory_bytes")
        return {**dict.fromkeys(keys), "reason": outcome.reason}
    return {
        "predicted": outcome.tokens_per_s,
        "lowest": min(of_splits, default=None),
        "highest": max(of_splits, default=None),
        "step_s": outcome.total_s / len(outcome.step_s),
        "mfu": outcome.mfu,
        "over_plan_ideal": outcome.over_plan_ideal,
        "memory_bytes": outcome.memory_bytes,
        "reason": None,
    }


def _step(cell: PublishedFigure, batches: int) -> tuple[Setup, Ints]:
    job = job_of(cell, batches)
    return job.setup(), job.lengths()[0]


def tables_of(records: Sequence[FigureRow]) -> list[Table[Any]]:
    """One table per model and number of GPUs: paper, prediction and error of every strategy side by side."""
    tables = []
    for model, gpus in dict.fromkeys((record["model"], record["gpus"]) for record in records):
        chosen = [record for record in records if (record["model"], record["gpus"]) == (model, gpus)]
        shown = [name for name in STRATEGIES if any(record["strategy"] == name for record in chosen)]
        parallel = layout_of(model).parallel
        degrees = f"TP {parallel.tp}, PP {parallel.pp}" + (f", EP {parallel.ep}" if parallel.ep > 1 else "")
        rows = [
            {"data": dataset, "context": format_tokens(context), **_side_by_side(row, shown)}
            for (_, dataset, _, context), row in of_place(chosen, PLACE, "strategy").items()
        ]
        columns = [
            column(name, heading=name.rpartition(" ")[2] if ":" not in name else name) for name in rows[0]
        ]
        title = f"{model} on {gpus:,} GPUs ({degrees}): tokens/s, paper and prediction"
        tables.append(Table(title=title, columns=tuple(columns), rows=rows))
    return tables


def _side_by_side(row: Mapping[str, FigureRow], strategies: Sequence[str]) -> dict[str, str | None]:
    texts: dict[str, str | None] = {}
    for name in strategies:
        record = row.get(name, {})
        measured, predicted, error = (record.get(key) for key in ("measured", "predicted", "error"))
        texts[f"{name}: paper"] = None if measured is None else format_count(measured)
        texts[f"{name} predicted"] = (
            format_count(predicted) + _range(record) if predicted else "cannot run" if record else None
        )
        texts[f"{name} error"] = None if error is None else f"{error:+.0%}"
    return texts


def _range(record: FigureRow) -> str:
    """From the lowest to the highest, where they differ as shown."""
    ends = [format_count(record[key]) for key in ("lowest", "highest") if record.get(key) is not None]
    return f" ({'–'.join(ends)})" if len(set(ends)) > 1 else ""


def splits(results: Results) -> Part:
    """How far cells move with the split of the last buckets of lengths, of which the paper prints only the sum."""
    rows = []
    ranges = [record for record in results.records if record.get("lowest") is not None]
    for context, own in sorted(grouped(ranges, lambda record: int(record["context_tokens"])).items()):
        widths = [record["highest"] / record["lowest"] - 1.0 for record in own]
        known = [record for record in own if record["measured"] is not None]
        rows.append(
            {
                "context_tokens": context,
                "cells": len(own),
                "median_width": median(widths),
                "largest_width": max(widths),
                "measured": len(known),
                "inside": sum(one["lowest"] <= one["measured"] <= one["highest"] for one in known),
            }
        )
    lines = [
        f"Context {format_tokens(row['context_tokens'])}: the split of GitHub's last buckets of lengths, which "
        f"the paper leaves open, is worth {row['median_width']:.0%} in the median of {row['cells']} cells, at most "
        f"{row['largest_width']:.0%}; {row['inside']} of {row['measured']} measurements lie inside."
        for row in rows
    ]
    return Part(value=rows, lines=lines)


def speedups(results: Results) -> Part:
    """Speed-ups over the static mesh wherever both strategies were predicted, and their errors by strategy."""
    rows: list[dict[str, Any]] = []
    for place, row in of_place(results.records, PLACE, "strategy").items():
        ours, theirs = _rates(row, "predicted"), _rates(row, "measured")
        for strategy in STRATEGIES[1:]:
            if not {"static", strategy} <= ours.keys():
                continue
            speed_up = ours[strategy] / ours["static"]
            paper = ratio(theirs.get(strategy), theirs.get("static"))
            figures = {"paper": paper, "predicted": speed_up, "error": error_of(paper, speed_up)}
            rows.append({**dict(zip(PLACE, place, strict=True)), "strategy": strategy, **figures})
    summary = {
        strategy: error_summary(row["error"] for row in rows if row["strategy"] == strategy)
        for strategy in STRATEGIES[1:]
    }
    lines = [
        f"Speed-up static -> {strategy}: absolute error median {errors['median_abs_error']:.1%}, "
        f"largest {errors['max_abs_error']:.1%} ({errors['count']} places)."
        for strategy, errors in summary.items()
        if errors["count"]
    ]
    files = files_of("reproduce", {"speedups.csv": lambda: rows})
    return Part(value={"records": rows, "summary": summary}, lines=lines, files=files)


def _rates(row: Mapping[str, FigureRow], key: str) -> dict[str, float]:
    return {strategy: record[key] for strategy, record in row.items() if record[key] is not None}


def order(results: Results) -> Part:
    """Whether static < hdp-naive < hdp-balance wherever all three were predicted."""
    rows = []
    for place, row in of_place(results.records, PLACE, "strategy").items():
        rates = _rates(row, "predicted")
        if len(rates) == len(STRATEGIES):
            right = rates["static"] < rates["hdp-naive"] < rates["hdp-balance"]
            rows.append({**dict(zip(PLACE, place, strict=True)), "right": right})
    wrong = sum(not row["right"] for row in rows)
    line = f"Order {' < '.join(STRATEGIES)}: right in {len(rows) - wrong} of {len(rows)}."
    return Part(value={"count": len(rows), "wrong": wrong, "records": rows}, lines=(line,))


def decline(results: Results) -> Part:
    """Factor by which throughput falls per doubling of the context, by strategy: mean, range, and per model."""
    value = {}
    for strategy in STRATEGIES:
        ours, theirs = (_declines(results.records, strategy, key) for key in ("predicted", "measured"))
        of_model = grouped(ours.items(), lambda item: item[0][0])
        value[strategy] = {
            "dataset": DECLINE_DATASET,
            "count": len(ours),
            "predicted": _mean(ours.values()),
            "least": min(ours.values(), default=None),
            "most": max(ours.values(), default=None),
            "predicted_where_measured": _mean(ours[place] for place in theirs if place in ours),
            "measured": _mean(theirs.values()),
            "paper": PUBLISHED["decline_per_doubling"][strategy],
            "by_model": {model: _mean(one for _, one in factors) for model, factors in of_model.items()},
        }
    lines = [
        f"{name} loses {row['predicted']:.2f}× per doubling of the context on GitHub data "
        f"({row['least']:.2f}–{row['most']:.2f}; paper {row['paper']:.2f}×)."
        for name, row in value.items()
        if row["count"]
    ]
    return Part(value=value, lines=lines)


def _declines(records: Sequence[FigureRow], strategy: str, key: str) -> dict[tuple[str, int, int], float]:
    """(Model, GPUs, context) -> throughput over that at twice the context."""
    rates = {
        (record["model"], record["gpus"], record["context_tokens"]): record[key]
        for record in records
        if (record["dataset"], record["strategy"]) == (DECLINE_DATASET, strategy) and record[key] is not None
    }
    return {
        (model, gpus, context): rate / rates[model, gpus, 2 * context]
        for (model, gpus, context), rate in rates.items()
        if (model, gpus, 2 * context) in rates
    }


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None


def _ablation_jobs(batches: int) -> Iterator[StepsJob]:
    return (case_job(options, batches) for options in ABLATION.values())


def ablation(results: Results) -> Part:
    """Steps of Figure 20: throughput, speed-up over the static mesh, gain over the step before; beside the paper."""
    rows: list[FigureRow] = []
    outcomes = [results.outcomes[job] for job in _ablation_jobs(results.batches)]
    base = outcomes[0].tokens_per_s
    for step, outcome, published in zip(ABLATION, outcomes, PUBLISHED["ablation"], strict=True):
        before = rows[-1] if rows else {"tokens_per_s": base, "paper_speed_up": published["speed_up"]}
        gain = outcome.tokens_per_s / before["tokens_per_s"]
        paper_gain = published["speed_up"] / before["paper_speed_up"]
        rows.append(
            {
                "step": step,
                "tokens_per_s": outcome.tokens_per_s,
                "paper_tokens_per_s": float(published["tokens_per_s"]),
                "speed_up": outcome.tokens_per_s / base,
                "paper_speed_up": published["speed_up"],
                "gain": gain,
                "paper_gain": paper_gain,
                "gain_error": error_of(paper_gain, gain),
            }
        )
    values = [
        compared(20, f"speed-up after {row['step']}", "×", row["paper_speed_up"], row["speed_up"])
        for row in rows[1:]
    ]
    return rows_part(FOLDER, "ablation", rows, compared=values)


PAPER = Paper(
    folder=FOLDER,
    job=lambda cell, batches: CellJob(steps=job_of(cell, batches)),
    prediction=_prediction,
    step=_step,
    cells=all_cells,
    tables=tables_of,
    sections=(
        Section(name="speedups", part=speedups, figure=17),
        Section(name="splits", part=splits, figure=17),
        Section(name="order", part=order, figure=17),
        Section(name="decline_per_doubling", part=decline, figure=17),
        Section(name="ablation", part=ablation, jobs=_ablation_jobs, figure=20),
        Section(
            name="case_study", part=case_study, jobs=lambda batches: case_steps(batches).values(), figure=18
        ),
        Section(name="lengths", part=lengths, figure=4),
        Section(name="bubbles", part=bubbles, jobs=bubble_jobs, figure=5),
        Section(name="layer_by_length", part=layer_by_length, figure=6),
        Section(name="packs", part=packs, figure=6),
        Section(name="loss", part=loss, figure=16),
        Section(name="activity", part=activity, jobs=activity_jobs, figure=19),
        Section(name="offload", part=offload, jobs=offload_jobs, figure=21),
    ),
)
