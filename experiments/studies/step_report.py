"""Results as JSON documents and as tables and sentences for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.cost_models.reading.units import TERA, format_quantity
from hdpsim.experiments.bands.band import widest_band
from hdpsim.experiments.bands.memory_fit import fits_probability, fits_words
from hdpsim.experiments.output.amounts import memory_of
from hdpsim.experiments.output.document import Column, Document, OutputFile, Table, facts
from hdpsim.experiments.output.json_data import attributes, plain
from hdpsim.experiments.output.plots.style import ACCOUNT_GROUPS, account_group, format_tokens, readable_name
from hdpsim.experiments.output.statistics import FEWEST, estimate_json, with_interval
from hdpsim.experiments.studies.links.cost_of_sharing import network_json
from hdpsim.experiments.studies.money import costs_of
from hdpsim.quoting import counted
from hdpsim.simulator.settings import CHANGES_NOTHING

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.prices import CostOptions
    from hdpsim.cost_models.memory.report import MemoryReport
    from hdpsim.experiments.bands.band import Band
    from hdpsim.experiments.output.statistics import Estimate
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.experiments.studies.comparing.compare import Comparison, Outcome
    from hdpsim.experiments.studies.money import Target


WORTH_A_ROW = 5e-4
"""Share of a step from which an account has a row of its own."""

_AccountRow = tuple[str, list[float]]
"""An account and its seconds of a step, strategy by strategy."""

GROUP_WORDS = {name: name for name in ACCOUNT_GROUPS} | {"communication": "exposed communication"}
"""Kinds of accounts in words."""

_MEASURED = frozenset({"planning_wall_s", "execution_wall_s"})
"""Fields that differ from run to run; documents of equal scenarios are equal byte for byte without them."""

_LARGE = frozenset({"spans", "plan", "account_s", "accounts"})
"""Fields that are summarised (account means) or exported on their own (timeline)."""


def scenario_document(
    kind: str,
    scenario: Scenario,
    results: object,
    *,
    blocks: tuple[Table[Any] | str, ...],
    notes: tuple[str, ...],
    more: Mapping[str, object] | None = None,
    files: Sequence[OutputFile] = (),
    scenario_of_run: Scenario | None = None,
    bands: Iterable[Band | None] = (),
) -> Document:
    """The document of a verb with a scenario: its JSON has the scenario with all defaults, seeds and *results*.

    Args:
        kind: the verb.
        scenario: what was asked about.
        results: what came out.
        blocks: tables and paragraphs.
        notes: what a reader of them must know.
        more: what else JSON says.
        files: of the run directory, besides the scenario.
        scenario_of_run: the scenario for the run directory, where a verb changed it.
        bands: of what was predicted.
    """
    text = (scenario_of_run or scenario).to_yaml
    return Document(
        kind=kind,
        head=headline(scenario),
        blocks=blocks,
        notes=notes,
        band=widest_band(bands),
        payload={
            "scenario": scenario.document,
            "seed": {"data": scenario.data.seed, "execution": scenario.execution.seed},
            "calibration": scenario.calibration.name,
            **(more or {}),
            "results": results,
        },
        files=(
            OutputFile("scenario.yaml", text, "The scenario with all defaults; runs as it is."),
            *files,
        ),
    )


def outcome_json(
    outcome: Outcome,
    costs: CostOptions,
    base: Outcome | None = None,
    best_static: Outcome | None = None,
    target: Target | None = None,
    *,
    hidden: bool = True,
) -> dict[str, Any]:
    """One strategy: means with confidence intervals, the account means, and every batch.

    Without *hidden* nobody looks for settings whose effect is hidden, which takes time.
    """
    if not outcome.results:
        return {"strategy": outcome.strategy, "feasible": False, "reason": outcome.reason}
    tokens_per_s = outcome.tokens_per_s
    first = outcome.results[0]
    document: dict[str, Any] = {
        "strategy": outcome.strategy,
        "feasible": True,
        "step_s": estimate_json(outcome.step_s),
        "tokens_per_s": estimate_json(tokens_per_s),
        "tokens_per_s_per_gpu": tokens_per_s.mean / first.gpus,
        **attributes(outcome, "mfu mfu_full"),
        "tflops_per_gpu": flop_rates(outcome),
        "over_lower_bound": outcome.over_bound,
        "over_plan_ideal": outcome.over_plan_ideal,
        "account_s": outcome.account_s(),
        "share_of_step": outcome.shares(),
        "memory": memory_json(first.memory),
        "costs": costs_of(outcome, costs).document(),
        "static_mesh": outcome.mesh,
        "work_left_out": outcome.work_left_out,
        "fidelity": outcome.band and outcome.band.document(outcome.step_s.mean, tokens_per_s.mean),
        "notes": notes_of(outcome, hidden=hidden),
        "batches": [
            {
                field.name: getattr(result, field.name)
                for field in dataclasses.fields(result)
                if field.name not in _MEASURED | _LARGE | {"memory", "network", "notes", "strategy"}
            }
            | {"lower_bound_s": bound_s}
            for result, bound_s in zip(outcome.results, outcome.lower_bounds_s, strict=True)
        ],
    }
    if (network := network_json(outcome)) is not None:
        document["network"] = network
    if base is not None and base.results:
        document["speed_up"] = estimate_json(outcome.speed_up(base))
    if best_static is not None:
        document["speed_up_vs_best_static"] = estimate_json(outcome.speed_up(best_static))
    if target is not None:
        document["target"] = target.document()
    return document


def memory_json(report: MemoryReport) -> dict[str, Any]:
    """Every part of the fullest stage's memory, their total, and how sure it is that it fits."""
    document: dict[str, Any] = plain(report)
    return {
        **document,
        **attributes(report, "total_bytes device_bytes parts"),
        "fits_probability": fits_probability(report),
    }


