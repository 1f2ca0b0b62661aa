"""A campaign as tables, sentences, a JSON document and a run directory."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reading.units import format_quantity
from hdpsim.experiments.output.plot_style import readable_name
from hdpsim.experiments.output.run_directory import RunDirectory
from hdpsim.experiments.output.statistics import FEWEST, estimate_json, with_interval
from hdpsim.experiments.output.tables import Table
from hdpsim.experiments.output.words import tokens_with_interval
from hdpsim.experiments.studies.report import headline
from hdpsim.simulator.campaign.setup import EFFECTIVE

if TYPE_CHECKING:
    from hdpsim.experiments.campaigns.run import CampaignStudy


HOUR_S = 3600.0
_MEANING = {
    "training": "steps whose result was kept",
    "drift": "the same steps, slower since the last restart",
    "stragglers": "the same steps, slower by what slow nodes cost",
    "checkpoint": "copying to the host, training stands still",
    "checkpoint_wait": "waiting for a checkpoint's upload",
    "lost_work": "steps and checkpoints since the last safe one",
    "detection": "until the failure is noticed",
    "diagnosis": "until the culprit is found",
    "waiting_for_node": "no spare in the pool",
    "scheduling": "placing the job, starting processes",
    "group_initialisation": "making communication groups",
    "checkpoint_load": "reading the checkpoint back",
}


def summary_table(study: CampaignStudy) -> Table:
    """The headline numbers."""
    plan, duration_s = study.plan, study.plan.setup.duration_s
    mtbf, expected = study.mtbf_s, plan.expected_mtbf_s
    note = "" if plan.closed_form_valid else ", outside its validity"
    rows: tuple[tuple[str, str], ...] = (
        ("effective training time", f"{with_interval(study.ettr, 100, 2)} %"),
        ("closed form", f"{100 * plan.closed_form_ettr:.2f} % (first order{note})"),
        ("goodput", f"{with_interval(study.goodput, 100, 2)} % of an undisturbed run"),
        ("tokens", f"{tokens_with_interval(study.tokens)} in {_time(duration_s)}"),
        ("throughput", f"{study.tokens.mean / duration_s:,.0f} tokens/s"),
        ("MTBF", f"{_time(mtbf)} (rate: {_time(expected)})"),
        (
            "restarts",
            f"{with_interval(study.restarts, 1, 1)}, unplanned {with_interval(study.failures, 1, 1)}",
        ),
    )
    if study.target is not None:
        rows += (("target", f"{study.target.words}, failures included"),)
    return Table(title="Campaign", columns=("", ""), rows=rows, left=frozenset({0, 1}))


def account_table(study: CampaignStudy) -> Table:
    """Hours of a run in each account; they sum to the duration."""
    duration_s = study.plan.setup.duration_s
    rows = [
        (
            readable_name(name),
            with_interval(value, 1.0 / HOUR_S, 2),
            f"{value.mean / duration_s:.2%}",
            _MEANING[name],
        )
        for name, value in study.account_s().items()
        if value.mean > 0
    ]
    rows.append(("all", f"{duration_s / HOUR_S:,.2f}", "100.00%", ""))
    heads = ("account", "hours", "share", "meaning")
    return Table(title="Where the time went", columns=heads, rows=tuple(rows), left=frozenset({0, 3}))


def cause_table(study: CampaignStudy) -> Table:
    """Restarts of a run by cause."""
    rows = tuple((name, with_interval(value, 1, 1)) for name, value in study.restarts_by_cause().items())
    return Table(title="Restarts by cause", columns=("cause", "per run"), rows=rows)


def campaign_remarks(study: CampaignStudy) -> tuple[str, ...]:
    """What the numbers rest on."""
    plan, setup = study.plan, study.plan.setup
    size = format_quantity(plan.size.unique_bytes, "bytes")
    least = min(result.least_spares for result in study.results)
    return (
        f"Step: {setup.step_s:.3f} s, {plan.step_note}.",
        f"Checkpoints: {size}, every {setup.steps_per_checkpoint} steps ({_time(plan.interval_s)}); "
        f"blocking {_time(setup.block_s)}, upload {_time(setup.upload_s)}, load {_time(setup.load_s)}.",
        f"Restart: {_time(plan.restart_s)} on average from failure to training "
        f"(group initialisation {_time(setup.group_initialisation_s)}).",
        f"Spares: {setup.spares} nodes, at least {least} left at any time.",
        f"Failures: {setup.failures.title}.",
        *plan.idle_notes,
        _runs(len(study.results)),
        *((study.target.price.note,) if study.target is not None else ()),
    )


def _runs(count: int) -> str:
    if count >= FEWEST:
        return f"{count} runs; ± is the 95 % confidence interval of the mean (chance of failures only)."
    return "1 run." if count == 1 else f"{count} runs; ranges in brackets (too few for an interval)."


def campaign_json(study: CampaignStudy) -> dict[str, Any]:
    """The study without its curves."""
    plan = study.plan
    setup = plan.setup
    inputs = {
        field.name: getattr(setup, field.name)
        for field in dataclasses.fields(setup)
        if field.name not in {"failures", "seed"}
    }
    rates = setup.failures.per_s(setup.nodes, setup.links_per_node, setup.failure_scale)
    return {
        "duration_s": setup.duration_s,
        "ettr": estimate_json(study.ettr),
        "goodput": estimate_json(study.goodput),
        "tokens": estimate_json(study.tokens),
        "tokens_per_s": study.tokens.mean / setup.duration_s,
        "target": None if study.target is None else study.target.document(),
        "mtbf_s": study.mtbf_s,
        "restarts": estimate_json(study.restarts),
        "unplanned_restarts": estimate_json(study.failures),
        "restarts_by_cause": {name: estimate_json(v) for name, v in study.restarts_by_cause().items()},
        "account_s": {name: estimate_json(value) for name, value in study.account_s().items()},
        "effective_accounts": sorted(EFFECTIVE),
        "closed_form": {
            "ettr": plan.closed_form_ettr,
            "valid": plan.closed_form_valid,
            "mtbf_s": plan.expected_mtbf_s,
            "restart_s": plan.restart_s,
            "interval_s": plan.interval_s,
        },
        "inputs": {**inputs, "step_source": plan.step_note, "checkpoint_bytes": plan.size},
        "failure_profile": {
            "name": setup.failures.name,
            "title": setup.failures.title,
            "causes": [
                {**dataclasses.asdict(cause), "expected_restarts": rate * setup.duration_s}
                for cause, rate in zip(setup.failures.causes, rates, strict=True)
            ],
        },
        "runs": [
            {
                "ettr": result.ettr,
                "goodput": result.goodput,
                "tokens": result.tokens,
                "steps": result.steps,
                "restarts": len(result.incidents),
                "unplanned_restarts": result.failures,
                "evictions": result.evictions,
                "least_spares": result.least_spares,
                "restarts_by_cause": result.restarts,
                "account_s": result.account_s,
            }
            for result in study.results
        ],
    }


def write_campaign(out: str, document: Mapping[str, Any], study: CampaignStudy) -> str:
    """Write the run directory; returns a line that says so."""
    from hdpsim.experiments.output import plots_of_campaign as plots
    from hdpsim.experiments.output.plot_style import PALETTE

    setup, scenario = study.plan.setup, study.scenario
    command = shlex.join(["hdpsim", *sys.argv[1:]])
    with RunDirectory(out, title=headline(scenario), command=command, notes=campaign_remarks(study)) as run:
        run.write_json(
            "result.json", document, "The whole result as one JSON document, as printed by --json."
        )
        run.write_text("scenario.yaml", scenario.to_yaml(), "The scenario with all defaults; runs as it is.")
        run.write_csv("accounts.csv", _account_rows(study), "Seconds of every run in each account.")
        run.write_csv("incidents.csv", _incident_rows(study), "Every restart of every run and what it cost.")
        run.write_csv("tokens.csv", _token_rows(study), "Tokens against wall-clock time, every run.")
        curves = [(result.curve_s, result.curve_tokens) for result in study.results]
        run.save_figure(
            "tokens",
            plots.plot_tokens(curves, setup.tokens_per_step / setup.step_s),
            "Tokens kept against wall-clock time, with the line of an undisturbed run.",
        )
        lost = {
            readable_name(name): (value.mean / HOUR_S, _hours(value.half_width))
            for name, value in sorted(study.account_s().items(), key=lambda item: -item[1].mean)
            if name != "training"
        }
        run.save_figure(
            "lost_hours",
            plots.plot_bars(
                lost,
                axis=f"hours of a run of {_time(setup.duration_s)}",
                title="Where the lost hours went",
                colour=PALETTE[3],
            ),
            "Hours of a run in every account but training.",
        )
        causes = {name: (v.mean, v.half_width) for name, v in study.restarts_by_cause().items()}
        run.save_figure(
            "restarts_by_cause",
            plots.plot_bars(causes, axis="restarts of a run", title="What stopped the job"),
            "Restarts of a run by cause, with the 95 % confidence interval over the runs.",
        )
    return f"wrote {out}"


def _account_rows(study: CampaignStudy) -> list[dict[str, object]]:
    return [
        {"run": number, "account": name, "seconds": seconds}
        for number, result in enumerate(study.results)
        for name, seconds in result.account_s.items()
    ]


def _incident_rows(study: CampaignStudy) -> list[dict[str, object]]:
    return [
        {"run": number, **dataclasses.asdict(incident)}
        for number, result in enumerate(study.results)
        for incident in result.incidents
    ]


def _token_rows(study: CampaignStudy) -> list[dict[str, object]]:
    return [
        {"run": number, "wall_s": at, "tokens": tokens}
        for number, result in enumerate(study.results)
        for at, tokens in zip(result.curve_s, result.curve_tokens, strict=True)
    ]


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR_S


def _time(seconds: float | None) -> str:
    return "never" if seconds is None else format_quantity(seconds, "time")
