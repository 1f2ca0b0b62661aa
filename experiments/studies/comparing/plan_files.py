"""What a plan does, micro-batch by micro-batch: a table, and the figures of output.plots.plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.experiments.output.document import OutputFile, files_of
from hdpsim.experiments.output.plots.plan import plot_plan_groups, plot_plan_work
from hdpsim.experiments.output.plots.style import account_group
from hdpsim.experiments.output.timeline.passes import Passes
from hdpsim.simulator.plan_micro_batches import cut_by
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.pricing import price_plan

if TYPE_CHECKING:
    import pandas as pd

    from hdpsim.cost_models.step.step_costs import StepCosts
    from hdpsim.simulator.plan import Plan
    from hdpsim.simulator.strategies.problem import PlanningProblem

    from .compare import Outcome


def plan_files(outcomes: tuple[Outcome, ...]) -> Iterator[OutputFile]:
    """plan.csv of all strategies that ran, and two figures of each: all of the first batch."""
    yield from files_of("compare", {"plan.csv": lambda: _plan_table(outcomes)})
    for outcome in outcomes:
        name = "".join(one if one.isalnum() or one in "-_." else "-" for one in outcome.strategy)
        yield OutputFile(
            f"plan_work_{name}",
            lambda outcome=outcome: _work_figure(outcome),  # type: ignore[misc]
            f"{outcome.strategy}, first batch: seconds of every rank and slot; how long each rank and stage waits.",
        )
        yield OutputFile(
            f"plan_groups_{name}",
            lambda outcome=outcome: _groups_figure(outcome),  # type: ignore[misc]
            f"{outcome.strategy}, first batch: micro-batches and work by size of the group; which sits on which nodes.",
        )


def micro_batch_seconds(outcome: Outcome) -> Floats:
    """Of every micro-batch of the first batch: forward and backward on the busiest stage, without noise."""
    plan, costs = outcome.results[0].plan, costs_of_plan(outcome)
    kinds_s = costs.forward_terms_s.sum(axis=0) + costs.backward_terms_s.sum(axis=0)  # [K, n]
    busiest: Floats = kinds_s[costs.kind].sum(axis=1).max(axis=0)
    return np.broadcast_to(busiest, (plan.micro_batches,))


def timeline_passes(outcome: Outcome) -> Passes:
    """What a timeline says of the passes of the first batch."""
    return Passes.of(outcome.results[0].plan, costs_of_plan(outcome))


def costs_of_plan(outcome: Outcome) -> StepCosts:
    """Costs of the first batch's plan."""
    assert outcome.setup is not None
    return price_plan(outcome.setup, _problem(outcome), outcome.results[0].plan)


def _problem(outcome: Outcome) -> PlanningProblem:
    """The planning problem of the first batch."""
    assert outcome.setup is not None
    return planning_problem(outcome.setup, outcome.lengths[0])


def _plan_table(outcomes: tuple[Outcome, ...]) -> pd.DataFrame:
    import pandas as pd

    tables = []
    for outcome in outcomes:
        plan = outcome.results[0].plan
        count = plan.micro_batches
        tokens = np.add.reduceat(plan.segment_tokens, plan.segment_offsets[:-1])
        tables.append(
            pd.DataFrame(
                {
                    "strategy": outcome.strategy,
                    "micro_batch": np.arange(count),
                    "slot": _slots(plan),
                    "ranks": [
                        _ranges(part) for part in np.split(plan.member_ranks, plan.member_offsets[1:-1])
                    ],
                    "group_size": plan.group_size,
                    "cut": cut_by(_problem(outcome).cost, plan),
                    "sequences": [
                        " ".join(map(str, part.tolist()))
                        for part in np.split(plan.segment_sequence, plan.segment_offsets[1:-1])
                    ],
                    "tokens": tokens,
                    "longest_tokens": np.maximum.reduceat(plan.segment_tokens, plan.segment_offsets[:-1]),
                    "padding_tokens": 0 if plan.padding_tokens is None else plan.padding_tokens,
                    "offload_ratio": plan.offload_ratio,
                    "seconds": micro_batch_seconds(outcome),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def _slots(plan: Plan) -> Ints:
    """The slot of every micro-batch on the first of its ranks."""
    entries = plan.entries
    slot = np.zeros(plan.micro_batches, dtype=np.int64)
    slot[entries.micro_batch[::-1]] = entries.slot[::-1]
    return slot


def _ranges(ranks: Ints) -> str:
    """Ascending numbers as `0-3 8-11`."""
    starts = np.flatnonzero(np.diff(ranks, prepend=-2) != 1)
    ends = np.append(starts[1:], len(ranks)) - 1
    first, last = ranks[starts].tolist(), ranks[ends].tolist()
    return " ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in zip(first, last, strict=True))


def _of_slots(plan: Plan, values: Floats) -> Floats:
    """[ranks, slots]: the value of the micro-batch that each rank runs in each slot, nan where it has none."""
    entries = plan.entries
    table = np.full((plan.ranks, int(np.diff(plan.order_offsets).max())), np.nan)
    table[entries.rank, entries.slot] = values[entries.micro_batch]
    return table


def _work_figure(outcome: Outcome) -> object:
    first = outcome.results[0]
    waits = [place for place, name in enumerate(first.accounts) if account_group(name) == "waiting"]
    return plot_plan_work(
        _of_slots(first.plan, micro_batch_seconds(outcome)),
        first.account_s[waits].sum(axis=0) / first.step_s,
        title=outcome.strategy,
    )


def _groups_figure(outcome: Outcome) -> object:
    assert outcome.setup is not None
    plan, setup = outcome.results[0].plan, outcome.setup
    per_node = setup.cluster.node_gpus // setup.layout.parallel.rank_stride
    sizes = plan.group_size.astype(np.float64)
    first, last = plan.member_ranks[plan.member_offsets[:-1]], plan.member_ranks[plan.member_offsets[1:] - 1]
    crossing = int((first // max(1, per_node) != last // max(1, per_node)).sum()) if per_node else 0
    return plot_plan_groups(
        plan.group_size,
        sizes * micro_batch_seconds(outcome),
        _of_slots(plan, sizes),
        ranks_per_node=per_node,
        crossing=crossing,
        title=outcome.strategy,
    )
