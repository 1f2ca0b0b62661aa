"""What an earlier date costs: fewer GPUs than those of the earliest date, how long they take and for how much."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sizing import Offer, Sizing

HALVINGS = 5
"""Of the GPUs of the earliest date: down to a thirty-second of them."""


class DateForMoney(NamedTuple):
    """A number of GPUs, and what its date costs more than the next later one.

    Attributes:
        offer: the GPUs.
        usd_per_day: money for each day that it is earlier than the next later date; None for the latest.
    """

    offer: Offer
    usd_per_day: float | None


def fewer_gpus(sizing: Sizing, most: Offer) -> list[Offer]:
    """The GPUs of an offer, and a half, a quarter, ... of them with the same layout, as far as they can run."""
    blocks = [most.gpus // sizing.block >> halving for halving in range(HALVINGS + 1)]
    sizes = dict.fromkeys(number * sizing.block for number in blocks if number)
    found = [sizing.offer(gpus) for gpus in sizes if sizing.rate(gpus)]
    return [offer for offer in found if offer is not None and offer.within]


def dates_for_money(offers: Iterable[Offer]) -> list[DateForMoney]:
    """The offers than which no other is both earlier and cheaper, the latest first; none without prices."""
    kept: list[Offer] = []
    for offer in sorted(offers, key=lambda one: (one.days, one.usd or 0.0)):
        if offer.usd is not None and (not kept or offer.usd < (kept[-1].usd or 0.0)):
            kept.append(offer)
    kept.reverse()
    return [
        DateForMoney(now, None if before is None else _usd_per_day(before, now))
        for before, now in pairwise((None, *kept))
        if now is not None
    ]


def _usd_per_day(later: Offer, earlier: Offer) -> float:
    """USD more / days earlier."""
    assert later.usd is not None
    assert earlier.usd is not None
    return (earlier.usd - later.usd) / (later.days - earlier.days)
