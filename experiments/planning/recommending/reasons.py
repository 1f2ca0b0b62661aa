"""Why GPUs are not recommended, and what would have to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.amounts import duration, large_amount
from hdpsim.experiments.studies.money import usd_words

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario

    from .goal import Goal
    from .recommend import TypeResult
    from .sizing import Offer


def too_dear(offer: Offer, goal: Goal, confidence: float) -> str:
    """What GPUs cost that meet the date, but not for the money, and how many tokens the money buys on them."""
    assert goal.usd is not None
    assert offer.usd is not None
    assert offer.surely_usd is not None
    return (
        f"over the budget: {offer.gpus:,} GPUs cost least, {usd_words(offer.usd)} (with a probability of "
        f"{confidence:.0%} at most {usd_words(offer.surely_usd)}); {usd_words(goal.usd)} buy about "
        f"{large_amount(offer.bought(goal))} tokens"
    )


def unreachable(
    goal: Goal, confidence: float, types: Sequence[TypeResult], scenario: Scenario, most_gpus: int
) -> InfeasibleError:
    """Why the goal cannot be met, and what would have to change."""
    lines = [
        f"{goal.words}: no number of GPUs that was tried meets it with a probability of {confidence:.0%}"
    ]
    for result in types:
        if result.fastest is None or result.dear is not None or goal.wanted != "gpus":
            lines.append(f"  {result.gpu}: {result.reason}")
            continue
        gpus, seconds = result.fastest
        tokens = _in_time(goal, seconds)
        lines.append(
            f"  {result.gpu}: {gpus:,} GPUs are the fastest and need {duration(seconds)} for that, which is "
            f"{large_amount(tokens)} tokens in {goal.time} ({result.layout})"
        )
    bound = [
        result
        for result in types
        if result.sizing is not None and result.sizing.binds and result.dear is None
    ]
    if bound:
        lines.append(f"No more than {most_gpus:,} GPUs were tried (--max-gpus)")
    reached = [result.fastest for result in types if result.fastest]
    dear = [result.dear for result in types if result.dear]
    if dear:
        least_usd = _enough(min(offer.surely_usd or math.inf for offer in dear))
        tokens = max(offer.bought(goal) for offer in dear)
        lines.append(
            f"What would have to change: at least {usd_words(least_usd)} instead of {usd_words(goal.usd or 0.0)}, "
            f"about {large_amount(tokens)} tokens, or cheaper GPUs (--gpu, costs.provider, costs.price)"
        )
    elif reached and goal.wanted != "gpus":
        more = "a larger sum, a later date, " if goal.wanted == "tokens" else ""
        lines.append(
            f"What would have to change: {more}fewer failures, or less time lost by each (campaign.*)"
        )
    elif reached:
        least_s = min(seconds for _, seconds in reached)
        work = f"a larger data.batch than {scenario.data.batch} (more GPUs find no more work in it)"
        lines.append(
            f"What would have to change: at least {duration(least_s)} instead of {goal.time}, at most "
            f"{large_amount(_in_time(goal, least_s))} tokens, {'more GPUs (--max-gpus)' if bound else work}, or faster "
            "GPUs (--gpu)"
        )
    else:
        lines.append(
            "What would have to change: GPUs with more memory (--gpu h200,b200) or a shorter data.context"
        )
    return InfeasibleError("\n".join(lines))


def _in_time(goal: Goal, seconds: float) -> float:
    """Tokens that are trained until the date, where those of the goal take so many seconds."""
    return (goal.tokens or 0.0) * goal.until_s / seconds


def _enough(usd: float) -> float:
    """The three digits that are shown, rounded up: who follows the advice has enough."""
    digit = 10.0 ** (math.floor(math.log10(usd)) - 2)
    return math.ceil(usd / digit) * digit
