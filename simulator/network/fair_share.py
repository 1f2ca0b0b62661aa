"""Max-min fair rates of flows that share links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hdpsim.arrays import Floats, Ints

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
    """See fair_rates: the same sums in plain Python, which a few entries are faster in than in arrays.

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
            for one, _ in on:
                if level[link] < stops[one]:
                    stops[one] = level[link]
                    stopped.discard(one)
        by = dict.fromkeys(stopped, -1)
        for link, on in users.items():
            if min(stops[one] for one, _ in on) >= level[link] * (1.0 - SAME):
                for one, _ in on:
                    if one not in stopped and link > by.get(one, -1):
                        by[one] = link
        for one, link in by.items():
            rate[one], bottleneck[one] = stops[one], link
        open_.difference_update(by)
        rest = {}
        for link, on in users.items():
            left[link] -= sum(flows * rate[one] for one, flows in on if one in by)
            if still := [entry for entry in on if entry[0] not in by]:
                rest[link] = still
        users = rest
    for one in open_:
        rate[one] = limit[one]
    return rate, bottleneck
