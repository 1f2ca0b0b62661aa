"""Predictions of ByteScale's cells held against the paper: errors, speed-ups, order, decline, ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from hdpsim.experiments.papers.bytescale_data import STRATEGIES, Cell, figures
from hdpsim.experiments.papers.bytescale_simulation import Outcome
from hdpsim.experiments.validation.errors import error_of, error_summary
from hdpsim.simulator.setup import StrategyOptions

Record = Mapping[str, Any]
Place = tuple[str, str, int, int]
Document = dict[str, Any]

ABLATION: Mapping[str, StrategyOptions] = {
    "static mesh": StrategyOptions(name="static"),
    "dynamic communication": StrategyOptions(
        name="hdp-balance", balancing=False, selective_offloading=False, remote_data_loading=False
    ),
    "selective offloading": StrategyOptions(name="hdp-balance", balancing=False, remote_data_loading=False),
    "balance": StrategyOptions(name="hdp-balance", remote_data_loading=False),
    "remote data loading": StrategyOptions(name="hdp-balance"),
}
"""Steps of Figure 20, each on top of those before it."""

DECLINE_DATASET = "github"  # ByteScale section 6.2 states its declines for this data set


def records_of(cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> list[Record]:
    """One record per cell: its input columns, measured, predicted, error, and more about the prediction."""
    records: list[Record] = []
    for cell, outcome in zip(cells, outcomes, strict=True):
        ran = not outcome.reason
        predicted = outcome.tokens_per_s if ran else None
        records.append(
            {
                **cell.columns,
                "measured": cell.measured_tokens_per_s,
                "predicted": predicted,
                "error": error_of(cell.measured_tokens_per_s, predicted),
                "step_s": outcome.total_s / len(outcome.step_s) if ran else None,
                "mfu": outcome.mfu if ran else None,
                "over_plan_ideal": outcome.over_plan_ideal,
                "memory_bytes": outcome.memory_bytes if ran else None,
                "reason": outcome.reason or None,
            }
        )
    return records


def records_summary(records: Sequence[Record]) -> Document:
    """Error statistics of the records that have both a measurement and a prediction."""
    unpredicted = sum(record["predicted"] is None for record in records)
    return {**error_summary(record["error"] for record in records), "unpredicted": unpredicted}


def _by_place(records: Sequence[Record], value: str) -> dict[Place, dict[str, float]]:
    """Place (model, data set, GPUs, context) -> strategy -> value, where there is one."""
    places: dict[Place, dict[str, float]] = {}
    for record in records:
        place = (record["model"], record["dataset"], record["gpus"], record["context_tokens"])
        row = places.setdefault(place, {})
        if record[value] is not None:
            row[record["strategy"]] = record[value]
    return places


def _place_columns(place: Place) -> Document:
    return dict(zip(("model", "dataset", "gpus", "context_tokens"), place, strict=True))


def speedups_document(records: Sequence[Record]) -> Document:
    """Speed-ups over the static mesh wherever both strategies were predicted, and their errors by strategy."""
    measured, predicted = _by_place(records, "measured"), _by_place(records, "predicted")
    rows: list[Document] = []
    for place, strategy in product(predicted, STRATEGIES[1:]):
        ours, theirs = predicted[place], measured[place]
        if not {"static", strategy} <= ours.keys():
            continue
        known = {"static", strategy} <= theirs.keys()
        paper = theirs[strategy] / theirs["static"] if known else None
        speed_up = ours[strategy] / ours["static"]
        rows.append(
            {
                **_place_columns(place),
                "strategy": strategy,
                "paper": paper,
                "predicted": speed_up,
                "error": error_of(paper, speed_up),
            }
        )
    summary = {
        strategy: error_summary(row["error"] for row in rows if row["strategy"] == strategy)
        for strategy in STRATEGIES[1:]
    }
    return {"records": rows, "summary": summary}


def order_document(records: Sequence[Record]) -> Document:
    """Whether static < hdp-naive < hdp-balance wherever all three were predicted."""
    rows: list[Document] = []
    for place, row in _by_place(records, "predicted").items():
        if all(strategy in row for strategy in STRATEGIES):
            values = [row[strategy] for strategy in STRATEGIES]
            rows.append({**_place_columns(place), "right": values[0] < values[1] < values[2]})
    return {"count": len(rows), "wrong": sum(not row["right"] for row in rows), "records": rows}


def decline_document(records: Sequence[Record]) -> Document:
    """Factor by which throughput falls per doubling of the context, by strategy: mean, range, and per model."""
    predicted, measured = (_declines(_by_place(records, value)) for value in ("predicted", "measured"))
    document: Document = {}
    for strategy in STRATEGIES:
        ours, theirs = predicted.get(strategy, {}), measured.get(strategy, {})
        factors = [factor for per_model in ours.values() for factor in per_model.values()]
        shown = [ours[m][c] for m, per_model in theirs.items() for c in per_model if c in ours.get(m, {})]
        document[strategy] = {
            "dataset": DECLINE_DATASET,
            "count": len(factors),
            "predicted": _mean(factors),
            "least": min(factors, default=None),
            "most": max(factors, default=None),
            "predicted_where_measured": _mean(shown),
            "measured": _mean([factor for per_model in theirs.values() for factor in per_model.values()]),
            "paper": figures()["decline_per_doubling"][strategy],
            "by_model": {model: _mean(list(per_model.values())) for model, per_model in ours.items()},
        }
    return document


def _declines(
    places: Mapping[Place, Mapping[str, float]],
) -> dict[str, dict[str, dict[tuple[int, int], float]]]:
    """Strategy -> model -> (GPUs, context) -> throughput over that at twice the context."""
    found: dict[str, dict[str, dict[tuple[int, int], float]]] = {}
    for (model, dataset, gpus, context), row in places.items():
        doubled = places.get((model, dataset, gpus, 2 * context), {})
        if dataset != DECLINE_DATASET:
            continue
        for strategy in row.keys() & doubled.keys():
            per_model = found.setdefault(strategy, {}).setdefault(model, {})
            per_model[gpus, context] = row[strategy] / doubled[strategy]
    return found


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def ablation_document(outcomes: Sequence[Outcome]) -> list[Document]:
    """Steps of Figure 20: throughput, speed-up over the static mesh, gain over the step before; beside the paper."""
    rows: list[Document] = []
    paper = figures()["ablation"]
    base, before, paper_before = outcomes[0].tokens_per_s, outcomes[0].tokens_per_s, paper[0]["speed_up"]
    for step, outcome, published in zip(ABLATION, outcomes, paper, strict=True):
        gain, paper_gain = outcome.tokens_per_s / before, published["speed_up"] / paper_before
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
        before, paper_before = outcome.tokens_per_s, published["speed_up"]
    return rows
