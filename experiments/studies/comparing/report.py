"""A comparison of strategies as tables and sentences for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from hdpsim.experiments.output.amounts import (
    large_amount,
    memory_of,
    with_duration,
)
from hdpsim.experiments.output.document import Column, Document, Table, interval, only_where
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.output.plots.style import readable_name
from hdpsim.experiments.output.statistics import with_interval
from hdpsim.experiments.studies.links.cost_of_sharing import network_lines
from hdpsim.experiments.studies.money import (
    MILLION,
    Target,
    costs_of,
    kwh_words,
    mean_price,
    time_at,
    usd_range_words,
    usd_words,
)
from hdpsim.experiments.studies.step_report import (
    account_table,
    averaging,
    band_lines,
    by_line,
    mfu_note,
    one_line,
    outcome_json,
    ratio_words,
    scenario_document,
    step_table,
)

from .as_published import not_as_published
from .compare import BEST_STATIC
from .files import comparison_files
from .static_rows import MESH_COLUMNS

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.prices import CostOptions

    from .compare import Comparison, Outcome
    from .other_degrees import OtherDegree
    from .other_kinds import OtherKind


WORTH_A_WORD = 5e-4
"""Share of the work that a packer leaves out, from which it is said."""


def compare_document(comparison: Comparison, tokens: float | None = None) -> Document:
    """Everything about a comparison; with the *tokens* of a target, what they take."""
    best, why, costs = comparison.best_static, explanation(comparison), comparison.scenario.costs
    table = comparison_table(comparison)
    return scenario_document(
        "compare",
        comparison.scenario,
        [
            outcome_json(one, costs, comparison.base, best, target_of(comparison, one, tokens))
            for one in comparison.outcomes
        ],
        more={
            "base": comparison.base.strategy,
            "best_static": None if best is None else best.strategy,
            "static_meshes_tried": [
                each.document() for each in (comparison.baseline.tried if comparison.baseline else ())
            ],
            "static_mesh_of_another_degree": comparison.other_degree and comparison.other_degree.document(),
            "static_mesh_of_another_cp_kind": comparison.other_kind and comparison.other_kind.document(),
            "batches": comparison.batches,
            "data": comparison.use.document(),
            "explanation": why,
        },
        blocks=(
            table,
            resources_table(comparison),
            *(() if tokens is None else (target_table(comparison, tokens),)),
            why,
            account_table(comparison.feasible),
        ),
        notes=remarks(comparison),
        files=comparison_files(comparison, table),
        bands=(outcome.band for outcome in comparison.feasible),
    )


def simulate_document(comparison: Comparison, target: Target | None = None) -> Document:
    """Everything about one strategy."""
    return scenario_document(
        "simulate",
        comparison.scenario,
        outcome_json(comparison.base, comparison.scenario.costs, target=target),
        more={"data": comparison.use.document()},
        blocks=(step_table(comparison, target), account_table(comparison.feasible)),
        notes=remarks(comparison),
        files=comparison_files(comparison, comparison_table(comparison)),
        bands=(comparison.base.band,),
    )


def target_of(comparison: Comparison, outcome: Outcome, tokens: float | None) -> Target | None:
    """What so many tokens take with a strategy; None when nobody asked, or it cannot run."""
    if tokens is None or not outcome.results:
        return None
    costs = costs_of(outcome, comparison.scenario.costs)
    return costs.target(tokens, time_at(tokens, outcome.tokens_per_s), outcome.band)


def comparison_table(comparison: Comparison) -> Table[Outcome]:
    """One row per strategy: how fast, and in data more; the ones that cannot run give their reason below."""
    base, best = comparison.base, comparison.best_static
    words = averaging(comparison.batches, base.independent)
    title = f"{words[0].upper()}{words[1:]}; speed-up over {base.strategy}"
    best_is_a_row = best is not None and best is not base
    if best is not None and best_is_a_row:
        title += f", and over {best.strategy}"

    def over(other: Outcome | None) -> Callable[[Outcome], str | None]:
        def words(outcome: Outcome) -> str | None:
            ratio = outcome.speed_up(other) if other and outcome.results else None
            return ratio_words(ratio, 2, of_base=outcome is other)

        return words

    gpus = comparison.scenario.cluster.gpus
    columns: tuple[Column[Outcome], ...] = (
        Column("strategy"),
        Column("batches", lambda o: comparison.batches, shown=False),
        *only_where(lambda o: o.results, (
            Column("step_s", heading="step", unit="s", format=interval(3), missing="cannot run", ci95=True),
            Column("tokens_per_s", heading="tokens/s", format=interval(), ci95=True),
            Column("tokens_per_s_per_gpu", lambda o: o.tokens_per_s.mean / gpus, heading="tok/s/GPU", format=",.1f"),
            Column("mfu", heading="MFU", format=".1%"),
            Column("mfu_full", shown=False),
            Column("", over(base), heading="speed-up"),
            Column("speed_up", lambda o: o.speed_up(base), shown=False, ci95=True),
            Column("", over(best), heading="over best", shown=best_is_a_row),
            Column("speed_up_vs_best_static", lambda o: best and o.speed_up(best), shown=False),
            *MESH_COLUMNS,
            Column("over_lower_bound", lambda o: o.over_bound, shown=False),
            Column("over_plan_ideal", shown=False),
            Column("memory_bytes", lambda o: o.results[0].memory.total_bytes, shown=False),
            *cost_columns(comparison.scenario.costs),
        )),
        Column("cannot_run", lambda o: one_line(o.reason) if o.reason else None, shown=False),
    )  # fmt: skip
    return Table(title=title, columns=columns, rows=comparison.outcomes)


def cost_columns(costs: CostOptions) -> tuple[Column[Outcome], ...]:
    """Money, energy and power of a strategy that ran, for data."""

    def usd(outcome: Outcome, which: str) -> float | None:
        usd_range = costs_of(outcome, costs).usd(MILLION)
        return None if usd_range is None else usd_range[which]

    def kw_per_node(outcome: Outcome) -> float | None:
        power = costs_of(outcome, costs).power
        return None if power is None else power.node_w / 1e3

    return (
        *(
            Column(f"usd_per_million_tokens{end}", partial(usd, which=which), shown=False)
            for which, end in (("typical", ""), ("low", "_low"), ("high", "_high"))
        ),
        Column("kwh_per_million_tokens", lambda o: costs_of(o, costs).kwh(MILLION), shown=False),
        Column("kw_per_node", kw_per_node, shown=False),
    )


def resources_table(comparison: Comparison) -> Table[Outcome]:
    """One row per strategy that runs: how it packs and groups, how good its plan is, what fills its memory."""
    costs = comparison.scenario.costs
    columns: tuple[Column[Outcome], ...] = (
        Column("strategy"),
        Column("", _groups, heading="packing and groups", left=True),
        Column("over_lower_bound", lambda outcome: outcome.over_bound, heading="over bound", format="+.1%"),
        Column("", lambda outcome: memory_of(outcome.results[0].memory), heading="memory per GPU"),
        Column(
            "",
            lambda outcome: outcome.results[0].memory.largest_parts(2),
            heading="most of it (GiB)",
            left=True,
        ),
        Column(
            "", lambda o: usd_range_words(costs_of(o, costs).usd(MILLION)), heading="cost/M tokens", left=True
        ),
        Column("", lambda o: costs_of(o, costs).kwh(MILLION), heading="kWh/M tokens", format=".3g"),
    )
    return Table(columns=columns, rows=comparison.feasible)


def _groups(outcome: Outcome) -> str:
    if outcome.mesh:
        return outcome.mesh.words.replace(" packing", "")
    largest = outcome.results[0].largest_group
    return f"1 to {largest:,} ranks" if largest > 1 else "single ranks"


def target_table(comparison: Comparison, tokens: float) -> Table[tuple[str, Target]]:
    """What the tokens take with every strategy that runs, without interruptions."""
    targets = ((outcome.strategy, target_of(comparison, outcome, tokens)) for outcome in comparison.feasible)
    columns: tuple[Column[tuple[str, Target]], ...] = (
        Column("strategy", lambda row: row[0]),
        Column("seconds", lambda row: row[1].seconds, heading="time", format=with_duration),
        Column("", lambda row: row[1].range_words, heading="P10 to P90"),
        Column("gpu_hours", lambda row: row[1].gpu_hours, heading="GPU-hours", format=large_amount),
        Column("usd", lambda row: row[1].usd, heading="cost", format=usd_words, missing="unknown"),
        Column("", lambda row: _span_words(row[1]), heading="low to high"),
        Column("kwh", lambda row: row[1].kwh, heading="energy", format=kwh_words),
    )
    return Table(
        title=f"{large_amount(tokens)} tokens, without failures (see `hdpsim campaign`)",
        columns=columns,
        rows=tuple((name, target) for name, target in targets if target is not None),
        notes=(mean_price(comparison.scenario.cluster, comparison.scenario.costs).note,),
    )


def _span_words(target: Target) -> str | None:
    usd = target.costs.usd(target.tokens)
    return None if usd is None else f"{large_amount(usd['low'])} to {large_amount(usd['high'])}"


def explanation(comparison: Comparison) -> str:
    """Which strategy is fastest and by how much; below it a line for each reason, and for each other mesh to know."""
    ranked = sorted(comparison.feasible, key=lambda outcome: -outcome.tokens_per_s.mean)
    if len(ranked) == 1:
        return f"Only {ranked[0].strategy} can run this scenario."
    fastest = ranked[0]
    other = _reference(comparison, fastest, ranked)
    lines = [
        *_against(fastest, other, comparison.best_static),
        *_split_lines((fastest, other), ", whose pieces do not attend to each other"),
    ]
    hdp = fastest if fastest.mesh is None else other
    if hdp.mesh is None:
        lines += [
            f"{hdp.strategy} is {with_interval(hdp.speed_up(mesh), digits=2)} times as fast as {name}."
            for name, mesh in _other_meshes(comparison, fastest, other)
        ]
    return "\n- ".join((*lines, *_held_back_lines(comparison), *not_as_published(comparison.feasible)))


def _held_back_lines(comparison: Comparison) -> list[str]:
    """What of the layout holds static meshes back, and how the fastest strategy does against a mesh without it."""
    best = comparison.best_static
    if best is None:
        return []
    lines = []
    if comparison.other_degree is not None:
        lines.append(
            f"This layout holds static meshes back. {_against_other(comparison, best, comparison.other_degree)}"
            "`hdpsim plan` looks for the layout that suits each strategy."
        )
    if comparison.other_kind is not None:
        lines.append(
            "The way in which ranks share attention holds static meshes back. "
            f"{_against_other(comparison, best, comparison.other_kind)}"
            f"`--set layout.cp_kind={comparison.other_kind.kind}` changes it for every strategy."
        )
    return lines


def _against_other(comparison: Comparison, best: Outcome, other: OtherDegree | OtherKind) -> str:
    """How much faster another mesh is than the best of the layout, and how the fastest strategy does against it."""
    fastest = max(
        (o for o in comparison.feasible if o.mesh is None), key=lambda o: o.tokens_per_s.mean, default=None
    )
    against = (
        f"{fastest.strategy} is {1.0 / other.faster_than(fastest):.2f} times as fast as that one. "
        if fastest
        else ""
    )
    return (
        f"On the first batch, one with {other.words} is {other.faster_than(best):.2f} times as fast as "
        f"{best.strategy}. {against}"
    )


def _among(outcome: Outcome, told: tuple[Outcome, ...]) -> bool:
    return any(outcome is other for other in told)


def _other_meshes(comparison: Comparison, *told: Outcome) -> list[tuple[str, Outcome]]:
    """Static meshes that the reader should know too: the best with whole sequences, and the scenario's own."""
    baseline = comparison.baseline
    meshes: list[tuple[str, Outcome]] = []
    best_whole = None if baseline is None else baseline.best_whole
    if best_whole is not None and best_whole.mesh is not None and not _among(best_whole, told):
        meshes.append(
            (f"the best static mesh that keeps sequences whole ({best_whole.mesh.words})", best_whole)
        )
    static = next((outcome for outcome in comparison.feasible if outcome.strategy == "static"), None)
    if static is not None and static is not best_whole and not _among(static, told):
        meshes.append((_named(static), static))
    return meshes


