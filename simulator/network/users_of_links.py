"""Who uses every link now."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hdpsim.cost_models.network.links import Pattern
from hdpsim.simulator.network.activity import Running

MANY = 128  # links of a pattern that is not listed link by link
KEPT = 16384  # patterns that nobody uses and that stay listed at least


@dataclass(slots=True)
class _Wide:
    """A pattern on many links: those who use it, and its flows by link, made when first asked for."""

    pattern: Pattern
    running: dict[Running, None] = field(default_factory=dict)
    flows: dict[int, float] = field(default_factory=dict)

    def flows_on(self, link: int) -> float | None:
        if not self.flows:
            self.flows = _flows_by_link(self.pattern)
        return self.flows.get(link)


class Users:
    """Who is on every link, pattern by pattern.

    A pattern is listed on its links when it is first used and stays there: who comes or goes is added to the users of
    the pattern alone, however many links that has. Equal transfers use one pattern a hundred times.
    """

    def __init__(self) -> None:
        self._of: dict[Pattern, dict[Running, None]] = {}
        self._on: defaultdict[int, list[tuple[dict[Running, None], float]]] = defaultdict(list)
        self._wide: dict[Pattern, _Wide] = {}  # those that somebody uses
        self._idle = 0  # listed patterns that nobody uses

    def add(self, one: Running) -> None:
        """Add an activity to the users of its links."""
        pattern = one.activity.pattern
        if len(pattern.links) > MANY:
            wide = self._wide.get(pattern)
            if wide is None:
                wide = self._wide[pattern] = _Wide(pattern)
            wide.running[one] = None
            return
        running = self._of.get(pattern)
        if running is None:
            running = self._of[pattern] = {}
            for link, flows in _flows_by_link(pattern).items():
                self._on[link].append((running, flows))
        elif not running:
            self._idle -= 1
        running[one] = None

    def remove(self, one: Running) -> None:
        """Take an activity off its links."""
        pattern = one.activity.pattern
        if len(pattern.links) > MANY:
            wide = self._wide[pattern]
            del wide.running[one]
            if not wide.running:
                del self._wide[pattern]
            return
        running = self._of[pattern]
        del running[one]
        if not running:
            self._idle += 1
            if self._idle > KEPT and self._idle > len(self._of) // 2:
                self._forget_idle()

    def on(self, link: int) -> dict[Running, float]:
        """Activities on a link, with the number of their flows."""
        users = {one: flows for running, flows in self._on.get(link, ()) for one in running}
        for wide in self._wide.values():
            flows = wide.flows_on(link)
            if flows is not None:
                users.update(dict.fromkeys(wide.running, flows))
        return users

    def _forget_idle(self) -> None:
        self._of = {pattern: running for pattern, running in self._of.items() if running}
        for link, listed in list(self._on.items()):
            if busy := [entry for entry in listed if entry[0]]:
                self._on[link] = busy
            else:
                del self._on[link]
        self._idle = 0


def _flows_by_link(pattern: Pattern) -> dict[int, float]:
    return dict(zip(pattern.links.tolist(), pattern.flows.tolist(), strict=True))
