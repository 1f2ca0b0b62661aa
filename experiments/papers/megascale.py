"""MegaScale (arXiv 2402.15627): Tables 2 and 3, weak scaling, start-up, whole runs; Llama 3 and Meta."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product, starmap
from typing import TYPE_CHECKING, Any

from hdpsim.arrays import Ints
from hdpsim.cost_models.reading.units import HOUR_S
from hdpsim.cost_models.reliability.failures import job_mttf_s
from hdpsim.cost_models.reliability.startup import group_initialisation_s
from hdpsim.experiments.campaigns.run import run_campaign
from hdpsim.experiments.output.plots.style import GRID, INK, PALETTE, count_axis, figure_and_axes
from hdpsim.experiments.papers.folder import PublishedFigure
from hdpsim.experiments.papers.megascale_steps import FOLDER, SETUP, Step, StepJob, job_of
from hdpsim.experiments.papers.paper import Paper, Results, Section, of_place, ratio
from hdpsim.experiments.papers.report import FigureRow, Part, readable, rows_part
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.validation.order import error_of
from hdpsim.simulator.play.randomness.slow_machines import clean_probability
from hdpsim.simulator.setup import Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = FOLDER.published
SYSTEMS = tuple(SETUP["scenarios"])


def _prediction(cell: PublishedFigure, step: Step) -> FigureRow:
    return {
        "predicted": step.step_s if cell["metric"] == "step_s" else step.mfu,
        "step_s": step.step_s,
        "mfu": step.mfu,
        "tokens_per_s": step.tokens_per_s,
        "account_s": dict(step.account_s),
        "reason": step.reason,
    }


def _step(cell: PublishedFigure, batches: int) -> tuple[Setup, Ints]:
    scenario = job_of(cell).scenario()
    return scenario.setup(), scenario.batches(1)[0]


def ratios(results: Results) -> Part:
    """How much faster MegaScale is than Megatron-LM wherever both were predicted, measured where both are."""
    place = ("model", "gpus", "global_batch")
    steps = [record for record in results.records if record["metric"] == "step_s"]
    rows = [
        dict(zip(place, values, strict=True))
        | {key: ratio(pair["megatron-lm"][key], pair["megascale"][key]) for key in ("predicted", "measured")}
        for values, pair in sorted(of_place(steps, place, "system").items())
        if len(pair) == len(SYSTEMS)
    ]
    return rows_part(FOLDER, "ratios", rows)


def ablation_jobs(batches: int = 1) -> Iterator[StepJob]:
    """The steps of Table 3, each with the changes of those before it."""
    gpus, changes = PUBLISHED["ablation"]["gpus"], ()
    for more in SETUP["ablation"].values():
        changes = (*changes, *more)
        yield StepJob(
            system="megatron-lm", model="megascale-175b", gpus=gpus, global_batch=gpus, changes=changes
        )


def ablation(results: Results) -> Part:
    """Table 3: cumulative MFU and every step's gain, in both conventions of FLOP."""
    rows: list[FigureRow] = []
    steps = [results.outcomes[job] for job in ablation_jobs()]
    published = PUBLISHED["ablation"]["steps"]
    for (name, changes), step, paper in zip(SETUP["ablation"].items(), steps, published, strict=True):
        before = rows[-1] if rows else dict.fromkeys(("mfu", "mfu_full", "paper_mfu"))
        rows.append(
            {
                "step": name,
                "changes": changes,
                "mfu": step.mfu,
                "paper_mfu": paper["mfu"],
                "gain": _difference(step.mfu, before["mfu"]),
                "paper_gain": _difference(paper["mfu"], before["paper_mfu"]),
                "mfu_full": step.mfu_full,
                "gain_full": _difference(step.mfu_full, before["mfu_full"]),
                "step_s": step.step_s,
                "account_s": dict(step.account_s),
                "reason": step.reason,
            }
        )
    off = {
        f"{name}_off": lambda row, name=name: _difference(row[name], row[f"paper_{name}"])
        for name in ("mfu", "gain")
    }
    return rows_part(FOLDER, "ablation", rows, derived=off, lines=ablation_lines(rows))


