"""What checks look at: a scenario that was simulated, in the words of its scenario file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.settings import settings

from .trials import Trials, overrides_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hdpsim.cost_models.hardware.parts import Node
    from hdpsim.simulator.setup import Setup
    from hdpsim.simulator.step import StepResult

    from .trials import Changes, Overrides


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The step of a scenario, and a way to try changes of it."""

    trials: Trials
    account_s: dict[str, float]
    """Seconds of a step in each account, mean over ranks, stages and batches."""
    values: dict[str, tuple[Any, Any]]
    """Dotted key -> (value, default)."""

    @classmethod
    def of(cls, trials: Trials) -> Observed:
        """What *trials* have simulated."""
        assert trials.base.setup is not None
        return cls(trials=trials, account_s=trials.base.account_s(), values=settings(trials.base.setup))

    def changed(self, overrides: Overrides) -> Observed:
        """The same of the first batch's step with these changes, which can run."""
        trials = self.trials
        return Observed.of(
            Trials(scenario=trials.scenario, drawn=trials.drawn, base=trials.on_first(overrides))
        )

    @property
    def setup(self) -> Setup:
        """What was simulated."""
        assert self.trials.base.setup is not None
        return self.trials.base.setup

    @property
    def first(self) -> StepResult:
        """The step of the first batch."""
        return self.trials.base.results[0]

    @property
    def node(self) -> Node:
        """A server of the cluster."""
        return self.setup.cluster.node

    @property
    def step_s(self) -> float:
        """Mean over the batches."""
        return self.trials.base.step_s.mean

    @property
    def is_static(self) -> bool:
        """Whether the strategy is a static mesh."""
        return self.setup.strategy.name == "static"

    def value(self, key: str) -> Any:
        """The value of a setting, by its dotted key."""
        return self.values[key][0]

    def seconds_in(self, *accounts: str) -> float:
        """Seconds of a step in these accounts."""
        return sum(self.account_s.get(name, 0.0) for name in accounts)

    def saved_s(self, changes: Changes) -> float:
        """Seconds of the first batch's step that are gone with these changes; 0 where they cannot run."""
        new_changes = self.trials.without_same(changes)
        if not new_changes:
            return 0.0
        return max(0.0, self.trials.first_gain_s(overrides_of(new_changes)))

    def best_saved_s(self, remedies: Iterable[Changes]) -> float:
        """The most that one of the remedies saves."""
        return max((self.saved_s(changes) for changes in remedies), default=0.0)

    def busy_s(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """By stage: seconds of a step in which a GPU computes or communicates, mean over ranks and batches."""
        terms = len(self.first.accounts) - len(WAITS)
        busy_s: np.ndarray[Any, np.dtype[np.float64]] = np.mean(
            [result.account_s[:terms].mean(axis=1).sum(axis=0) for result in self.trials.base.results], axis=0
        )
        return busy_s

    def micro_batches(self) -> float:
        """Micro-batches that a rank works on, mean over ranks, of the first batch."""
        plan = self.first.plan
        return len(plan.member_ranks) / plan.ranks

    def capacities(self, *factors: float) -> Iterator[dict[str, object]]:
        """Other rank capacities: the present one times each of the factors."""
        step = 128 * self.setup.layout.parallel.tp
        for factor in factors:
            tokens = int(self.first.rank_capacity_tokens * factor) // step * step
            if tokens:
                yield {"layout.rank_capacity": f"{tokens} tokens"}

    def degrees(self, **degrees: int) -> dict[str, object]:
        """Other degrees with the simplest schedule that takes them."""
        changes: dict[str, object] = {f"layout.{name}": value for name, value in degrees.items()}
        pp = degrees.get("pp", self.setup.layout.parallel.pp)
        if pp == 1 or "pp" in degrees:
            changes |= {"layout.vpp": 1, "layout.schedule": "1f1b"}
        return changes


def halves(degree: int) -> Iterator[int]:
    """Half of a degree, half of that, and so on down to 1."""
    while degree % 2 == 0:
        degree //= 2
        yield degree
