"""What the check of a strategy found, as a document."""

from __future__ import annotations

from hdpsim.experiments.output.document import Column, Document, Table
from hdpsim.experiments.output.json_data import attributes

from .check import PROMISES, RANKS, Broken, StrategyCheck


def strategy_check_document(found: StrategyCheck, scenario: str) -> Document:
    """A row for every promise, the smallest batch for every one that breaks, and how long plans take."""
    broken = {one.promise: one for one in found.broken}
    columns: tuple[Column[str], ...] = (
        Column("promise", lambda name: name),
        Column("meaning", PROMISES.__getitem__, left=True),
        Column("", lambda name: _verdict(found, broken.get(name), name), heading="verdict", left=True),
        Column("kept_cases", lambda name: found.kept[name], shown=False),
        Column("broken_cases", lambda name: broken[name].cases if name in broken else 0, shown=False),
    )
    blocks: list[Table[str] | str] = [
        Table(columns=columns, rows=tuple(PROMISES)),
        *(_smallest(one) for one in found.broken),
        _times(found),
    ]
    notes = [f"cannot run {count} of {found.cases} cases: {why}" for why, count in found.refused.items()]
    return Document(
        kind="check-strategy",
        head=f"{found.strategy}: {found.cases} cases with the model and the nodes of {scenario}",
        blocks=tuple(block for block in blocks if block),
        notes=tuple(notes[:5]) + ((found.stopped,) if found.stopped else ()),
        payload={
            "strategy": found.strategy,
            "cases": found.cases,
            "kept": not found.broken,
            "promises": {
                name: {"kept": found.kept[name], "broken": broken[name].cases if name in broken else 0}
                for name in PROMISES
            },
            "broken": [
                {
                    **attributes(one, "promise message"),
                    **attributes(one.case, "lengths ranks stages"),
                }
                for one in found.broken
            ],
            "refused": found.refused,
            "planning_s": {str(ranks): seconds for ranks, seconds in found.seconds.items()},
            "stopped": found.stopped,
        },
    )


def _verdict(found: StrategyCheck, broken: Broken | None, name: str) -> str:
    if broken is not None:
        return f"BROKEN in {broken.cases} of {broken.cases + found.kept[name]} cases"
    return f"kept in {found.kept[name]} cases" if found.kept[name] else "never reached"


def _smallest(one: Broken) -> str:
    return f"{one.promise}: {one.case.words}:\n  {one.message}"


def _times(found: StrategyCheck) -> str:
    if not found.seconds:
        return ""
    shown = [(ranks, found.seconds[ranks]) for ranks in RANKS if ranks in found.seconds]
    parts = [f"{seconds:.3g} s for {ranks:,} rank{'s' * (ranks > 1)}" for ranks, seconds in shown]
    return f"Longest planning time: {', '.join(parts)}."
