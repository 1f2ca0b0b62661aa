"""Predictions held against MegaScale, Llama 3 and Meta: the parts of the document that `reproduce megascale` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hdpsim.cost_models.reliability.failures import job_mttf_s
from hdpsim.cost_models.reliability.startup import group_initialisation_s
from hdpsim.experiments.campaigns.run import run_campaign
from hdpsim.experiments.papers.megascale_data import SYSTEMS, Cell, facts
from hdpsim.experiments.papers.megascale_simulation import ABLATION, predict
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.validation.errors import error_of, error_summary
from hdpsim.simulator.play.noise import clean_probability

Record = Mapping[str, Any]
Document = dict[str, Any]

MODEL = "megascale-175b"
HOUR_S = 3600.0
PIPELINE_GPUS = 8 * 35  # TP x PP of the 530B model, Table 1
STARTUP_DEGREES = (8, 8)  # TP and PP of the 2,048-GPU job: assumed, as in Table 1


def records_of(cells: Sequence[Cell], report: Callable[[], None]) -> list[Record]:
    """One record per cell: its input columns, measured, predicted, error, and more about the prediction."""
    records: list[Record] = []
    for cell in cells:
        step = predict(cell)
        predicted = step.step_s if cell.metric == "step_s" else step.mfu
        records.append(
            {
                **cell.columns,
                "predicted": predicted,
                "error": error_of(cell.measured, predicted),
                "step_s": step.step_s,
                "mfu": step.mfu,
                "tokens_per_s": step.tokens_per_s,
                "account_s": dict(step.account_s),
                "reason": step.reason,
            }
        )
        report()
    return records


def summary_of(records: Sequence[Record]) -> Document:
    """Absolute errors over all records with a measurement, and how many could not be predicted."""
    return {
        **error_summary(record["error"] for record in records),
        "unpredicted": sum(record["predicted"] is None for record in records),
    }


def ratios_document(records: Sequence[Record]) -> list[Document]:
    """How much faster MegaScale is than Megatron-LM wherever both were predicted, measured where both are."""
    found: dict[tuple[str, int, int], dict[str, Record]] = {}
    for record in records:
        if record["metric"] == "step_s":
            place = (record["model"], record["gpus"], record["global_batch"])
            found.setdefault(place, {})[record["system"]] = record
    rows = []
    for (model, gpus, batch), pair in sorted(found.items()):
        if len(pair) < len(SYSTEMS):
            continue
        ratio = {
            key: _ratio(pair["megatron-lm"][key], pair["megascale"][key]) for key in ("predicted", "measured")
        }
        rows.append({"model": model, "gpus": gpus, "global_batch": batch, **ratio})
    return rows


def _ratio(slow_s: float | None, fast_s: float | None) -> float | None:
    return slow_s / fast_s if slow_s and fast_s else None


def ablation_document(report: Callable[[], None]) -> list[Document]:
    """Table 3: cumulative MFU and every step's gain."""
    published = facts()["ablation"]
    rows: list[Document] = []
    changes: tuple[str, ...] = ()
    for (name, more), paper in zip(ABLATION, published["steps"], strict=True):
        changes = (*changes, *more)
        cell = Cell(system="megatron-lm", model=MODEL, gpus=published["gpus"], global_batch=published["gpus"])
        step = predict(cell, changes)
        before = rows[-1] if rows else None
        gain = step.mfu - before["mfu"] if before and before["mfu"] and step.mfu else None
        rows.append(
            {
                "step": name,
                "changes": list(more),
                "mfu": step.mfu,
                "paper_mfu": paper["mfu"],
                "gain": gain,
                "paper_gain": paper["mfu"] - before["paper_mfu"] if before else None,
                "step_s": step.step_s,
                "account_s": dict(step.account_s),
                "reason": step.reason,
            }
        )
        report()
    return rows


def weak_scaling_document(report: Callable[[], None]) -> list[Document]:
    """Figure 9: 530B, as many sequences per pipeline on any number of GPUs."""
    plan = facts()["weak_scaling"]
    rows = []
    for gpus in plan["gpus"]:
        row: Document = {"gpus": gpus}
        for system in SYSTEMS:
            batch = gpus // PIPELINE_GPUS * plan["micro_batches"]
            step = predict(Cell(system=system, model="megascale-530b", gpus=gpus, global_batch=batch))
            row |= {"global_batch": batch, f"{system}_step_s": step.step_s, f"{system}_mfu": step.mfu}
        row["speed_up"] = _ratio(row["megatron-lm_step_s"], row["megascale_step_s"])
        rows.append(row)
        report()
    return rows


def startup_document() -> list[Document]:
    """Group initialisation: predicted, and the time or the bound the paper gives."""
    rows = []
    for row in facts()["startup"]["rows"]:
        predicted = group_initialisation_s(row["gpus"], *STARTUP_DEGREES, row["method"])
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
    return rows


def campaigns_document(report: Callable[[], None]) -> list[Document]:
    """Whole runs: effective training time and restarts of MegaScale's and Llama 3's."""
    rows = []
    for entry in facts()["campaigns"]:
        study = run_campaign(load_scenario(entry["scenario"]))
        seconds = {name: amount.mean for name, amount in study.account_s().items()}
        rows.append(
            {
                "name": entry["name"],
                "scenario": entry["scenario"],
                "days": study.plan.setup.duration_s / 24.0 / HOUR_S,
                "runs": len(study.results),
                "effective": study.ettr.mean,
                "paper_effective_above": entry["effective_above"],
                "restarts": study.restarts.mean,
                "paper_restarts": entry.get("restarts"),
                "paper_restarts_above": entry.get("restarts_above"),
                "unplanned": study.failures.mean,
                "paper_unplanned": entry.get("unplanned"),
                "account_s": seconds,
                "accounts_minus_duration_s": sum(seconds.values()) - study.plan.setup.duration_s,
            }
        )
        report()
    return rows


def mttf_document() -> list[Document]:
    """Mean time to failure against scale, at Meta's rate."""
    meta = facts()["mttf"]
    rate = meta["failures_per_1000_node_days"]
    rows = []
    for row in meta["rows"]:
        hours = job_mttf_s(row["gpus"] // meta["gpus_per_node"], rate) / HOUR_S
        paper = row.get("hours")
        rows.append(
            {"gpus": row["gpus"], "hours": hours, "paper_hours": paper, "error": error_of(paper, hours)}
        )
    return rows


def stragglers_document(report: Callable[[], None]) -> Document:
    """What 0.5 % of slow nodes cost the job of 12,288 GPUs, and how likely jobs are to meet one."""
    plan = facts()["stragglers"]
    cell = Cell(system="megascale", model=MODEL, gpus=12288, global_batch=6144)
    slow, clean = predict(cell), predict(cell, ("execution.slow_node_share=0",))
    report()
    return {
        "share": plan["share"],
        "factor": plan["factor"],
        "mfu": slow.mfu,
        "mfu_screened": clean.mfu,
        "gain": clean.mfu - slow.mfu if clean.mfu and slow.mfu else None,
        "paper_gain": plan["gain_points"],
        "chance_of_none": {
            str(nodes): clean_probability(nodes, plan["share"]) for nodes in (32, 128, 384, 1536)
        },
    }
