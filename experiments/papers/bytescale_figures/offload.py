"""Figure 21: a step's time and memory against the share of activations that goes to the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hdpsim.experiments.papers.bytescale_figures.single_steps import SingleStep, SingleStepJob, static_setup
from hdpsim.experiments.papers.bytescale_steps import FOLDER, OWN, SETUP, Machine, tokens
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.paper import Results
from hdpsim.experiments.papers.report import FigureRow, Part, rows_part
from hdpsim.experiments.validation.order import error_of

SETTING, PAPER = SETUP["figure_21"], FOLDER.published["figure_21"]
RATIOS: tuple[float, ...] = tuple(SETTING["ratios"])
MACHINES = {
    name: (Machine.named(entry["machine"]) if entry["machine"] else OWN, entry["tp"])
    for name, entry in SETTING["machines"].items()
}
"""Name -> machine and TP."""
RECOMPUTED = -1.0
"""In place of a ratio: everything is computed again."""


def _job(machine: Machine, tp: int, context: str, ratio: float) -> SingleStepJob:
    length, capacity = tokens(context), tokens(SETTING["rank_capacity"])
    ranks = length // capacity
    layout = {
        "tp": tp,
        "cp": ranks,
        "rank_capacity_tokens": capacity,
        "cp_ring_kernels": "eager",
        "gradient_bytes": SETTING["gradient_bytes"],
        "recompute": "full" if ratio == RECOMPUTED else "none",
    }
    own = {"model": SETTING["model"], "gpus": SETTING["gpus"], "context_tokens": length}
    setup = static_setup(machine, offload=max(0.0, ratio), **own, **layout)
    return SingleStepJob(setup=setup, lengths=(length,) * (SETTING["gpus"] // tp // ranks))


def offload_jobs(
    batches: int, machines: Mapping[str, tuple[Machine, int]] = MACHINES
) -> Iterator[SingleStepJob]:
    """Every machine, context and ratio, and full recomputation."""
    for machine, tp in machines.values():
        for context in PAPER:
            yield from (_job(machine, tp, context, ratio) for ratio in (*RATIOS, RECOMPUTED))


def offload(
    results: Results,
    machines: Mapping[str, tuple[Machine, int]] = MACHINES,
    shown: str = SETTING["compared"],
) -> Part:
    """Time and memory by ratio on machines with their TP; the one that is *shown* is held against the figure."""
    rows: list[FigureRow] = []
    values: list[FigureRow] = []
    for name, context in ((name, context) for name in machines for context in PAPER):
        steps: dict[float, SingleStep] = {
            ratio: results.outcomes[_job(*machines[name], context, ratio)] for ratio in (*RATIOS, RECOMPUTED)
        }
        published = {entry["ratio"]: entry for entry in PAPER[context]}
        for ratio, step in steps.items():
            paper = published.get(ratio, {})
            label = "recompute" if ratio == RECOMPUTED else f"{ratio:g}"
            figures = {
                "step_s": step.step_s,
                "cost_percent": 100.0 * (step.step_s / steps[0.0].step_s - 1.0),
                "memory_gb": step.memory_bytes / 1e9,
            }
            row = {"gpu": name, "context": context, "ratio": label}
            for key, figure in figures.items():
                row |= {key: figure, f"paper_{key}": paper.get(key)}
            rows.append({**row, "step_error": error_of(paper.get("step_s"), step.step_s)})
            if name == shown and paper:
                what = f"{context}, ratio {label}"
                values += [
                    compared(21, f"{what}: {of}", unit, row[f"paper_{key}"], row[key])
                    for of, unit, key in (("step", "s", "step_s"), ("memory", "GB", "memory_gb"))
                    if row[f"paper_{key}"] is not None
                ]
    return rows_part(FOLDER, "offload", rows, lines=(_line(rows, shown),), compared=values)


def _line(rows: list[FigureRow], shown: str) -> str:
    own = [row for row in rows if row["gpu"] == shown and row["paper_cost_percent"] is not None]
    misses = [abs(row["cost_percent"] - row["paper_cost_percent"]) for row in own]
    return (
        f"Figure 21's costs on {shown} are within {max(misses):.1f} points of the paper's; {SETTING['why']}"
    )
