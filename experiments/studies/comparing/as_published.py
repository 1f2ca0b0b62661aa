"""Strategies of other systems that run without a part of what those systems do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .compare import Outcome

WLB_KIND, WLB_QUEUES = "all-gather", 2
"""How its ranks share attention, and queues for an example (arXiv 2503.17924; docs/explanation/other_planners.md)."""


def not_as_published(outcomes: Sequence[Outcome]) -> list[str]:
    """What WLB-LLM's authors run and no variant of it here has; nothing where one has it all."""
    lacking = [
        (outcome, _lacks(outcome))
        for outcome in outcomes
        if outcome.setup and outcome.setup.strategy.name == "wlb-llm"
    ]
    if not lacking or not all(lacks for _, lacks in lacking):
        return []
    outcome, lacks = min(lacking, key=lambda one: len(one[1]))
    given = outcome.strategy.removeprefix("wlb-llm").strip("()")
    variant = ",".join(filter(None, (given, *(f"{key}={value}" for key, value in lacks.items()))))
    words = {
        "cp_kind": "gathers keys and values",
        "outlier_queues": "lets long documents wait for later batches",
    }
    return [
        f"{outcome.strategy} is not all of WLB-LLM, which {' and '.join(words[key] for key in lacks)}: compare "
        f'"wlb-llm({variant})" as well, on many batches.'
    ]


def _lacks(outcome: Outcome) -> dict[str, object]:
    """Keys that the system sets, and this variant does not."""
    setup, lacks = outcome.setup, dict[str, object]()
    assert setup is not None
    if setup.layout.context.kind != WLB_KIND and outcome.results[0].largest_group > 1:
        lacks["cp_kind"] = WLB_KIND
    if not setup.strategy.outlier_queues:
        lacks["outlier_queues"] = WLB_QUEUES
    return lacks
