"""A campaign as tables, sentences, a JSON document and a run directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reading.units import HOUR_S, format_quantity
from hdpsim.experiments.output.amounts import large_amount, tokens_with_interval
from hdpsim.experiments.output.document import Column, Document, Table, facts, files_of, interval
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.output.plots import campaign as plots_of_campaign
from hdpsim.experiments.output.plots.style import PALETTE, readable_name
from hdpsim.experiments.output.statistics import (
    FEWEST,
    Estimate,
    estimate,
    estimate_json,
    fixed,
    with_interval,
)
from hdpsim.experiments.studies.step_report import band_line, scenario_document
from hdpsim.simulator.campaign.setup import EFFECTIVE, Incident

if TYPE_CHECKING:
    from hdpsim.experiments.campaigns.run import CampaignStudy
    from hdpsim.experiments.scenario.scenario import Scenario


def campaign_document(scenario: Scenario, study: CampaignStudy) -> Document:
    """Everything about the runs of a campaign of that scenario."""
    setup = study.plan.setup
    lost = {
        readable_name(name): (value.mean / HOUR_S, value.scaled(1 / HOUR_S).half_width)
        for name, value in sorted(study.account_s().items(), key=lambda item: -item[1].mean)
        if name != "training"
    }
    causes = {name: (value.mean, value.half_width) for name, value in study.restarts_by_cause().items()}
    incidents = ("run", *(field.name for field in dataclasses.fields(Incident)))
    contents: dict[str, Callable[[], object]] = {
        "accounts.csv": lambda: _account_rows(study),
        "incidents.csv": lambda: _incident_rows(study),
        "tokens.csv": lambda: _token_rows(study),
        "lost_tokens": lambda: plots_of_campaign.plot_lost_tokens(
            [(result.curve_s, result.curve_tokens) for result in study.results],
            setup.tokens_per_step / setup.step_s,
        ),
        "lost_hours": lambda: plots_of_campaign.plot_bars(
            lost,
            axis=f"hours of a run of {_time(setup.duration_s)}",
            title="Where the lost hours went",
            colour=PALETTE[3],
        ),
        "restarts_by_cause": lambda: plots_of_campaign.plot_bars(
            causes, axis="restarts of a run", title="What stopped the job"
        ),
    }
    return scenario_document(
        "campaign",
        scenario,
        campaign_json(study),
        blocks=(
            answer(study),
            summary_table(study),
            account_table(study),
            *((cause_table(study),) if causes else ()),
        ),
        notes=campaign_remarks(study),
        scenario_of_run=study.scenario,
        bands=(study.plan.undisturbed.band,),
        files=files_of("campaign", contents, incidents=incidents),
    )


def answer(study: CampaignStudy) -> str:
    """What a run makes of its time, and the two accounts in which most is lost, as sentences."""
    duration_s = study.plan.setup.duration_s
    ranked = sorted(study.account_s().items(), key=lambda item: -item[1].mean)
    lost = [
        f"{readable_name(name)} {large_amount(value.mean / HOUR_S)} h"
        for name, value in ranked
        if name not in EFFECTIVE and value.mean > 0
    ][:2]
    most = f" Most of the rest is {' and '.join(lost)}." if lost else ""
    tokens = large_amount(study.tokens.mean)
    return (
        f"In {_time(duration_s)} the job trains {study.ettr.mean:.2%} of the time, on {tokens} tokens, "
        f"with {study.restarts.mean:,.1f} restarts.{most}"
    )


def summary_table(study: CampaignStudy) -> Table[tuple[str, str]]:
    """The headline numbers."""
    plan, duration_s = study.plan, study.plan.setup.duration_s
    mtbf, expected = study.mtbf_s, plan.expected_mtbf_s
    note = "" if plan.closed_form_valid else ", outside its validity"
    restarts = with_interval(study.restarts, 1, 1)
    rows = [
        ("effective training time", f"{with_interval(study.ettr, 100, 2)} %"),
        ("closed form", f"{100 * plan.closed_form_ettr:.2f} % (first order{note})"),
        ("goodput", f"{with_interval(study.goodput, 100, 2)} % of an undisturbed run"),
        ("tokens", f"{tokens_with_interval(study.tokens)} in {_time(duration_s)}"),
        ("throughput", f"{study.tokens.mean / duration_s:,.0f} tokens/s"),
        ("MTBF", f"{_time(mtbf, 'no failure in these runs')} (expected: {_time(expected)})"),
        ("restarts", f"{restarts}, unplanned {with_interval(study.failures, 1, 1)}"),
    ]
    if study.tokens.mean > 0:
        rows.append(("tokens cost", study.costs.words))
    if study.target is not None:
        rows.append(("target", f"{study.target.words}, failures included"))
    return facts("Campaign", rows)


_Row = tuple[str, Estimate]
"""An account or a cause, and what a run has of it."""


def account_table(study: CampaignStudy) -> Table[_Row]:
    """Hours of a run in each account; they sum to the duration."""
    duration_s = study.plan.setup.duration_s
    columns: tuple[Column[_Row], ...] = (
        Column("account", lambda row: readable_name(row[0])),
        Column("hours", lambda row: row[1].scaled(1.0 / HOUR_S), format=interval(2)),
        Column("share", lambda row: row[1].mean / duration_s, format=".2%"),
        Column("meaning", lambda row: meanings("accounts_of_campaigns").get(row[0], ""), left=True),
    )
    rows = [(name, value) for name, value in study.account_s().items() if value.mean > 0]
    return Table(title="Where the time went", columns=columns, rows=[*rows, ("all", fixed(duration_s))])


def cause_table(study: CampaignStudy) -> Table[_Row]:
    """Restarts of a run by cause."""
    columns: tuple[Column[_Row], ...] = (
        Column("cause", lambda row: row[0]),
        Column("restarts", lambda row: row[1], heading="per run", format=interval(1)),
    )
    return Table(title="Restarts by cause", columns=columns, rows=tuple(study.restarts_by_cause().items()))


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
        *_mistakes(study),
        *plan.idle_notes,
        *study.hidden_notes,
        _runs(len(study.results)),
        *band_line(plan.undisturbed.band),
        *((study.costs.price.note,) if study.tokens.mean > 0 else ()),
    )


def _mistakes(study: CampaignStudy) -> tuple[str, ...]:
    """What tests and looks get wrong, where they can."""
    if study.plan.setup.handling.is_perfect:
        return ()
    overlooked, wrong = (
        with_interval(estimate([float(getattr(result, name)) for result in study.results]), 1, 1)
        for name in ("overlooked", "false_evictions")
    )
    return (
        f"Diagnosis: {overlooked} times a run a node at fault is overlooked, {wrong} healthy nodes are evicted.",
    )


def _runs(count: int) -> str:
    if count >= FEWEST:
        return f"{count} runs; ± is the 95 % confidence interval of the mean (chance of failures only)."
    return "1 run." if count == 1 else f"{count} runs; ranges in brackets (too few for an interval)."


def campaign_json(study: CampaignStudy) -> dict[str, Any]:
    """The study without its curves."""
    plan = study.plan
    setup, band = plan.setup, plan.undisturbed.band
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
        "costs": study.costs.document() if study.tokens.mean > 0 else None,
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
            **attributes(plan, "restart_s interval_s"),
        },
        "inputs": {**inputs, "step_source": plan.step_note, "checkpoint_bytes": plan.size},
        "fidelity": band and band.document(plan.undisturbed.seconds),
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
                **attributes(result, "ettr goodput tokens steps"),
                "restarts": len(result.incidents),
                "unplanned_restarts": result.failures,
                **attributes(result, "evictions false_evictions overlooked least_spares"),
                "restarts_by_cause": result.restarts,
                "account_s": result.account_s,
            }
            for result in study.results
        ],
    }


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


def _time(seconds: float | None, none: str = "never") -> str:
    return none if seconds is None else format_quantity(seconds, "time")
