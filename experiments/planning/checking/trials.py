"""Changed scenarios, really simulated on the batches of the scenario as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.errors import InfeasibleError, ScenarioError
from hdpsim.experiments.bands.memory_fit import shipped_margin
from hdpsim.experiments.output.statistics import Estimate, estimate
from hdpsim.experiments.studies.comparing.compare import Outcome, run_batches
from hdpsim.simulator.settings import settings

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.data_use import Drawn
    from hdpsim.experiments.scenario.scenario import Scenario

Changes = Mapping[str, object]
"""Dotted keys of a scenario and the values to write there, as a scenario file has them."""
Overrides = tuple[str, ...]
"""The same as `key=value` texts, in the order of the keys."""

WORTH_A_CHANGE = 1e-3
"""Share of a step that a change must save."""


def overrides_of(changes: Changes) -> Overrides:
    """The changes as `--set` takes them."""
    return tuple(f"{key}={_written(value)}" for key, value in sorted(changes.items()))


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(kw_only=True)
class Trials:
    """A scenario that runs, and what became of every change that was tried.

    Attributes:
        scenario: as it is.
        drawn: its global batches.
        base: how it did on them.
    """

    scenario: Scenario
    drawn: Drawn
    base: Outcome
    _first: dict[Overrides, Outcome] = field(default_factory=dict)
    _all: dict[Overrides, Outcome] = field(default_factory=dict)

    @property
    def tried(self) -> int:
        """How many different changes were simulated or refused."""
        return len(self._first)

    def without_same(self, changes: Changes) -> dict[str, object]:
        """The changes but for keys that have that value already; other stages are not cut as those were by hand."""
        assert self.base.setup is not None
        known = settings(self.base.setup)
        same = {
            key for key, value in changes.items() if key in known and _is_written_so(known[key][0], value)
        }
        different = {key: value for key, value in changes.items() if key not in same}
        cut = self.base.setup.layout.pipeline.cut
        if cut is not None and different.keys() & {"layout.pp", "layout.vpp"}:
            different.setdefault("layout.pipeline_layout", "auto")
        return different

    def first_alone(self) -> Trials:
        """The scenario as it is, on the first batch."""
        base = replace(self.base, results=self.base.results[:1], lengths=self.base.lengths[:1])
        return replace(self, base=base)

    def on_first(self, overrides: Overrides) -> Outcome:
        """How the changed scenario does on the first batch."""
        if overrides not in self._first:
            self._first[overrides] = self._run(overrides, 1)
        return self._first[overrides]

    def on_all(self, overrides: Overrides) -> Outcome:
        """How the changed scenario does on all batches."""
        if overrides not in self._all:
            first = self.on_first(overrides)
            has_more = first.results and len(self.drawn.lengths) > 1
            self._all[overrides] = self._run(overrides, len(self.drawn.lengths), first) if has_more else first
        return self._all[overrides]

    def first_gain_s(self, overrides: Overrides) -> float:
        """Seconds that the change saves on the first batch; minus infinity where it cannot run."""
        outcome = self.on_first(overrides)
        return self.base.results[0].step_s - outcome.results[0].step_s if outcome.results else -np.inf

    def gain_s(self, overrides: Overrides) -> Estimate | None:
        """Seconds of a step that the change saves, batch by batch; None where it cannot run."""
        outcome = self.on_all(overrides)
        if not outcome.results:
            return None
        pairs = zip(self.base.results, outcome.results, strict=True)
        saved_s = [base.step_s - changed.step_s for base, changed in pairs]
        return estimate(saved_s, independent=self.base.independent)

    def gains(self, gain_s: Estimate | None) -> bool:
        """Whether so much is worth a change and more than the batches do by chance."""
        if gain_s is None or gain_s.mean < WORTH_A_CHANGE * self.base.step_s.mean:
            return False
        return (gain_s.lowest if gain_s.half_width is None else gain_s.mean - gain_s.half_width) > 0.0

    def _run(self, overrides: Overrides, count: int, before: Outcome | None = None) -> Outcome:
        batches = self.drawn.lengths[:count]
        try:
            changed = self.scenario.with_changes(overrides)
            if changed.document["data"] != self.scenario.document["data"]:
                drawn = changed.draw(count).lengths
                if not all(map(np.array_equal, drawn, batches)):
                    return Outcome(strategy=changed.strategy.name, reason="other batches")
            outcome = run_batches(changed, batches, independent=self.base.independent, before=before)
        except (InfeasibleError, ScenarioError) as error:
            return Outcome(strategy=self.scenario.strategy.name, reason=str(error))
        if any(not result.memory.fits for result in outcome.results):
            return Outcome(strategy=outcome.strategy, reason="does not fit")
        if _is_tight(outcome) and not _is_tight(self.base):
            return Outcome(
                strategy=outcome.strategy, reason="leaves less memory free than hdpsim plan asks for"
            )
        return outcome


def _is_tight(outcome: Outcome) -> bool:
    headroom = shipped_margin().headroom
    return any(result.memory.is_tight(headroom) for result in outcome.results)


def _is_written_so(value: Any, written: object) -> bool:
    """Whether a value of a setup is what a scenario file would write so."""
    if value is None:
        return written in ("auto", "all", "none")
    return bool(value == written) or str(value) == str(written).removesuffix(" tokens")
