"""MegaScale (arXiv 2402.15627) reproduced: Tables 2 and 3, weak scaling, start-up, whole runs; Llama 3 and Meta."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hdpsim import __version__
from hdpsim.experiments.bands.residuals import residual_lines, rewrite_residuals
from hdpsim.experiments.output import plots
from hdpsim.experiments.output.finite import finite
from hdpsim.experiments.output.run_directory import SCHEMA_VERSION, RunDirectory
from hdpsim.experiments.output.tables import Table
from hdpsim.experiments.papers import megascale_plots
from hdpsim.experiments.papers.megascale_data import facts, read_cells, table_2
from hdpsim.experiments.papers.megascale_simulation import ABLATION
from hdpsim.experiments.papers.megascale_summary import (
    ablation_document,
    campaigns_document,
    mttf_document,
    ratios_document,
    records_of,
    startup_document,
    stragglers_document,
    summary_of,
    weak_scaling_document,
)
from hdpsim.experiments.papers.megascale_tables import lines_of, tables_of
from hdpsim.experiments.papers.residuals import megascale_residuals
from hdpsim.experiments.studies.artefacts import check_out
from hdpsim.experiments.studies.compare import silent

NOTES = (
    "Not in the paper, chosen: micro-batch 1, window of 768 tokens, FlashAttention of 2022 in the baseline, 80 GB GPUs "
    "(docs/explanation/megascale.md says why).",
    "One calibration (ampere), fitted on kernels and collectives; no figure of the paper had a part in it.",
    "MFU in the paper's convention: full attention and vocabulary; a window lowers the FLOP counted.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One JSON document, and the same for people."""

    document: Mapping[str, Any]
    tables: tuple[Table, ...]
    lines: tuple[str, ...]


def run(
    cells: str | None = None,
    out: str | None = None,
    *,
    report: Callable[[int, int], None] = silent,
    residuals: str | None = None,
) -> Reproduction:
    """Predict MegaScale's figures and hold them against the paper.

    Args:
        cells: CSV of cells; None: the iteration times of Table 2.
        out: run directory to write.
        report: told (done, total) after every part.
        residuals: file that takes features and log errors of the cells, instead of those it has of them.

    Raises:
        UserInputError: an unusable file of cells or place for the run directory.
    """
    check_out(out)
    chosen = table_2() if cells is None else read_cells(cells)
    total = len(chosen) + len(ABLATION) + len(facts()["weak_scaling"]["gpus"]) + len(facts()["campaigns"]) + 1
    done = _Counter(report, total)
    records = records_of(chosen, done)
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "reproduce-megascale",
        "hdpsim_version": __version__,
        "records": records,
        "summary": summary_of(records),
        "ratios": ratios_document(records),
        "ablation": ablation_document(done),
        "weak_scaling": weak_scaling_document(done),
        "startup": startup_document(),
        "stragglers": stragglers_document(done),
        "campaigns": campaigns_document(done),
        "mttf": mttf_document(),
        "notes": NOTES,
    }
    lines = lines_of(document)
    if residuals is not None:
        written = rewrite_residuals(residuals, megascale_residuals(chosen, records), ("megascale",))
        lines = (*lines, *residual_lines(written, residuals))
    if out is not None:
        _write(out, document, lines)
        lines = (*lines, f"wrote {out}")
    return Reproduction(document=finite(document), tables=tables_of(document), lines=lines)


class _Counter:
    """Counts finished parts."""

    def __init__(self, report: Callable[[int, int], None], total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    def __call__(self) -> None:
        self._done += 1
        self._report(self._done, self._total)


def _write(out: str, document: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Write the run directory."""
    command = shlex.join(["hdpsim", *sys.argv[1:]])
    with RunDirectory(out, title="MegaScale reproduced", command=command, notes=tuple(lines)) as directory:
        directory.write_json(
            "result.json", document, "Everything as one JSON document, as printed by --json."
        )
        for name, what in (
            ("records", "One row per cell: paper, prediction, error."),
            ("ratios", "How much faster MegaScale is than Megatron-LM: paper, prediction."),
            ("ablation", "Table 3: cumulative MFU and gain of every step."),
            ("weak_scaling", "530B on growing numbers of GPUs (Figure 9)."),
            ("startup", "Group initialisation: paper, prediction."),
            ("campaigns", "Effective training time and restarts of whole runs."),
            ("mttf", "Mean time to failure against scale (Meta)."),
        ):
            if document[name]:
                directory.write_csv(f"{name}.csv", [_flat(row) for row in document[name]], what)
        known = [r for r in document["records"] if r["metric"] == "step_s" and r["error"] is not None]
        if known:
            points = {
                system: (
                    [r["measured"] for r in known if r["system"] == system],
                    [r["predicted"] for r in known if r["system"] == system],
                )
                for system in dict.fromkeys(r["system"] for r in known)
            }
            directory.save_figure(
                "paper_against_prediction",
                plots.plot_paper_against_prediction(
                    points, quantity="iteration (s)", title="MegaScale, Table 2"
                ),
                "Every iteration time with a measurement: prediction over measurement.",
            )
        if any(r["metric"] == "step_s" and r["predicted"] is not None for r in document["records"]):
            directory.save_figure(
                "step_times",
                megascale_plots.plot_step_times(document["records"]),
                "Iteration time against GPUs: prediction and paper.",
            )
        for name, plot, what in (
            (
                "ablation",
                megascale_plots.plot_ablation_mfu,
                "Table 3: MFU after every step, prediction and paper.",
            ),
            ("weak_scaling", megascale_plots.plot_weak_scaling, "530B: MFU against GPUs."),
            ("startup", megascale_plots.plot_startup, "Group initialisation: prediction and paper."),
            ("mttf", megascale_plots.plot_mttf, "Mean time to failure against GPUs: prediction and Meta."),
        ):
            directory.save_figure(name, plot(document[name]), what)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of numbers and texts: nothing for None, no mappings, lists as text."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            continue
        flat[name] = "; ".join(map(str, value)) if isinstance(value, list) else "" if value is None else value
    return flat
