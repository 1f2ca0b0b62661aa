"""A finished sweep as a tidy table, JSON, text for people, and a run directory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.finite import finite, plain
from experiments.plot_style import account_group
from experiments.report import one_line
from experiments.run_directory import SCHEMA_VERSION, RunDirectory
from experiments.tables import Table
from hdpsim import __version__
from hdpsim.errors import ScenarioError

if TYPE_CHECKING:
    from experiments.sweep import CellResult, SweepEstimate, SweepRun

__all__ = [
    "duration",
    "estimate_lines",
    "rows_of",
    "summary_lines",
    "sweep_json",
    "sweep_table",
    "write_sweep",
]

MOST_SHOWN = 40
"""Rows of the terminal's table; files have all."""

Row = dict[str, Any]


def rows_of(run: SweepRun) -> list[Row]:
    """One flat row per cell: its keys as the sweep file writes them, its state, and the numbers if it ran."""
    return [_row(run, result) for result in run.results]


def _row(run: SweepRun, result: CellResult) -> Row:
    row: Row = {"cell": result.cell.index, **_keys(run.sweep.keys, result)}
    row |= {"status": result.status, "reason": one_line(result.reason)}
    found = result.result or {}
    first = found["batches"][0] if found else {}
    scenario = result.cell.scenario
    fixed: Row = {
        "gpus": scenario.cluster.gpus if scenario else None,
        "context_tokens": scenario.data.context_tokens if scenario else None,
        "strategy": scenario.strategy.name if scenario else None,
        "batches": scenario.batch_count if scenario else None,
        "step_s": _at(found, "step_s", "mean"),
        "step_s_ci95": _at(found, "step_s", "ci95_half_width"),
        "tokens_per_s": _at(found, "tokens_per_s", "mean"),
        "tokens_per_s_ci95": _at(found, "tokens_per_s", "ci95_half_width"),
        "tokens_per_s_per_gpu": found.get("tokens_per_s_per_gpu"),
        "mfu": found.get("mfu"),
        "mfu_full": found.get("mfu_full"),
        "over_lower_bound": found.get("over_lower_bound"),
        "over_plan_ideal": found.get("over_plan_ideal"),
        "rank_capacity_tokens": first.get("rank_capacity_tokens"),
        "micro_batches": first.get("plan_micro_batches"),
        "largest_group": first.get("largest_group"),
        "memory_bytes": found.get("memory_bytes"),
    }
    return row | {name: value for name, value in fixed.items() if name not in row}


def _keys(keys: Sequence[str], result: CellResult) -> Row:
    """The value of every key: as the axis says it, else what the cell's scenario has."""
    values: Row = dict.fromkeys(keys)
    if result.cell.scenario is not None:
        document = result.cell.scenario.document
        values = {key: _scalar(_below(document, key)) for key in keys}
    return values | dict(result.cell.changes)


def _below(document: Any, key: str) -> Any:
    for part in key.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def _scalar(value: Any) -> Any:
    return None if isinstance(value, Mapping | list) else value


def _at(found: Mapping[str, Any], *path: str) -> Any:
    value: Any = found
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _account_rows(run: SweepRun) -> list[Row]:
    return [
        {
            "cell": result.cell.index,
            **_keys(run.sweep.keys, result),
            "account": account,
            "group": account_group(account),
            "seconds": seconds,
            "share": seconds / result.result["step_s"]["mean"],
        }
        for result in run.results
        if result.result is not None
        for account, seconds in result.result["account_s"].items()
    ]


def sweep_json(run: SweepRun) -> dict[str, Any]:
    """The document of --json. How much came from the store is not part of it: equal sweeps give equal documents."""
    sweep = run.sweep
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "sweep",
        "hdpsim_version": __version__,
        "name": sweep.name,
        "description": sweep.description,
        "base": plain(sweep.base),
        "set": dict(sweep.fixed),
        "axes": [{"keys": list(a.keys), "points": [dict(p) for p in a.points]} for a in sweep.axes],
        "complete": not run.interrupted,
        "counts": {
            status.replace(" ", "_"): run.count(status)
            for status in ("ok", "infeasible", "invalid", "failed", "not run")
        },
        "results": [
            {
                "cell": result.cell.index,
                "changes": dict(result.cell.changes),
                "status": result.status,
                "reason": result.reason,
                **(result.result or {}),
            }
            for result in run.results
        ],
    }
    return finite(document)


def sweep_table(run: SweepRun) -> Table:
    """The cells for the terminal; of many only the fastest."""
    keys = run.sweep.keys
    rows = rows_of(run)
    title = run.sweep.description or run.sweep.name
    if len(rows) > MOST_SHOWN:
        rows = [row for row in rows if row["status"] == "ok"] or rows
        rows = sorted(rows, key=lambda row: -(row["tokens_per_s"] or 0.0))[:MOST_SHOWN]
        title += f": the {len(rows)} fastest of {len(run.results):,} cells; --out writes all"
    shown = []
    for row in rows:
        numbers = ("-", "-", "-", "-")
        if row["status"] == "ok":
            numbers = (
                f"{row['step_s']:.3f}",
                f"{row['tokens_per_s']:,.0f}",
                f"{row['tokens_per_s_per_gpu']:,.1f}",
                f"{row['mfu']:.1%}",
            )
        remark = "" if row["status"] == "ok" else f"{_WORDS[row['status']]}: {row['reason']}"
        shown.append((*(_text(row[key]) for key in keys), *numbers, remark))
    heads = (*keys, "step s", "tokens/s", "tokens/s/GPU", "MFU", "remark")
    width = len(heads) if any(row[-1] for row in shown) else len(heads) - 1
    left = frozenset({*range(len(keys)), len(heads) - 1})
    return Table(title=title, columns=heads[:width], rows=tuple(row[:width] for row in shown), left=left)


