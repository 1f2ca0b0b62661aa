"""What would each change buy, alone and together?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.output.document import Column, Document, Table, interval, only_where
from hdpsim.experiments.output.statistics import estimate_json
from hdpsim.experiments.output.words import memory_of, memory_parts
from hdpsim.experiments.scenario.overrides import parse_override
from hdpsim.experiments.studies.compare import Report, silent
from hdpsim.experiments.studies.report import (
    averaging,
    band_lines,
    mfu_note,
    notes_of,
    one_line,
    outcome_json,
    ratio_words,
    scenario_document,
)
from hdpsim.experiments.studies.static_rows import (
    best_json,
    best_words,
    capacity_lines,
    first_batch_best,
    mesh_lines,
    over_best,
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


def whatif_document(
    scenario: Scenario, variants: Sequence[Variant], best: Baseline | None = None
) -> Document:
    """Everything about a set of changes; *best* is what `best_of_base` found."""
    lines = whatif_lines(variants, best)
    ran = [variant.scenario for variant in variants if variant.feasible and variant.scenario is not None]
    return scenario_document(
        "whatif",
        scenario,
        whatif_json(variants, best),
        more={"remarks": lines},
        blocks=(whatif_table(variants, best),),
        notes=(*lines, mfu_note(*ran)),
    )


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
                **outcome_json(variant.outcome, variant.costs),
            }
        )
    return rows


def whatif_table(variants: Sequence[Variant], best: Baseline | None = None) -> Table[Variant]:
    """Base, each change alone, all together; *best* is what `best_of_base` found."""
    base = variants[0]
    ran = next(variant.outcome for variant in variants if variant.feasible)

    def speed_up(variant: Variant) -> str | None:
        return ratio_words(variant.speed_up(base), 3, of_base=variant is base)

    columns: tuple[Column[Variant], ...] = (
        Column("change", lambda variant: variant.label),
        *only_where(_feasible, (
            Column("tokens_per_s", lambda v: v.outcome.tokens_per_s, heading="tokens/s", format=interval()),
            Column("step_s", lambda v: v.outcome.step_s.mean, heading="step", unit="s", format=".3f"),
            Column("mfu", lambda v: v.outcome.mfu, heading="MFU", format=".1%"),
            Column("", speed_up, heading="speed-up"),
            Column("", lambda v: over_best(v.outcome, _against(v, base, best)), heading="over best static",
                   format=".2f", shown=best is not None),
            Column("", lambda v: memory_of(v.outcome.results[0].memory), heading="memory per GPU"),
        )),
        Column("", lambda variant: _remark(variant, base), heading="remark", left=True, optional=True),
    )  # fmt: skip
    title = f"What if ({base.outcome.strategy}), {averaging(len(ran.results), ran.independent)}"
    return Table(title=title, columns=columns, rows=variants)


def _feasible(variant: Variant) -> bool:
    return variant.feasible


def _remark(variant: Variant, base: Variant) -> str:
    """Why a row cannot run; else its mesh, whether it saw other batches, and what of the change does nothing."""
    outcome = variant.outcome
    if not variant.feasible:
        return f"cannot run: {one_line(outcome.reason)}"
    words = [outcome.mesh.words] if outcome.mesh else []
    if base.feasible and not variant.paired_with(base):
        words.append("other batches")
    known = notes_of(base.outcome)
    words += [note for note in notes_of(outcome) if CHANGES_NOTHING in note and note not in known]
    return "; ".join(words)


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
