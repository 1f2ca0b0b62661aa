"""New rates where links are short: of activities on links that changed, and of those whose rates change with theirs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import count

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.network.activity import Running
from hdpsim.simulator.network.fair_share import Shares, fair_rates
from hdpsim.simulator.network.use import LinkUse

ROUNDING = 1e-11  # relative difference below which two rates are one
FEW = 12  # tries to find those whose rates change one by one; then all around them
RECOUNT_AFTER = 4096  # solutions


@dataclass(frozen=True, slots=True)
class _Problem:
    """Activities that get new rates, and what others leave them.

    Attributes:
        activity: of each entry, a number from 0.
        link: of each entry.
        place: of each entry, one of the entries that have the same link: it stands for the link.
        flows: of each entry.
        taken: of each entry, what others move over its link; only places count.
        have: of each entry, what its link can carry.
        limit: of each activity.
    """

    activity: Ints
    link: Ints
    place: Ints
    flows: Floats
    taken: Floats
    have: Floats
    limit: Floats

    def solve(self) -> Shares:
        """Fair rates; a bottleneck is a place."""
        return fair_rates(self.activity, self.place, self.flows, self.have - self.taken, self.limit)


class FairSharing:
    """Keeps the rates of all activities fair.

    Rates are fair when every activity has its own fastest rate or a link that stops it: one that is full and on
    which nobody is faster.
    """

    def __init__(self, use: LinkUse) -> None:
        self._use = use
        self._slowed: dict[Running, None] = {}  # who is stopped by a link
        self._place: Ints = np.zeros(len(use.effective), dtype=np.int64)  # of each link in the last problem
        self._solutions = 0

    def share(self, changed: Ints) -> list[tuple[Running, float, int]]:
        """Rates when the links *changed* have other users, demand or capacity than before.

        Return whose rates were looked at, the rates, and the links that stop them (-1: none). Only those are solved
        first whom a changed link stops, or who are faster than an overloaded one lets them, with what others leave
        them; whoever is then not stopped as that says is solved with them, until all are.
        """
        self._solutions += 1
        if self._solutions % RECOUNT_AFTER == 0:
            self._use.recount(self._slowed)
        chosen = self._concerned(changed)
        if not chosen:
            return []
        for attempt in count():
            problem = self._problem(chosen)
            shares = problem.solve()
            wrong = self._wrong(problem, shares, chosen)
            if not wrong:
                break
            chosen.update(dict.fromkeys(wrong if attempt < FEW else self._around(problem)))
        return self._settle(problem, shares, chosen)

    def forget(self, one: Running) -> None:
        """It has ended."""
        self._slowed.pop(one, None)

    def _concerned(self, changed: Ints) -> dict[Running, None]:
        """Those on changed links whose rates may not be fair any more, all others staying as they are."""
        use, numbers = self._use, set(changed.tolist())
        chosen = {one: None for one in self._slowed if one.stopped_by in numbers}
        overloaded = use.carried(changed) > use.effective[changed] * (1.0 + ROUNDING)
        for link in dict.fromkeys(changed[overloaded].tolist()):
            if not (users := use.users(link)):
                continue  # only rounding is left on it
            fair = use.effective.item(link) / sum(users.values())
            chosen.update(dict.fromkeys(one for one in users if one.rate >= fair))
        return chosen

    def _problem(self, chosen: Collection[Running]) -> _Problem:
        """Only links that are short can stop anybody."""
        use, place = self._use, self._place
        patterns = [one.activity.pattern for one in chosen]
        sizes = [len(pattern.links) for pattern in patterns]
        link = np.concatenate([pattern.links for pattern in patterns])
        inside = np.flatnonzero(use.is_short[link])
        link = link[inside]
        flows = np.concatenate([pattern.flows for pattern in patterns])[inside]
        activity = np.repeat(np.arange(len(sizes)), sizes)[inside]
        rate = np.array([one.rate for one in chosen])
        place[link] = np.arange(len(link))
        at = place[link]
        own = np.bincount(at, weights=flows * rate[activity], minlength=len(link))
        return _Problem(
            activity=activity,
            link=link,
            place=at,
            flows=flows,
            taken=use.carried(link) - own,
            have=use.effective[link],
            limit=np.array([one.limit for one in chosen]),
        )

    def _wrong(self, problem: _Problem, shares: Shares, chosen: Collection[Running]) -> list[Running]:
        """Others whose rates are not fair any more: they could be faster, or are faster than who is stopped."""
        use, rate = self._use, shares.rate[problem.activity]
        wrong: list[Running] = []
        stopping = shares.bottleneck[shares.bottleneck >= 0]
        stopped = dict(zip(stopping.tolist(), shares.rate[shares.bottleneck >= 0].tolist(), strict=True))
        for place, level in stopped.items():
            users = use.users(problem.link.item(place))
            wrong += [one for one in users if one.rate > level * (1.0 + ROUNDING) and one not in chosen]
        others = [one for one in self._slowed if one not in chosen]
        if not others or not len(problem.link):
            return wrong
        by = np.array([one.stopped_by for one in others], dtype=np.int64)
        at = np.minimum(self._place[by], len(problem.link) - 1)
        near = np.flatnonzero(problem.link[at] == by)
        if len(near):
            fastest = np.zeros(len(problem.link))
            np.maximum.at(fastest, problem.place, rate)
            moved = np.bincount(problem.place, weights=problem.flows * rate, minlength=len(rate))
            at = at[near]
            may_rise = problem.taken[at] + moved[at] < problem.have[at] * (1.0 - ROUNDING)
            own = np.array([others[number].rate for number in near.tolist()])
            may_rise |= own < fastest[at] * (1.0 - ROUNDING)
            wrong += [others[number] for number in near[may_rise].tolist()]
        return wrong

    def _around(self, problem: _Problem) -> list[Running]:
        """Everybody on its links."""
        return [one for link in dict.fromkeys(problem.link.tolist()) for one in self._use.users(link)]

    def _settle(
        self, problem: _Problem, shares: Shares, chosen: Collection[Running]
    ) -> list[tuple[Running, float, int]]:
        bottleneck = shares.bottleneck
        stopped_by = (
            np.where(bottleneck >= 0, problem.link[bottleneck], -1) if len(problem.link) else bottleneck
        )
        settled = list(zip(chosen, shares.rate.tolist(), stopped_by.tolist(), strict=True))
        for one, _, link in settled:
            if link >= 0:
                self._slowed[one] = None
            else:
                self._slowed.pop(one, None)
        return settled
