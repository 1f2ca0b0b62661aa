"""What a reader must know of static rows: which mesh they are, what the best one would do, which rules replan them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdpsim.experiments.output.document import Column
from hdpsim.experiments.output.statistics import estimate_json, fixed
from hdpsim.experiments.studies.baseline import WORTH_A_ROW, best_static
from hdpsim.experiments.studies.compare import Outcome

if TYPE_CHECKING:
    from hdpsim.experiments.studies.baseline import Baseline
    from hdpsim.experiments.studies.variants import Variant


MESH_COLUMNS: tuple[Column[Outcome], ...] = (
    Column("packing", lambda outcome: outcome.mesh and outcome.mesh.packing, shown=False),
    Column("padding", lambda outcome: outcome.mesh and outcome.mesh.padding, shown=False),
    Column("cp", lambda outcome: outcome.mesh and outcome.mesh.cp, shown=False),
    Column("work_left_out", lambda outcome: outcome.work_left_out if outcome.results else None, shown=False),
)
"""Packer, padding and context-parallel degree, for data; empty where no static mesh ran."""


def mesh_lines(packers: Iterable[str]) -> tuple[str, ...]:
    """That static rows are no best baseline, for tables in which nobody looked for it."""
    found = set(packers)
    if not found:
        return ()
    weakest = " In-order fills packs least tightly." if "in-order" in found else ""
    return (
        f"Static rows have the mesh that the scenario names, not the best one.{weakest} `hdpsim compare` searches for "
        f"the best.",
    )


def first_batch_best(variant: Variant, own: Outcome | None = None) -> Baseline | None:
    """Look for the best static mesh of a variant on its first batch.

    Args:
        variant: whose scenario and batches.
        own: its static mesh, when that has run already.

    Returns:
        None when no static mesh can run.
    """
    if variant.scenario is None or variant.drawn is None:
        return None
    known = Outcome(strategy="static")
    if own is not None and own.results:
        known = replace(own, results=own.results[:1], lengths=own.lengths[:1])
    batches = variant.drawn.lengths[:1]
    return best_static(variant.scenario, batches, known, independent=not variant.drawn.use.repeated)


def over_best(outcome: Outcome, best: Baseline | None) -> float | None:
    """Throughput on the first batch relative to the best static mesh; None when either did not run."""
    if best is None or not outcome.results:
        return None
    return float(outcome.results[0].tokens_per_s / best.best.results[0].tokens_per_s)


def best_json(outcome: Outcome, best: Baseline | None) -> dict[str, Any]:
    """The same as JSON data, with the mesh; nulls where nobody looked for it."""
    ratio = over_best(outcome, best)
    return {
        "speed_up_vs_best_static": None if ratio is None else estimate_json(fixed(ratio)),
        "best_static": None
        if best is None
        else {
            "static_mesh": best.best.mesh,
            "first_batch_step_s": best.best.results[0].step_s,
            "work_left_out": best.best.work_left_out,
            "tried": [each.document() for each in best.tried],
        },
    }


def best_words(best: Baseline) -> str:
    """The best mesh, and what it leaves out, for a sentence."""
    first, mesh = best.best, best.best.mesh
    assert mesh is not None
    if first.work_left_out < WORTH_A_ROW:
        return mesh.words
    words = f"{mesh.words}, {first.work_left_out:.1%} less work as its packer splits sequences"
    whole = best.best_whole
    if whole is None or whole.mesh is None:
        return words
    return f"{words}; of those that keep sequences whole {whole.mesh.words}, {_slower(whole, first)}"


def _slower(one: Outcome, best: Outcome) -> str:
    return f"{one.results[0].step_s / best.results[0].step_s - 1.0:.1%} slower"


def rule_lines(variants: Sequence[Variant]) -> tuple[str, ...]:
    """That a fixed rule replans these rows by memory, where the memory of a rank differs among them."""
    by_rule: dict[str, list[Variant]] = {}
    for variant in variants:
        rule = _rule_of(variant.outcome)
        if rule:
            by_rule.setdefault(rule, []).append(variant)
    replanned = [rule for rule, rows in by_rule.items() if _replans(rule, rows)]
    if not replanned:
        return ()
    words = "; ".join(_RULES[rule] for rule in replanned)
    return (
        f"A fixed rule replans rows whose ranks hold more or fewer tokens: {words}. It does not look for the "
        f"fastest plan, so more memory can slow it. hdp-balance weighs plans by time.",
    )


_RULES = {
    "static": "static takes the smallest CP that fits (layout.cp fixes it)",
    "hdp-naive": "hdp-naive follows Algorithm 1",
}


def _rule_of(outcome: Outcome) -> str:
    if not outcome.results or outcome.setup is None:
        return ""
    options, layout = outcome.setup.strategy, outcome.setup.layout
    if options.name == "static":
        return "static" if layout.cp is None else ""
    return "hdp-naive" if options.name == "hdp-naive" or not options.balancing else ""


def _replans(rule: str, rows: Sequence[Variant]) -> bool:
    """Whether the rows differ in what a rank holds; a static mesh follows it only where its degree differs, too."""
    firsts = [variant.outcome.results[0] for variant in rows]
    degrees = {first.largest_group for first in firsts}
    return len({first.rank_capacity_tokens for first in firsts}) > 1 and (
        rule != "static" or len(degrees) > 1
    )
