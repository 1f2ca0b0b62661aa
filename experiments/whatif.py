"""What would each change buy, alone and together?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.compare import Report, silent
from experiments.overrides import parse_override
from experiments.report import one_line, outcome_json
from experiments.tables import Table
from experiments.variants import Variant, run_variants
from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError

if TYPE_CHECKING:
    from experiments.scenario import Scenario

__all__ = ["whatif", "whatif_json", "whatif_table"]


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


def _speed_up(variant: Variant, base: Variant) -> float | None:
    if not (variant.feasible and base.feasible):
        return None
    return variant.outcome.tokens_per_s.mean / base.outcome.tokens_per_s.mean


def whatif_json(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """One object per row of the table. Speed-ups are ratios of mean throughput: batches may differ."""
    return [
        {
            "label": variant.label,
            "changes": list(variant.changes),
            "speed_up_vs_base": _speed_up(variant, variants[0]),
            **outcome_json(variant.outcome),
        }
        for variant in variants
    ]


def whatif_table(variants: Sequence[Variant]) -> Table:
    """Base, each change alone, all together."""
    rows = []
    for variant in variants:
        if not variant.feasible:
            reason = f"cannot run: {one_line(variant.outcome.reason)}"
            rows.append((variant.label, "-", "-", "-", "-", reason))
            continue
        outcome = variant.outcome
        ratio = _speed_up(variant, variants[0])
        rows.append(
            (
                variant.label,
                f"{outcome.tokens_per_s.mean:,.0f}",
                f"{outcome.step_s.mean:.3f}",
                f"{outcome.mfu:.1%}",
                "-" if ratio is None else f"{ratio:.3f}",
                "",
            )
        )
    heads = ("change", "tokens/s", "step s", "MFU", "speed-up", "remark")
    width = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    return Table(
        title=f"What if ({variants[0].outcome.strategy})",
        columns=heads[:width],
        rows=tuple(row[:width] for row in rows),
        left=frozenset({0, 5}),
    )
