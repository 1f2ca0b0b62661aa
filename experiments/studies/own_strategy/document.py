"""What the check of a strategy found, as a document."""

from __future__ import annotations

from hdpsim.experiments.output.document import Column, Document, Table
from hdpsim.experiments.output.json_data import attributes

from .check import PROMISES, RANKS, Broken, StrategyCheck


def strategy_check_document(verdicts: StrategyCheck, scenario: str) -> Document:
    """A row for every promise, the smallest batch for every one that breaks, and how long plans take."""
    broken = {one.promise: one for one in verdicts.broken}
    columns: tuple[Column[str], ...] = (
        Column("promise", lambda name: name),
        Column("meaning", PROMISES.__getitem__, left=True),
        Column("", lambda name: _verdict(verdicts, broken.get(name), name), heading="verdict", left=True),
        Column("kept_cases", lambda name: verdicts.kept[name], shown=False),
        Column("broken_cases", lambda name: broken[name].cases if name in broken else 0, shown=False),
    )
    blocks: list[Table[str] | str] = [
        Table(columns=columns, rows=tuple(PROMISES)),
        *(_smallest(one) for one in verdicts.broken),
        _times(verdicts),
    ]
    notes = [
        f"cannot run {count} of {verdicts.cases} cases: {why}" for why, count in verdicts.refused.items()
    ]
    return Document(
        kind="check-strategy",
        head=f"{verdicts.strategy}: {verdicts.cases} cases with the model and the nodes of {scenario}",
        blocks=tuple(block for block in blocks if block),
        notes=tuple(notes[:5]) + ((verdicts.stopped,) if verdicts.stopped else ()),
        payload={
            "strategy": verdicts.strategy,
            "cases": verdicts.cases,
            "kept": not verdicts.broken,
            "promises": {
                name: {"kept": verdicts.kept[name], "broken": broken[name].cases if name in broken else 0}
                for name in PROMISES
            },
            "broken": [
                {
                    **attributes(one, "promise message"),
                    **attributes(one.case, "lengths ranks stages"),
                }
                for one in verdicts.broken
            ],
            "refused": verdicts.refused,
            "planning_s": {str(ranks): seconds for ranks, seconds in verdicts.seconds.items()},
            "stopped": verdicts.stopped,
        },
    )


def _verdict(verdicts: StrategyCheck, broken: Broken | None, name: str) -> str:
    if broken is not None:
        return f"BROKEN in {broken.cases} of {broken.cases + verdicts.kept[name]} cases"
    return f"kept in {verdicts.kept[name]} cases" if verdicts.kept[name] else "never reached"


def _smallest(broken: Broken) -> str:
    return f"{broken.promise}: {broken.case.words}:\n  {broken.message}"


def _times(verdicts: StrategyCheck) -> str:
    if not verdicts.seconds:
        return ""
    shown = [(ranks, verdicts.seconds[ranks]) for ranks in RANKS if ranks in verdicts.seconds]
    parts = [f"{seconds:.3g} s for {ranks:,} rank{'s' * (ranks > 1)}" for ranks, seconds in shown]
    return f"Longest planning time: {', '.join(parts)}."
