"""Findings as a document: what is wasted, in seconds and money, and the change to make."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reading.units import DAY_S, HOUR_S
from hdpsim.experiments.bands.memory_fit import fits_probability
from hdpsim.experiments.output.document import Column, Document, Table, files_of, interval
from hdpsim.experiments.output.statistics import estimate_json, with_interval
from hdpsim.experiments.studies.money import mean_price, usd_words
from hdpsim.experiments.studies.step_report import averaging, band_lines, memory_json, scenario_document
from hdpsim.simulator.step_memory import plan_memory

from .check import WITHOUT_EFFECT

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport

    from .check import CheckedScenario, Finding

MOST_STAGES = 4
"""Rows of the table of memory."""

_GIB = 2.0**30


def check_document(checked: CheckedScenario, tokens: float | None = None) -> Document:
    """Everything about what was found; money of *tokens*, too, where so many are to be trained on."""
    scenario = checked.trials.scenario
    spent = _Money(checked, tokens)
    wasted = [finding for finding in checked.findings if finding.name != WITHOUT_EFFECT]
    idle = [finding.seen for finding in checked.findings if finding.name == WITHOUT_EFFECT]
    together = _together_words(checked, spent)
    words = "\n".join(
        f"{number}. {finding.name}: {_words(finding, spent)}"
        for number, finding in enumerate(wasted, start=1)
    )
    table = _table(checked, spent)
    findings = table.records()
    blocks: list[Table[Any] | str] = [replace(table, rows=wasted)] if wasted else []
    blocks += filter(None, (words, together, _memory_table(checked), "\n".join(idle)))
    notes = (
        "Findings overlap: a second may be lost in several ways, so their seconds do not add up.",
        f"Every change was simulated on the scenario's own batches ({len(checked.trials.drawn.lengths)}; "
        f"{checked.trials.tried} changes tried); shown is the one that saves most, fits, and gains on the batches "
        f"more than by chance.",
        spent.note,
        *band_lines((checked.trials.base,)),
    )
    changed = scenario.with_changes(checked.together) if checked.together else scenario
    return scenario_document(
        "check",
        scenario,
        {"step_s": estimate_json(checked.trials.base.step_s), "tried": checked.trials.tried},
        more={
            "findings": findings,
            "together": checked.together_gain_s
            and {"change": list(checked.together), "gain_s": checked.together_gain_s.mean, "words": together},
            "memory": [memory_json(report) for report in _memory(checked)],
            "price": spent.price.document(),
        },
        blocks=tuple(blocks),
        notes=notes,
        bands=(checked.trials.base.band,),
        files=files_of(
            "check",
            {
                "findings.csv": lambda: [
                    {**row, "change": ",".join(row["change"] or ()) or None} for row in findings
                ],
                "changed.yaml": changed.to_yaml,
            },
            findings=tuple(column.name for column in table.columns if column.name),
        ),
    )


class _Money:
    """What seconds of a step cost."""

    def __init__(self, checked: CheckedScenario, tokens: float | None) -> None:
        base, scenario = checked.trials.base, checked.trials.scenario
        cluster = scenario.cluster
        self.price, self.tokens = mean_price(cluster, scenario.costs), tokens
        hourly = self.price.usd_per_hour
        self._per_s = None if hourly is None else hourly * cluster.gpus / HOUR_S
        self._step_s = base.step_s.mean
        self._training_s = None if tokens is None else tokens / base.tokens_per_s.mean

    @property
    def note(self) -> str:
        """A sentence that says whose price is used."""
        return self.price.note

    def usd_per_day(self, seconds: float) -> float | None:
        """Dollars a day of so many seconds in every step."""
        return None if self._per_s is None else self._per_s * DAY_S * seconds / self._step_s

    def usd(self, seconds: float) -> float | None:
        """Dollars of so many seconds in every step until all tokens are trained on."""
        if self._per_s is None or self._training_s is None:
            return None
        return self._per_s * self._training_s * seconds / self._step_s

    def words(self, seconds: float) -> str:
        """Say both amounts in words, as far as they are known."""
        daily, until = self.usd_per_day(seconds), self.usd(seconds)
        if daily is None:
            return ""
        return f", {usd_words(daily)} a day" + (
            f", {usd_words(until)} of the training" if until is not None else ""
        )


def _words(finding: Finding, spent: _Money) -> str:
    if finding.name == WITHOUT_EFFECT:
        return finding.seen
    money = spent.words(finding.seconds)
    lost = f"{finding.seen}. That is {finding.seconds:.3f} s of a step ({finding.share:.1%}{money})."
    if finding.gain_s is None:
        tried = f"none of {finding.tried} changes that were tried makes it less and the step faster"
        return f"{lost} No verified remedy: {tried if finding.tried > 1 else 'no setting changes that'}."
    return f"{lost} Change: {_set(finding.change)} saves {_gain(finding, spent)}."


def _gain(finding: Finding, spent: _Money) -> str:
    assert finding.gain_s is not None
    saved_s = finding.gain_s.mean
    money = spent.usd_per_day(saved_s) if spent.tokens is None else spent.usd(saved_s)
    of = "a day" if spent.tokens is None else "of the training"
    text = f"{with_interval(finding.gain_s, digits=3)} s" + (
        "" if money is None else f", {usd_words(money)} {of}"
    )
    return f"{text} ({finding.elsewhere})" if finding.elsewhere else text


def _set(change: tuple[str, ...]) -> str:
    texts = (f"'{text}'" if " " in text else text for text in change)
    return " ".join(f"--set {text}" for text in texts)


def _together_words(checked: CheckedScenario, spent: _Money) -> str:
    gain_s, step_s = checked.together_gain_s, checked.trials.base.step_s.mean
    if gain_s is None:
        return "No change of the job's own settings that was tried makes a step faster."
    return (
        f"All together: {_set(checked.together)} saves {with_interval(gain_s, digits=3)} s "
        f"({gain_s.mean / step_s:.1%}{spent.words(gain_s.mean)}): a step takes {step_s - gain_s.mean:.3f} s "
        f"instead of {step_s:.3f} s."
    )


def _table(checked: CheckedScenario, spent: _Money) -> Table[Finding]:
    """The table of all findings; people see those that waste something."""
    base = checked.trials.base

    def change(finding: Finding) -> list[str] | None:
        return list(finding.change) or None

    def usd_per_day(finding: Finding) -> float | None:
        return spent.usd_per_day(finding.seconds)

    def gain_usd_per_day(finding: Finding) -> float | None:
        return None if finding.gain_s is None else spent.usd_per_day(finding.gain_s.mean)

    columns: tuple[Column[Finding], ...] = (
        Column("name", heading="finding"),
        Column("seconds", heading="lost", unit="s", format=".3f"),
        Column("share", heading="of step", format=".1%"),
        Column("usd_per_day", usd_per_day, heading="USD/day", format=",.0f"),
        Column("usd", lambda finding: spent.usd(finding.seconds), shown=False),
        Column("change", change, shown=False),
        Column("gain_s", heading="change saves", unit="s", format=interval(3)),
        Column("", change, heading="change", format=", ".join, left=True),
        Column("gain_usd_per_day", gain_usd_per_day, shown=False),
        Column("verified", shown=False),
        Column("words", lambda finding: _words(finding, spent), shown=False),
    )
    title = (
        f"What a step of {base.step_s.mean:.3f} s loses ({base.strategy}), "
        f"{averaging(len(base.results), base.independent)}"
    )
    return Table(title=title, columns=columns, rows=checked.findings)


def _memory(checked: CheckedScenario) -> list[MemoryReport]:
    """Memory of every stage, for the batch that needs most."""
    base = checked.trials.base
    assert base.setup is not None
    fullest = max(base.results, key=lambda result: result.memory.total_bytes)
    stages = range(base.setup.layout.parallel.pp)
    return [plan_memory(base.setup, fullest.plan, stage) for stage in stages]


def _memory_table(checked: CheckedScenario) -> Table[list[MemoryReport]]:
    """Memory by stage, those in a row that are alike as one."""
    alike: dict[tuple[float, ...], list[MemoryReport]] = {}
    for report in _memory(checked):
        alike.setdefault(tuple(round(value / _GIB, 1) for value in report.parts.values()), []).append(report)
    columns: tuple[Column[list[MemoryReport]], ...] = (
        Column("", lambda reports: _stages([report.stage for report in reports]), heading="stage"),
        Column("", lambda reports: reports[0].total_bytes / _GIB, heading="needs", unit="GiB", format=".1f"),
        Column("", lambda reports: (reports[0].capacity_bytes - reports[0].total_bytes) / _GIB, heading="free",
               unit="GiB", format=".1f"),
        Column("", lambda reports: fits_probability(reports[0]), heading="fits", format=".0%"),
        Column("", lambda reports: reports[0].largest_parts(3), heading="most of it (GiB)", left=True),
    )  # fmt: skip
    rows, title = list(alike.values()), "Memory of a GPU, by pipeline stage"
    if len(rows) > MOST_STAGES:
        ranked = sorted(rows, key=lambda reports: -reports[0].total_bytes)
        kept = [*ranked[: MOST_STAGES - 1], ranked[-1]]
        rows, title = (
            [reports for reports in rows if reports in kept],
            f"{title} (the fullest, and the emptiest)",
        )
    return Table(title=title, columns=columns, rows=rows)


def _stages(numbers: list[int]) -> str:
    """`0`, `1 to 6`, `1, 3, 5`."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers)) if len(numbers) < 7 else f"{len(numbers)} stages from {numbers[0]} on"
