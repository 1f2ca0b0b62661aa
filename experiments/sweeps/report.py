"""A finished sweep as a document: its cells, the fastest of them in words, and files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.memory.report import largest_parts
from hdpsim.errors import ScenarioError
from hdpsim.experiments.bands.band import band_words
from hdpsim.experiments.output.amounts import span
from hdpsim.experiments.output.document import Column, Document, OutputFile, Table, files_of, only_where
from hdpsim.experiments.output.json_data import plain
from hdpsim.experiments.output.statistics import Estimate, ratio_of_sums
from hdpsim.experiments.scenario.data_use import WORTH_A_WORD
from hdpsim.experiments.scenario.setup_document import as_yaml
from hdpsim.experiments.studies.comparing.compare import Mesh
from hdpsim.experiments.studies.comparing.static_rows import mesh_lines
from hdpsim.experiments.studies.money import usd_words
from hdpsim.experiments.studies.step_report import account_rows, one_line

if TYPE_CHECKING:
    from hdpsim.experiments.sweeps.run import CellResult, SweepEstimate, SweepRun


GIB = 2.0**30
MOST_FASTEST = 8
"""Groups of comparable cells whose fastest is named in the text."""

MOST_SHOWN = 40
"""Rows of the terminal's table; files have all."""

Row = dict[str, Any]


def rows_of(run: SweepRun) -> list[Row]:
    """One flat row per cell: its keys as the sweep file writes them, its state, and the numbers if it ran.

    `of_fastest` is throughput relative to the fastest cell with as many GPUs and the same batches, batch by batch.
    """
    fastest = _fastest(run)
    rows = []
    for result in run.results:
        ratio = _of_fastest(result, fastest)
        mean, half_width = (None, None) if ratio is None else (ratio.mean, ratio.half_width)
        rows.append(_row(run, result) | {"of_fastest": mean, "of_fastest_ci95": half_width})
    return rows


def _peers(result: CellResult) -> str:
    """Cells that share this do the same work on as many GPUs: they may be ranked against each other."""
    scenario = result.cell.scenario
    if scenario is None:
        return ""
    return json.dumps([scenario.cluster.gpus, scenario.batch_count, scenario.document["data"]])


def _fastest(run: SweepRun) -> dict[str, CellResult]:
    """The fastest cell of every group of peers."""
    best: dict[str, CellResult] = {}
    for result in run.results:
        if result.result is None:
            continue
        fastest = best.setdefault(_peers(result), result)
        if _rate(result) > _rate(fastest):
            best[_peers(result)] = result
    return best


def _rate(result: CellResult) -> float:
    return float(_below(result.result, "tokens_per_s.mean"))


def _of_fastest(result: CellResult, fastest: Mapping[str, CellResult]) -> Estimate | None:
    if result.result is None:
        return None
    best = fastest[_peers(result)].result or {}
    (tokens, seconds), (its_tokens, its_seconds) = (
        [[batch[key] for batch in simulated["batches"]] for key in ("tokens", "step_s")]
        for simulated in (result.result, best)
    )
    repeated = result.result["data"]["repeated"]
    return ratio_of_sums((tokens, its_seconds), (seconds, its_tokens), independent=not repeated)


_FIGURES = {
    "step_s": "step_s.mean", "step_s_ci95": "step_s.ci95_half_width", "step_s_p10": "fidelity.step_s_p10",
    "step_s_p90": "fidelity.step_s_p90", "tokens_per_s": "tokens_per_s.mean",
    "tokens_per_s_ci95": "tokens_per_s.ci95_half_width", "tokens_per_s_lowest": "tokens_per_s.lowest",
    "tokens_per_s_highest": "tokens_per_s.highest",
    **{name: name for name in ("tokens_per_s_per_gpu", "mfu", "mfu_full", "over_lower_bound", "over_plan_ideal")},
    **{name: f"static_mesh.{name}" for name in ("packing", "padding", "cp")}, "work_left_out": "work_left_out",
    "rank_capacity_tokens": "first.rank_capacity_tokens", "micro_batches": "first.plan_micro_batches",
    "largest_group": "first.largest_group", "memory_bytes": "memory_bytes",
    "memory_capacity_bytes": "memory.capacity_bytes",
    **{
        f"usd_per_million_tokens{end}": f"costs.usd_per_million_tokens.{name}"
        for end, name in (("", "typical"), ("_low", "low"), ("_high", "high"))
    },
    **{name: f"costs.{name}" for name in ("kwh_per_million_tokens", "kw_per_node")},
    "data_repeated": "data.repeated",
    "share_of_tokens_longer_than_context": "data.longer_than_context.share_of_tokens",
}  # fmt: skip
"""Columns of a cell, and where its stored result has them; `first` is its first batch."""