def flop_rates(outcome: Outcome) -> dict[str, float]:
    """TFLOP/s per GPU in every convention that papers use, of a run of all batches; named as `validate` names them."""
    conventions = {
        "model, causal attention": "model_flop",
        "model, full attention": "model_flop_full",
        "hardware, full attention": "hardware_flop_full",
    }
    return {
        words: sum(getattr(step, flop) for step in outcome.results)
        / sum(step.step_s * step.gpus for step in outcome.results)
        / TERA
        for words, flop in conventions.items()
    }


def notes_of(outcome: Outcome, *, hidden: bool = True) -> tuple[str, ...]:
    """The notes of all batches, each once; what changes nothing does so in all of them."""
    of_batches = [result.notes for result in outcome.results]
    notes = dict.fromkeys(note for batch_notes in of_batches for note in batch_notes)
    everywhere = (
        note
        for note in notes
        if CHANGES_NOTHING not in note or all(note in batch_notes for batch_notes in of_batches)
    )
    return (*everywhere, *(outcome.hidden_notes if hidden else ()))


def headline(scenario: Scenario) -> str:
    """One line: what is trained, where, on what; a trace by the name of its file, wherever it lies."""
    cluster, data = scenario.cluster, scenario.data
    source = data.source_name if data.trace is None else Path(data.trace).name
    parallel, vpp = scenario.layout.parallel, scenario.layout.pipeline.vpp
    degrees = f"TP {parallel.tp}, PP {parallel.pp}" + (f" x {vpp}" if vpp > 1 else "")
    degrees += f", EP {parallel.ep}" if parallel.ep > 1 else ""
    size = (
        format_tokens(data.batch.tokens) + " tokens"
        if data.batch.tokens
        else f"{data.batch.sequences:,} sequences"
    )
    return (
        f"{scenario.name}: {scenario.model.name} on {cluster.gpu_words} ({degrees}); "
        f"{source}, batches of {size}, context {format_tokens(data.context_tokens)}"
    )


def mfu_note(*scenarios: Scenario) -> str:
    """Which peak and which FLOP convention the MFU column means, whose rows are of these scenarios."""
    gpus = [kind.gpu for scenario in scenarios for kind in scenario.cluster.kinds]
    peaks = dict.fromkeys((format_quantity(gpu.bf16_flop_per_s, "flop_rate"), gpu.name) for gpu in gpus)
    if len(peaks) == 1:
        ((peak, name),) = peaks
        of = f"{peak}, the dense bf16 peak of {name}"
    else:
        whose = "GPU" if any(len(scenario.cluster.kinds) > 1 for scenario in scenarios) else "row's GPU"
        of = f"the dense bf16 peak of each {whose} ({', '.join(f'{name}: {peak}' for peak, name in peaks)})"
    return f"MFU: of {of}; model FLOP with causal attention inside each sequence, no recompute."


