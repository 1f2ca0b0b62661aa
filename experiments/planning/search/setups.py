"""Setups of thousands of candidates, without reading a whole scenario for each."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.layout_checks import reasons_against
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.simulator.settings import FIELDS

from .space import ANY_GPUS, Candidate, Changes

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario
    from hdpsim.simulator.setup import Setup


class Setups:
    """What `scenario.with_changes(candidate.overrides).setup()` gives, except that a candidate has to fit.

    Attributes:
        base: on the site's GPUs, with degrees that divide whatever there is.
    """

    def __init__(self, scenario: Scenario, site: Changes) -> None:
        """*site*: changes of GPUs and their number."""
        self._scenario = scenario
        on_site = scenario.with_changes((*Candidate(changes=site).overrides, *ANY_GPUS))
        self._reads_everything = bool(scenario.document.get("software"))  # whose rules look at all keys
        self._sections = {"layout", "strategy", "data"}
        self._longest = max(on_site.data.lengths_tokens or (on_site.data.context_tokens,))
        self.base = self._must_fit(on_site.setup())

    @staticmethod
    def _must_fit(setup: Setup) -> Setup:
        return replace(setup, memory=replace(setup.memory, must_fit=True))

    def of(self, changes: Changes) -> Setup:
        """The setup of a candidate, site included.

        Raises:
            InfeasibleError: the degrees do not fit the model or the GPUs.
            ScenarioError: keys that contradict each other.
        """
        if self._reads_everything:
            return self._must_fit(self._scenario.with_changes(Candidate(changes=changes).overrides).setup())
        values: dict[str, dict[str, Any]] = {section: {} for section in self._sections}
        for key, value in changes:
            section, _, leaf = key.partition(".")
            if section in self._sections:
                values[section][FIELDS.get(leaf, leaf)] = _parsed(key, value)
        layout = self.base.layout.changed(**values["layout"])
        if values["layout"].keys() - {"cp", "rank_capacity_tokens"}:
            against = reasons_against(self.base.model, self.base.cluster, layout, self._longest)
            if against:
                raise InfeasibleError("cannot run:\n" + "\n".join(f"  {reason}" for reason in against))
        return replace(
            self.base,
            layout=layout,
            strategy=replace(self.base.strategy, **values["strategy"]),
            context_tokens=values["data"].get("context", self.base.context_tokens),
        )


@lru_cache(maxsize=4096)
def _parsed(key: str, value: object) -> Any:
    return KEYS[key].parse(value)