def ablation_lines(rows: list[FigureRow]) -> list[str]:
    """How far off Table 3 is, in a sentence; a gain that is shown as 0.0 has no sign."""
    off = [abs(row["mfu"] - row["paper_mfu"]) for row in rows if row["mfu"] is not None]
    gains = [(row["gain"], row["paper_gain"]) for row in rows if row["gain"] is not None]
    if not off or not gains:
        return []
    right = sum(round(gain, 1) * paper > 0 for gain, paper in gains)
    worst = max(abs(gain - paper) for gain, paper in gains)
    return [
        f"Table 3: cumulative MFU off by at most {max(off):.1f} points; {right} of {len(gains)} gains have the right "
        f"sign, the worst is off by {worst:.1f} points."
    ]


def _scaling_job(gpus: int, system: str) -> StepJob:
    plan = SETUP["weak_scaling"]
    batch = gpus // plan["pipeline_gpus"] * PUBLISHED["weak_scaling"]["micro_batches"]
    return StepJob(system=system, model=plan["model"], gpus=gpus, global_batch=batch)


def _scaling_jobs(batches: int) -> Iterator[StepJob]:
    return starmap(_scaling_job, product(PUBLISHED["weak_scaling"]["gpus"], SYSTEMS))


def weak_scaling(results: Results) -> Part:
    """Figure 9: 530B, as many sequences per pipeline on any number of GPUs."""
    rows: list[FigureRow] = []
    for gpus in PUBLISHED["weak_scaling"]["gpus"]:
        row: dict[str, Any] = {"gpus": gpus}
        for system in SYSTEMS:
            job = _scaling_job(gpus, system)
            step: Step = results.outcomes[job]
            row |= {
                "global_batch": job.global_batch,
                f"{system}_step_s": step.step_s,
                f"{system}_mfu": step.mfu,
            }
        rows.append({**row, "speed_up": ratio(row["megatron-lm_step_s"], row["megascale_step_s"])})
    return rows_part(FOLDER, "weak_scaling", rows)


def startup(results: Results) -> Part:
    """Group initialisation: predicted, and the time or the bound the paper gives."""
    degrees = SETUP["startup"]
    rows: list[FigureRow] = []
    for row in PUBLISHED["startup"]["rows"]:
        predicted = group_initialisation_s(row["gpus"], degrees["tp"], degrees["pp"], row["method"])
        rows.append(
            {
                "gpus": row["gpus"],
                "method": row["method"],
                "predicted_s": predicted,
                "paper_s": row.get("seconds"),
                "paper_below_s": row.get("below_s"),
                "error": error_of(row.get("seconds"), predicted),
            }
        )

    def paper(row: FigureRow) -> str:
        return f"< {row['paper_below_s']}" if row["paper_s"] is None else readable(row["paper_s"])

    return rows_part(FOLDER, "startup", rows, derived={"paper": paper}, figure=lambda: _startup_figure(rows))


def _startup_figure(rows: list[FigureRow]) -> Figure:
    """Seconds of group initialisation: predicted dots, published times and bounds as marks."""
    exact = [place for place, row in enumerate(rows) if row["paper_s"] is not None]
    bounds = [place for place, row in enumerate(rows) if row["paper_s"] is None]
    with figure_and_axes(7.2, 1.4 + 0.45 * len(rows)) as (figure, (axes,)):
        axes.plot([row["predicted_s"] for row in rows], range(len(rows)), linestyle="none", color=PALETTE[0],
                  marker="o", markersize=8, label="predicted")  # fmt: skip
        axes.plot([rows[place]["paper_s"] for place in exact], exact, linestyle="none", color=INK, marker="|",
                  markersize=16, label="published")  # fmt: skip
        axes.plot([rows[place]["paper_below_s"] for place in bounds], bounds, linestyle="none", color=INK, marker="<",
                  markersize=7, label="published: below")  # fmt: skip
        axes.set_yticks(range(len(rows)), [f"{row['gpus']:,} GPUs, {row['method']}" for row in rows])
        axes.set_xscale("log")
        count_axis(axes.xaxis)
        axes.set(xlabel="group initialisation (s)", title="Time to make communication groups")
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.legend(loc="lower right")
    return figure


_STRAGGLERS = SETUP["stragglers"]
_SIZE = {name: _STRAGGLERS[name] for name in ("gpus", "global_batch")}
_WITH_SLOW_NODES = StepJob(system="megascale", model="megascale-175b", **_SIZE)
_SCREENED = replace(_WITH_SLOW_NODES, changes=("execution.slow_node_share=0",))


