"""What would each change buy, alone and together?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.output.amounts import memory_of
from hdpsim.experiments.output.document import (
    Column,
    Document,
    OutputFile,
    Table,
    files_of,
    interval,
    only_where,
)
from hdpsim.experiments.output.plots.changes import Fall, plot_waterfall
from hdpsim.experiments.output.statistics import Estimate, estimate, estimate_json
from hdpsim.experiments.scenario.overrides import parse_override, split_group
from hdpsim.experiments.studies.comparing.compare import Report, silent
from hdpsim.experiments.studies.comparing.static_rows import (
    best_json,
    best_of,
    best_words,
    capacity_lines,
    mesh_lines,
    over_best,
)
from hdpsim.experiments.studies.links.changes import moved_lines
from hdpsim.experiments.studies.money import MILLION, costs_of, mean_price
from hdpsim.experiments.studies.step_report import (
    averaging,
    band_lines,
    mfu_note,
    notes_of,
    one_line,
    outcome_json,
    ratio_words,
    scenario_document,
)
from hdpsim.simulator.settings import CHANGES_NOTHING

from .variants import Variant, data_json, data_lines, run_variants

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.comparing.baseline import Baseline

_ALL = "all together"


def whatif(
    scenario: Scenario,
    changes: Sequence[str],
    batches: int | None = None,
    report: Report = silent,
    strategies: Sequence[str] = (),
) -> tuple[Variant, ...]:
    """Simulate the scenario as it is, with each change alone, with the first ones together, and with all of them.

    A change may be of several keys (`layout.tp=4,layout.rank_capacity=8K`). Two changes of one key are alternatives:
    then none stand together. A change that cannot run is a variant with its reason; so is one that makes sense only
    with another (two chunks a stage without the schedule for them).

    Args:
        scenario: the base.
        changes: each a group of ``key=value`` texts, separated by commas.
        batches: global batches to average over; default: the scenario's.
        report: told (done, total) after every simulated step.
        strategies: each gets all rows, one strategy after the other; default: the scenario's own.

    Raises:
        UserInputError: a value that is wrong by itself, or a key that one change has twice.
        InfeasibleError: the scenario itself and every variant of it cannot run.
    """
    groups = [split_group(change) for change in changes]
    together = tuple(change for group in groups for change in group)
    alternatives = _repeated_key(together)
    _refuse(groups, together, strategies)
    sets: list[tuple[str, tuple[str, ...]]] = [("base", ())]
    sets += list(zip(changes, groups, strict=True))
    if len(changes) > 1 and not alternatives:
        for count in range(2, len(groups)):
            joined = tuple(change for group in groups[:count] for change in group)
            sets.append((f"changes 1 to {count}", joined))
        sets.append((_ALL, together))
    of_strategies = run_variants(
        scenario,
        sets,
        strategies=tuple(strategies) or (None,),
        batches=batches,
        report=report,
        contradictions=not alternatives and _all_make_sense(scenario, together),
        links=True,
    )
    variants = [variant for of_strategy in of_strategies for variant in of_strategy]
    if not any(variant.feasible for variant in variants):
        raise InfeasibleError(
            f"neither the scenario nor any change of it can run:\n{variants[0].outcome.reason}"
        )
    return tuple(variants)


def _repeated_key(changes: Sequence[str]) -> str:
    """The first key that is changed more than once; empty: none is."""
    keys = [parse_override(change)[0] for change in changes]
    return next((key for index, key in enumerate(keys) if key in keys[:index]), "")


def _refuse(groups: Sequence[Sequence[str]], together: Sequence[str], strategies: Sequence[str]) -> None:
    for group in groups:
        if key := _repeated_key(group):
            raise UserInputError(
                f"--set: one change has {key} twice; values to try instead of each other are a --set each"
            )
        if groups.count(group) > 1:
            raise UserInputError(f"--set: {','.join(group)} is given more than once")
    if strategies and "strategy.name" in {parse_override(change)[0] for change in together}:
        raise UserInputError(
            "--set: strategy.name is changed, but --strategies says which ones run; give one of them"
        )


def blocks(variants: Sequence[Variant]) -> list[list[Variant]]:
    """The rows of each strategy, its base first."""
    by_strategy: list[list[Variant]] = []
    for variant in variants:
        if not variant.changes:
            by_strategy.append([])
        by_strategy[-1].append(variant)
    return by_strategy


def bases(variants: Sequence[Variant]) -> list[Variant]:
    """The base of every row: that of its strategy."""
    return [block[0] for block in blocks(variants) for _ in block]


def _all_make_sense(scenario: Scenario, changes: Sequence[str]) -> bool:
    """Whether every value is fine as long as it comes with the others: contradictions of one alone are no mistakes."""
    try:
        scenario.with_changes(changes)
    except InfeasibleError:
        return True
    except ScenarioError:
        return False
    return True


def step_saved(variant: Variant, base: Variant) -> Estimate | None:
    """Seconds of a step that a change saves, batch by batch; None where the batches are others."""
    if not (variant.feasible and base.feasible and variant.paired_with(base)):
        return None
    pairs = zip(base.outcome.results, variant.outcome.results, strict=True)
    return estimate([was.step_s - now.step_s for was, now in pairs], independent=variant.outcome.independent)


def best_of_base(variants: Sequence[Variant]) -> Baseline | None:
    """The best static mesh of the base, where a static row stands beside another strategy's.

    Returns:
        None when there is nothing to hold against it, or no static mesh of the base can run.
    """
    ran = {variant.outcome.strategy for variant in variants if variant.feasible}
    if "static" not in ran or len(ran) == 1:
        return None
    base = variants[0]
    return best_of(base, base.outcome if base.outcome.mesh else None)


def _against(variant: Variant, base: Variant, best: Baseline | None) -> Baseline | None:
    """The best mesh, if the row saw the batches that the mesh saw."""
    return best if variant.paired_with(base) else None


def whatif_document(
    scenario: Scenario, variants: Sequence[Variant], best: Baseline | None = None
) -> Document:
    """Everything about a set of changes; *best* is what `best_of_base` found."""
    lines, table = whatif_lines(variants, best), whatif_table(variants, best)
    ran = [variant.scenario for variant in variants if variant.feasible and variant.scenario is not None]
    return scenario_document(
        "whatif",
        scenario,
        whatif_json(variants, best),
        more={"remarks": lines},
        blocks=(table,),
        notes=(*lines, mfu_note(*ran), mean_price(scenario.cluster, scenario.costs).note),
        files=whatif_files(variants, table),
        bands=(variant.outcome.band for variant in variants),
    )


def whatif_files(variants: Sequence[Variant], table: Table[_Row]) -> tuple[OutputFile, ...]:
    """The table, and for every strategy a waterfall where all changes can be joined."""
    files = [*files_of("whatif", {"whatif.csv": table.records})]
    for block in blocks(variants):
        if _joined(block) and block[0].feasible:
            name = block[0].outcome.strategy
            draw = partial(plot_waterfall, waterfall(block), title=f"What each change adds ({name})")
            files += files_of("whatif", {"waterfall": draw}, of=name)
    return tuple(files)


def _joined(block: Sequence[Variant]) -> bool:
    """Whether its last row has all changes: there is one, or they are no alternatives."""
    return len(block) == 2 or block[-1].label == _ALL


def waterfall(block: Sequence[Variant]) -> list[Fall]:
    """Seconds of a million tokens: the base, each change alone and with those before it; None where one cannot run."""
    count = len(block) // 2  # the base, n changes, n - 1 of several together
    changes = block[1 : 1 + count]
    joined = (changes[0], *block[1 + count :])
    steps = [_million_s(block[0]), *map(_million_s, joined)]
    return [
        Fall("base", None, steps[0]),
        *(
            Fall(variant.label, _million_s(variant), with_all)
            for variant, with_all in zip(changes, steps[1:], strict=True)
        ),
    ]


def _million_s(variant: Variant) -> float | None:
    return MILLION / variant.outcome.tokens_per_s.mean if variant.feasible else None


def whatif_json(variants: Sequence[Variant], best: Baseline | None = None) -> list[dict[str, Any]]:
    """One object per row of the table; *best* is what `best_of_base` found."""
    rows = []
    for variant, base in zip(variants, bases(variants), strict=True):
        ratio, first, saved = variant.speed_up(base), variant.speed_up(variants[0]), step_saved(variant, base)
        rows.append(
            {
                "label": variant.label,
                "changes": list(variant.changes),
                "speed_up_vs_first": None if first is None else first.mean,
                "step_saved_s": saved and estimate_json(saved),
                "speed_up_vs_base": None if ratio is None else ratio.mean,
                "speed_up": ratio and {**estimate_json(ratio), "paired": variant.paired_with(base)},
                "data": data_json(variant),
                **best_json(variant.outcome, _against(variant, variants[0], best)),
                **outcome_json(variant.outcome, variant.costs),
            }
        )
    return rows


_Row = tuple[Variant, Variant]
"""A variant and the base of its strategy."""


def whatif_table(variants: Sequence[Variant], best: Baseline | None = None) -> Table[_Row]:
    """Base, each change alone, all together, strategy by strategy; *best* is what `best_of_base` found."""
    first = variants[0]
    ran = next(variant.outcome for variant in variants if variant.feasible)
    several = len(blocks(variants)) > 1
    names = dict.fromkeys(variant.outcome.strategy for variant in variants if not variant.changes)

    def speed_up(row: _Row) -> str | None:
        variant, base = row
        return ratio_words(variant.speed_up(base), 3, of_base=variant is base)

    def usd(row: _Row) -> float | None:
        usd_range = costs_of(row[0].outcome, row[0].costs).usd(MILLION)
        return None if usd_range is None else usd_range["typical"]

    columns: tuple[Column[_Row], ...] = (
        Column("strategy", lambda row: row[1].outcome.strategy, shown=several),
        Column("change", lambda row: row[0].label, left=True),
        *only_where(lambda row: row[0].feasible, (
            Column("tokens_per_s", lambda row: row[0].outcome.tokens_per_s, heading="tokens/s",
                   format=interval(), ci95=True),
            Column("step_s", lambda row: row[0].outcome.step_s.mean, heading="step", unit="s", format=".3f"),
            Column("mfu", lambda row: row[0].outcome.mfu, heading="MFU", format=".1%"),
            Column("", speed_up, heading="speed-up"),
            Column("speed_up", lambda row: row[0].speed_up(row[1]), shown=False, ci95=True),
            Column("step_saved_s", lambda row: step_saved(*row), heading="saves", unit="s", format=interval(3),
                   ci95=True),
            Column("speed_up_vs_first", lambda row: row[0].speed_up(first), heading=f"over {first.outcome.strategy}",
                   format=interval(3), shown=several),
            Column("", lambda row: over_best(row[0].outcome, _against(row[0], first, best)), heading="over best static",
                   format=interval(2), shown=best is not None),
            Column("", lambda row: memory_of(row[0].outcome.results[0].memory), heading="memory per GPU"),
            Column("memory_bytes", lambda row: row[0].outcome.results[0].memory.total_bytes, shown=False),
            Column("", lambda row: _band_words(row[0]), heading="band of the step"),
            Column("usd_per_million_tokens", usd, heading="USD/M tokens", format=".3g"),
            Column("kwh_per_million_tokens", lambda row: costs_of(row[0].outcome, row[0].costs).kwh(MILLION),
                   heading="kWh/M tokens", format=".3g"),
        )),
        Column("", lambda row: _remark(*row), heading="remark", left=True, optional=True),
    )  # fmt: skip
    title = f"What if ({', '.join(names)}), {averaging(len(ran.results), ran.independent)}"
    rows = tuple(zip(variants, bases(variants), strict=True))
    return Table(title=title, columns=columns, rows=rows)


def _band_words(variant: Variant) -> str | None:
    band, step_s = variant.outcome.band, variant.outcome.step_s.mean
    if band is None or not (math.isfinite(band.low) and math.isfinite(band.high)):
        return None
    return f"{step_s * band.low:.3g} to {step_s * band.high:.3g} s"


def _remark(variant: Variant, base: Variant) -> str:
    """Why a row cannot run; else its mesh, whether it saw other batches, and what of the change does nothing."""
    outcome = variant.outcome
    if not variant.feasible:
        return f"cannot run: {one_line(outcome.reason)}"
    words = [outcome.mesh.words] if outcome.mesh else []
    if base.feasible and not variant.paired_with(base):
        words.append("other batches")
    known = notes_of(base.outcome)
    idle = [note for note in notes_of(outcome) if CHANGES_NOTHING in note and note not in known]
    same = base.feasible and variant is not base and outcome.step_s == base.outcome.step_s
    return "; ".join((*words, *(idle or ["same step"] * same)))


def whatif_lines(variants: Sequence[Variant], best: Baseline | None = None) -> tuple[str, ...]:
    """What a reader of the table must know."""
    base = variants[0]
    lines = list(data_lines(variants))
    first = blocks(variants)[0]
    if len(first) > 1 and not _joined(first):
        key = _repeated_key([change for variant in first for change in variant.changes])
        lines.append(f"Changes are alternatives ({key} has several values): none are tried together.")
    if base.feasible:
        parts = base.outcome.results[0].memory.largest_parts()
        lines.append(f"Memory of the base, largest parts in GiB: {parts}.")
    if any(v.feasible and base.feasible and not v.paired_with(base) for v in variants):
        lines.append(
            "Other batches: the change touches the data, so the speed-up compares means and has no interval."
        )
    if best is None:
        lines += mesh_lines(v.outcome.mesh.packing for v in variants if v.outcome.mesh)
    else:
        lines.append(
            f"over best static: relative to the fastest static mesh of the base's layout that "
            f"`hdpsim compare` tries ({best_words(best)})."
        )
    lines += capacity_lines(variants)
    lines += [line for block in blocks(variants) for line in moved_lines(block)]
    return (*lines, *band_lines(block[0].outcome for block in blocks(variants)))
