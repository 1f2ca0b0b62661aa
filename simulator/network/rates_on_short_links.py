"""New rates of some activities on the links that are short, with what all others leave them there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.network.activity import Running
from hdpsim.simulator.network.fair_share import fair_rates, fair_rates_of_few
from hdpsim.simulator.network.link_demand import LinkUse

FEW = 20  # entries: so many are solved faster in plain Python than in arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """New rates, and what the links that are short carry then.

    Attributes:
        rate: rate of each activity.
        stopped_by: of each activity, the link that keeps it from being faster; -1: none.
        carried: of each link, what flows over it.
        fastest: of each link, the fastest of the activities that were solved.
    """

    rate: list[float]
    stopped_by: list[int]
    carried: dict[int, float]
    fastest: dict[int, float]


def solve(use: LinkUse, chosen: Collection[Running]) -> Solved:
    """New rates of the *chosen*, all others staying as they are. Only links that are short can stop anybody."""
    links, flows = [], []
    for one in chosen:
        pattern = one.activity.pattern
        inside = use.is_short.take(pattern.links)
        links.append(pattern.links[inside])
        flows.append(pattern.flows[inside])
    return (_solve_few if sum(map(len, links)) <= FEW else _solve_many)(use, chosen, links, flows)


def _solve_few(
    use: LinkUse, chosen: Collection[Running], links: Sequence[Ints], flows: Sequence[Floats]
) -> Solved:
    users: dict[int, list[tuple[int, float]]] = {}
    own: dict[int, float] = {}
    for number, (one, on, weights) in enumerate(zip(chosen, links, flows, strict=True)):
        for link, weight in zip(on.tolist(), weights.tolist(), strict=True):
            users.setdefault(link, []).append((number, weight))
            own[link] = own.get(link, 0.0) + weight * one.rate
    taken = {link: use.carried_by(link) - moved for link, moved in own.items()}
    left = {link: use.effective.item(link) - moved for link, moved in taken.items()}
    rate, stopped_by = fair_rates_of_few(users, left, [one.limit for one in chosen])
    carried, fastest = {}, {}
    for link, on_link in users.items():
        carried[link] = taken[link] + sum(weight * rate[number] for number, weight in on_link)
        fastest[link] = max(rate[number] for number, _ in on_link)
    return Solved(rate=rate, stopped_by=stopped_by, carried=carried, fastest=fastest)


def _solve_many(
    use: LinkUse, chosen: Collection[Running], links: Sequence[Ints], flows: Sequence[Floats]
) -> Solved:
    activity = np.repeat(np.arange(len(links)), [len(on) for on in links])
    numbers, place = np.unique(np.concatenate(links), return_inverse=True)
    weights = np.concatenate(flows)

    def moved(rate: Floats) -> Floats:
        return np.bincount(place, weights=weights * rate[activity], minlength=len(numbers)).astype(np.float64)

    taken = use.carried(numbers) - moved(np.array([one.rate for one in chosen]))
    limit = np.array([one.limit for one in chosen])
    rate, bottleneck = fair_rates(activity, place, weights, use.effective[numbers] - taken, limit)
    fastest = np.zeros(len(numbers))
    np.maximum.at(fastest, place, rate[activity])
    names = numbers.tolist()
    return Solved(
        rate=rate.tolist(),
        stopped_by=np.where(bottleneck >= 0, numbers[bottleneck], -1).tolist(),
        carried=dict(zip(names, (taken + moved(rate)).tolist(), strict=True)),
        fastest=dict(zip(names, fastest.tolist(), strict=True)),
    )
