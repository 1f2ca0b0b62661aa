"""When chosen ranks do what in the step of the first batch: a table of their passes, and a picture of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.experiments.output.document import OutputFile, files_of
from hdpsim.experiments.output.plots.passes import plot_passes
from hdpsim.experiments.output.plots.style import ACCOUNT_GROUPS, account_group
from hdpsim.experiments.output.timeline.passes import NAMES, WAIT, Passes, telling_ranks
from hdpsim.experiments.output.timeline.step import free_lanes
from hdpsim.simulator.play.accounts import EPILOGUE
from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.playing import play_plan

from .plan_files import costs_of_plan

if TYPE_CHECKING:
    import pandas as pd

    from hdpsim.simulator.play.execution import Spans

    from .compare import Outcome

MOST_PASSES = 6_000
"""Rows of a strategy. Of more, fewer ranks are told about, then fewer stages, evenly spaced."""
ALIKE = 1e-6
"""Of the step: ranks whose waiting differs by less wait alike."""
CHOSEN = ("waits least", "waits most", "waits as the median rank")
"""The ranks that are told about, in the order of telling_ranks; those that wait alike are told about once."""


_OF_PASSES = ("chunk", "micro_batch", "tokens", "sequences", "group_size")
"""Columns that are empty where no micro-batch passes."""
_COLUMNS = (
    "strategy", "rank", "chosen", "stage", "lane", "pass", *_OF_PASSES, "start_s", "end_s",
    *(f"{group}_s" for group in ACCOUNT_GROUPS),
)  # fmt: skip


def pass_files(outcomes: tuple[Outcome, ...]) -> tuple[OutputFile, ...]:
    """passes.csv of all strategies that ran, and its figure."""
    table = cache(lambda: _table(outcomes))
    return files_of("compare", {"passes.csv": table, "passes": lambda: plot_passes(_records(table()))})


def _records(table: pd.DataFrame) -> list[dict[str, object]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _table(outcomes: tuple[Outcome, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([_passes(outcome) for outcome in outcomes], ignore_index=True)


def _passes(outcome: Outcome) -> pd.DataFrame:
    """The passes of the chosen ranks of a strategy, in the order of ranks, stages and time."""
    import pandas as pd

    spans, first = _spans(outcome), outcome.results[0]
    waits = [place for place, name in enumerate(first.accounts) if account_group(name) == "waiting"]
    waiting_s = first.account_s[waits].sum(axis=0).mean(axis=1)  # [ranks]
    chosen: dict[int, str] = {}
    for rank, why in zip(telling_ranks(-waiting_s), CHOSEN, strict=False):
        if all(abs(waiting_s[rank] - waiting_s[other]) > ALIKE * first.step_s for other in chosen):
            chosen[rank] = why
    # By group of accounts: what a pass lasts longer than its own terms is waiting for others.
    terms = costs_of_plan(outcome)
    groups = {
        group: [term for term in terms.terms if account_group(term) == group] for group in ACCOUNT_GROUPS
    }
    passes, plan = Passes.of(first.plan, terms, groups), first.plan
    tokens = np.add.reduceat(plan.segment_tokens, plan.segment_offsets[:-1])
    sequences = np.diff(plan.segment_offsets)
    rows: list[dict[str, object]] = []
    for rank, why in sorted(chosen.items(), key=lambda one: waiting_s[one[0]]):
        of_rank = np.flatnonzero(_shown_spans(spans, rank, stages=terms.kind.shape[0]))
        if rows and len(rows) + len(of_rank) > MOST_PASSES:
            break
        of_rank = of_rank[np.lexsort((spans.end_s[of_rank], spans.start_s[of_rank], spans.stage[of_rank]))]
        start_ns, end_ns = _whole_ns(spans.start_s[of_rank]), _whole_ns(spans.end_s[of_rank])
        lanes = free_lanes(spans.stage[of_rank], start_ns, end_ns)
        for place, lane, start, end in zip(
            of_rank.tolist(), lanes.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True
        ):
            op, number = int(spans.op[place]), int(spans.micro_batch[place])
            stage, chunk = int(spans.stage[place]), int(spans.chunk[place])
            row: dict[str, object] = {
                "strategy": outcome.strategy, "rank": rank, "chosen": why, "stage": stage, "lane": lane,
            }  # fmt: skip
            spent_ns = dict.fromkeys(ACCOUNT_GROUPS, 0)
            if op == EPILOGUE:
                row |= {"pass": WAITS[number]}
                spent_ns[account_group(WAITS[number])] = end - start
            else:
                row |= {
                    "pass": NAMES[op], "chunk": chunk, "micro_batch": number, "tokens": int(tokens[number]),
                    "sequences": int(sequences[number]), "group_size": int(plan.group_size[number]),
                }  # fmt: skip
                for part, begin, until in passes.parts(op, stage, chunk, number, start, end):
                    spent_ns["waiting" if part == WAIT else part] += until - begin
            row |= {"start_s": start / 1e9, "end_s": end / 1e9}
            rows.append(row | {f"{group}_s": spent / 1e9 for group, spent in spent_ns.items()})
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(dict.fromkeys(_OF_PASSES, "Int64"))


def _shown_spans(spans: Spans, rank: int, stages: int) -> Bools:
    """Which spans of a rank there is room for."""
    of_rank: Bools = spans.rank == rank
    room = MOST_PASSES * stages // max(1, int(of_rank.sum()))
    if room >= stages:
        return of_rank
    told = np.unique(np.linspace(0, stages - 1, max(2, room)).astype(np.int64))
    return of_rank & np.isin(spans.stage, told)


def _spans(outcome: Outcome) -> Spans:
    """When what happened: as it was recorded, or played again by the engine, whose times are those of the replay."""
    first = outcome.results[0]
    if first.spans is not None:
        return first.spans
    assert outcome.setup is not None
    execution = replace(outcome.setup.execution, executor="engine", spans=True)
    setup = replace(outcome.setup, execution=execution)
    spans = play_plan(setup, first.plan, costs_of_plan(outcome)).spans
    assert spans is not None
    return spans


def _whole_ns(times_s: Floats) -> Ints:
    return np.rint(times_s * 1e9).astype(np.int64)