_WORDS = {"infeasible": "cannot run", "invalid": "contradiction", "failed": "FAILED", "not run": "not run"}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)


def summary_lines(run: SweepRun) -> list[str]:
    """What came out, and where it came from."""
    lines = result_lines(run)
    lines[-1] += f" {run.found:,} simulations were in the store, {run.computed:,} computed now"
    if run.repaired:
        lines[-1] += f", {run.repaired:,} damaged {'entry' if run.repaired == 1 else 'entries'} replaced"
    lines[-1] += "."
    return lines


def result_lines(run: SweepRun) -> list[str]:
    """The best cell, and how many there are of each kind."""
    lines = []
    best = max(
        (row for row in rows_of(run) if row["status"] == "ok"),
        key=lambda row: row["tokens_per_s"],
        default=None,
    )
    if best is not None:
        what = ", ".join(f"{key} = {_text(best[key])}" for key in run.sweep.keys)
        lines.append(f"Fastest: {what}: {best['tokens_per_s']:,.0f} tokens/s, MFU {best['mfu']:.1%}.")
    parts = [f"{run.count('ok'):,} of {len(run.results):,} cells ran"]
    for status, words in (
        ("infeasible", "cannot run"),
        ("invalid", "contradict themselves"),
        ("failed", "FAILED"),
        ("not run", "not run yet"),
    ):
        if run.count(status):
            parts.append(f"{run.count(status):,} {words}")
    lines.append(f"{', '.join(parts)}.")
    return lines


def estimate_lines(estimate: SweepEstimate) -> list[str]:
    """What a sweep would do, for --dry-run."""
    lines = [f"{estimate.cells:,} cells, {estimate.simulations:,} different simulations"]
    if estimate.infeasible:
        lines.append(f"{estimate.infeasible:,} cells cannot run: known without simulating")
    if estimate.invalid:
        lines.append(f"{estimate.invalid:,} cells contradict themselves and will not be simulated")
    if estimate.found:
        lines.append(f"{estimate.found:,} simulations are in the store already")
    left = estimate.simulations - estimate.found
    if estimate.seconds is None:
        lines.append("nothing is left to simulate")
    else:
        workers = f"{estimate.workers} worker{'s' if estimate.workers != 1 else ''}"
        lines.append(
            f"{left:,} simulations, {estimate.steps:,} steps to play: about {duration(estimate.seconds)} on "
            f"{workers} ({estimate.sampled} timed)"
        )
    return lines


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(0.4), duration(75), duration(4000), duration(200_000)
    ('1 s', '1 min 15 s', '1 h 7 min', '2 d 8 h')
    """
    whole = max(1, round(seconds))
    for (unit, size), (smaller, part) in (
        (("d", 86400), ("h", 3600)),
        (("h", 3600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def write_sweep(out: str, run: SweepRun, store: str) -> str:
    """Write the run directory of a sweep; returns a line that says so."""
    from experiments.sweep_plots import sweep_figures

    rows = rows_of(run)
    notes = [*([run.sweep.description] if run.sweep.description else []), *result_lines(run)]
    notes.append(f"Results are kept in {store}; running the sweep again costs nothing.")
    if run.interrupted:
        notes.insert(0, "PARTIAL: the sweep was interrupted; the same command goes on from there.")
    command = shlex.join(["hdpsim", *sys.argv[1:]])
    with RunDirectory(out, title=f"Sweep {run.sweep.name}", command=command, notes=notes) as directory:
        directory.write_json("result.json", sweep_json(run), "Everything, as printed by --json.")
        directory.write_csv("cells.csv", rows, _CELLS)
        directory.write_parquet("cells.parquet", rows, "The same table with types.")
        accounts = _account_rows(run)
        if accounts:
            directory.write_csv(
                "accounts.csv",
                accounts,
                "One row per cell and account: seconds of a step, mean over ranks, stages and batches.",
            )
        directory.write_text("sweep.yaml", _source(run), "The sweep file.")
        for name, figure, description in () if run.interrupted else sweep_figures(run.sweep, rows):
            directory.save_figure(name, figure, description)
    return f"wrote {out}"


_CELLS = (
    "One row per cell: the keys of the axes; status (ok; infeasible: legal, cannot run; invalid: its keys contradict "
    "each other or its data cannot be used; failed: crashed; not run: interrupted) and reason; then the "
    "means over batches, with half widths of 95 % confidence intervals (ci95), as in `hdpsim compare`."
)


def _source(run: SweepRun) -> str:
    try:
        return Path(run.sweep.source).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ScenarioError((("", f"cannot be read any more: {error}"),), run.sweep.source) from error
