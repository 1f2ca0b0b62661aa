"""What checks look at: a scenario that was simulated, in the words of its scenario file and of the table of checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.cost_models.transformer.parameters import stage_layers
from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.settings import settings

from .trials import Trials, overrides_of

if TYPE_CHECKING:
    from hdpsim.arrays import Floats
    from hdpsim.cost_models.hardware.parts import Fabric, Node
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
        """What is seen of the first batch's step with these changes, which can run."""
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

    @cached_property
    def busy_s(self) -> Floats:
        """By stage: seconds of a step in which a GPU computes or communicates, mean over ranks and batches."""
        terms = len(self.first.accounts) - len(WAITS)
        results = self.trials.base.results
        busy_s: Floats = np.mean(
            [result.account_s[:terms].mean(axis=1).sum(axis=0) for result in results], axis=0
        )
        return busy_s

    def capacities(self, *factors: float) -> Iterator[dict[str, object]]:
        """Other rank capacities: the present one times each of the factors."""
        step = 128 * self.setup.layout.parallel.tp
        for factor in factors:
            tokens = int(self.first.rank_capacity_tokens * factor) // step * step
            if tokens:
                yield {"layout.rank_capacity": f"{tokens} tokens"}

    def degrees_of(self, **degrees: int) -> dict[str, object]:
        """Other degrees with the simplest schedule that takes them."""
        changes: dict[str, object] = {f"layout.{name}": value for name, value in degrees.items()}
        pp = degrees.get("pp", self.setup.layout.parallel.pp)
        if pp == 1 or "pp" in degrees:
            changes |= {"layout.vpp": 1, "layout.schedule": "1f1b"}
        return changes

    @property
    def is_static(self) -> bool:
        """Whether the strategy is a static mesh."""
        return self.setup.strategy.name == "static"

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.setup.layout.parallel.tp

    @property
    def fabric(self) -> Fabric:
        """The network between nodes."""
        return self.setup.cluster.fabric

    @property
    def layers(self) -> list[int]:
        """Layers of every stage."""
        return [sum(chunks) for chunks in stage_layers(self.setup.model, self.setup.layout)]

    @property
    def largest_group(self) -> int:
        """Ranks of the largest context-parallel group."""
        return max(result.largest_group for result in self.trials.base.results)


def halves(degree: int) -> Iterator[int]:
    """Half of a degree, half of that, and so on down to 1."""
    while degree % 2 == 0:
        degree //= 2
        yield degree
