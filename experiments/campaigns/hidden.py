"""Keys of a campaign whose effect is hidden in all of its runs: each is put back, and every run stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hdpsim.errors import HdpSimError
from hdpsim.experiments.campaigns.setup import CampaignPlan, campaign_values, plan_values
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.simulator.campaign.setup import CampaignResult, CampaignSetup
from hdpsim.simulator.settings import note_on

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario

Simulate = Callable[[Sequence[CampaignSetup]], Iterable[CampaignResult]]

_SHOWN = frozenset({"duration", "seeds", "step"})
"""Never looked at: what every result shows, and a step that somebody measured."""
_OTHERWISE = "whatever it changes never happens in them"


def hidden_keys(
    scenario: Scenario,
    plan: CampaignPlan,
    results: Sequence[CampaignResult],
    simulate: Simulate,
) -> tuple[str, ...]:
    """One sentence for every key that is not the default and changes no run of a campaign.

    Args:
        scenario: of the campaign.
        plan: of the campaign.
        results: of its runs.
        simulate: runs setups in their order, each when it is asked for.
    """
    values = campaign_values(scenario)
    named = {note.partition(" = ")[0] for note in plan.idle_notes}
    sentences = []
    for name, value in values.items():
        key = KEYS[f"campaign.{name}"]
        if value == key.default or name in _SHOWN or f"campaign.{name}" in named:
            continue
        try:
            setup = _setup_without(scenario, plan, name)
        except HdpSimError:  # the other keys contradict the default
            continue
        if _same_runs(setup, plan, results, simulate):
            why = f" in these runs: {meanings('hidden_keys_of_campaigns').get(name, _OTHERWISE)}"
            sentences.append(note_on(f"campaign.{name}", key.dump(value), why))
    return tuple(sentences)


def _setup_without(scenario: Scenario, plan: CampaignPlan, name: str) -> CampaignSetup:
    """The setup with one key at its default; how slow nodes are counts as hidden where slow nodes slow nothing."""
    if name == "straggler_factor":
        slow_steps = tuple((nodes, 1.0) for nodes, _ in plan.setup.slow_steps)
        return replace(plan.setup, slow_steps=slow_steps, seed=(plan.seed, 0))
    values = {**campaign_values(scenario), name: KEYS[f"campaign.{name}"].default}
    other = plan_values(scenario, values, known=plan)
    return replace(other.setup, seed=(other.seed, 0))


def _same_runs(
    setup: CampaignSetup, plan: CampaignPlan, results: Sequence[CampaignResult], simulate: Simulate
) -> bool:
    seed = setup.seed[0]
    if replace(setup, seed=plan.setup.seed) == plan.setup and seed == plan.seed:
        return True
    setups = [replace(setup, seed=(seed, number)) for number in range(len(results))]
    return all(
        _figures(without_key) == _figures(result)
        for without_key, result in zip(simulate(setups), results, strict=False)
    )


def _figures(result: CampaignResult) -> CampaignResult:
    """The figures by which runs are compared; spares that nobody needs are none of them."""
    return replace(result, least_spares=0)
