"""Many steps on one clock as tables and sentences for people, as JSON and as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reading.units import format_quantity
from hdpsim.experiments.output.amounts import duration
from hdpsim.experiments.output.document import Column, Document, OutputFile, Table, facts, files_of
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.plots.time import plot_steps, plot_time_breakdown
from hdpsim.experiments.output.statistics import estimate_json, with_interval
from hdpsim.experiments.studies.links.over_steps import IN_DATA
from hdpsim.experiments.studies.step_report import (
    WORTH_A_ROW,
    account_rows,
    band_line,
    mean_step_table,
    mfu_note,
    noise_note,
    scenario_document,
)

from .run import REASONS, ManySteps, loading_s

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hdpsim.simulator.many_steps.clock import RunStep

SHOWN_STEPS = 12
"""Of many steps people see the first ones; files and JSON have all."""


_REASON_WORDS = {
    "data": "data that was not loaded",
    "plan": "a plan that was not made",
    "checkpoint": "checkpoints",
    "host_memory": "room in host memory",
}


def many_steps_document(run: ManySteps) -> Document:
    """Everything about a run of many steps."""
    results, files = run_json(run), _files(run)
    blocks = (_summary(run), mean_step_table(run.account_s(), run.period_s.mean), _first_steps(run))
    notes = (*_notes(run), *band_line(run.band))
    return scenario_document(
        "run",
        run.scenario,
        results,
        more={"data": run.use.document()},
        blocks=blocks,
        notes=notes,
        bands=(run.band,),
        files=files,
    )


def _files(run: ManySteps) -> tuple[OutputFile, ...]:
    links = run.links
    contents: dict[str, Callable[[], object]] = {
        "steps.csv": lambda: steps_table(run),
        **({} if links is None else {"links.csv": lambda: list(links.rows())}),
        "accounts.csv": lambda: list(account_rows(run.account_s(), run.period_s.mean, strategy=run.strategy)),
        "steps": lambda: _figure(run),
        "time_breakdown": lambda: plot_time_breakdown({run.strategy: run.account_s()}),
    }
    return files_of("run", contents)


def _figure(run: ManySteps) -> Figure:
    return plot_steps(
        [row.step_s for row in run.steps],
        {reason: [getattr(row, f"wait_{reason}_s") for row in run.steps] for reason in REASONS},
        warm_up=run.warm_up,
        period_s=run.period_s.mean,
        title=run.strategy,
    )


def run_json(run: ManySteps) -> dict[str, Any]:
    """A run of many steps as JSON data."""
    return {
        "strategy": run.strategy,
        "steps": len(run.steps),
        "warm_up_steps": run.warm_up,
        "settled": run.has_settled,
        "end_s": run.end_s,
        "period_s": estimate_json(run.period_s),
        "tokens_per_s": estimate_json(run.tokens_per_s),
        **attributes(run, "mfu mfu_full alone_s"),
        "band": None if run.band is None else run.band.document(run.period_s.mean, run.tokens_per_s.mean),
        "wait_s": {reason: run.wait_s(reason) for reason in REASONS},
        "account_s": run.account_s(),
        "planner_busy_share": run.planner_busy_s / run.end_s,
        "loaders_busy_share": run.loaders_busy_s / run.end_s,
        "storage_bytes": run.moved_bytes,
        "host_memory_bytes": run.host_bytes,
        **({} if run.links is None else {"hottest_links": run.links.hottest_links(IN_DATA)}),
        "per_step": steps_table(run).records(),
    }


def steps_table(run: ManySteps) -> Table[RunStep]:
    """One row per step."""
    storage_bytes_per_s = run.scenario.run.storage_bytes_per_s
    columns: tuple[Column[RunStep], ...] = (
        Column("step", lambda row: row.number),
        Column("start_s", heading="begins", unit="s", format=",.3f"),
        Column("end_s", heading="ends", unit="s", format=",.3f"),
        Column("period_s", heading="period", unit="s", format=".3f"),
        Column("step_s", heading="step itself", unit="s", format=".3f"),
        *(_seconds_if_any(f"wait_{reason}_s", f"waits for {reason.replace('_', ' ')}") for reason in REASONS),
        _seconds_if_any("sharing_s", "transfers that met", lambda row: row.step.sharing_s, sign="+"),
        _seconds_if_any("flaps_s", "link flaps", lambda row: row.step.flaps_s, sign="+"),
        _seconds_if_any("contention_s", "storage on its links", sign="+"),
        _seconds_if_any("carry_over_s", "carried over", sign="+"),
        *_hottest_columns(run),
        Column("ready_batches", heading="ready"),
        Column("tokens", lambda row: row.step.tokens, format=","),
        Column("sequences", lambda row: row.step.sequences, shown=False),
        Column("tokens_per_s", lambda row: row.step.tokens / row.period_s, heading="tokens/s", format=",.0f"),
        Column("micro_batches", lambda row: row.step.micro_batches, shown=False),
        Column("largest_group", lambda row: row.step.largest_group, shown=False),
        Column("loading_s", lambda row: loading_s(row.step, storage_bytes_per_s), shown=False),
        Column("planning_s", lambda row: row.step.path.planning_s, shown=False),
        Column("host_memory_bytes", lambda row: row.step.host_bytes, shown=False),
        Column("warm_up", lambda row: row.number <= run.warm_up, shown=False),
    )
    return Table(title="Steps", columns=columns, rows=run.steps)


def _seconds_if_any(
    key: str, heading: str, take: Callable[[RunStep], float] | None = None, *, sign: str = ""
) -> Column[RunStep]:
    """Seconds that most steps lack; with a sign, less than half a millisecond is none."""

    def words(seconds: float) -> str:
        return f"{seconds:{sign}.3f}" if (abs(seconds) >= 5e-4 if sign else seconds) else ""

    return Column(key, take, heading=heading, unit="s", format=words, optional=True)


def _hottest_columns(run: ManySteps) -> Iterator[Column[RunStep]]:
    if run.links is not None:
        hottest = run.links.hottest
        yield Column("hottest_link", lambda row: hottest[row.number][0], shown=False)
        yield Column("hottest_load", lambda row: hottest[row.number][1], shown=False)


def _first_steps(run: ManySteps) -> Table[RunStep]:
    table = steps_table(run)
    more = len(run.steps) - SHOWN_STEPS
    notes = (f"and {more:,} more: --out DIR writes all as steps.csv, --json prints them",)
    return replace(table, rows=run.steps[:SHOWN_STEPS], notes=notes if more > 0 else ())


def _summary(run: ManySteps) -> Table[tuple[str, str]]:
    count = len(run.settled)
    what = f"the last {count:,} of {len(run.steps):,} steps" if run.has_settled else f"all {count:,} steps"
    pairs = [
        ("period", f"{with_interval(run.period_s, digits=3)} s from the end of a step to the next"),
        ("throughput", f"{with_interval(run.tokens_per_s)} tokens/s"),
        ("MFU", f"{run.mfu:.1%} ({run.mfu_full:.1%} if attention counts as a full square)"),
        ("single steps", _against_single_steps(run)),
    ]
    for reason in REASONS:
        wait_s = run.wait_s(reason)
        if wait_s > WORTH_A_ROW * run.period_s.mean:
            waited = sum(getattr(row, f"wait_{reason}_s") > 0 for row in run.settled)
            words = f"{wait_s:.3f} s a step ({wait_s / run.period_s.mean:.1%}) for {_REASON_WORDS[reason]}"
            pairs.append(
                (f"waits, {reason.replace('_', ' ')}", f"{words}; {waited:,} of {count:,} steps wait")
            )
    if run.links is not None:
        met_s, flaps_s = (
            sum(getattr(row.step, name) for row in run.settled) / count for name in ("sharing_s", "flaps_s")
        )
        pairs += [
            ("links", f"transfers that met cost {met_s:.3f} s a step, links that went down {flaps_s:.3f} s"),
            (f"hottest of all {len(run.steps):,} steps", run.links.words()),
        ]
    first = run.steps[0]
    pairs += [
        ("first step", f"begins after {duration(first.start_s)}: its batch was nobody's before"),
        ("planner", f"busy {run.planner_busy_s / run.end_s:.1%} of the time"),
        ("loaders", f"busy {run.loaders_busy_s / run.end_s:.1%} of the time"),
        ("storage", _storage_words(run)),
        ("host memory", f"at most {format_quantity(run.host_bytes, 'bytes')} of a node"),
    ]
    return facts(f"{run.strategy}, {what}{' (steady state)' if run.has_settled else ''}", pairs)


def _against_single_steps(run: ManySteps) -> str:
    change = run.period_s.mean / run.alone_s - 1.0
    if abs(change) < 5e-7:
        return f"{run.alone_s:.3f} s: the same, nothing reaches from one step into another"
    return f"{run.alone_s:.3f} s, each as if all were like it; on one clock {change:+.2%}"


def _storage_words(run: ManySteps) -> str:
    rate = run.moved_bytes / run.end_s
    share = rate / run.scenario.run.storage_bytes_per_s
    return f"{format_quantity(rate, 'bandwidth')} on average, {share:.1%} of what it has"


def _notes(run: ManySteps) -> tuple[str, ...]:
    notes = [mfu_note(run.scenario)]
    if not run.has_settled:
        notes.append(
            f"No steady state: the first {run.warm_up} steps are warm-up (one, and the batches that are on their way "
            f"when it begins); give --steps {run.warm_up + 2} or more."
        )
    if noise := noise_note(run.scenario):
        notes.append(noise)
    return (*notes, *run.use.lines, *dict.fromkeys(run.steps[0].step.notes))
