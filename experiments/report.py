"""Results as JSON documents and as tables and sentences for people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.units import format_quantity
from experiments.finite import plain
from experiments.plot_style import format_tokens, readable_name
from experiments.run_directory import SCHEMA_VERSION
from experiments.tables import Table

if TYPE_CHECKING:
    from experiments.compare import Comparison, Estimate, Outcome
    from experiments.scenario import Scenario

__all__ = [
    "account_table",
    "comparison_table",
    "explanation",
    "flop_rates",
    "headline",
    "json_document",
    "mfu_note",
    "notes_of",
    "one_line",
    "outcome_json",
    "remarks",
    "step_table",
    "with_interval",
]

TERA = 1e12

_MEASURED = frozenset({"planning_wall_s", "execution_wall_s"})
"""Fields that differ from run to run; documents of equal scenarios are equal byte for byte without them."""

_LARGE = frozenset({"spans", "account_s", "accounts"})
"""Fields that are summarised (account means) or exported on their own (timeline)."""


_MEANING = {
    "ring_wait": "context-parallel communication that attention does not hide",
    "ring_merge": "putting together what the ring's steps computed",
    "offload_wait": "activations on their way to and from the host",
    "layer_gather": "sharded parameters gathered layer by layer, beyond the compute beside it",
    "layer_reduce": "gradients reduced layer by layer, beyond the compute beside it",
    "wait_pipeline": "pipeline bubbles",
    "wait_group": "the slower ranks of a group",
    "wait_stages": "the slower pipeline stages",
    "wait_gradients": "the slower ranks, before gradients are summed",
    "data": "planning and loading the batch",
}
"""What an account means, where its name does not say it."""


def json_document(kind: str, scenario: Scenario, results: object, **more: object) -> dict[str, Any]:
    """The envelope every verb prints: version, scenario with all defaults, seed, results."""
    from hdpsim import __version__

    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "hdpsim_version": __version__,
        "scenario": scenario.document,
        "seed": {"data": scenario.data.seed, "execution": scenario.execution.seed},
        "calibration": scenario.calibration.name,
        **{key: plain(value) for key, value in more.items()},
        "results": plain(results, "results"),
    }


def outcome_json(outcome: Outcome, base: Outcome | None = None) -> dict[str, Any]:
    """One strategy: means with confidence intervals, the account means, and every batch."""
    if not outcome.results:
        return {"strategy": outcome.strategy, "feasible": False, "reason": outcome.reason}
    tokens_per_s = outcome.tokens_per_s
    first = outcome.results[0]
    document: dict[str, Any] = {
        "strategy": outcome.strategy,
        "feasible": True,
        "step_s": _estimate_json(outcome.step_s),
        "tokens_per_s": _estimate_json(tokens_per_s),
        "tokens_per_s_per_gpu": tokens_per_s.mean / first.gpus,
        "mfu": outcome.mfu,
        "mfu_full": outcome.mfu_full,
        "tflops_per_gpu": flop_rates(outcome),
        "over_lower_bound": outcome.over_bound,
        "over_plan_ideal": outcome.over_plan_ideal,
        "account_s": outcome.account_s(),
        "memory": first.memory,
        "fidelity": outcome.band and outcome.band.document(outcome.step_s.mean, tokens_per_s.mean),
        "notes": notes_of(outcome),
        "batches": [
            {
                field.name: getattr(result, field.name)
                for field in dataclasses.fields(result)
                if field.name not in _MEASURED | _LARGE | {"memory", "notes", "strategy"}
            }
            | {"lower_bound_s": bound_s}
            for result, bound_s in zip(outcome.results, outcome.lower_bounds_s, strict=True)
        ],
    }
    if base is not None and base.results:
        document["speed_up"] = _estimate_json(outcome.speed_up(base))
    return document


def flop_rates(outcome: Outcome) -> dict[str, float]:
    """TFLOP/s per GPU in every convention that papers use, mean over the batches; named as `validate` names them."""
    conventions = {
        "model, causal attention": "model_flop",
        "model, full attention": "model_flop_full",
        "hardware, full attention": "hardware_flop_full",
    }
    return {
        words: float(
            np.mean([getattr(step, flop) / step.step_s / step.gpus / TERA for step in outcome.results])
        )
        for words, flop in conventions.items()
    }


def _estimate_json(value: Estimate) -> dict[str, float | None]:
    return {"mean": value.mean, "ci95_half_width": value.half_width}


def notes_of(outcome: Outcome) -> tuple[str, ...]:
    """The notes of all batches, each once."""
    return tuple(dict.fromkeys(note for result in outcome.results for note in result.notes))


def with_interval(value: Estimate, scale: float = 1.0, digits: int = 0) -> str:
    """`1,234 ± 56`, or just the mean when there is no interval."""
    text = f"{value.mean * scale:,.{digits}f}"
    return text if value.half_width is None else f"{text} ± {value.half_width * scale:,.{digits}f}"


def headline(scenario: Scenario) -> str:
    """One line: what is trained, where, on what."""
    cluster, layout, data = scenario.cluster, scenario.layout, scenario.data
    degrees = f"TP {layout.tp}, PP {layout.pp}" + (f" x {layout.vpp}" if layout.vpp > 1 else "")
    degrees += f", EP {layout.ep}" if layout.ep > 1 else ""
    size = (
        format_tokens(data.batch.tokens) + " tokens"
        if data.batch.tokens
        else f"{data.batch.sequences:,} sequences"
    )
    return (
        f"{scenario.name}: {scenario.model.name} on {cluster.gpus:,} x {cluster.gpu.name} ({degrees}); "
        f"{data.source_name}, batches of {size}, context {format_tokens(data.context_tokens)}"
    )


def mfu_note(*scenarios: Scenario) -> str:
    """Which peak and which FLOP convention the MFU column means, whose rows are of these scenarios."""
    gpus = [scenario.cluster.gpu for scenario in scenarios]
    peaks = dict.fromkeys((format_quantity(gpu.bf16_flop_per_s, "flop_rate"), gpu.name) for gpu in gpus)
    if len(peaks) == 1:
        ((peak, name),) = peaks
        of = f"{peak}, the dense bf16 peak of {name}"
    else:
        of = f"the dense bf16 peak of each row's GPU ({', '.join(f'{name}: {peak}' for peak, name in peaks)})"
    return f"MFU: of {of}; model FLOP with causal attention inside each sequence, no recompute."


def account_table(outcomes: Iterable[Outcome], title: str = "Where the time goes") -> Table:
    """Seconds and share of the step per account, largest first; accounts below 0.05 % everywhere are summed."""
    columns = tuple(outcomes)
    seconds = [outcome.account_s() for outcome in columns]
    totals = [sum(row.values()) for row in seconds]
    names = list(dict.fromkeys(name for row in seconds for name in row))
    share = {
        name: max(row.get(name, 0.0) / total for row, total in zip(seconds, totals, strict=True))
        for name in names
    }
    large = sorted((name for name in names if share[name] >= 0.0005), key=lambda name: -share[name])
    small = [name for name in names if share[name] < 0.0005]
    rows = [
        (readable_name(name), *_seconds_cells([row.get(name, 0.0) for row in seconds], totals))
        for name in large
    ]
    if any(row.get(name, 0.0) > 0 for row in seconds for name in small):
        rest = [sum(row.get(name, 0.0) for name in small) for row in seconds]
        rows.append(("all others", *_seconds_cells(rest, totals)))
    rows.append(("step", *_seconds_cells(totals, totals)))
    heads = tuple(head for outcome in columns for head in (f"{outcome.strategy} s", "share"))
    return Table(title=f"{title} (mean over ranks and stages)", columns=("account", *heads), rows=tuple(rows))


def _seconds_cells(seconds: list[float], totals: list[float]) -> list[str]:
    return [
        cell for s, total in zip(seconds, totals, strict=True) for cell in (f"{s:.3f}", f"{s / total:.1%}")
    ]


def step_table(comparison: Comparison) -> Table:
    """The figures of one strategy, one below the other."""
    scenario, outcome = comparison.scenario, comparison.base
    first, tokens_per_s = outcome.results[0], outcome.tokens_per_s
    mean = "" if comparison.batches == 1 else f", mean of {comparison.batches} batches (± = 95 % confidence)"
    rows = (
        ("step", f"{with_interval(outcome.step_s, digits=3)} s"),
        ("throughput", f"{with_interval(tokens_per_s)} tokens/s"),
        ("per GPU", f"{tokens_per_s.mean / scenario.cluster.gpus:,.1f} tokens/s"),
        ("MFU", f"{outcome.mfu:.1%} ({outcome.mfu_full:.1%} if attention counts as a full square)"),
        (
            "FLOP rate",
            "; ".join(f"{rate:,.1f} ({words})" for words, rate in flop_rates(outcome).items())
            + " TFLOP/s per GPU",
        ),
        ("tokens per step", f"{np.mean([result.tokens for result in outcome.results]):,.0f}"),
        ("micro-batches", f"{first.plan_micro_batches:,}, largest group {first.largest_group:,} ranks"),
        (
            "over bound",
            f"{outcome.over_bound:+.1%}: no plan takes less than {np.mean(outcome.lower_bounds_s):.3f} s",
        ),
    )
    return Table(title=f"{outcome.strategy}{mean}", columns=("", ""), rows=rows, left=frozenset({0, 1}))


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """What a reader of the numbers must know: conventions, assumptions, who could not run."""
    failures = [
        f"{o.strategy} cannot run: {one_line(o.reason)}" for o in comparison.outcomes if not o.results
    ]
    by_note: dict[str, list[str]] = {}
    for outcome in comparison.feasible:
        for note in outcome.results[0].notes:
            by_note.setdefault(note, []).append(outcome.strategy)
    everybody = len(comparison.feasible)
    notes = [
        note if len(names) == everybody else f"{', '.join(names)}: {note}" for note, names in by_note.items()
    ]
    if comparison.batches > 1 and notes:
        notes.insert(0, "Of the first batch:")
    bands = [f"{o.strategy}: {o.band.note}" for o in comparison.feasible if o.band is not None]
    return (mfu_note(comparison.scenario), *comparison.scenario.notes, *bands, *notes, *failures)


def comparison_table(comparison: Comparison) -> Table:
    """One row per strategy; the ones that cannot run give their reason below the table."""
    scenario = comparison.scenario
    rows = []
    for outcome in comparison.outcomes:
        if not outcome.results:
            rows.append((outcome.strategy, *("-",) * 6, "cannot run"))
            continue
        tokens_per_s = outcome.tokens_per_s
        top = sorted(outcome.account_s().items(), key=lambda item: -item[1])[:3]
        step = outcome.step_s.mean
        rows.append(
            (
                outcome.strategy,
                with_interval(outcome.step_s, digits=3),
                with_interval(tokens_per_s),
                f"{tokens_per_s.mean / scenario.cluster.gpus:,.1f}",
                f"{outcome.mfu:.1%}",
                "1"
                if outcome is comparison.base
                else f"{with_interval(outcome.speed_up(comparison.base), digits=2)}",
                f"{outcome.over_bound:+.1%}",
                ", ".join(f"{readable_name(name)} {seconds / step:.0%}" for name, seconds in top),
            )
        )
    heads = (
        "strategy",
        "step s",
        "tokens/s",
        "tokens/s/GPU",
        "MFU",
        "speed-up",
        "over bound",
        "most time in",
    )
    batches = f"{comparison.batches} batch{'es' if comparison.batches != 1 else ''}"
    interval = ", ± = 95 % confidence" if comparison.batches > 1 else ""
    return Table(
        title=f"Means over {batches}{interval}", columns=heads, rows=tuple(rows), left=frozenset({0, 7})
    )


def explanation(comparison: Comparison) -> str:
    """Which strategy is fastest, by how much, and in which accounts the difference lies."""
    ranked = sorted(comparison.feasible, key=lambda outcome: -outcome.tokens_per_s.mean)
    if len(ranked) == 1:
        return f"Only {ranked[0].strategy} can run this scenario."
    fastest = ranked[0]
    other = comparison.base if comparison.base is not fastest else ranked[1]
    ratio = fastest.speed_up(other)
    if math.isclose(ratio.mean, 1.0, abs_tol=0.002):
        return f"{fastest.strategy} and {other.strategy} are equally fast (within 0.2 %)."
    mine, its = fastest.account_s(), other.account_s()
    saved_s = {name: its.get(name, 0.0) - mine.get(name, 0.0) for name in dict.fromkeys((*its, *mine))}
    total_s = sum(saved_s.values())
    gains = sorted((item for item in saved_s.items() if item[1] > 0.02 * total_s), key=lambda item: -item[1])[
        :3
    ]
    losses = sorted(
        (item for item in saved_s.items() if item[1] < -0.02 * total_s), key=lambda item: item[1]
    )[:2]
    first = f"{fastest.strategy} is {with_interval(ratio, digits=2)} times as fast as {other.strategy}: "
    first += f"a step takes {fastest.step_s.mean:.3f} s instead of {other.step_s.mean:.3f} s."
    if not gains:
        return first
    parts = [f"{seconds:.3f} s less in {_explained(name)}" for name, seconds in gains]
    text = f"{first} Where the {total_s:.3f} s come from: {_listed(parts)}"
    if losses:
        text += f"; against that, {_listed([f'{-s:.3f} s more in {_explained(n)}' for n, s in losses])}"
    return text + "."


def _explained(account: str) -> str:
    meaning = _MEANING.get(account)
    return readable_name(account) + (f" ({meaning})" if meaning else "")


def one_line(reason: str) -> str:
    """The reason of an InfeasibleError for a table: its lines side by side, without the heading."""
    lines = [line.strip() for line in reason.splitlines()]
    return "; ".join(lines[1:] if len(lines) > 1 and lines[0].endswith(":") else lines)


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
