"""A replayed data set as text, JSON, plot and run directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.experiments.output.amounts import large_amount
from hdpsim.experiments.output.document import Document, OutputFile, files_of
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.output.plots.style import (
    GRID,
    INK,
    PALETTE,
    count_axis,
    figure_and_axes,
)
from hdpsim.experiments.output.statistics import Estimate, fixed, with_interval
from hdpsim.experiments.studies.money import Costs, Target, mean_price
from hdpsim.experiments.studies.step_report import band_line, mean_step_table, mfu_note, scenario_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hdpsim.experiments.datasets.replay import DatasetReplay


MOST_DOTS = 2000

_SERIES = (
    "tokens", "sequences", "step_s", "waited_s", "tokens_per_s", "mfu", "mean_tokens_per_s", "mean_ci95",
)  # fmt: skip


def replay_document(replay: DatasetReplay) -> Document:
    """Everything about a replay, also of one that was interrupted."""
    scenario = replay.scenario
    lines, errors = replay_lines(replay), () if replay.error is None else (str(replay.error),)
    accounts = (mean_step_table(replay.account_s, sum(replay.account_s.values())),) if replay.steps else ()
    document = scenario_document(
        "replay",
        scenario,
        replay_json(replay),
        blocks=(
            "\n".join(lines),
            *accounts,
        ),
        notes=_notes(replay) if replay.steps else (),
        files=_step_files(replay) if replay.steps else (),
        bands=(replay.band,),
    )
    return dataclasses.replace(document, readme=(*errors, *lines, *_notes(replay)), partial=replay.partial)


def _notes(replay: DatasetReplay) -> tuple[str, ...]:
    return (*band_line(replay.band), mfu_note(replay.scenario), training_of(replay).costs.price.note)


def training_of(replay: DatasetReplay) -> Target:
    """What the replayed tokens take and cost: as long as it says, so without an interval."""
    cluster, throughput = replay.scenario.cluster, replay.throughput
    price = mean_price(cluster, replay.scenario.costs)
    costs = Costs(price=price, power=None, gpus=cluster.gpus, tokens_per_s=throughput.tokens_per_s)
    return costs.target(throughput.tokens, fixed(throughput.seconds), replay.band)


def replay_json(replay: DatasetReplay) -> dict[str, Any]:
    """A replayed data set as JSON data, with its steps as columns."""
    throughput = replay.throughput
    empty = not replay.steps
    return {
        **attributes(replay, "source partial stopped"),
        "error": None if replay.error is None else str(replay.error),
        "steps": len(replay.steps),
        "tokens": throughput.tokens,
        "simulated_s": throughput.seconds,
        "tokens_per_s": {
            "mean": None if empty else throughput.tokens_per_s,
            "ci95_half_width": throughput.half_width(),
        },
        "step_s": None if empty else throughput.seconds / len(replay.steps),
        "mfu": None if empty else _weighted(replay, "mfu"),
        "mfu_full": None if empty else _weighted(replay, "mfu_full"),
        "fidelity": replay.band and replay.band.document(throughput.seconds / len(replay.steps)),
        "training": None if empty else training_of(replay).document(),
        **attributes(replay, "account_s startup_s"),
        "waited_s": None if empty else sum(step.waited_s for step in replay.steps) / len(replay.steps),
        **attributes(replay, "left_out_tokens waiting_tokens dropped_tokens truncated_tokens"),
        "longer_than_context": replay.long.document(),
        "per_step": {name: [getattr(step, name) for step in replay.steps] for name in _SERIES},
    }


def _weighted(replay: DatasetReplay, name: str) -> float:
    """Utilisation of the whole time: the mean weighted with the steps' seconds."""
    seconds = np.array([step.step_s for step in replay.steps])
    return float(np.average([getattr(step, name) for step in replay.steps], weights=seconds))


