"""The best static mesh of a scenario: a strategy is compared with the best baseline, not with the first one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.studies.compare import BEST_STATIC, Lengths, Mesh, Outcome, run_setup
from hdpsim.simulator.setup import Packing, Setup
from hdpsim.simulator.step_memory import capacity_tokens

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario


MOST_DEGREES = 4
"""Context-parallel degrees tried beyond each other, from the smallest that holds the context."""

FINALISTS, NEAR = 3, 0.05
"""How many candidates run on all batches, and how much slower than the fastest they may be on the first one."""

WORTH_A_ROW = 5e-4
"""Relative gain from which another mesh than the scenario's own is the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One static mesh on the first batch.

    Attributes:
        step_s: None when it cannot run.
        work_left_out: share of the model FLOP it does not do because its packer splits sequences.
    """

    mesh: Mesh
    step_s: float | None
    work_left_out: float
    reason: str

    def document(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "packing": self.mesh.packing,
            "padding": self.mesh.padding,
            "cp": self.mesh.cp,
            "first_batch_step_s": self.step_s,
            "work_left_out": self.work_left_out,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The fastest static mesh over all batches, and every one that was tried."""

    best: Outcome
    best_whole: Outcome | None
    """The fastest one whose packer keeps sequences whole: it does all the work. None when none can run."""
    tried: tuple[Tried, ...]
    fixed_cp: bool
    """The scenario fixes the context-parallel degree, so no other was tried."""

    @property
    def line(self) -> str:
        """What was tried, in a sentence."""
        ran = [each for each in self.tried if each.step_s is not None]
        fastest: dict[str, Tried] = {}
        for each in sorted(ran, key=lambda each: each.step_s or 0.0):
            fastest.setdefault(each.mesh.packing, each)
        shown = []
        for name, each in fastest.items():
            less = f", {each.work_left_out:.1%} less work" if each.work_left_out >= WORTH_A_ROW else ""
            shown.append(f"{name} {each.step_s:,.3f} s (CP {each.mesh.cp}{less})")
        degrees = "layout.cp fixes CP" if self.fixed_cp else f"CP {_listed({e.mesh.cp for e in ran})}"
        return f"Static meshes tried on the first batch ({degrees}), the fastest of each packer: {', '.join(shown)}."


def _listed(degrees: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(degrees)))


def best_static(
    scenario: Scenario, batches: Sequence[Lengths], own: Outcome, *, independent: bool
) -> Baseline | None:
    """Try every packer, and context-parallel degrees where the layout leaves them free.

    All packers run the first batch with the degree that the scenario's own mesh has; the two fastest also try larger
    degrees; the fastest of all these run all batches. Padding stays as the scenario has it.

    Returns:
        None when no static mesh can run.
    """
    try:
        setup = scenario.setup("static")
        degrees = _degrees(setup)
    except InfeasibleError:
        return None
    first = tuple(batches[:1])
    tried: list[Tried] = []
    setups: list[Setup] = []
    ran: list[Outcome] = []

    def attempt(packing: Packing, cp: int) -> None:
        changed = replace(
            setup,
            strategy=replace(setup.strategy, packing=packing),
            layout=setup.layout if cp == degrees[0] else replace(setup.layout, cp=cp),
        )
        outcome = run_setup(changed, first, BEST_STATIC, independent=independent)
        setups.append(changed)
        ran.append(outcome)
        tried.append(
            Tried(
                mesh=outcome.mesh or Mesh(packing=packing, padding=setup.strategy.padding, cp=cp),
                step_s=outcome.results[0].step_s if outcome.results else None,
                work_left_out=outcome.work_left_out if outcome.results else 0.0,
                reason=outcome.reason,
            )
        )

    packers: tuple[Packing, ...] = get_args(Packing)
    for packing in packers:
        attempt(packing, degrees[0])
    fastest = sorted((each for each in tried if each.step_s is not None), key=lambda each: each.step_s or 0.0)
    for each in fastest[:2]:
        for cp in degrees[1:]:
            attempt(each.mesh.packing, cp)  # type: ignore[arg-type]
    finalists = _finalists(tried, whole=False)
    if not finalists:
        return None
    outcomes = [own] if own.results else []
    for number in dict.fromkeys((*finalists, *_finalists(tried, whole=True))):
        if own.results and own.mesh == tried[number].mesh:
            continue  # it has run already
        outcome = ran[number]
        if len(batches) > 1:
            outcome = run_setup(setups[number], batches, BEST_STATIC, independent=independent)
        if outcome.results:
            outcomes.append(outcome)
    best = _fastest(outcomes)
    if best is None:
        return None
    whole = _fastest([outcome for outcome in outcomes if outcome.work_left_out < WORTH_A_ROW])
    return Baseline(best=best, best_whole=whole, tried=tuple(tried), fixed_cp=setup.layout.cp is not None)


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


def _degrees(setup: Setup) -> tuple[int, ...]:
    """Context-parallel degrees worth a try: the scenario's, else the smallest ones that hold the context.

    Raises:
        InfeasibleError: nothing fits the GPUs.
    """
    if setup.layout.cp is not None:
        return (setup.layout.cp,)
    capacity = capacity_tokens(setup)
    needed = -(-setup.context_tokens // capacity)
    legal = [degree for degree in range(needed, setup.ranks + 1) if setup.ranks % degree == 0]
    return tuple(legal[:MOST_DEGREES]) or (setup.ranks,)
