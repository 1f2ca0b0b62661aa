"""New rates where links are short: of activities on links that changed, and of those whose rates change with theirs."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from hdpsim.arrays import Ints
from hdpsim.simulator.network.activity import Running
from hdpsim.simulator.network.link_demand import LinkUse
from hdpsim.simulator.network.rates_on_short_links import Solved, solve

ROUNDING = 1e-11  # relative difference below which two rates are one
FEW = 12  # tries to find those whose rates change one by one; then all around them
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
            chosen.update(dict.fromkeys(wrong if attempt < FEW else self._around(solved)))
        return list(zip(chosen, solved.rate, solved.stopped_by, strict=True))

    def stop(self, one: Running, link: int) -> None:
        """Note the link that keeps an activity from being faster from now on; -1: none does."""
        if link == one.stopped_by:
            return
        if one.stopped_by >= 0:
            stopped = self._stopped[one.stopped_by]
            del stopped[one]
            if not stopped:
                del self._stopped[one.stopped_by]
        if link >= 0:
            self._stopped.setdefault(link, {})[one] = None
        one.stopped_by = link

    def _concerned(self, changed: Ints) -> dict[Running, None]:
        """Those on changed links whose rates may not be fair any more, all others staying as they are."""
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

    def _around(self, solved: Solved) -> list[Running]:
        """All activities on the links of what was solved."""
        return [one for link in solved.carried for one in self._use.users(link)]
