"""The best static mesh of a scenario: a strategy is compared with the best baseline, not with the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from hdpsim.errors import InfeasibleError
from hdpsim.simulator.setup import Packing, Setup

from .compare import BEST_STATIC, Lengths, Outcome, run_setup

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario

    from .other_degrees import OtherDegree
    from .other_kinds import OtherKind


FINALISTS, NEAR = 3, 0.05
"""How many candidates run on all batches, and how much slower than the fastest they may be on the first one."""

WORTH_A_ROW = 5e-4
"""Relative gain from which another mesh than the scenario's own is the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One packer on the first batch."""

    setup: Setup
    outcome: Outcome

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None when it cannot run."""
        return self.outcome.results[0].step_s if self.outcome.results else None

    @property
    def work_left_out(self) -> float:
        """Share of the model FLOP that it does not do because its packer splits sequences."""
        return self.outcome.work_left_out if self.outcome.results else 0.0

    @property
    def words(self) -> str:
        """For a sentence: `concatenate packing, padded, CP 8`, and the work that is left out."""
        assert self.outcome.mesh is not None
        left_out = self.work_left_out
        less = (
            f" ({left_out:.1%} less work as its packer splits sequences)" if left_out >= WORTH_A_ROW else ""
        )
        return f"{self.outcome.mesh.words}{less}"

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            "packing": self.setup.strategy.packing,
            "padding": self.setup.strategy.padding,
            "cp": self.outcome.mesh.cp if self.outcome.mesh else self.setup.layout.parallel.cp,
            "first_batch_step_s": self.step_s,
            "work_left_out": self.work_left_out,
            "reason": self.outcome.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The fastest static mesh over all batches, and every one that was tried."""

    best: Outcome
    best_whole: Outcome | None
    """The fastest one whose packer keeps sequences whole: it does all the work. None when none can run."""
    tried: tuple[Tried, ...]
    fixed_cp: bool
    """The scenario states the context-parallel degree, so no other was tried."""
    other_degree: OtherDegree | None = None
    """A mesh of another tensor-parallel degree that is clearly faster; None: none is, or nobody looked."""
    other_kind: OtherKind | None = None
    """The same of another `layout.cp_kind`."""

    @property
    def line(self) -> str:
        """What was tried, in a sentence."""
        shown = []
        for mesh_tried in sorted(self.tried, key=lambda mesh_tried: mesh_tried.step_s or 0.0):
            mesh = mesh_tried.outcome.mesh
            if mesh is not None:
                less = (
                    f", {mesh_tried.work_left_out:.1%} less work"
                    if mesh_tried.work_left_out >= WORTH_A_ROW
                    else ""
                )
                shown.append(f"{mesh.packing} {mesh_tried.step_s:,.3f} s (CP {mesh.cp}{less})")
        degrees = "layout.cp fixes CP" if self.fixed_cp else "each with its fastest CP"
        return f"Static meshes tried on the first batch ({degrees}): {', '.join(shown)}."


def best_static(
    scenario: Scenario, batches: Sequence[Lengths], own: Outcome, *, links: bool = False, independent: bool
) -> Baseline | None:
    """Try every packer, each with the context-parallel degree that is fastest for it where the layout states none.

    All run the first batch; the fastest of them run all batches. Padding stays as the scenario has it. *links*: see
    compare.

    Returns:
        None when no static mesh can run.
    """
    try:
        setup = scenario.setup("static")
    except InfeasibleError:
        return None
    tried = packers_tried(setup, batches[:1], links=links, independent=independent)
    finalists = _finalists(tried, whole=False)
    if not finalists:
        return None
    outcomes = [own] if own.results else []
    for number in dict.fromkeys((*finalists, *_finalists(tried, whole=True))):
        finalist = tried[number]
        if own.results and own.mesh == finalist.outcome.mesh:
            continue  # it has run already
        outcome = finalist.outcome
        if len(batches) > 1:
            outcome = run_setup(finalist.setup, batches, BEST_STATIC, links=links, independent=independent)
        if outcome.results:
            outcomes.append(outcome)
    best = _fastest(outcomes)
    if best is None:
        return None
    best_whole = _fastest([outcome for outcome in outcomes if outcome.work_left_out < WORTH_A_ROW])
    return Baseline(
        best=best, best_whole=best_whole, tried=tried, fixed_cp=setup.layout.parallel.cp is not None
    )


def packers_tried(
    setup: Setup, batches: Sequence[Lengths], *, links: bool = False, independent: bool = True
) -> tuple[Tried, ...]:
    """A static mesh with every packer in turn."""
    packers: tuple[Packing, ...] = get_args(Packing)
    setups = [replace(setup, strategy=replace(setup.strategy, packing=packing)) for packing in packers]
    return tuple(
        Tried(setup=each, outcome=run_setup(each, batches, BEST_STATIC, links=links, independent=independent))
        for each in setups
    )


def _finalists(tried: Sequence[Tried], *, whole: bool) -> list[int]:
    """Numbers of the fastest candidates on the first batch; *whole*: of those that keep sequences whole."""
    ran = sorted(
        (each.step_s, number)
        for number, each in enumerate(tried)
        if each.step_s is not None and not (whole and each.work_left_out >= WORTH_A_ROW)
    )
    return [number for step_s, number in ran if step_s <= ran[0][0] * (1.0 + NEAR)][:FINALISTS]


def _fastest(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The fastest over all batches; an earlier one unless a later one is worth a row of its own."""
    best: Outcome | None = None
    for outcome in outcomes:
        if best is None or outcome.tokens_per_s.mean > best.tokens_per_s.mean * (1.0 + WORTH_A_ROW):
            best = outcome
    return best