def _reference(comparison: Comparison, fastest: Outcome, ranked: list[Outcome]) -> Outcome:
    """Whom the fastest is held against: the best static mesh, or when that is the fastest, the best of the others."""
    best = comparison.best_static
    if best is not None and fastest is not best:
        return best
    if best is not None:
        return next((o for o in ranked if o.mesh is None), ranked[1])
    return comparison.base if comparison.base is not fastest else ranked[1]


def _named(outcome: Outcome, best: Outcome | None = None) -> str:
    if outcome.mesh is None:
        return outcome.strategy
    if outcome.strategy == BEST_STATIC:
        return f"{outcome.strategy} ({outcome.mesh.words})"
    if outcome is best:
        return f"{outcome.strategy} ({outcome.mesh.words}; no other static mesh that was tried is faster)"
    where = "" if "(" in outcome.strategy else " as the scenario has it"
    return f"{outcome.strategy}{where} ({outcome.mesh.words})"


def _against(fastest: Outcome, other: Outcome, best: Outcome | None) -> list[str]:
    ratio = fastest.speed_up(other)
    if math.isclose(ratio.mean, 1.0, abs_tol=0.002):
        return [f"{_named(fastest, best)} and {_named(other, best)} are equally fast (within 0.2 %)."]
    lines = [
        f"{_named(fastest, best)} is {with_interval(ratio, digits=2)} times as fast as {_named(other, best)}: "
        f"a step takes {fastest.step_s.mean:.3f} s instead of {other.step_s.mean:.3f} s."
    ]
    if ratio.half_width is not None and abs(ratio.mean - 1.0) < ratio.half_width:
        lines.append("The difference is within what the sampling of batches does by chance.")
    total_s, words = saved_words(fastest.account_s(), other.account_s())
    return [*lines, f"Where the {total_s:.3f} s come from: {words}."] if words and total_s > 0.0 else lines


