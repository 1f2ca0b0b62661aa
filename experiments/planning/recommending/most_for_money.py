"""The number of GPUs that makes most of a sum of money: the most tokens by a date, or the earliest date of some."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from .sizing import CHEAPEST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sizing import Offer, Sizing

EIGHTH = 0.125
"""Numbers of GPUs from half to twice the best are looked at in eighths of it, then those near the best in a quarter of
such a step: a date or an amount is missed by no more than 3 %."""
MOST_CAMPAIGNS = 3 * CHEAPEST
"""Numbers of GPUs whose campaigns are run, where fewer turn out to be within the money than the closed form says."""
ALIKE = 1.01
"""What is better by no more than this is worth no more money."""


class Worth(NamedTuple):
    """How good a number of GPUs is in closed form; a larger one is better.

    Attributes:
        kind: 2: within the money; 1: too dear; 0: it cannot run.
        value: within the money tokens that date and money allow, or tokens a second; else tokens for the money.
        gpu_s: what it takes.
    """

    kind: int
    value: float = 0.0
    gpu_s: float = 0.0


def makes_most(sizing: Sizing, guess: int) -> Offer | None:
    """The best of all numbers of GPUs, or the cheapest of those alike; the cheapest of all where all are too dear.

    Twice or half as many GPUs as the *guess*, again and again while that is better, then numbers in between: all in
    closed form. Whole campaigns are run on the best of them.
    """
    best = _climbed(sizing, max(1, min(guess, sizing.most) // sizing.block))
    offers: list[Offer] = []
    for gpus in _best_first(_between(sizing, best))[:MOST_CAMPAIGNS]:
        offer = sizing.offer(gpus)
        offers += [] if offer is None else [offer]
        if sum(one.within for one in offers) == CHEAPEST:
            break
    return _chosen(sizing, offers) if offers else None


def _chosen(sizing: Sizing, offers: Iterable[Offer]) -> Offer:
    """Of the offers within the money the best, or a cheaper one that is alike; else the cheapest."""

    def value(offer: Offer) -> float:
        return offer.tokens if sizing.goal.tokens is None else 1.0 / offer.surely_s

    kept = [one for one in offers if one.within]
    least = max(map(value, kept), default=0.0) / ALIKE
    return min(
        (one for one in kept or offers if not kept or value(one) >= least),
        key=lambda one: (one.usd or 0.0, one.gpus),
    )


def _best_first(worth: dict[int, Worth]) -> list[int]:
    """Numbers of GPUs that can run: those that are alike by what they take, then the others."""
    best = max(worth.values())
    least = best.value / ALIKE
    alike = [gpus for gpus, one in worth.items() if one.kind and one.kind == best.kind and one.value >= least]
    others = [gpus for gpus, one in worth.items() if one.kind and gpus not in alike]
    return sorted(alike, key=lambda gpus: worth[gpus].gpu_s) + sorted(
        others, key=lambda gpus: worth[gpus], reverse=True
    )


def _worth(sizing: Sizing, gpus: int) -> Worth:
    rate = sizing.rate(gpus)
    if not rate:
        return Worth(0)
    lasts_s, tokens = sizing.lasts_s(gpus), sizing.goal.tokens
    if tokens is None:
        return Worth(2, rate * lasts_s, gpus * lasts_s)
    within = rate * lasts_s >= tokens
    return Worth(2 if within else 1, rate if within else rate * lasts_s, gpus * tokens / rate)


def _climbed(sizing: Sizing, guess: int) -> int:
    """The best number of blocks among the guess and its doubles, or its halves that are alike, as far as that goes."""
    best, most = guess, _worth(sizing, guess * sizing.block)
    for factor, least in ((2.0, ALIKE), (0.5, 1.0 / ALIKE)):
        blocks = int(guess * factor)
        while 1 <= blocks <= sizing.most_blocks:
            then = _worth(sizing, blocks * sizing.block)
            if then.kind > most.kind or (then.kind == most.kind and then.value > most.value * least):
                best, most = blocks, max(then, most)
            elif most.kind:
                break
            blocks = int(blocks * factor)
        if best != guess:
            break
    return best


def _between(sizing: Sizing, blocks: int) -> dict[int, Worth]:
    """What numbers of GPUs around the best are worth; with the one whose money is spent on the very date, and all."""
    step = blocks * EIGHTH
    all_of_them = (sizing.most_blocks,) if sizing.most_blocks < 2 * blocks else ()
    worth = _all_worth(sizing, (blocks, *all_of_them, *_spread(blocks, blocks / 2.0, blocks * 2.0, step)))
    worth |= _all_worth(sizing, _just_paid(sizing, worth))
    best = max(worth, key=lambda gpus: worth[gpus]) // sizing.block
    return worth | _all_worth(sizing, _spread(best, best - step, best + step, step / 4.0))


def _all_worth(sizing: Sizing, blocks: Iterable[int]) -> dict[int, Worth]:
    sizes = {one * sizing.block for one in blocks if 1 <= one <= sizing.most_blocks}
    return {gpus: _worth(sizing, gpus) for gpus in sorted(sizes)}


def _spread(middle: int, low: float, high: float, step: float) -> list[int]:
    """Whole blocks from low to high in steps, the middle among them."""
    stride = max(1, round(step))
    return [one for one in range(middle % stride, math.floor(high) + 1, stride) if one >= low]


def _just_paid(sizing: Sizing, worth: dict[int, Worth]) -> list[int]:
    """The most blocks whose money lasts until the date, and one more."""
    runs = [gpus for gpus, one in worth.items() if one.kind]
    if not runs or sizing.goal.seconds is None:
        return []
    blocks = int(runs[-1] * sizing.paid_s(runs[-1]) / sizing.goal.seconds / sizing.block)
    return [blocks, blocks + 1]
