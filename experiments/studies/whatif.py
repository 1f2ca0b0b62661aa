"""What would each change buy, alone and together?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.output.statistics import estimate_json, with_interval
from hdpsim.experiments.output.tables import Table
from hdpsim.experiments.output.words import memory_of, memory_parts
from hdpsim.experiments.scenario.overrides import parse_override
from hdpsim.experiments.studies.compare import Report, silent
from hdpsim.experiments.studies.report import averaging, band_lines, notes_of, one_line, outcome_json
from hdpsim.experiments.studies.static_rows import (
    best_json,
    best_words,
    capacity_lines,
    first_batch_best,
    mesh_lines,
    over_best_words,
)
from hdpsim.experiments.studies.variants import Variant, data_json, data_lines, run_variants
from hdpsim.simulator.settings import CHANGES_NOTHING

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.baseline import Baseline


def whatif(
    scenario: Scenario, changes: Sequence[str], batches: int | None = None, report: Report = silent
) -> tuple[Variant, ...]:
    """Simulate the scenario as it is, with each change alone, and with all of them.

    A change that cannot run is a variant with its reason; so is one that makes sense only with another (two chunks a
    stage without the schedule for them).

    Raises:
        UserInputError: a value that is wrong by itself, or a key that is changed twice.
        InfeasibleError: the scenario itself and every variant of it cannot run.
    """
    _refuse_repeated(changes)
    sets: list[tuple[str, tuple[str, ...]]] = [("base", ())]
    sets += [(change, (change,)) for change in changes]
    if len(changes) > 1:
        sets.append(("all together", tuple(changes)))
    variants = run_variants(
        scenario, sets, batches=batches, report=report, contradictions=_all_make_sense(scenario, changes)
    )
    if not any(variant.feasible for variant in variants):
        raise InfeasibleError(
            f"neither the scenario nor any change of it can run:\n{variants[0].outcome.reason}"
        )
    return variants


def _refuse_repeated(changes: Sequence[str]) -> None:
    keys = [parse_override(change)[0] for change in changes]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise UserInputError(
                f"--set: {key} is changed more than once, so there is no change of all together; give each key once, "
                f"or put the values on an axis of `hdpsim sweep`"
            )


def _all_make_sense(scenario: Scenario, changes: Sequence[str]) -> bool:
    """Whether every value is fine as long as it comes with the others: contradictions of one alone are no mistakes."""
    try:
        scenario.with_changes(changes)
    except InfeasibleError:
        return True
    except ScenarioError:
        return False
    return True


def best_of_base(variants: Sequence[Variant]) -> Baseline | None:
    """The best static mesh of the base on its first batch, where a static row stands beside another strategy's.

    Returns:
        None when there is nothing to hold against it, or no static mesh of the base can run.
    """
    ran = {variant.outcome.strategy for variant in variants if variant.feasible}
    if "static" not in ran or len(ran) == 1:
        return None
    base = variants[0]
    return first_batch_best(base, base.outcome if base.outcome.mesh else None)


def _against(variant: Variant, base: Variant, best: Baseline | None) -> Baseline | None:
    """The best mesh, if the row saw the batches that the mesh saw."""
    return best if variant.paired_with(base) else None


def whatif_json(variants: Sequence[Variant], best: Baseline | None = None) -> list[dict[str, Any]]:
    """One object per row of the table; *best* is what `best_of_base` found."""
    rows = []
    for variant in variants:
        ratio = variant.speed_up(variants[0])
        rows.append(
            {
                "label": variant.label,
                "changes": list(variant.changes),
                "speed_up_vs_base": None if ratio is None else ratio.mean,
                "speed_up": ratio and {**estimate_json(ratio), "paired": variant.paired_with(variants[0])},
                "data": data_json(variant),
                **best_json(variant.outcome, _against(variant, variants[0], best)),
                **outcome_json(variant.outcome),
            }
        )
    return rows


def whatif_table(variants: Sequence[Variant], best: Baseline | None = None) -> Table:
    """Base, each change alone, all together; *best* is what `best_of_base` found."""
    rows = []
    known = notes_of(variants[0].outcome)
    for variant in variants:
        if not variant.feasible:
            reason = f"cannot run: {one_line(variant.outcome.reason)}"
            rows.append((variant.label, *("-",) * (5 if best is None else 6), reason))
            continue
        outcome = variant.outcome
        ratio = variant.speed_up(variants[0])
        speed_up = "-" if ratio is None else with_interval(ratio, digits=3)
        idle = [note for note in notes_of(outcome) if CHANGES_NOTHING in note and note not in known]
        mesh = [outcome.mesh.words] if outcome.mesh else []
        paired = variant.paired_with(variants[0]) or ratio is None
        rows.append(
            (
                variant.label,
                with_interval(outcome.tokens_per_s),
                f"{outcome.step_s.mean:.3f}",
                f"{outcome.mfu:.1%}",
                "1" if variant is variants[0] else speed_up,
                *(() if best is None else (over_best_words(outcome, _against(variant, variants[0], best)),)),
                memory_of(outcome.results[0].memory),
                "; ".join([*mesh, *(idle if paired else ["other batches", *idle])]),
            )
        )
    over = () if best is None else ("over best static",)
    heads = ("change", "tokens/s", "step s", "MFU", "speed-up", *over, "memory per GPU", "remark")
    width = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    return Table(
        title=f"What if ({variants[0].outcome.strategy}), {_averaging(variants)}",
        columns=heads[:width],
        rows=tuple(row[:width] for row in rows),
        left=frozenset({0, len(heads) - 1}),
    )


def _averaging(variants: Sequence[Variant]) -> str:
    ran = next(variant.outcome for variant in variants if variant.feasible)
    return averaging(len(ran.results), ran.independent)


def whatif_lines(variants: Sequence[Variant], best: Baseline | None = None) -> tuple[str, ...]:
    """What a reader of the table must know."""
    base = variants[0]
    lines = list(data_lines(variants))
    if base.feasible:
        parts = memory_parts(base.outcome.results[0].memory.parts)
        lines.append(f"Memory of the base, largest parts in GiB: {parts}.")
    if any(v.feasible and base.feasible and not v.paired_with(base) for v in variants):
        lines.append(
            "Other batches: the change touches the data, so the speed-up compares means and has no interval."
        )
    if best is None:
        lines += mesh_lines(v.outcome.mesh.packing for v in variants if v.outcome.mesh)
    else:
        lines.append(
            f"over best static: on the first batch, relative to the fastest static mesh of the base that "
            f"`hdpsim compare` tries ({best_words(best)})."
        )
    lines += capacity_lines(variants)
    return (*lines, *band_lines(v.outcome for v in variants[:1]))