def ratio_words(ratio: Estimate | None, digits: int, *, of_base: bool) -> str | None:
    """A speed-up for a table; the base's own is 1, without an interval."""
    if ratio is None:
        return None
    return "1" if of_base else with_interval(ratio, digits=digits)


def averaging(batches: int, independent: bool = True) -> str:
    """What stands behind means and the ± of a table."""
    if batches == 1:
        return "one batch"
    if not independent:
        return f"means over {batches} batches, ranges in brackets (repeated data: no interval)"
    if batches < FEWEST:
        return f"means over {batches} batches, ranges in brackets (too few for an interval)"
    return f"means over {batches} batches, ± = 95 % confidence (sampling of batches only)"


def by_line(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Every line once, with the names of those of whom it is said."""
    names_by_line: dict[str, list[str]] = {}
    for line, name in said:
        names_by_line.setdefault(line, []).append(name)
    return names_by_line


def band_lines(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """How well runs like these were predicted: a matter of its own, not of the interval over batches."""
    said = [(outcome.band.note, outcome.strategy) for outcome in outcomes if outcome.band is not None]
    if not said:
        return ()
    lines = [f"  {', '.join(dict.fromkeys(names))}: {note}" for note, names in by_line(said).items()]
    return (
        "How far off predictions of such runs were (± above is sampling alone and does not contain it):",
        *lines,
    )


def band_line(band: Band | None) -> tuple[str, ...]:
    """Return the line of the band where there is one prediction, and nothing where nothing was predicted."""
    return () if band is None else (f"How far off predictions of such runs were: {band.note}.",)


def noise_note(scenario: Scenario) -> str:
    """Which disturbances of large clusters the figures do not have; empty when they have all."""
    options = scenario.execution
    off = [
        words
        for words, share in (
            ("jitter (execution.jitter)", options.jitter),
            ("slow nodes (execution.slow_node_share)", options.slow_node_share),
        )
        if share == 0.0
    ]
    if not off:
        return ""
    are = "are" if len(off) > 1 or off[0].startswith("slow") else "is"
    return f"{' and '.join(off).capitalize()} {are} off: on a real cluster they cost more the more GPUs there are."


def split_words(shares: Mapping[str, float]) -> str:
    """What the GPUs do: `55 % compute, 25 % exposed communication, ...`."""
    return ", ".join(f"{share:.0%} {GROUP_WORDS[name]}" for name, share in shares.items() if share >= 0.005)


def account_table(outcomes: Iterable[Outcome]) -> Table[_AccountRow]:
    """Seconds and share of the step per account, largest first, then per kind; those below 0.05 % are summed."""
    strategies = tuple(outcomes)
    seconds = [outcome.account_s() for outcome in strategies]
    totals = [sum(row.values()) for row in seconds]
    names = list(dict.fromkeys(name for row in seconds for name in row))
    share = {
        name: max(row.get(name, 0.0) / total for row, total in zip(seconds, totals, strict=True))
        for name in names
    }
    large = sorted((name for name in names if share[name] >= WORTH_A_ROW), key=lambda name: -share[name])
    small = [name for name in names if share[name] < WORTH_A_ROW]
    rows = [(readable_name(name), [row.get(name, 0.0) for row in seconds]) for name in large]
    if any(row.get(name, 0.0) > 0 for row in seconds for name in small):
        rows.append(("all others", [sum(row.get(name, 0.0) for name in small) for row in seconds]))
    for group in ACCOUNT_GROUPS:
        parts = [sum(s for name, s in row.items() if account_group(name) == group) for row in seconds]
        rows.append((f"= {GROUP_WORDS[group]}", parts))
    rows.append(("step", totals))
    columns: list[Column[_AccountRow]] = [Column("account", itemgetter(0))]
    for place, outcome in enumerate(strategies):
        columns += _seconds_and_share(outcome.strategy, place, totals[place])
    return Table(title="Where the time goes (mean over ranks and stages)", columns=tuple(columns), rows=rows)


def mean_step_table(account_s: Mapping[str, float], step_s: float) -> Table[tuple[str, float]]:
    """Where the time of a mean step goes, the most first; accounts of less than WORTH_A_ROW of it are summed."""
    accounts = sorted(account_s.items(), key=lambda item: -abs(item[1]))
    rows = [(readable_name(name), spent) for name, spent in accounts if abs(spent) >= WORTH_A_ROW * step_s]
    rest_s = sum(account_s.values()) - sum(spent for _, spent in rows)
    if abs(rest_s) > 1e-9 * step_s:
        rows.append(("all others", rest_s))
    columns: tuple[Column[tuple[str, float]], ...] = (
        Column("account", itemgetter(0)),
        Column("seconds", itemgetter(1), heading="s", format=".3f"),
        Column("share", lambda row: row[1] / step_s, format=".1%"),
    )
    return Table(title="Where the time goes (mean step)", columns=columns, rows=rows)


def account_rows(account_s: Mapping[str, float], step_s: float, **of: object) -> Iterator[dict[str, object]]:
    """A row of a file for every account, behind what the rows are *of*."""
    for name, seconds in account_s.items():
        group, share = account_group(name), seconds / step_s
        yield {**of, "account": name, "group": group, "seconds": seconds, "share": share}


def _seconds_and_share(strategy: str, place: int, total_s: float) -> list[Column[_AccountRow]]:
    return [
        Column(f"{strategy}_s", lambda row: row[1][place], heading=strategy, unit="s", format=".3f"),
        Column(f"{strategy}_share", lambda row: row[1][place] / total_s, heading="share", format=".1%"),
    ]


def step_table(comparison: Comparison, target: Target | None = None) -> Table[tuple[str, str]]:
    """The figures of one strategy, one below the other."""
    scenario, outcome = comparison.scenario, comparison.base
    first, tokens_per_s = outcome.results[0], outcome.tokens_per_s
    memory, largest = first.memory, counted(first.largest_group, "rank")
    bound_s = np.mean(outcome.lower_bounds_s)
    rows = [
        ("step", f"{with_interval(outcome.step_s, digits=3)} s"),
        ("throughput", f"{with_interval(tokens_per_s)} tokens/s"),
        ("per GPU", f"{tokens_per_s.mean / scenario.cluster.gpus:,.1f} tokens/s"),
        ("MFU", f"{outcome.mfu:.1%} ({outcome.mfu_full:.1%} if attention counts as a full square)"),
        *(
            ("FLOP rate" if not place else "", f"{rate:,.1f} TFLOP/s per GPU ({words})")
            for place, (words, rate) in enumerate(flop_rates(outcome).items())
        ),
        ("the step is", split_words(outcome.shares())),
        ("memory", f"{memory_of(memory)} ({fits_words(memory)}): {memory.largest_parts()}"),
        ("tokens per step", f"{np.mean([result.tokens for result in outcome.results]):,.0f}"),
        ("micro-batches", f"{first.plan_micro_batches:,}, largest group {largest}"),
        ("over bound", f"{outcome.over_bound:+.1%}: no plan takes less than {bound_s:.3f} s"),
    ]
    if outcome.mesh is not None:
        rows.append(("static mesh", outcome.mesh.words))
    costs = costs_of(outcome, scenario.costs)
    rows.append(("tokens cost", costs.words))
    if costs.power is not None:
        rows.append(("power", costs.power.words))
    if target is not None:
        rows.append(("target", f"{target.words}, without failures (see `hdpsim campaign`)"))
    return facts(f"{outcome.strategy}, {averaging(comparison.batches, outcome.independent)}", rows)


def one_line(reason: str) -> str:
    """The reason of an InfeasibleError for a table: its lines side by side, without the heading."""
    lines = [line.strip() for line in reason.splitlines()]
    return "; ".join(lines[1:] if len(lines) > 1 and lines[0].endswith(":") else lines)
