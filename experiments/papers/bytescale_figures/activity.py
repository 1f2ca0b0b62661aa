"""Figure 19: how busy tensor cores and NICs are over time, in the setting of the case study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.kernels.attention import ATTENTION_BACKWARD_FLOP_RATIO
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.flop import attention_pairs, forward_flop
from hdpsim.experiments.output.document import files_of
from hdpsim.experiments.output.plots.style import GRID, colours_of, figure_and_axes
from hdpsim.experiments.papers.bytescale_steps import (
    FOLDER,
    OWN,
    SETUP,
    Machine,
    StepsJob,
    case_steps,
)
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.paper import Results
from hdpsim.experiments.papers.report import FigureRow, Part, rows_part
from hdpsim.simulator.plan_micro_batches import plan_micro_batches
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.play.accounts import make_spans
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.pipeline.schedules import BACKWARD, FORWARD
from hdpsim.simulator.play.replay import replay_timeline
from hdpsim.simulator.pricing import price_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTING, PAPER = SETUP["figure_19"], FOLDER.published["figure_19"]
BIN_S = float(SETTING["bin_s"])
BACKWARD_PRODUCTS = 2.0  # input and weight gradients for each product of the forward


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """Means over all GPUs in bins of BIN_S: share of time in which tensor cores work, and bytes/s to other nodes."""

    tensor: Floats
    sent_bytes_per_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityJob:
    """Steps of the case study one after the other, watched."""

    steps: StepsJob

    def run(self) -> Activity:
        """Play the batches and see what is done when.

        Counted: products and attention at the peak of the tensor cores, as a counter of active cycles sees it;
        transfers between nodes in forwards and backwards, evenly over each. Ignored: gradient sums.
        """
        setup = self.steps.setup()
        gpus = setup.cluster.gpus
        totals, begin_s = [], 0.0
        for lengths in self.steps.lengths():
            plan, problem, _ = plan_batch(setup, lengths)
            costs, batches = price_plan(setup, problem, plan), plan_micro_batches(problem.cost, plan)
            program = compile_program(plan, costs, None)
            timeline = replay_timeline(program, np.zeros(costs.stages))
            spans = make_spans(program, timeline)
            flop, sent = _flop(problem.cost, batches), _sent_bytes(problem.cost, batches)
            for op, of_flop, of_sent in zip((FORWARD, BACKWARD), flop, sent, strict=True):
                own = spans.op == op
                number = spans.micro_batch[own]
                times_s = (begin_s + spans.start_s[own], begin_s + spans.end_s[own])
                totals.append((*times_s, of_flop[number], of_sent[number]))
            begin_s += timeline.step_end.step_s
        start_s, end_s, flop_of, sent_of = (np.concatenate(column) for column in zip(*totals, strict=True))
        edges = np.arange(0.0, begin_s + BIN_S, BIN_S)
        widths = np.diff(edges)
        widths[-1] -= max(0.0, edges[-1] - begin_s)
        per_rank = gpus / setup.ranks
        peak = setup.cluster.gpu.bf16_flop_per_s * gpus
        return Activity(
            tensor=_by_bin(start_s, end_s, flop_of, edges) * per_rank / peak / widths,
            sent_bytes_per_s=_by_bin(start_s, end_s, sent_of, edges) * per_rank / gpus / widths,
        )


def _flop(cost: MicroBatchCost, batches: MicroBatches) -> tuple[Floats, Floats]:
    """[n] forward and backward FLOP of a GPU for each micro-batch; stages share them evenly."""
    forward, sizes = forward_flop(cost.model), batches.group_size.astype(np.float64)
    pairs = np.add.reduceat(attention_pairs(batches.segment_tokens), batches.segment_offsets[:-1])
    parallel = cost.layout.parallel
    linear = (forward.linear + forward.head) * batches.tokens / sizes / (parallel.tp * parallel.pp)
    attention = forward.attention * pairs / sizes / (parallel.tp * parallel.pp)
    return linear + attention, BACKWARD_PRODUCTS * linear + ATTENTION_BACKWARD_FLOP_RATIO * attention


def _sent_bytes(cost: MicroBatchCost, batches: MicroBatches) -> tuple[Floats, Floats]:
    """[n] bytes that a GPU sends to other nodes in the forward and in the backward of each micro-batch."""
    sent_bytes = [np.zeros(batches.count), np.zeros(batches.count)]
    for traffic in cost.traffic(batches):
        sent_bytes[traffic.backward] += traffic.times.mean(axis=0) * traffic.sent.sent_bytes
    return sent_bytes[0], sent_bytes[1]


def _by_bin(start_s: Floats, end_s: Floats, amount: Floats, edges: Floats) -> Floats:
    """What is done in every bin of amounts that are done evenly from start to end."""
    length_s = np.maximum(end_s - start_s, 1e-12)
    until = [float((amount * np.clip((edge - start_s) / length_s, 0.0, 1.0)).sum()) for edge in edges]
    return np.diff(until)


def _jobs(batches: int, machine: Machine) -> dict[str, ActivityJob]:
    steps = case_steps(min(batches, SETTING["steps"]), machine)
    return {name: ActivityJob(steps=own) for name, own in steps.items()}


def activity_jobs(batches: int, machine: Machine = OWN) -> Iterator[ActivityJob]:
    """The case study under every strategy."""
    yield from _jobs(batches, machine).values()


def activity(results: Results, machine: Machine = OWN) -> Part:
    """Activity of tensor cores and traffic of NICs, mean and highest bin, by strategy."""
    jobs = _jobs(results.batches, machine)
    by_strategy: dict[str, Activity] = {name: results.outcomes[job] for name, job in jobs.items()}
    rows: list[FigureRow] = [
        {
            "strategy": name,
            "tensor_percent": 100.0 * float(one.tensor.mean()),
            "tensor_highest_percent": 100.0 * float(one.tensor.max()),
            "paper_tensor_percent": PAPER["tensor_percent"].get(name),
            "sent_bytes_per_s": float(one.sent_bytes_per_s.mean()),
            "sent_highest_bytes_per_s": float(one.sent_bytes_per_s.max()),
        }
        for name, one in by_strategy.items()
    ]
    of = {row["strategy"]: row for row in rows}
    peak = of["hdp-naive"]["sent_highest_bytes_per_s"] / of["static"]["sent_highest_bytes_per_s"]
    values = [
        compared(19, f"tensor cores active, {name}: {what}", "%", percent, of[name][key])
        for name, what, key, percent in (
            ("static", "mean", "tensor_percent", PAPER["tensor_percent"]["static"]),
            ("hdp-naive", "highest", "tensor_highest_percent", PAPER["naive_highest_percent"]),
            ("hdp-balance", "mean", "tensor_percent", PAPER["tensor_percent"]["hdp-balance"]),
        )
    ]
    what = "highest traffic of naive HDP over that of the static mesh"
    values.append(compared(19, what, "×", PAPER["peak_traffic_ratio"], peak))
    part = rows_part(FOLDER, "activity", rows, compared=values)
    picture = files_of("reproduce", {"activity_over_time": lambda: _picture(by_strategy)})
    return replace(part, files=(*part.files, *picture))


def _picture(by_strategy: dict[str, Activity]) -> Figure:
    colours = colours_of(by_strategy)
    with figure_and_axes(9.6, 4.0, 1, 2) as (figure, axes):
        for name, strategy_activity in by_strategy.items():
            minutes = (np.arange(len(strategy_activity.tensor)) + 0.5) * BIN_S / 60.0
            axes[0].plot(
                minutes, 100.0 * strategy_activity.tensor, color=colours[name], linewidth=1.5, label=name
            )
            axes[1].plot(
                minutes, 8e-9 * strategy_activity.sent_bytes_per_s, color=colours[name], linewidth=1.5
            )
        labels = ("tensor cores active (%)", "sent to other nodes (Gbit/s a GPU)")
        for own, label in zip(axes, labels, strict=True):
            own.set(xlabel="time (min)", ylabel=label, ylim=(0.0, None))
            own.grid(color=GRID, linewidth=0.7)
        figure.legend(loc="outside lower center", ncols=len(by_strategy))
    return figure
