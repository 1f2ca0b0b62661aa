"""The files of a comparison's run directory: tables of batches, accounts and ranks, and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.experiments.output.document import OutputFile, Table, files_of
from hdpsim.experiments.output.json_data import attributes
from hdpsim.experiments.output.plots import runs as plots
from hdpsim.experiments.output.plots import time as plots_of_time
from hdpsim.experiments.output.plots.style import account_group
from hdpsim.experiments.output.statistics import bars_in_words
from hdpsim.experiments.studies.links.plots import link_pictures
from hdpsim.experiments.studies.links.report import links_files
from hdpsim.experiments.studies.step_report import account_rows

from .pass_files import pass_files
from .plan_files import plan_files

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .compare import Comparison, Outcome


def comparison_files(comparison: Comparison, table: Table[Outcome]) -> tuple[OutputFile, ...]:
    """Tables of strategies (from their *table*), batches, accounts and ranks, and the figures of a comparison."""
    outcomes = comparison.feasible
    several: dict[str, Callable[[], object]] = {}
    if len(outcomes) > 1:
        several = {"throughput": lambda: _throughput_figure(comparison)}
    contents: dict[str, Callable[[], object]] = {
        "summary.csv": table.records,
        "batches.csv": lambda: _batch_rows(comparison),
        "accounts.csv": lambda: _account_rows(comparison),
        "ranks.csv": lambda: _rank_table(comparison),
        "time_breakdown": lambda: plots_of_time.plot_time_breakdown(
            {o.strategy: o.account_s() for o in outcomes}
        ),
        "rank_step_time": lambda: plots_of_time.plot_rank_step_time(
            {o.strategy: _rank_layers(o) for o in outcomes}
        ),
        "length_distribution": lambda: _length_figure(comparison),
    }
    return (
        *files_of("compare", contents),
        *links_files(outcomes),
        *link_pictures(outcomes),
        *plan_files(outcomes),
        *pass_files(outcomes),
        *files_of("compare", several),
    )


def _throughput_figure(comparison: Comparison) -> Figure:
    rates = {o.strategy: o.tokens_per_s for o in comparison.feasible}
    base = comparison.best_static or comparison.base
    return plots.plot_throughput_bars(
        {name: rate.mean for name, rate in rates.items()},
        {name: ends for name, rate in rates.items() if (ends := rate.ends)},
        base=base.strategy,
        what=bars_in_words(rates.values()),
        speed_up={o.strategy: o.speed_up(base).mean for o in comparison.feasible},
    )


def _batch_rows(comparison: Comparison) -> list[dict[str, object]]:
    return [
        {
            "strategy": outcome.strategy,
            "batch": number,
            **attributes(result, "step_s tokens tokens_per_s mfu mfu_full"),
            "micro_batches": result.plan_micro_batches,
            "largest_group": result.largest_group,
            "lower_bound_s": bound_s,
            **attributes(result, "plan_ideal_s makespan_s"),
        }
        for outcome in comparison.feasible
        for number, (result, bound_s) in enumerate(zip(outcome.results, outcome.lower_bounds_s, strict=True))
    ]


def _account_rows(comparison: Comparison) -> list[dict[str, object]]:
    return [
        row
        for outcome in comparison.feasible
        for row in account_rows(outcome.account_s(), outcome.step_s.mean, strategy=outcome.strategy)
    ]


def _rank_table(comparison: Comparison) -> pd.DataFrame:
    import pandas as pd

    tables = []
    for outcome in comparison.feasible:
        first = outcome.results[0]
        _, ranks, stages = first.account_s.shape
        columns: dict[str, object] = {
            "strategy": outcome.strategy,
            "rank": np.repeat(np.arange(ranks), stages),
            "stage": np.tile(np.arange(stages), ranks),
        }
        columns |= {
            f"{name}_s": row.ravel() for name, row in zip(first.accounts, first.account_s, strict=True)
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _rank_layers(outcome: Outcome) -> dict[str, NDArray[np.float64]]:
    """Seconds per rank (mean over its stages), accounts put together by kind."""
    first = outcome.results[0]
    layers: dict[str, NDArray[np.float64]] = {}
    for account, seconds in zip(first.accounts, first.account_s.mean(axis=2), strict=True):
        group = account_group(account)
        layers[group] = layers[group] + seconds if group in layers else seconds
    return layers


def _length_figure(comparison: Comparison) -> Any:
    from hdpsim.traces import Trace, statistics

    lengths = np.concatenate(comparison.lengths)
    rows = statistics(Trace(lengths, comparison.scenario.name)).rows()
    return plots.plot_length_distribution(
        [row["upper_edge_tokens"] for row in rows],
        [row["sample_share"] for row in rows],
        [row["token_share"] for row in rows],
    )
