"""What wastes time in a scenario's step, what it costs, and which change helps: every change is really simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.studies.comparing.compare import Report, run_batches, silent
from hdpsim.simulator.settings import CHANGES_NOTHING, FIELDS

from .checks import CHECKS, HIDDEN_BY_OTHERS, Check
from .observed import Observed
from .trials import WORTH_A_CHANGE, Trials, overrides_of

if TYPE_CHECKING:
    from hdpsim.experiments.output.statistics import Estimate
    from hdpsim.experiments.scenario.scenario import Scenario

    from .trials import Overrides

FINALISTS = 3
"""Remedies of a check, the best on the first batch, that are simulated on all batches."""
LESS = 0.95
"""What a remedy must at least make of the seconds that a check has found."""
WITHOUT_EFFECT = "without-effect"

_ELSEWHERE = {
    "cluster.": "other hardware, whose price is not counted",
    "execution.": "a matter of operations",
}
"""Changes that no key of the training job makes, by the start of their keys, and what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that wastes time.

    Attributes:
        name: of the check.
        seconds: lost in a step.
        share: share of the step's time.
        seen: what is lost there.
        change: what helps, as `--set` takes it; empty where nothing that was tried does.
        gain_s: what the change saves of a step, batch by batch.
        tried: changes that were simulated for it.
    """

    name: str
    seconds: float
    share: float
    seen: str
    change: Overrides = ()
    gain_s: Estimate | None = None
    tried: int = 0

    @property
    def verified(self) -> bool:
        """Whether the change of the finding was simulated and does what is said."""
        return bool(self.change)

    @property
    def elsewhere(self) -> str:
        """What the change asks for besides other settings; empty where it asks for nothing."""
        kinds = (
            words for start, words in _ELSEWHERE.items() if any(c.startswith(start) for c in self.change)
        )
        return next(kinds, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedScenario:
    """All that was found out about a scenario.

    Attributes:
        trials: the scenario, its batches, and what was tried.
        findings: by their seconds, the most first.
        together: the changes of findings that gain together, without other hardware or operations.
        together_gain_s: what they save of a step.
    """

    trials: Trials
    findings: tuple[Finding, ...]
    together: Overrides = ()
    together_gain_s: Estimate | None = None


def check(
    scenario: Scenario,
    batches: int | None = None,
    report: Report = silent,
    checks: Sequence[Check] = CHECKS,
) -> CheckedScenario:
    """Look for everything in the table of checks, and simulate the remedies.

    Raises:
        InfeasibleError: the scenario cannot run, or mixes nodes.
    """
    _ = scenario.cluster.node  # a cluster that mixes nodes has none, and says so before anything is simulated
    drawn = scenario.draw(batches)
    base = run_batches(scenario, drawn.lengths, independent=not drawn.use.repeated)
    if not base.results:
        raise InfeasibleError(base.reason)
    trials = Trials(scenario=scenario, drawn=drawn, base=base)
    observed = Observed.of(trials)
    findings = []
    for number, one_check in enumerate(checks, start=1):
        seconds = one_check.seconds(observed)
        if seconds >= HIDDEN_BY_OTHERS * observed.step_s:
            findings.append(_finding(one_check, observed, seconds))
        report(number, len(checks) + 1)
    findings.sort(key=lambda finding: -finding.seconds)
    together, gain_s = _together(trials, findings)
    report(len(checks) + 1, len(checks) + 1)
    return CheckedScenario(
        trials=trials,
        findings=(*findings, *_without_effect(observed)),
        together=together,
        together_gain_s=gain_s,
    )


def _finding(one_check: Check, observed: Observed, seconds: float) -> Finding:
    """The finding with the change that saves most: one of the job's own settings if any of them gains."""
    trials = observed.trials
    candidates = dict.fromkeys(
        overrides_of(changes)
        for remedy in one_check.candidates(observed)
        if (changes := trials.without_same(remedy))
    )
    change: Overrides = ()
    gain_s: Estimate | None = None
    others = [c for c in candidates if any(text.startswith(tuple(_ELSEWHERE)) for text in c)]
    for several in ([c for c in candidates if c not in others], others):
        if not change:
            change, gain_s = _best(one_check, observed, several)
    return Finding(
        name=one_check.name,
        seconds=seconds,
        share=seconds / observed.step_s,
        seen=one_check.words(observed),
        change=change,
        gain_s=gain_s,
        tried=len(candidates),
    )