def saved_words(fast: Mapping[str, float], slow: Mapping[str, float]) -> tuple[float, str]:
    """What a step with *fast* accounts takes less than one with *slow*, and in which accounts; no words if in none.

    Accounts that make less than a fiftieth of the difference are left out, and so is what reads 0.000 s.
    """
    saved_s = {name: slow.get(name, 0.0) - fast.get(name, 0.0) for name in dict.fromkeys((*slow, *fast))}
    total_s = sum(saved_s.values())
    least_s = max(0.02 * abs(total_s), 5e-4)
    gains = sorted((item for item in saved_s.items() if item[1] >= least_s), key=lambda item: -item[1])[:3]
    losses = sorted((item for item in saved_s.items() if item[1] <= -least_s), key=lambda item: item[1])[:2]
    if not gains:
        return total_s, _listed([f"{-s:.3f} s more in {_explained(n)}" for n, s in losses]) if losses else ""
    text = _listed([f"{seconds:.3f} s less in {_explained(name)}" for name, seconds in gains])
    if losses:
        text += f"; against that, {_listed([f'{-s:.3f} s more in {_explained(n)}' for n, s in losses])}"
    return total_s, text


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """What a reader of the numbers must know: conventions, data, assumptions, who could not run."""
    failures = [
        f"{o.strategy} cannot run: {one_line(o.reason)}" for o in comparison.outcomes if not o.results
    ]
    said = by_line(
        (note, outcome.strategy)
        for outcome in comparison.feasible
        for note in (*outcome.results[0].notes, *outcome.hidden_notes)
    )
    everybody = len(comparison.feasible)
    notes = [
        note if len(names) == everybody else f"{', '.join(names)}: {note}" for note, names in said.items()
    ]
    if comparison.batches > 1 and notes:
        notes.insert(0, "Of the first batch:")
    tried = [comparison.baseline.line] if comparison.baseline else _split_lines(comparison.feasible)
    return (
        *comparison.use.lines,
        *tried,
        mfu_note(comparison.scenario),
        *comparison.scenario.notes,
        *network_lines(comparison.feasible),
        *band_lines(comparison.feasible),
        *notes,
        *failures,
    )


def _split_lines(outcomes: Iterable[Outcome], more: str = "") -> list[str]:
    return [
        f"{o.strategy} does {o.work_left_out:.1%} less work than whole sequences need: "
        f"its packer splits sequences{more}."
        for o in outcomes
        if o.work_left_out >= WORTH_A_WORD
    ]


def _explained(account: str) -> str:
    meaning = meanings("accounts_in_short").get(account)
    return readable_name(account) + (f" ({meaning})" if meaning else "")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
