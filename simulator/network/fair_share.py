"""Max-min fair rates of flows that share links, and new rates for those alone whose links changed.

`fair_rates` solves any flows on any links. `FairSharing` keeps the rates of a running network: it solves for the
activities on links that changed with what all others leave them there, and takes in those whose rates change with
theirs, until nobody else does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.network.activity import Running
from hdpsim.simulator.network.link_demand import LinkUse

SAME = 1e-12  # relative difference below which two levels are one


def fair_rates(
    activity: Ints, link: Ints, flows: Floats, capacity: Floats, limit: Floats
) -> tuple[Floats, Ints]:
    """The max-min fair rates of activities whose flows advance together.

        maximise lexicographically the rates r_i, smallest first
        subject to    sum_i n_il r_i <= c_l   for every link l,      r_i <= limit_i

    All rates rise together until a link is full or an activity has reached its own limit; those concerned stop there,
    the others rise on (progressive filling). A link may be closed as soon as none of its activities could be stopped
    earlier elsewhere: its level can't change any more. So many links are closed in one round, and the number of
    rounds is the length of the longest chain of links that wait for each other.

    Source: Bertsekas, Gallager, Data Networks, 1992, section 6.5.2; links closed in one round: Ros-Giralt et al.,
        SIGMETRICS 2019.

    Args:
        activity: of each entry, numbers 0 .. len(limit) - 1.
        link: of each entry, numbers 0 .. len(capacity) - 1.
        flows: of each entry: how many flows of the activity cross the link (n_il > 0).
        capacity: of each link, bytes per second.
        limit: of each activity, bytes per second of one flow.

    Returns:
        of each activity its rate, bytes per second of its largest flow, and the link that limits it (-1: its own
        limit).
    """
    rate = np.zeros(len(limit))
    bottleneck = np.full(len(limit), -1, dtype=np.int64)
    left = capacity.astype(np.float64, copy=True)
    open_ = np.ones(len(limit), dtype=np.bool_)
    while len(activity):
        wanted = np.bincount(link, weights=flows, minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.where(wanted > 0, np.maximum(left, 0.0) / wanted, np.inf)
        first = np.full(len(limit), np.inf)  # the level of the first link to stop each activity
        np.minimum.at(first, activity, level[link])
        reached = open_ & (limit <= first)
        stops = np.minimum(first, limit)
        # a link is closed when each of its activities is stopped by it and not elsewhere
        earliest = np.full(len(left), np.inf)
        np.minimum.at(earliest, link, stops[activity])
        closed = (wanted > 0) & (earliest >= level * (1.0 - SAME))
        stopped = reached.copy()
        at_closed = closed[link]
        stopped[activity[at_closed]] = True
        bottleneck[activity[at_closed]] = link[at_closed]
        bottleneck[reached] = -1
        rate[stopped] = stops[stopped]
        open_ &= ~stopped
        done = stopped[activity]
        left -= np.bincount(link[done], weights=(flows * rate[activity])[done], minlength=len(left))
        stay = ~done
        activity, link, flows = activity[stay], link[stay], flows[stay]
    rate[open_] = limit[open_]
    return rate, bottleneck


def fair_rates_of_few(
    users: Mapping[int, Sequence[tuple[int, float]]], capacity: Mapping[int, float], limit: Sequence[float]
) -> tuple[list[float], list[int]]:
    """Share links as fair_rates does, in plain Python: a few entries are faster so than in arrays.

    Args:
        users: of each link, the activities on it and how many flows each has there.
        capacity: of each link, bytes per second.
        limit: of each activity, bytes per second of one flow.

    Returns:
        as fair_rates.
    """
    rate, bottleneck = [0.0] * len(limit), [-1] * len(limit)
    left, open_ = dict(capacity), set(range(len(limit)))
    while users:
        level = {link: max(left[link], 0.0) / sum(flows for _, flows in on) for link, on in users.items()}
        stops, stopped = list(limit), set(open_)  # those whom no link stops before their own limit
        for link, on in users.items():
            for user, _ in on:
                if level[link] < stops[user]:
                    stops[user] = level[link]
                    stopped.discard(user)
        by = dict.fromkeys(stopped, -1)
        for link, on in users.items():
            if min(stops[user] for user, _ in on) >= level[link] * (1.0 - SAME):
                for user, _ in on:
                    if user not in stopped and link > by.get(user, -1):
                        by[user] = link
        for user, link in by.items():
            rate[user], bottleneck[user] = stops[user], link
        open_.difference_update(by)
        rest = {}
        for link, on in users.items():
            left[link] -= sum(flows * rate[user] for user, flows in on if user in by)
            if still := [entry for entry in on if entry[0] not in by]:
                rest[link] = still
        users = rest
    for user in open_:
        rate[user] = limit[user]
    return rate, bottleneck


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
    for running in chosen:
        pattern = running.activity.pattern
        inside = use.is_short.take(pattern.links)
        links.append(pattern.links[inside])
        flows.append(pattern.flows[inside])
    return (_solve_few if sum(map(len, links)) <= FEW else _solve_many)(use, chosen, links, flows)


def _solve_few(
    use: LinkUse, chosen: Collection[Running], links: Sequence[Ints], flows: Sequence[Floats]
) -> Solved:
    users: dict[int, list[tuple[int, float]]] = {}
    own: dict[int, float] = {}
    for number, (running, on, weights) in enumerate(zip(chosen, links, flows, strict=True)):
        for link, weight in zip(on.tolist(), weights.tolist(), strict=True):
            users.setdefault(link, []).append((number, weight))
            own[link] = own.get(link, 0.0) + weight * running.rate
    taken = {link: use.carried_by(link) - moved for link, moved in own.items()}
    left = {link: use.effective.item(link) - moved for link, moved in taken.items()}
    rate, stopped_by = fair_rates_of_few(users, left, [running.limit for running in chosen])
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


ROUNDING = 1e-11  # relative difference below which two rates are one
TRIES = 12  # tries to find those whose rates change one by one; then all around them
RECOUNT_AFTER = 4096  # solutions


class FairSharing:
    """Keeps the rates of all activities fair.

    Rates are fair when every activity has its own fastest rate or a link that stops it: one that is full and on
    which nobody is faster.
    """

    def __init__(self, use: LinkUse) -> None:
        self._use = use
        self._stopped: dict[int, dict[Running, None]] = {}  # by link, whom it stops
        self._solutions = 0

    def share(self, changed: Ints) -> list[tuple[Running, float, int]]:
        """Rates when the links *changed* have other users, demand or capacity than before.

        Return whose rates were looked at, the rates, and the links that stop them (-1: none). Only those are solved
        first whom a changed link stops, or who are faster than an overloaded one lets them, with what others leave
        them; whoever is then not stopped as that says is solved with them, until all are.
        """
        self._solutions += 1
        if self._solutions % RECOUNT_AFTER == 0:
            self._use.recount(one for stopped in self._stopped.values() for one in stopped)
        chosen = self._concerned(changed)
        if not chosen:
            return []
        for attempt in count():
            solved = solve(self._use, chosen)
            wrong = self._wrong(solved, chosen)
            if not wrong:
                break
            chosen.update(dict.fromkeys(wrong if attempt < TRIES else self._on_links_of(solved)))
        return list(zip(chosen, solved.rate, solved.stopped_by, strict=True))

    def stop(self, running: Running, link: int) -> None:
        """Note the link that keeps an activity from being faster from now on; -1: none does."""
        if link == running.stopped_by:
            return
        if running.stopped_by >= 0:
            stopped = self._stopped[running.stopped_by]
            del stopped[running]
            if not stopped:
                del self._stopped[running.stopped_by]
        if link >= 0:
            self._stopped.setdefault(link, {})[running] = None
        running.stopped_by = link

    def _concerned(self, changed: Ints) -> dict[Running, None]:
        """Return the activities on changed links whose rates may not be fair any more, others staying as they are."""
        use, chosen = self._use, dict[Running, None]()
        links = dict.fromkeys(changed.tolist())
        for link in links:
            if link in self._stopped:
                chosen.update(self._stopped[link])
        for link in links:
            most = use.effective.item(link)
            if use.carried_by(link) <= most * (1.0 + ROUNDING) or not (users := use.users(link)):
                continue  # without users only rounding is left on it
            fair = most / sum(users.values())
            chosen.update(dict.fromkeys(one for one in users if one.rate >= fair))
        return chosen

    def _wrong(self, solved: Solved, chosen: Collection[Running]) -> list[Running]:
        """Others whose rates are not fair any more: they could be faster, or are faster than who is stopped."""
        use, wrong = self._use, list[Running]()
        for link, level in dict(zip(solved.stopped_by, solved.rate, strict=True)).items():
            if link >= 0:
                most = level * (1.0 + ROUNDING)
                wrong += [one for one in use.users(link) if one.rate > most and one not in chosen]
        for link, carried in solved.carried.items():
            if link in self._stopped:
                least = solved.fastest[link] * (1.0 - ROUNDING)
                has_room = carried < use.effective.item(link) * (1.0 - ROUNDING)
                others = [one for one in self._stopped[link] if one not in chosen]
                wrong += [one for one in others if has_room or one.rate < least]
        return wrong

    def _on_links_of(self, solved: Solved) -> list[Running]:
        """All activities on the links of what was solved."""
        return [one for link in solved.carried for one in self._use.users(link)]
