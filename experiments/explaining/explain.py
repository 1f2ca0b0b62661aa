"""A predicted step taken apart: every account with its formula, the numbers that went in, and their sources.

Nothing is computed in another way: the step is priced once more while the cost functions report what they did
(`hdpsim.cost_models.tracing`); formulas and sources are those of their docstrings and of the calibration file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.cost_models.layout.layout import GROUPS, SWITCHES, Layout
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.tracing import Call, tracing, watched
from hdpsim.errors import UserInputError
from hdpsim.experiments.explaining.calls import Sources, call_document, products_of
from hdpsim.experiments.output.document import envelope
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.studies.comparing.compare import strategy_batches
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.simulator.hidden_settings import hidden_settings
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, simulate_plan

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario


Document = dict[str, Any]

_NESTED_PREFIX: dict[str, str] = {
    "tp_communication": "tp",
    "gradient_sync": "gradient",
    "parameter_gather": "parameter",
    "expert_all_to_all": "expert",
}
"""Account -> how its building blocks are called: the all-gather of tp_communication is tp_all_gather."""


def explain(scenario: Scenario) -> Document:
    """Take the step of the scenario's first global batch apart.

    Raises:
        InfeasibleError: the scenario cannot run.
    """
    plain = scenario.setup()
    setup = _watched_setup(plain)
    # Which documents wait for a later batch shows where there is a later one.
    drawn = scenario.batches(None if plain.strategy.outlier_queues else 1)
    lengths = strategy_batches(plain, drawn)[0]
    plan, problem, memory = plan_batch(setup, lengths)
    with tracing() as calls:
        price_plan(setup, problem, plan)
    step = simulate_plan(setup, plan, problem, memory)
    sources = Sources(scenario.calibration, scenario.cluster, scenario.model)
    return {
        **envelope("explain"),
        "scenario": scenario.document,
        "strategy": setup.strategy.name,
        "step_s": step.step_s,
        "counts": _counts(plan, problem.cost),
        "terms": [_term(name, row, step, calls, sources) for row, name in enumerate(step.accounts)],
        "software": [
            {"switch": s.switch, "value": s.value, "class": s.kind, "stack": s.stack, "source": s.source}
            for s in scenario.settings
        ],
        "notes": [*step.notes, *hidden_settings(plain, (lengths,), (step,)), *scenario.notes],
    }


def _watched_setup(setup: Setup) -> Setup:
    return replace(
        setup,
        model=watched(setup.model, "model"),
        layout=_watched_layout(setup.layout),
        cluster=watched(setup.cluster, "cluster"),
        calibration=watched(setup.calibration, "calibration"),
    )


def _watched_layout(layout: Layout) -> Layout:
    """Switches are reported by their names, whichever group they are in."""
    groups = {}
    for group in GROUPS:
        names = {switch.field: switch.name for switch in SWITCHES.values() if switch.group == group}
        groups[group] = watched(getattr(layout, group), "layout", names)
    return Layout(**groups)


def _counts(plan: Plan, cost: MicroBatchCost) -> Document:
    """How often things happen: what leads from one layer's seconds to the step's."""
    return {
        "ranks": plan.ranks,
        "stages": cost.layout.parallel.pp,
        "layers_per_stage": float(cost.layers_by_stage.mean()),
        "moe_layers_per_stage": float(
            np.array([kind.expert_layers for kind in cost.kinds])[cost.kind].sum(axis=1).mean()
        ),
        "micro_batches": plan.micro_batches,
        "micro_batches_per_rank": len(plan.order) / plan.ranks,
    }


def _term(
    name: str, row: int, step: StepResult, calls: Sequence[Call], sources: Mapping[str, str]
) -> Document:
    seconds = step.account_s[row]
    rank, stage = (int(place) for place in np.unravel_index(int(seconds.argmax()), seconds.shape))
    mean_s = float(seconds.mean())
    of_term = list(_calls_of(name, calls))
    documents: list[Document] = []
    for call in of_term:
        document = call_document(call, sources, name)
        if document not in documents:  # the same for every kind of stage
            documents.append(document)
    return {
        "term": name,
        "meaning": meanings("accounts").get(name, name.replace("_", " ")),
        "seconds": mean_s,
        "share": mean_s / step.step_s,
        "largest": {"seconds": float(seconds.max()), "rank": rank, "stage": stage},
        "products": [row for call in of_term for row in products_of(call)],
        "calls": documents,
    }


def _calls_of(term: str, calls: Sequence[Call]) -> Iterator[Call]:
    """The outermost priced functions that price *term* and nothing more special, without their namesakes inside."""
    for call in calls:
        inner = list(_calls_of(term, call.calls))
        if call.terms == (term,) or (term in call.terms and not inner):
            yield call
        else:
            yield from inner


def _nested(term: Document) -> Iterator[tuple[str, Document]]:
    """Names and documents of the building blocks of a term: products by name, collectives and kernels."""
    name = str(term["term"])
    prefix = _NESTED_PREFIX.get(name, name)
    for product in term["products"]:
        yield f"{prefix}_{product['product']}", product
    pending = [call for outer in term["calls"] for call in outer["calls"]]
    while pending:
        call = pending.pop(0)
        block = str(call["name"]).removesuffix("_s").removesuffix("_flop_per")
        yield f"{prefix}_{block.removeprefix(prefix + '_')}", call
        pending += call["calls"]


def term_names(document: Document) -> tuple[str, ...]:
    """Everything `--term` understands: accounts and their building blocks."""
    names: dict[str, None] = {}
    for term in document["terms"]:
        names[term["term"]] = None
        names.update((name, None) for name, _ in _nested(term))
    return tuple(names)


def find_term(document: Document, name: str) -> Document:
    """One account, or one building block with the account that it is part of.

    Raises:
        UserInputError: there is none of that name; the message suggests one.
    """
    for term in document["terms"]:
        if term["term"] == name:
            return {"term": term, "part": None, "parts": []}
    for term in document["terms"]:
        parts = [part for nested, part in _nested(term) if nested == name]
        if parts:
            distinct = [part for place, part in enumerate(parts) if part not in parts[:place]]
            return {"term": term, "part": name, "parts": distinct}
    known = term_names(document)
    raise UserInputError(
        f"--term: {quoted(name)} is no part of this step{did_you_mean(name, known)}; known: {', '.join(known)}"
    )
