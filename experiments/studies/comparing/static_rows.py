"""What a reader must know of rows that do not look for the fastest plan: static meshes, stated capacities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdpsim.experiments.output.document import Column
from hdpsim.experiments.output.statistics import Estimate, estimate_json

from .baseline import WORTH_A_ROW, best_static
from .compare import Outcome
from .other_degrees import faster_degree
from .other_kinds import faster_kind

if TYPE_CHECKING:
    from hdpsim.experiments.studies.changes.variants import Variant
    from hdpsim.simulator.setup import StrategyOptions

    from .baseline import Baseline


MESH_COLUMNS: tuple[Column[Outcome], ...] = (
    Column("packing", lambda outcome: outcome.mesh and outcome.mesh.packing, shown=False),
    Column("padding", lambda outcome: outcome.mesh and outcome.mesh.padding, shown=False),
    Column("cp", lambda outcome: outcome.mesh and outcome.mesh.cp, shown=False),
    Column("work_left_out", lambda outcome: outcome.work_left_out if outcome.results else None, shown=False),
)
"""Packer, padding and context-parallel degree, for data; empty where no static mesh ran."""


def mesh_lines(packers: Iterable[str]) -> tuple[str, ...]:
    """That static rows are no best baseline, for tables in which nobody looked for it."""
    packers_used = set(packers)
    if not packers_used:
        return ()
    weakest = " In-order fills packs least tightly." if "in-order" in packers_used else ""
    return (
        f"Static rows have the mesh that the scenario names, not the best one.{weakest} `hdpsim compare` searches for "
        f"the best.",
    )


def best_of(variant: Variant, own: Outcome | None = None) -> Baseline | None:
    """Look for the best static mesh of a variant, on its batches, as `hdpsim compare` does.

    Args:
        variant: whose scenario and batches.
        own: its static mesh, when that has run already.

    Returns:
        None when no static mesh can run.
    """
    if variant.scenario is None or variant.drawn is None:
        return None
    known = own if own is not None and own.results else Outcome(strategy="static")
    scenario, drawn = variant.scenario, variant.drawn
    found = best_static(scenario, drawn.lengths, known, independent=not drawn.use.repeated)
    if found is None:
        return None
    return replace(
        found,
        other_degree=faster_degree(scenario, drawn.lengths, found.best),
        other_kind=faster_kind(scenario, drawn.lengths, found.best),
    )


def over_best(outcome: Outcome, best: Baseline | None) -> Estimate | None:
    """Throughput relative to the best static mesh on the same batches; None when either did not run."""
    return None if best is None or not outcome.results else outcome.speed_up(best.best)


def best_json(outcome: Outcome, best: Baseline | None) -> dict[str, Any]:
    """The comparison with the best mesh as JSON data; nulls where nobody looked for it."""
    ratio = over_best(outcome, best)
    return {
        "speed_up_vs_best_static": None if ratio is None else estimate_json(ratio),
        "best_static": None
        if best is None
        else {
            "static_mesh": best.best.mesh,
            "step_s": estimate_json(best.best.step_s),
            "work_left_out": best.best.work_left_out,
            "tried": [each.document() for each in best.tried],
            "other_degree": best.other_degree and best.other_degree.document(),
            "other_kind": best.other_kind and best.other_kind.document(),
        },
    }


def best_words(best: Baseline) -> str:
    """The best mesh, what it leaves out, and what of the layout holds it back, for a sentence."""
    faster = [
        f"one with {other.words} is {other.faster_than(best.best):.2f} times as fast"
        for other in (best.other_degree, best.other_kind)
        if other is not None
    ]
    more = f"; held back: on the first batch {' and '.join(faster)}" if faster else ""
    return _own_words(best) + more


def _own_words(best: Baseline) -> str:
    first, mesh = best.best, best.best.mesh
    assert mesh is not None
    if first.work_left_out < WORTH_A_ROW:
        return mesh.words
    words = f"{mesh.words}, {first.work_left_out:.1%} less work as its packer splits sequences"
    best_whole = best.best_whole
    if best_whole is None or best_whole.mesh is None:
        return words
    return (
        f"{words}; of those that keep sequences whole {best_whole.mesh.words}, {_slower(best_whole, first)}"
    )


def _slower(outcome: Outcome, best: Outcome) -> str:
    return f"{best.tokens_per_s.mean / outcome.tokens_per_s.mean - 1.0:.1%} slower"


def capacity_lines(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Who keeps to the rank capacity that a scenario states, where that differs among these rows."""
    stated: dict[str, set[int | None]] = {}
    for outcome in (variant.outcome for variant in variants):
        if outcome.results and outcome.setup is not None and outcome.setup.strategy.dynamic_groups:
            planner = _planner(outcome.setup.strategy)
            stated.setdefault(planner, set()).add(outcome.setup.layout.context.rank_capacity_tokens)
    return tuple(
        f"{planner} keeps to the layout.rank_capacity that is stated: a larger one means fewer, longer micro-batches "
        "and may be slower. With auto it takes the fastest of several that memory allows."
        for planner, capacities in stated.items()
        if planner in ("hdp-naive", "hdp-balance") and len(capacities - {None}) > 1
    )


def _planner(options: StrategyOptions) -> str:
    """The strategy's name; hdp-balance and hdp-opt without balancing are hdp-naive."""
    return (
        "hdp-naive" if options.name in ("hdp-balance", "hdp-opt") and not options.balancing else options.name
    )
