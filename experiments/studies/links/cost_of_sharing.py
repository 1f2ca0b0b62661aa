"""What links that transfers share cost a step (execution.network = flows), beside the same step without that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.experiments.output.plots.style import readable_name

from .over_steps import IN_DATA
from .report import SeenLinks, links_json, links_line, seen_links

if TYPE_CHECKING:
    from hdpsim.experiments.studies.comparing.compare import Outcome
    from hdpsim.simulator.play.execution import SharedLinks

WORTH_NAMING = 0.05
"""Share of the contention that an account needs to be named."""


def network_json(outcome: Outcome) -> dict[str, Any] | None:
    """Means over the batches; None: transfers are independent."""
    shared = _shared(outcome)
    if not shared:
        return None
    alone_s = float(np.mean([one.alone_s for one in shared]))
    flaps_s = float(np.mean([one.flaps_s for one in shared]))
    seen = SeenLinks.of(outcome)
    return {
        "independent_step_s": float(np.mean([one.independent_s for one in shared])),
        "alone_step_s": alone_s,
        "contention": (outcome.step_s.mean - flaps_s) / alone_s - 1.0,
        "flaps": float(np.mean([len(one.flaps) for one in shared])),
        "flaps_s": flaps_s,
        "contention_s": _contention_s(outcome, shared),
        **(links_json(seen) if seen else {}),
        **({"all_batches": outcome.links.hottest_links(IN_DATA)} if outcome.links else {}),
    }


def network_lines(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """For every strategy whose transfers share links: what that costs, and where the links are hottest."""
    shared = [outcome for outcome in outcomes if _shared(outcome)]
    over = (
        f"{one.strategy}: hottest links of all {len(one.results):,} batches {one.links.words('batch')}."
        for one in shared
        if one.links
    )
    return (*map(_line, shared), *map(links_line, seen_links(shared)), *over)


def _line(outcome: Outcome) -> str:
    network = network_json(outcome)
    assert network is not None
    step_s = outcome.step_s.mean
    flaps = f", {_flap_words(network)}" if network["flaps"] else ""
    text = (
        f"{outcome.strategy}: contention costs {network['contention']:.1%}{flaps}: a step of {step_s:.3f} s, and of "
        f"{network['alone_step_s']:.3f} s if no two transfers shared a link; {network['independent_step_s']:.3f} s "
        f"with execution.network = independent."
    )
    total_s = sum(network["contention_s"].values())
    named = [
        f"{readable_name(name)} {seconds:.3f} s"
        for name, seconds in sorted(network["contention_s"].items(), key=lambda item: -item[1])
        if seconds > max(WORTH_NAMING * total_s, 5e-4)
    ]
    return f"{text} Where: {', '.join(named)}, and what waits for it." if named else text


def _flap_words(network: dict[str, Any]) -> str:
    return f"link flaps {network['flaps_s']:.3g} s ({network['flaps']:.3g} a step)"


def _shared(outcome: Outcome) -> list[SharedLinks]:
    return [result.network for result in outcome.results if result.network is not None]


def _contention_s(outcome: Outcome, shared: list[SharedLinks]) -> dict[str, float]:
    """Mean over ranks, stages and batches in every account that has any."""
    seconds = np.mean([one.contention_s for one in shared], axis=0)
    accounts = outcome.results[0].accounts
    return {name: float(mean_s) for name, mean_s in zip(accounts, seconds, strict=True) if mean_s > 0.0}
