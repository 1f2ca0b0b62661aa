"""`hdpsim plan`: the best layouts of a search as a document, and the winner as a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.bands.band import widest_band
from hdpsim.experiments.bands.memory_fit import fits_probability, shipped_margin
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.other_tools.exporter import Exported
from hdpsim.experiments.output.amounts import memory_of, span
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.files.out_file import write_whole
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.planning.plots import plot_front
from hdpsim.experiments.planning.search.evaluation import (
    GPU_MEMORY,
    OBJECTIVE_WORDS,
    ON_PAPER,
    Evaluated,
    Objective,
    score_of,
)
from hdpsim.experiments.planning.search.search import SearchResult
from hdpsim.experiments.planning.search.space import ANY_GPUS, USUAL_SCHEDULES
from hdpsim.experiments.scenario.overrides import parse_override
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.report import saved_words
from hdpsim.experiments.studies.money import mean_price, price_of
from hdpsim.experiments.studies.step_report import headline, one_line
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.strategies.static.static_mesh import REFUSED_BY_OTHERS

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import Cluster
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.scenario.scenario import Scenario, ScenarioSource

_GIB = 2.0**30
_MILLION = 1e6

_NAMES = {"static": "static", "hdp-naive": "HDP naive", "hdp-balance": "HDP balance", "hdp-opt": "HDP opt"}


def words_of(candidate: Evaluated) -> str:
    """A layout and its strategy in a line: `TP 8, PP 16 x 4 interleaved, CP 2, zero1, recompute full; static`."""
    layout, options = candidate.setup.layout, candidate.setup.strategy
    parallel, pipeline = layout.parallel, layout.pipeline
    parts = [f"TP {parallel.tp}"]
    if parallel.pp > 1:
        chunks = f" x {pipeline.vpp}" if pipeline.vpp > 1 else ""
        parts.append(f"PP {parallel.pp}{chunks} {pipeline.schedule}")
    if options.name == "static":
        parts.append(f"CP {candidate.cp}")
    else:
        parts.append(f"groups of up to {candidate.cp}" if candidate.cp > 1 else "single ranks")
    if candidate.setup.model.experts:
        cut = "" if parallel.etp is None else f", ETP {parallel.etp}"
        parts.append(f"EP {parallel.ep}{cut}")
    parts.append(layout.sharding.kind if layout.sharding.kind != "none" else "no sharding")
    if layout.recompute.kind != "none":
        small = " of small kernels" if layout.recompute.small_kernels else ""
        parts.append(f"recompute {layout.recompute.kind}{small}")
    if layout.sharding.optimizer_offload:
        parts.append("optimizer offload")
    capacity = layout.context.rank_capacity_tokens
    if capacity is not None:
        parts.append(f"{capacity:,} tokens a rank")
    strategy = _NAMES.get(options.name, options.name) + (
        f", {options.packing}" if options.name == "static" else ""
    )
    return f"{', '.join(parts)}; {strategy}"


def planned(scenario: Scenario, evaluated: Evaluated) -> Scenario:
    """The scenario of a candidate: what `hdpsim simulate` times as the search did."""
    return scenario.with_changes(evaluated.candidate.overrides)


def band_of(scenario: Scenario, evaluated: Evaluated) -> Band:
    """How well runs like it were predicted."""
    return setup_band(evaluated.setup, scenario.batches(1)[0])


def front(evaluated: Sequence[Evaluated]) -> list[Evaluated]:
    """The candidates that no other beats in throughput, memory and cost at once, the fastest first."""
    kept: list[Evaluated] = []
    ordered = sorted(
        evaluated,
        key=lambda candidate: (
            -candidate.tokens_per_s,
            candidate.memory.total_bytes,
            candidate.usd_per_token or 0.0,
        ),
    )
    for candidate in ordered:
        if not any(
            other.memory.total_bytes <= candidate.memory.total_bytes
            and (other.usd_per_token or 0.0) <= (candidate.usd_per_token or 0.0)
            for other in kept
        ):
            kept.append(candidate)
    return kept


def nothing_runs(scenario: Scenario, found: SearchResult) -> InfeasibleError:
    """That no candidate can run: which limit refused how many, and what to change."""
    lines = [f"no layout of {scenario.name} that was tried can run ({found.searched:,} candidates):"]
    lines += [f"  {number:,} refused by {limit}" for limit, number in found.refused.most_common()]
    if not found.complete:
        ended = "interrupted" if found.interrupted else f"--budget was used up ({found.budget.words})"
        lines.append(f"  {ended} before the others were looked at")
    if found.closest is not None:
        excess, candidate, reason = found.closest
        lines.append(f"closest: {excess - 1.0:.0%} too much ({', '.join(candidate.overrides)}): {reason}")
    advice = "use more GPUs (--gpus) or another type (--gpu)"
    if found.refused[GPU_MEMORY]:
        advice = "use more GPUs (--gpus), GPUs with more memory (--gpu h200,b200), or a shorter data.context"
    elif found.refused[ON_PAPER] or any(one.tight for one in found.evaluated):
        advice = "leave less memory free (--headroom 0), " + advice
    if not found.complete:
        further = "let it go on" if found.interrupted else "give a larger --budget"
        advice = f"{further}, or {advice}" if found.searched else further
    return InfeasibleError("\n".join((*lines, advice)))


def open_scenario(source: ScenarioSource, overrides: tuple[str, ...] = ()) -> tuple[Scenario, str]:
    """A scenario with changes; where its own degrees do not fit it, with such that do, and why they do not.

    Raises:
        UserInputError: see load_scenario.
    """
    try:
        return load_scenario(source, overrides), ""
    except InfeasibleError as error:
        known = {parse_override(text)[0] for text in overrides}
        others = tuple(text for text in ANY_GPUS if parse_override(text)[0] not in known)
        return load_scenario(source, (*overrides, *others)), one_line(str(error))


def searched_values(text: str) -> tuple[str, tuple[object, ...]]:
    """The key and the values of `--search layout.tp=1,2,4`."""
    key, _, values = text.partition("=")
    return key.strip(), tuple(parse_override(f"{key}={value}")[1] for value in values.split(","))


def check_prices(scenario: Scenario, gpu_types: Sequence[str], needed_by: str = "") -> None:
    """Refuse one price for several types of GPUs, and an unknown one where the option *needed_by* names needs it."""
    if scenario.costs.usd_per_hour is not None and len(gpu_types) > 1:
        raise UserInputError(
            f"costs.price says one price for {', '.join(gpu_types)}; leave it out, or plan for one GPU at a time"
        )
    gpus = [catalog.gpu(name) for name in gpu_types] or [scenario.cluster.gpu]
    unknown = [gpu.name for gpu in gpus if price_of(gpu, scenario.costs).usd_per_hour is None]
    if needed_by and unknown:
        alone = len(gpus) == 1
        give = (
            "give one with --set costs.price=3.09USD/h"
            if alone
            else "name a list that has it in costs.prices"
        )
        raise UserInputError(f"{needed_by}: the price of {', '.join(unknown)} is unknown; {give}")


def write_flags(exported: Exported, path: str) -> str:
    """Write options of another tool; what was written, in words."""
    write_whole(path, exported.text, "options")
    listed = len(exported.yours) + len(exported.cannot)
    return f"wrote {path} ({exported.title}); it lists {listed} things that it cannot know or say"


def plan_document(scenario: Scenario, found: SearchResult, tokens: float | None = None) -> Document:
    """Everything about a search that found something; with the *tokens* of a target, what they take."""
    best = found.best[0]
    winner = planned(scenario, best)
    pareto = front([one for one in found.evaluated if not one.tight])
    rows = [_row(scenario, one, found) for one in found.best]
    table = best_table(found, rows, tokens)
    front_data = front_table(pareto, gpus=found.several_clusters)
    return Document(
        kind="plan",
        head=headline(scenario),
        payload={
            "name": scenario.name,
            "best": {**rows[0], "scenario": winner.document},
            "candidates": rows,
            "pareto": [_figures(one) for one in pareto],
            "refused": dict(found.refused.most_common()),
            **attributes(found, "outrun left_out searched headroom set_aside complete seconds objective"),
            "fits_on_paper": [_figures(one) for one in found.on_paper],
            "own": None if found.own is None else _figures(found.own),
        },
        blocks=(table, why(found), front_data, refused_table(found)),
        notes=remarks(scenario, found),
        band=widest_band((band_of(scenario, best),)),
        partial=not found.complete,
        files=files_of(
            "plan",
            {
                "plan.yaml": winner.to_yaml,
                "candidates.csv": partial(all_table, found),
                "pareto.csv": partial(front_table, pareto, gpus=False, most=len(pareto)),
                "pareto": partial(
                    plot_front, _points(found.evaluated), _points(pareto), _points(found.best[:1])
                ),
            },
        ),
    )


def _points(candidates: Sequence[Evaluated]) -> tuple[list[float], list[float]]:
    """Memory in GiB and tokens a second."""
    return [one.memory.total_bytes / _GIB for one in candidates], [one.tokens_per_s for one in candidates]


def _figures(evaluated: Evaluated) -> dict[str, Any]:
    return {
        "changes": dict(evaluated.candidate.changes),
        "words": words_of(evaluated),
        "gpus": evaluated.setup.cluster.gpus,
        "gpu": evaluated.setup.cluster.gpu.name,
        **attributes(evaluated, "tokens_per_s step_s"),
        "memory_gib": evaluated.memory.total_bytes / _GIB,
        "headroom_gib": evaluated.headroom_bytes / _GIB,
        "fits_probability": fits_probability(evaluated.memory),
        "fits_on_paper_only": evaluated.tight,
        **attributes(evaluated, "usd_per_token joule_per_token"),
    }


def _row(scenario: Scenario, evaluated: Evaluated, found: SearchResult) -> dict[str, Any]:
    best, band = found.best[0], band_of(scenario, evaluated)
    return {
        **_figures(evaluated),
        "lower_bound_s": evaluated.bound_s or None,
        "band": band.document(evaluated.step_s, evaluated.tokens_per_s),
        "account_s": evaluated.accounts,
        "loses": "" if evaluated is best else saved_words(best.accounts, evaluated.accounts)[1],
    }


def best_table(found: SearchResult, rows: Sequence[dict[str, Any]], tokens: float | None) -> Table[Any]:
    """The best candidates: how fast, in what memory, how sure."""
    pairs = list(zip(found.best, rows, strict=True))

    def band(pair: tuple[Evaluated, dict[str, Any]]) -> str:
        known = pair[1]["band"]
        return f"{known['step_s_p10']:.3g} to {known['step_s_p90']:.3g}"

    def days(pair: tuple[Evaluated, dict[str, Any]]) -> float:
        return (tokens or 0.0) / pair[0].tokens_per_s / 86_400.0

    columns: tuple[Column[Any], ...] = (
        Column("", lambda pair: str(pairs.index(pair) + 1), heading=""),
        Column("", lambda pair: _gpus(pair[0].setup.cluster), heading="GPUs", left=True, shown=found.several_clusters),
        Column("", lambda pair: words_of(pair[0]), heading="layout and strategy", left=True),
        Column("", lambda pair: pair[0].step_s, heading="step", unit="s", format=".3f"),
        Column("", band, heading="P10 to P90", unit="s"),
        Column("", lambda pair: pair[0].tokens_per_s, heading="tokens/s", format=",.0f"),
        Column("", lambda pair: memory_of(pair[0].memory), heading="memory per GPU"),
        Column("", lambda pair: pair[0].headroom_bytes / _GIB, heading="headroom", unit="GiB", format=".1f"),
        Column("", lambda pair: fits_probability(pair[0].memory), heading="fits", format=".0%"),
        Column("", lambda pair: _usd_per_million(pair[0]), heading="USD per M tokens", format=".3g",
               missing="unknown"),
        Column("", lambda pair: pair[0].joule_per_token, heading="J per token", format=".3g"),
        Column("", days, heading="days", format=".1f", shown=tokens is not None),
    )  # fmt: skip
    count = f" {len(found.best)}" if len(found.best) > 1 else ""
    title = f"The best{count} by {OBJECTIVE_WORDS[found.objective]}"
    return Table(title=title, columns=columns, rows=pairs)


def _usd_per_million(evaluated: Evaluated) -> float | None:
    return None if evaluated.usd_per_token is None else evaluated.usd_per_token * _MILLION


def _gpus(cluster: Cluster) -> str:
    idle = cluster.node.idle_gpus
    share = f" ({cluster.node.gpus} of {cluster.node.gpus + idle})" if idle else ""
    return f"{cluster.gpu_words}{share}"


def _candidate_columns(*, gpus: bool) -> tuple[Column[Evaluated], ...]:
    """*gpus*: they differ, and are shown."""
    return (
        Column("", lambda one: _gpus(one.setup.cluster), heading="GPUs", left=True, shown=gpus),
        Column("layout", words_of, heading="layout and strategy", left=True),
        Column("gpus", lambda one: one.setup.cluster.gpus, shown=False),
        Column("gpu", lambda one: one.setup.cluster.gpu.name, shown=False),
        Column("step_s", heading="step", unit="s", format=".3f"),
        Column("tokens_per_s", heading="tokens/s", format=",.0f"),
        Column("memory_gib", lambda one: one.memory.total_bytes / _GIB, heading="memory", unit="GiB", format=".1f"),
        Column("headroom_gib", lambda one: one.headroom_bytes / _GIB, shown=False),
        Column("fits_probability", lambda one: fits_probability(one.memory), shown=False),
        Column("usd_per_million_tokens", _usd_per_million, heading="USD per M tokens", format=".3g",
               missing="unknown"),
        Column("fits_on_paper_only", lambda one: one.tight, shown=False),
        Column("changes", lambda one: " ".join(one.candidate.overrides), shown=False),
    )  # fmt: skip


def all_table(found: SearchResult) -> Table[Evaluated]:
    """Every candidate that was replayed, the best first."""
    ordered = sorted(found.evaluated, key=lambda one: -score_of(one, found.objective))
    return Table(columns=_candidate_columns(gpus=False), rows=ordered)


def front_table(pareto: Sequence[Evaluated], *, gpus: bool, most: int = 8) -> Table[Evaluated]:
    """The front: what throughput costs in memory and money."""
    notes = (f"and {len(pareto) - most} more (--json, --out)",) if len(pareto) > most else ()
    return Table(
        title="Pareto front of throughput, memory and cost, among the candidates that were replayed",
        columns=_candidate_columns(gpus=gpus),
        rows=pareto[:most],
        notes=notes,
    )


def refused_table(found: SearchResult) -> Table[tuple[str, int]]:
    """Which limit refused how many."""
    rows = found.refused.most_common()
    if found.outrun:
        rows.append(("slower than the best at best (lower bound)", found.outrun))
    columns: tuple[Column[tuple[str, int]], ...] = (
        Column("", lambda row: row[0], heading="left out by"),
        Column("", lambda row: row[1], heading="candidates", format=","),
    )
    return Table(title=_searched(found), columns=columns, rows=rows)


def _searched(found: SearchResult) -> str:
    return (
        f"{found.searched:,} candidates of {found.layouts:,} layouts in {span(found.seconds)}: "
        f"{len(found.evaluated):,} replayed, {found.refused.total():,} refused, {found.outrun:,} outrun"
    )


def why(found: SearchResult) -> str:
    """What the best gains over the scenario, and why each runner-up loses."""
    best = found.best[0]
    of_best = f" on {_gpus(best.setup.cluster)}" if found.several_clusters else ""
    lines = [
        f"The best is {words_of(best)}{of_best}: {best.tokens_per_s:,.0f} tokens/s, a step of {best.step_s:.3f} s."
    ]
    if found.own is None:
        lines.append(f"The scenario as it is cannot run: {found.own_reason}")
    elif found.own.candidate != best.candidate:
        fits = "" if found.own.memory.fits else f" and does not fit ({memory_of(found.own.memory)})"
        gpus = f" on {_gpus(found.own.setup.cluster)}" if found.several_clusters else ""
        lines.append(
            f"The scenario as it is ({words_of(found.own)}){gpus} takes {found.own.step_s:.3f} s{fits}: "
            f"the best trains {best.tokens_per_s / found.own.tokens_per_s:.2f} times as fast"
            f"{_with_what(found, best, found.own)}.{_from(best, found.own)}"
        )
    else:
        tried = "" if found.complete else f" (the search did not end; replayed: {len(found.evaluated):,})"
        lines.append(f"Nothing that was tried{tried} is better than the scenario as it is.")
    if found.on_paper:
        on_paper = found.on_paper[0]
        gain = on_paper.tokens_per_s / best.tokens_per_s
        lines.append(
            f"On paper {words_of(on_paper)} fits, too, at {gain:.3f} times the throughput of the best, but leaves "
            f"{on_paper.headroom_bytes / _GIB:.1f} GiB: less than --headroom asks for."
        )
    for place, runner_up in enumerate(found.best[1:], start=2):
        lines.append(f"{place} {_behind(found.objective, best, runner_up)}.{_from(best, runner_up)}")
    lines += _of_other_clusters(found)
    return "\n".join(lines)


def _of_other_clusters(found: SearchResult) -> list[str]:
    """The best candidate on every cluster that was asked for and has none among the best."""
    lines = []
    shown = {one.setup.cluster for one in found.best}
    for cluster in dict.fromkeys(found.asked):
        there = [one for one in found.evaluated if one.setup.cluster == cluster and not one.tight]
        if cluster in shown:
            continue
        if not there:
            lines.append(
                f"On {_gpus(cluster)} nothing was replayed: what is there cannot be among the best, or the search "
                "ended before. Ask for these GPUs alone."
            )
            continue
        one = max(there, key=lambda candidate: score_of(candidate, found.objective))
        lines.append(
            f"On {_gpus(cluster)} the best that was replayed ({words_of(one)}) takes {one.step_s:.3f} s and "
            f"{_behind(found.objective, found.best[0], one)}. Asked for alone, these GPUs may have a better one."
        )
    return lines


def _with_what(found: SearchResult, best: Evaluated, asked: Evaluated) -> str:
    """Why the best may be the slower one: by what was asked for, or since the scenario fills the memory."""
    known = asked.joule_per_token if found.objective == "energy" else asked.usd_per_token
    if found.objective in _DEAR and known is not None:
        ahead = score_of(best, found.objective) / score_of(asked, found.objective)
        return f" and takes {1.0 / ahead:.3g} times as {_DEAR[found.objective]} a token"
    return ", with the headroom that the scenario lacks" if asked.tight else ""


_DEAR = {"usd_per_token": "much money", "energy": "much energy"}


def _behind(objective: Objective, best: Evaluated, runner_up: Evaluated) -> str:
    """By how much a runner-up is worse in what was asked for."""
    share = score_of(runner_up, objective) / score_of(best, objective)
    if objective in _DEAR:
        return f"takes {1.0 / share - 1.0:.1%} more {_DEAR[objective].removeprefix('much ')} a token"
    return f"loses {1.0 - share:.1%}"


def _from(best: Evaluated, runner_up: Evaluated) -> str:
    if best.setup.cluster != runner_up.setup.cluster:
        return ""
    words = saved_words(best.accounts, runner_up.accounts)[1]
    return f" The best has {words}." if words else ""


def _headroom(share: float) -> str:
    """What is left free, and why."""
    margin = shipped_margin()
    why = ""
    if share == margin.headroom:
        why = f", which {margin.quantile:.0%} of {margin.records} measured peaks did not exceed"
    return f"Memory suffices for {share:.1%} more than is predicted{why} (--headroom)."


def _aside(found: SearchResult) -> str:
    if not found.set_aside:
        return ""
    return f", and {found.set_aside:,} only at first sight, where most were slower"


def refused_elsewhere(scenario: Scenario) -> tuple[str, ...]:
    """Why training programs would not start a mesh: how many micro-batches its batch makes."""
    if scenario.strategy.name != "static":
        return ()
    plan, _, _ = plan_batch(scenario.setup(), scenario.batches(1)[0])
    return tuple(note for note in plan.notes if REFUSED_BY_OTHERS in note)


def remarks(scenario: Scenario, found: SearchResult) -> tuple[str, ...]:
    """What a reader of the figures must know."""
    lines = [f"The best: {note}" for note in refused_elsewhere(planned(scenario, found.best[0]))]
    lines += [f"Left out: {reason}" for reason in found.left_out]
    if not found.complete:
        lines.append(
            f"Not all candidates were looked at{_aside(found)}: the best of those that were. The search ended after "
            f"{found.budget.words}. A larger --budget or keys that stay (--set) complete it."
        )
    schedules = sorted({one.setup.layout.pipeline.schedule for one in found.evaluated})
    if set(schedules) <= set(USUAL_SCHEDULES):
        lines.append(
            "Schedules beyond 1f1b and interleaved are tried with --search "
            "layout.schedule=1f1b,interleaved,zb-h1,zb-h2,zb-v,dualpipe."
        )
    lines.append(_headroom(found.headroom))
    if scenario.execution.may_hurry:
        lines.append(
            "Jitter (execution.jitter, node_jitter, step_jitter) has no lower bound: nothing was pruned by one."
        )
    clusters = (found.best[0].setup.cluster, *found.asked)
    lines += dict.fromkeys(mean_price(cluster, scenario.costs).note for cluster in clusters)
    lines.append(f"How far off predictions of such runs were: {band_of(scenario, found.best[0]).note}")
    return tuple(lines)