def _best(
    one_check: Check, observed: Observed, candidates: Sequence[Overrides]
) -> tuple[Overrides, Estimate | None]:
    """The candidate that saves most on all batches, among those that save most on the first.

    It must make this very waste smaller where a step alone tells its seconds. Of candidates that save about the same
    the one with the fewest keys.
    """
    trials = observed.trials
    promising = [change for change in candidates if trials.first_gain_s(change) > 0.0]
    if one_check.of_step:
        own_s = one_check.seconds(Observed.of(trials.first_alone()))
        promising = [
            change for change in promising if one_check.seconds(observed.changed(change)) < LESS * own_s
        ]
    promising.sort(key=lambda change: -trials.first_gain_s(change))
    gains = {change: trials.gain_s(change) for change in promising[:FINALISTS]}
    worth_it = {
        change: gain_s for change, gain_s in gains.items() if gain_s is not None and trials.gains(gain_s)
    }
    if not worth_it:
        return (), None
    least_s = max(gain_s.mean for gain_s in worth_it.values()) - WORTH_A_CHANGE * observed.step_s
    alike = [change for change, gain_s in worth_it.items() if gain_s.mean >= least_s]
    change = min(alike, key=len)
    return change, worth_it[change]


def _together(trials: Trials, findings: Sequence[Finding]) -> tuple[Overrides, Estimate | None]:
    """Changes of several findings at once: the best one, and every further one that gains beside those before it.

    A change of a key that is changed already is left out.
    """
    ranked = sorted(
        {
            finding.change: finding for finding in findings if finding.change and not finding.elsewhere
        }.values(),
        key=lambda finding: -(finding.gain_s.mean if finding.gain_s else 0.0),
    )
    chosen: Overrides = ()
    best: Estimate | None = None
    for finding in ranked:
        merged = tuple(sorted({*chosen, *finding.change}))
        keys = [text.partition("=")[0] for text in merged]
        if len(set(keys)) < len(keys):
            continue
        gain_s = trials.gain_s(merged)
        more = gain_s is not None and (best is None or gain_s.mean > best.mean * 1.001)
        if more and trials.gains(gain_s):
            chosen, best = merged, gain_s
    return chosen, best


def _without_effect(observed: Observed) -> Iterator[Finding]:
    """Settings that change nothing, each with its default as the change: it saves no time.

    Not those that the software stack sets: the scenario does not have them.
    """
    trials = observed.trials
    of_stack = {setting.switch for setting in trials.scenario.settings}
    notes = dict.fromkeys((*_in_all_batches(trials), *trials.base.hidden_notes))
    for note in notes:
        key = note.partition(" = ")[0]
        leaf = key.rpartition(".")[2]
        if FIELDS.get(leaf, leaf) in of_stack:
            continue
        default = _default(observed, key)
        change = overrides_of({key: default}) if default is not None else ()
        gain_s = trials.gain_s(change) if change else None
        yield Finding(
            name=WITHOUT_EFFECT,
            seconds=0.0,
            share=0.0,
            seen=f"{note}; {key} may be left out",
            change=change if gain_s is not None else (),
            gain_s=gain_s,
            tried=len(change),
        )


def _default(observed: Observed, key: str) -> object:
    """The default of a key as a scenario file has it; None where it has no word for it."""
    if key not in observed.values or key not in KEYS:
        return None
    return KEYS[key].dump(observed.values[key][1])


def _in_all_batches(trials: Trials) -> list[str]:
    results = trials.base.results
    return [
        note
        for note in results[0].notes
        if CHANGES_NOTHING in note and all(note in result.notes for result in results)
    ]