def stragglers(results: Results) -> Part:
    """What 0.5 % of slow nodes cost the job of 12,288 GPUs, and how likely jobs are to meet one."""
    paper = PUBLISHED["stragglers"]
    slow, clean = results.outcomes[_WITH_SLOW_NODES], results.outcomes[_SCREENED]
    gain = _difference(clean.mfu, slow.mfu)
    value = {
        "share": paper["share"],
        "factor": paper["factor"],
        "mfu": slow.mfu,
        "mfu_screened": clean.mfu,
        "gain": gain,
        "paper_gain": paper["gain_points"],
        "chance_of_none": {
            str(nodes): clean_probability(nodes, paper["share"]) for nodes in _STRAGGLERS["nodes"]
        },
    }
    if gain is None:
        return Part(value=value)
    line = (
        f"Without the {paper['share']:.1%} of slow nodes ({paper['factor'] - 1:.0%} slower) 12,288 GPUs gain "
        f"{gain:.1f} MFU points (paper: about {paper['gain_points']})."
    )
    return Part(value=value, lines=(line,))


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignJob:
    """A whole run of a shipped scenario."""

    scenario: str

    def run(self) -> Mapping[str, Any]:
        """Simulate all its seeds in this process."""
        study = run_campaign(load_scenario(self.scenario), workers=1)
        seconds = {name: amount.mean for name, amount in study.account_s().items()}
        return {
            "days": study.plan.setup.duration_s / 24.0 / HOUR_S,
            "runs": len(study.results),
            "effective": study.ettr.mean,
            "restarts": study.restarts.mean,
            "unplanned": study.failures.mean,
            "account_s": seconds,
            "accounts_minus_duration_s": sum(seconds.values()) - study.plan.setup.duration_s,
        }


def _campaign_jobs(batches: int) -> Iterator[CampaignJob]:
    return (CampaignJob(scenario=entry["scenario"]) for entry in PUBLISHED["campaigns"])


def campaigns(results: Results) -> Part:
    """Whole runs: effective training time and restarts of MegaScale's and Llama 3's."""
    rows: list[FigureRow] = []
    for entry in PUBLISHED["campaigns"]:
        published = ("effective_above", "restarts", "restarts_above", "unplanned")
        row: dict[str, Any] = {"name": entry["name"], "scenario": entry["scenario"]}
        for name, amount in results.outcomes[CampaignJob(scenario=entry["scenario"])].items():
            row[name] = amount
            row |= {f"paper_{said}": entry.get(said) for said in published if said.startswith(name)}
        rows.append(row)

    def restarts(row: FigureRow) -> Any:
        above = row["paper_restarts_above"]
        return f"> {above}" if above else row["paper_restarts"]

    return rows_part(FOLDER, "campaigns", rows, derived={"restarts_of_paper": restarts})


def mttf(results: Results) -> Part:
    """Mean time to failure against scale, at Meta's rate."""
    meta = PUBLISHED["mttf"]
    rate = meta["failures_per_1000_node_days"]
    rows: list[FigureRow] = []
    for row in meta["rows"]:
        hours = job_mttf_s(row["gpus"] // meta["gpus_per_node"], rate) / HOUR_S
        figures = {
            "hours": hours,
            "paper_hours": row.get("hours"),
            "error": error_of(row.get("hours"), hours),
        }
        rows.append({"gpus": row["gpus"], **figures})
    return rows_part(FOLDER, "mttf", rows)


def _difference(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base


PAPER = Paper(
    folder=FOLDER,
    job=job_of,
    prediction=_prediction,
    step=_step,
    sections=(
        Section(name="ratios", part=ratios),
        Section(name="ablation", part=ablation, jobs=ablation_jobs),
        Section(name="weak_scaling", part=weak_scaling, jobs=_scaling_jobs),
        Section(name="startup", part=startup),
        Section(name="stragglers", part=stragglers, jobs=lambda batches: (_WITH_SLOW_NODES, _SCREENED)),
        Section(name="campaigns", part=campaigns, jobs=_campaign_jobs),
        Section(name="mttf", part=mttf),
    ),
)
