"""Would a static mesh be faster if its groups shared attention in another way? A ring may hold it back.

A group of a static mesh sends the keys and values of every pack around, short sequences included. HDP's groups are
small, so what a ring costs is mostly the mesh's. Held against a ring alone, HDP shines by that and not by its groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdpsim.errors import InfeasibleError, ScenarioError

from .baseline import Tried, packers_tried
from .other_degrees import WORTH_A_WORD

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario

    from .compare import Lengths, Outcome

KINDS = ("ring", "all-gather", "ulysses")
"""Values of `layout.cp_kind` that common stacks offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherKind:
    """The fastest static mesh of another `layout.cp_kind` on the first batch; all else is the scenario's."""

    kind: str
    tried: Tried

    @property
    def words(self) -> str:
        """For a sentence: `layout.cp_kind=ulysses, first-fit packing, padded, CP 8`."""
        return f"layout.cp_kind={self.kind}, {self.tried.words}"

    def faster_than(self, outcome: Outcome) -> float:
        """Throughput relative to an outcome's, both on the first batch."""
        return float(self.tried.outcome.results[0].tokens_per_s / outcome.results[0].tokens_per_s)

    def document(self) -> dict[str, Any]:
        """As JSON data."""
        return {"cp_kind": self.kind, **self.tried.document()}


def faster_kind(scenario: Scenario, batches: Sequence[Lengths], best: Outcome) -> OtherKind | None:
    """The fastest static mesh of another `layout.cp_kind`; None where none is clearly faster than *best*.

    Every packer is tried, each with its fastest context-parallel degree where the layout states none, on the first
    batch. Where the ranks of the best mesh share no sequence, nothing is.
    """
    if best.mesh is None or best.mesh.cp == 1:
        return None
    ran = [
        OtherKind(kind=kind, tried=tried)
        for kind in KINDS
        if kind != scenario.layout.context.kind
        for tried in _tried(scenario, kind, batches)
        if tried.step_s is not None
    ]
    fastest = max(ran, key=lambda one: one.faster_than(best), default=None)
    return fastest if fastest is not None and fastest.faster_than(best) >= 1.0 + WORTH_A_WORD else None


def _tried(scenario: Scenario, kind: str, batches: Sequence[Lengths]) -> tuple[Tried, ...]:
    try:
        setup = scenario.with_changes((f"layout.cp_kind={kind}",)).setup("static")
    except (
        InfeasibleError,
        ScenarioError,
    ):  # heads that do not divide, switches that need the scenario's kind
        return ()
    return packers_tried(setup, batches[:1])
