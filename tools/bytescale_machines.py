"""Which GPUs and nodes each figure of ByteScale speaks for: `python tools/bytescale_machines.py`.

The paper names neither. Every machine that setup.yaml lists computes the figures, with rates of which none comes from
a cell of Figure 17. Where a figure leaves the degree of tensor parallelism open, the one that fits it best is taken;
for the layer of the case study, the degree of its cells stands behind it. docs/explanation/bytescale.md has the table.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hdpsim.experiments.papers.bytescale_case import layer_values, single_layer
from hdpsim.experiments.papers.bytescale_figures.activity import activity, activity_jobs
from hdpsim.experiments.papers.bytescale_figures.kernels import layer_by_length, loss
from hdpsim.experiments.papers.bytescale_figures.offload import offload, offload_jobs
from hdpsim.experiments.papers.bytescale_steps import FOLDER, SETUP, Machine, case_job, job_of
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.paper import Results, run_jobs
from hdpsim.experiments.papers.report import FigureRow
from hdpsim.experiments.studies.comparing.compare import silent
from hdpsim.experiments.validation.order import error_summary
from hdpsim.simulator.setup import StrategyOptions

CASE_TP = SETUP["models"][SETUP["case_study"]["model"]]["tp"]
DEGREES = (1, 2, 4, 8)
OF_STEPS = (1, 2)
"""Degrees of Figure 21, whose every value is a step: 59 GB of a GPU leave no other."""


NONE = Results(records=[], outcomes={})
Values = dict[str, dict[int, list[FigureRow]]]
"""Name of a figure -> degree of tensor parallelism (0: that of the cells) -> its values on a machine."""


def kernels_of(machine: Machine) -> Values:
    """Figures of single kernels."""
    case = case_job(StrategyOptions(), 1, machine).setup()
    return {
        "18a": {
            tp: list(
                layer_values("single", asdict(single_layer(replace(case, layout=case.layout.changed(tp=tp)))))
            )
            for tp in DEGREES
        },
        "6a": {tp: list(layer_by_length(NONE, machine, tp).compared) for tp in DEGREES},
        "16": {
            tp: [row for row in loss(NONE, machine, tp).compared if row["unit"] == "ms"] for tp in DEGREES
        },
    }


def steps_of(machine: Machine, batches: int) -> Values:
    """Figures of whole steps."""
    none = replace(NONE, batches=batches)
    found: Values = {"21": {}}
    for tp in OF_STEPS:
        own = {"own": (machine, tp)}
        outcomes = run_jobs(offload_jobs(batches, own), silent)
        found["21"][tp] = list(offload(replace(none, outcomes=outcomes), own, "own").compared)
    outcomes = run_jobs(activity_jobs(batches, machine), silent)
    found["19"] = {0: list(activity(replace(none, outcomes=outcomes), machine).compared)}
    published = FOLDER.published_cells()
    jobs = [replace(job_of(cell, batches), machine=machine) for cell in published]
    outcomes = run_jobs(jobs, silent)
    pairs = zip(published, jobs, strict=True)
    found["17"] = {
        0: [compared(17, "", "tokens/s", cell.measured, outcomes[job].tokens_per_s) for cell, job in pairs]
    }
    return found


def summary(values: Iterable[FigureRow]) -> Mapping[str, Any]:
    """Errors of the values of a figure, and on which side most of them are."""
    errors = [row["error"] for row in values if row["error"] is not None]
    return {**error_summary(errors), "mean": sum(errors) / len(errors)}


def best(by_degree: Mapping[int, Iterable[FigureRow]]) -> tuple[int, Mapping[str, Any]]:
    """The degree with the smallest median error, and its errors."""
    found = {tp: summary(values) for tp, values in by_degree.items()}
    tp = min(found, key=lambda one: (found[one]["median_abs_error"], one))
    return tp, found[tp]


def row(found: Values) -> list[str]:
    """Median and largest error of every figure; where TP is not open, the mean with its sign."""
    texts = []
    for figure, by_degree in found.items():
        tp, errors = best(by_degree)
        text = f"{errors['median_abs_error']:.0%} / {errors['max_abs_error']:.0%}"
        text += f" (TP {tp})" if tp else f", {errors['mean']:+.0%}"
        if figure == "18a" and tp != CASE_TP:
            text += f"; {summary(by_degree[CASE_TP])['median_abs_error']:.0%} at TP {CASE_TP}"
        texts.append(text)
    return texts


def main(arguments: list[str] | None = None) -> None:
    """Print the table in Markdown."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=2, metavar="N", help="of Figures 17 and 19")
    options = parser.parse_args(arguments)
    for number, name in enumerate(SETUP["machines"]):
        machine = Machine.named(name)
        found = kernels_of(machine) | steps_of(machine, options.batches)
        if not number:
            print(f"| machine | {' | '.join(found)} |\n|---|{'--:|' * len(found)}")
        print(f"| {name} | {' | '.join(row(found))} |", flush=True)


if __name__ == "__main__":
    main()
