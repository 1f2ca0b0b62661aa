"""Would a static mesh of another tensor-parallel degree be faster? A layout that suits HDP may cripple static meshes.

HDP needs little memory for a rank's share of a long sequence, so a layout of few GPUs a model suits it. The same layout
spreads a static mesh over many ranks, each with a thin slice of every pack. Held against that mesh alone, HDP shines by
the layout and not by its groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdpsim.errors import InfeasibleError, ScenarioError

from .baseline import Tried, packers_tried

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario

    from .compare import Lengths, Outcome

WORTH_A_WORD = 0.05
"""How much faster than the best static mesh of the scenario's degree one of another has to be, to be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDegree:
    """The fastest static mesh of another tensor-parallel degree on the first batch; its capacity fills the memory."""

    tp: int
    tried: Tried

    @property
    def words(self) -> str:
        """For a sentence: `TP 4, concatenate packing, padded, CP 8`."""
        return f"TP {self.tp}, {self.tried.words}"

    def faster_than(self, outcome: Outcome) -> float:
        """Throughput relative to an outcome's, both on the first batch."""
        return float(self.tried.outcome.results[0].tokens_per_s / outcome.results[0].tokens_per_s)

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {"tp": self.tp, **self.tried.document()}


def faster_degree(scenario: Scenario, batches: Sequence[Lengths], best: Outcome) -> OtherDegree | None:
    """The fastest static mesh of another tensor-parallel degree; None where none is clearly faster than *best*.

    Tried are the powers of two up to a node, with the pipeline of the scenario, every packer, each with its fastest
    context-parallel degree, and a rank capacity that fills the memory. All on the first batch.
    """
    fastest: OtherDegree | None = None
    for tp in _degrees(scenario):
        for tried in _tried(scenario, tp, batches):
            if tried.step_s is None:
                continue
            degree = OtherDegree(tp=tp, tried=tried)
            if fastest is None or degree.faster_than(fastest.tried.outcome) > 1.0:
                fastest = degree
    return fastest if fastest is not None and fastest.faster_than(best) >= 1.0 + WORTH_A_WORD else None


def _degrees(scenario: Scenario) -> list[int]:
    most, given = scenario.cluster.node_gpus, scenario.layout.parallel.tp
    return [tp for tp in (2**power for power in range(most.bit_length())) if tp <= most and tp != given]


def _tried(scenario: Scenario, tp: int, batches: Sequence[Lengths]) -> tuple[Tried, ...]:
    changes = (f"layout.tp={tp}", "layout.cp=auto", "layout.rank_capacity=auto")
    try:
        setup = scenario.with_changes(changes).setup("static")
    except (InfeasibleError, ScenarioError):  # heads that do not divide, experts that find no place
        return ()
    return packers_tried(setup, batches[:1])