def _row(run: SweepRun, result: CellResult) -> Row:
    """A cell with every column; what is unknown is None."""
    row: Row = {"cell": result.cell.index, **_keys(run.sweep.keys, result)}
    row |= {"status": result.status, "reason": one_line(result.reason)}
    simulated, scenario = result.result or {}, result.cell.scenario
    simulated = {**simulated, "first": simulated["batches"][0] if simulated else None}
    fixed: Row = {
        "gpus": scenario and scenario.cluster.gpus,
        "context_tokens": scenario and scenario.data.context_tokens,
        "strategy": scenario and scenario.strategy.name,
        "batches": scenario and scenario.batch_count,
        **{name: _below(simulated, path) for name, path in _FIGURES.items()},
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


def _account_rows(run: SweepRun) -> list[Row]:
    rows: list[Row] = []
    for result in run.results:
        if result.result is not None:
            of = {"cell": result.cell.index, **_keys(run.sweep.keys, result)}
            step_s = result.result["step_s"]["mean"]
            rows += [of | row for row in account_rows(result.result["account_s"], step_s)]
    return rows


def sweep_document(run: SweepRun, store: str) -> Document:
    """The cells as a table, the fastest in words, and the files of the run directory.

    How much came from the store is not part of the data: equal sweeps give equal documents.
    """
    description = (run.sweep.description,) if run.sweep.description else ()
    partial = ("PARTIAL: the sweep was interrupted; the same command goes on from there.",)
    return Document(
        kind="sweep",
        title=f"Sweep {run.sweep.name}",
        payload=_payload(run),
        blocks=(_table(run), "\n".join(_result_lines(run))),
        readme=(
            *(partial if run.interrupted else ()),
            *description,
            *_result_lines(run),
            f"Results are kept in {store}; running the sweep again costs nothing.",
        ),
        band=_band(run),
        partial=run.interrupted,
        files=tuple(_files(run)),
    )


def _band(run: SweepRun) -> str:
    """One band for all cells together."""
    ends = [
        [simulated["fidelity"][f"step_s_{end}"] / simulated["step_s"]["mean"] for end in ("p10", "p90")]
        for result in run.results
        if (simulated := result.result) is not None and simulated["fidelity"]
    ]
    return band_words(min(low for low, _ in ends), max(high for _, high in ends)) if ends else ""


def _payload(run: SweepRun) -> Row:
    sweep = run.sweep
    return {
        "name": sweep.name,
        "description": sweep.description,
        "base": sweep.base,
        "set": dict(sweep.fixed),
        "axes": [
            {"keys": axis.keys, "points": [dict(point) for point in axis.points]} for axis in sweep.axes
        ],
        "complete": not run.interrupted,
        "counts": {status.replace(" ", "_"): run.count(status) for status in ("ok", *_WORDS)},
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


def _table(run: SweepRun) -> Table[Row]:
    """The cells; of many only the fastest."""
    rows = rows_of(run)
    title = run.sweep.description or run.sweep.name
    if len(rows) > MOST_SHOWN:
        rows = [row for row in rows if row["status"] == "ok"] or rows
        rows = sorted(rows, key=lambda row: -(row["tokens_per_s"] or 0.0))[:MOST_SHOWN]
        title += f": the {len(rows)} fastest of {len(run.results):,} cells; --out writes all"
    figures: tuple[Column[Row], ...] = (
        Column("step_s", heading="step s", format=".3f"),
        Column("tokens_per_s", heading="tokens/s", format=",.0f"),
        Column("tokens_per_s_per_gpu", heading="tok/s/GPU", format=",.1f"),
        Column("mfu", heading="MFU", format=".1%"),
        Column("of_fastest", _of_fastest_words),
        Column("memory_bytes", _memory_words, heading="memory GiB"),
    )
    keys: list[Column[Row]] = [Column(key, heading=key, format=_text, left=True) for key in run.sweep.keys]
    remark: Column[Row] = Column("reason", _remark, heading="remark", left=True, optional=True)
    columns = (*keys, *only_where(lambda row: row["status"] == "ok", figures), remark)
    return Table(title=title, columns=columns, rows=rows)


def _of_fastest_words(row: Row) -> str:
    if row["of_fastest"] == 1.0 and not row["of_fastest_ci95"]:
        return "1"
    half = row["of_fastest_ci95"]
    return f"{row['of_fastest']:.3f}" + ("" if half is None else f" ± {half:.3f}")


def _memory_words(row: Row) -> str:
    return f"{row['memory_bytes'] / GIB:.1f} of {row['memory_capacity_bytes'] / GIB:.1f}"


def _remark(row: Row) -> str:
    return _mesh_words(row) if row["status"] == "ok" else f"{_WORDS[row['status']][0]}: {row['reason']}"


def _mesh_words(row: Row) -> str:
    """Which static mesh a row is; empty when it is none."""
    if row["packing"] is None:
        return ""
    return Mesh(packing=row["packing"], padding=row["padding"], cp=row["cp"]).words


_WORDS = {
    "infeasible": ("cannot run", "cannot run"),
    "invalid": ("contradiction", "contradict themselves"),
    "bad plan": ("broken plan", "have a broken plan"),
    "bad strategy": ("strategy failed", "have a strategy that failed"),
    "failed": ("FAILED", "FAILED"),
    "not run": ("not run", "not run yet"),
}
"""State of a cell that did not run -> what the table calls it, and what many such cells do."""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "-" if value is None else str(value)


def store_line(run: SweepRun) -> str:
    """How much came from the store."""
    line = f"{run.found:,} simulations were in the store, {run.computed:,} computed now"
    if run.repaired:
        line += f", {run.repaired:,} damaged {'entry' if run.repaired == 1 else 'entries'} replaced"
    return f"{line}."


def _result_lines(run: SweepRun) -> list[str]:
    """The best cell, and how many there are of each kind."""
    lines = []
    fastest = _fastest(run)
    for peers, result in list(fastest.items())[:MOST_FASTEST]:
        best = _row(run, result)
        what = ", ".join(f"{key} = {_text(best[key])}" for key in run.sweep.keys)
        mesh = _mesh_words(best)
        what += f" ({mesh})" if mesh else ""
        among = ""
        if len(fastest) > 1:
            count = sum(_peers(other) == peers for other in run.results)
            among = f" of {count} with {best['gpus']:,} GPUs and the same batches"
        lines.append(
            f"Fastest{among}: {what}: {best['tokens_per_s']:,.0f} tokens/s, MFU {best['mfu']:.1%}, "
            f"memory {_memory_words(best)} GiB ({largest_parts(_below(result.result, 'memory.parts'))})"
            f"{_cost_words(best)}{_band_words(best)}."
        )
    if len(fastest) > MOST_FASTEST:
        lines.append(
            f"... and of {len(fastest) - MOST_FASTEST} more groups of cells with the same GPUs and batches."
        )
    meshes = [_below(result.result, "static_mesh.packing") for result in run.results]
    lines += mesh_lines(packing for packing in meshes if packing)
    lines += _data_lines(run)
    parts = [f"{run.count('ok'):,} of {len(run.results):,} cells ran"]
    parts += [f"{run.count(status):,} {words}" for status, (_, words) in _WORDS.items() if run.count(status)]
    lines.append(f"{', '.join(parts)}.")
    return lines


def _cost_words(row: Row) -> str:
    usd = row["usd_per_million_tokens"]
    return "" if usd is None else f", {usd_words(usd)} per million tokens"


def _band_words(row: Row) -> str:
    """Where the true step lies, as far as runs like it tell; empty where nobody knows."""
    low, high = row["step_s_p10"], row["step_s_p90"]
    return (
        ""
        if low is None
        else f"; true step {low:.3g} to {high:.3g} s (P10-P90 of how far off predictions are)"
    )


def _data_lines(run: SweepRun) -> list[str]:
    """What the batches of the cells make of their data."""
    uses = [result.result["data"] for result in run.results if result.result is not None]
    lines = []
    repeated = [use["rounds_per_batch"] for use in uses if use["repeated"]]
    if repeated:
        lines.append(
            f"Data repeated in {len(repeated):,} cells, up to {max(repeated):.1f} times per batch: their batches share "
            f"sequences, so they have no confidence interval."
        )
    long = [use["longer_than_context"]["share_of_tokens"] for use in uses]
    if long and max(long) >= WORTH_A_WORD:
        span_of = f"{max(long):.1%}" if max(long) == min(long) else f"{min(long):.1%} to {max(long):.1%}"
        lines.append(
            f"{span_of} of the tokens are in sequences longer than the context (data.policy says what becomes of them)."
        )
    return lines


def estimate_document(name: str, estimate: SweepEstimate) -> Document:
    """What a sweep would do, for --dry-run."""
    payload = {"kind": "sweep-estimate", "name": name, **dataclasses.asdict(estimate)}
    return Document(kind="", payload=payload, blocks=("\n".join(_estimate_lines(estimate)),))


def _estimate_lines(estimate: SweepEstimate) -> list[str]:
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
            f"{left:,} simulations, {estimate.steps:,} steps to play: about {span(estimate.seconds)} on "
            f"{workers} ({estimate.sampled} timed)"
        )
    return lines


def _files(run: SweepRun) -> Iterator[OutputFile]:
    from hdpsim.experiments.sweeps.plots import sweep_plots

    rows, accounts = rows_of(run), _account_rows(run)
    yield from files_of("sweep", {"cells.csv": lambda: rows, "cells.parquet": lambda: rows})
    if accounts:
        yield from files_of("sweep", {"accounts.csv": lambda: accounts})
    yield from files_of("sweep", {"sweep.yaml": lambda: _source(run)})
    if not run.interrupted:
        yield from sweep_plots(run.sweep, rows)


def _source(run: SweepRun) -> str:
    if run.sweep.document is not None:
        return as_yaml(plain(run.sweep.document))
    try:
        return Path(run.sweep.source).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ScenarioError((("", f"cannot be read any more: {error}"),), run.sweep.source) from error