def replay_lines(replay: DatasetReplay) -> list[str]:
    """What came out, in sentences."""
    throughput, count = replay.throughput, len(replay.steps)
    ending = meanings("ends_of_replays")[replay.stopped]
    if not count:
        return [f"No step was finished ({ending})."]
    rates = [step.tokens_per_s for step in replay.steps]
    mean = Estimate(
        mean=throughput.tokens_per_s,
        half_width=throughput.half_width(),
        lowest=min(rates),
        highest=max(rates),
        count=count,
    )
    interval = "95 % confidence" if mean.half_width is not None else "range of the steps in brackets"
    lines = [
        f"{count:,} steps, {large_amount(throughput.tokens)} tokens, {replay.scenario.strategy.name} ({ending}).",
        f"{with_interval(mean)} tokens/s (tokens over time of all steps; {interval}), "
        f"{throughput.seconds / count:.3f} s a step, MFU {_weighted(replay, 'mfu'):.1%}.",
        f"Training on these tokens, without interruptions: {training_of(replay).words}.",
    ]
    steps = np.array([step.step_s for step in replay.steps])
    low, middle, high = np.percentile(steps, (5, 50, 95))
    lines.append(f"Step times: 5 % below {low:.3f} s, half below {middle:.3f} s, 5 % above {high:.3f} s.")
    waited_s = sum(step.waited_s for step in replay.steps)
    if waited_s > 5e-4 * throughput.seconds:
        waiting = sum(step.waited_s > 0 for step in replay.steps)
        lines.append(
            f"{waiting:,} steps wait for data, plan, checkpoint or host memory: {waited_s / throughput.seconds:.1%} of "
            "the time."
        )
    if replay.long.line:
        lines.append(replay.long.line)
    for tokens, what in (
        (replay.left_out_tokens, "of a last batch that did not fill up are left out"),
        (replay.waiting_tokens, "of long documents still wait when it ends (strategy.outlier_queues)"),
        (replay.dropped_tokens, "of sequences longer than the context were dropped (data.policy)"),
        (replay.truncated_tokens, "beyond the context were cut off (data.policy)"),
    ):
        if tokens:
            lines.append(f"{tokens:,} tokens {what}.")
    if replay.stopped == "confidence":
        lines.append(
            "The interval speaks for the rest of the data only if it is like the part that was played: "
            "the order is that of the file."
        )
    return lines


def plot_replay(replay: DatasetReplay) -> Figure:
    """Throughput of every step with the running mean and its interval, and how often steps take how long."""
    from matplotlib.ticker import MaxNLocator

    number = np.array([step.step for step in replay.steps])
    tokens_per_s = np.array([step.tokens_per_s for step in replay.steps])
    mean = np.array([step.mean_tokens_per_s for step in replay.steps])
    half = np.array([np.nan if step.mean_ci95 is None else step.mean_ci95 for step in replay.steps])
    kept = np.unique(np.linspace(0, len(number) - 1, min(MOST_DOTS, len(number))).round().astype(int))
    with figure_and_axes(10.5, 4.2, 1, 2) as (figure, (left, right)):
        size = 3 if len(kept) > 100 else 6
        left.plot(number[kept], tokens_per_s[kept], ".", color=PALETTE[5], markersize=size, label="step")
        left.fill_between(
            number, np.maximum(mean - half, 0.0), mean + half, color=PALETTE[0], alpha=0.22, linewidth=0,
            label="95 % confidence of the mean",
        )  # fmt: skip
        left.plot(number, mean, color=PALETTE[0], linewidth=1.6, label="mean of all steps so far")
        low, high = float(tokens_per_s.min()), float(tokens_per_s.max())
        edge = 0.08 * (high - low) or 0.05 * high
        # room for the legend; the axis need not begin at 0
        left.set(
            xlabel="step", ylabel="throughput (tokens/s)", ylim=(max(low - 3.0 * edge, 0.0), high + edge)
        )
        left.set_title("Throughput" + (" (partial)" if replay.partial else ""))
        left.grid(axis="y", color=GRID, linewidth=0.7)
        count_axis(left.yaxis)
        left.legend(loc="lower right")
        edge = max(0.5, 0.03 * len(number))
        left.set_xlim(number[0] - edge, number[-1] + edge)
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        seconds = np.array([step.step_s for step in replay.steps])
        right.hist(seconds, bins=min(40, max(5, len(seconds) // 4)), color=PALETTE[0])
        right.axvline(float(seconds.mean()), color=INK, linewidth=1.2, linestyle=(0, (3, 3)))
        right.annotate("mean", (float(seconds.mean()), 1.0), (4, -10), xycoords=("data", "axes fraction"),
                       textcoords="offset points", fontsize=9)  # fmt: skip
        right.set(xlabel="time of a step (s)", ylabel="steps")
        right.yaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_title("Step times")
    return figure


def _step_files(replay: DatasetReplay) -> tuple[OutputFile, ...]:
    rows = [dataclasses.asdict(step) for step in replay.steps]
    total_s = sum(replay.account_s.values())
    accounts = [
        {"account": name, "seconds": seconds, "share": seconds / total_s}
        for name, seconds in replay.account_s.items()
    ]
    contents: dict[str, Callable[[], object]] = {
        "steps.csv": lambda: rows,
        "steps.parquet": lambda: rows,
        "accounts.csv": lambda: accounts,
        "throughput": lambda: plot_replay(replay),
    }
    return files_of("replay", contents)
