"""What a network of flows did: pieces of constant rate, and what follows from them for links and activities.

network = FlowNetwork(env, links, record=True)
...
record = network.recorder.record()
record.link_bytes()            # [links]
record.load(edges_s, links)    # [links, periods]: share of their rate that they carried, for a picture
record.peaks()                 # [links]: largest share of their rate, and seconds close to it
record.hottest(10)
record.collisions()            # who lost how many seconds to whom, on which link
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.links import Links, Pattern

if TYPE_CHECKING:
    from hdpsim.simulator.network.activity import Activity, Running

NEARLY_FULL = 0.95
"""Share of its rate from which a link counts as full."""

ROUNDING = 1e-9  # relative difference below which bytes are none
_MOST_PLACES = 4_000_000  # numbers in a table of pieces and names; longer ones are worked out in parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """Seconds that all activities of one label together lost to those of another one on a link.

    *label* and *other* are kinds of activities, or single ones. *other* is empty where nobody else was there: the link
    itself was too slow, or down.
    """

    link: int
    label: str
    other: str
    lost_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowRecord:
    """All activities that ended, and the pieces of time in which the rate of one was the same.

    Attributes:
        activities: in the order of their ends.
        start_s: of each activity.
        end_s: of each activity.
        piece_activity: [pieces]: whose piece (place in activities).
        piece_start_s: when it began.
        piece_end_s: when it ended.
        piece_rate: bytes per second of the activity's largest flow.
        piece_link: the link that limited it; -1: its own limit.
        follows: [links]: the link that carries the same all the time and has the same rate, and which was watched
            in its place; -1: carries nothing.
    """

    links: Links
    activities: tuple[Activity, ...]
    start_s: Floats
    end_s: Floats
    piece_activity: Ints
    piece_start_s: Floats
    piece_end_s: Floats
    piece_rate: Floats
    piece_link: Ints
    follows: Ints

    @property
    def watched(self) -> Ints:
        """Links that carry anything, of those that carry the same the first one."""
        return np.unique(self.follows[self.follows >= 0])

    def equal_links(self) -> Ints:
        """[links]: how many carry the same as each, itself included; 0: carries nothing."""
        counts = np.bincount(self.follows[self.follows >= 0], minlength=len(self.links))
        return np.where(self.follows >= 0, counts[self.follows], 0)

    def _of_all(self, values: Floats) -> Floats:
        """[links] from [links] of those that were watched."""
        return np.where(self.follows >= 0, values[self.follows], 0.0)

    @property
    def lost_s(self) -> Floats:
        """[activities]: seconds that each took longer than alone."""
        alone_s: Floats = np.array([activity.alone_s for activity in self.activities], dtype=np.float64)
        return self.end_s - self.start_s - alone_s

    def link_bytes(self) -> Floats:
        """[links]: bytes that every link carried: what its flows moved, piece by piece."""
        moved = self._moved(np.array([-np.inf, np.inf]))[:, 0]
        carried = np.zeros(len(self.links))
        for pattern, bytes_ in zip(self._patterns[0], moved, strict=True):
            carried[pattern.links] += pattern.flows * bytes_
        return self._of_all(carried)

    def load(self, edges_s: ArrayLike, links: ArrayLike) -> Floats:
        """[links, periods]: share of its rate that each of *links* carried between one edge and the next."""
        edges = np.asarray(edges_s, dtype=np.float64)
        numbers = np.asarray(links, dtype=np.int64)
        watched = self.follows[numbers]
        used = np.unique(watched[watched >= 0])
        row = np.full(len(self.links) + 1, len(used), dtype=np.int64)
        row[used] = np.arange(len(used))
        moved, carried_by_used = self._moved(edges), np.zeros((len(used) + 1, len(edges) - 1))
        for pattern, bytes_ in zip(self._patterns[0], moved, strict=True):
            wanted = row[pattern.links] < len(used)
            carried_by_used[row[pattern.links[wanted]]] += pattern.flows[wanted, None] * bytes_
        carried = carried_by_used[row[watched]]
        could = self.links.capacity_bytes_per_s[numbers][:, None] * np.diff(edges)
        return np.divide(carried, could, out=np.zeros_like(carried), where=could > 0)

    def peaks(self) -> tuple[Floats, Floats]:
        """[links]: the largest share of its rate that each carried, and the seconds above NEARLY_FULL."""
        peak, full_s = np.zeros((2, len(self.links)))
        for link, pieces, flows in self._pieces_on(self.watched):
            rate = self.piece_rate[pieces] * flows / self.links.capacity_bytes_per_s[link]
            edges = np.concatenate([self.piece_start_s[pieces], self.piece_end_s[pieces]])
            moments, place = np.unique(edges, return_inverse=True)
            load = np.cumsum(np.bincount(place, np.concatenate([rate, -rate])))[:-1]
            if len(load):
                peak[link] = load.max()
                full_s[link] = np.diff(moments)[load > NEARLY_FULL].sum()
        return self._of_all(peak), self._of_all(full_s)

    def hottest(self, count: int) -> Ints:
        """The links that were nearest to their rate, on average over the record, hottest first.

        Of those that carry the same only the first one.
        """
        capacity = self.links.capacity_bytes_per_s
        busy_s = np.divide(self.link_bytes(), capacity, out=np.zeros(len(capacity)), where=capacity > 0)
        busy_s[self.follows != np.arange(len(self.links))] = 0.0
        order = np.argsort(-busy_s, kind="stable")[:count]
        return order[busy_s[order] > 0]

    def activities_on(self, link: int) -> Ints:
        """Places of all activities that use a link, in the order of their starts."""
        patterns, which = self._patterns
        watched = self.follows[link]
        uses = np.array([watched in pattern.links for pattern in patterns], dtype=np.bool_)
        users = np.flatnonzero(uses[which]) if len(which) else which
        return users[np.argsort(self.start_s[users], kind="stable")]

    def collisions(self, *, single: bool = False) -> tuple[Collision, ...]:
        """Who lost how much to whom, most first: a piece's loss is divided by what others moved over its link.

        Args:
            single: tell activities of a kind apart by who they are.
        """
        if single not in self._collisions_found:
            self._collisions_found[single] = self._find_collisions(single)
        return self._collisions_found[single]

    def _find_collisions(self, single: bool) -> tuple[Collision, ...]:
        limit = np.array([one.volume_bytes / one.alone_s if one.alone_s else 0.0 for one in self.activities])
        with np.errstate(divide="ignore", invalid="ignore"):
            slowed = self.piece_rate / limit[self.piece_activity]
        lost_s = np.where(self.piece_link >= 0, (1.0 - slowed) * (self.piece_end_s - self.piece_start_s), 0.0)
        labels = [one.who if single and one.who else one.label for one in self.activities]
        names, name_of = np.unique(np.array(labels, dtype=object), return_inverse=True)
        collisions = []
        for link, pieces, flows in self._pieces_on(np.unique(self.piece_link[lost_s > 0])):
            own, place = np.unique(name_of[self.piece_activity[pieces]], return_inverse=True)
            here = np.flatnonzero((self.piece_link[pieces] == link) & (lost_s[pieces] > 0))
            moved = self.piece_rate[pieces] * flows
            lost = self._lost_to(pieces, here, moved, place, lost_s[pieces[here]])
            for loser, blocker in np.argwhere(lost > 0).tolist():
                label, other = names[own[loser]], names[own[blocker]] if blocker < len(own) else ""
                collisions.append(
                    Collision(link=link, label=label, other=other, lost_s=float(lost[loser, blocker]))
                )
        return tuple(sorted(collisions, key=lambda one: (-one.lost_s, one.link, one.label, one.other)))

    def _lost_to(self, pieces: Ints, slowed: Ints, bytes_per_s: Floats, name: Ints, lost_s: Floats) -> Floats:
        """[names, names and nobody]: seconds that pieces *slowed* lost to whoever sent over the same link meanwhile.

        Args:
            pieces: of a link.
            slowed: places in them of those that lose.
            bytes_per_s: of each piece on the link.
            name: of each piece, a number from 0.
            lost_s: by each piece *slowed*.
        """
        names = int(name.max()) + 1
        total = np.zeros((names, names + 1))
        starts, ends = self.piece_start_s[pieces], self.piece_end_s[pieces]
        own_pieces = (name == one for one in range(names))
        moved_until = [_Moved(starts[own], ends[own], bytes_per_s[own]) for own in own_pieces]
        for first in range(0, len(slowed), max(1, _MOST_PLACES // names)):
            part = slice(first, first + max(1, _MOST_PLACES // names))
            losing = slowed[part]
            others = np.stack([moved.between(starts[losing], ends[losing]) for moved in moved_until], axis=1)
            rows = np.arange(len(losing))
            others[rows, name[losing]] -= bytes_per_s[losing] * (ends[losing] - starts[losing])
            others[others <= ROUNDING * np.array([moved.total_bytes for moved in moved_until])] = 0.0
            lost_bytes = others.sum(axis=1, keepdims=True)
            shares = np.divide(others, lost_bytes, out=np.zeros_like(others), where=lost_bytes > 0)
            shares = np.hstack([shares, lost_bytes <= 0]) * lost_s[part, None]
            np.add.at(total, name[losing], shares)
        return total

    @cached_property
    def _collisions_found(self) -> dict[bool, tuple[Collision, ...]]:
        return {}

    @cached_property
    def _patterns(self) -> tuple[list[Pattern], Ints]:
        """Patterns, each once, and which one each activity has."""
        place: dict[Pattern, int] = {}
        which = [place.setdefault(activity.pattern, len(place)) for activity in self.activities]
        return list(place), np.array(which, dtype=np.int64)

    @cached_property
    def _pieces_by_pattern(self) -> tuple[Ints, Ints]:
        """Pieces in the order of their activities' patterns, and where those of each pattern begin."""
        patterns, which = self._patterns
        of_piece = which[self.piece_activity]
        order = np.argsort(of_piece, kind="stable")
        return order, np.searchsorted(of_piece[order], np.arange(len(patterns) + 1))

    def _moved(self, edges_s: Floats) -> Floats:
        """[patterns, periods]: bytes of the largest flow that activities of a pattern moved in each period."""
        patterns, which = self._patterns
        moved = np.zeros((len(patterns), len(edges_s) - 1))
        of_piece = which[self.piece_activity]
        for period, (start, end) in enumerate(pairwise(edges_s.tolist())):
            inside_s = np.minimum(self.piece_end_s, end) - np.maximum(self.piece_start_s, start)
            bytes_ = np.maximum(inside_s, 0.0) * self.piece_rate
            moved[:, period] = np.bincount(of_piece, bytes_, minlength=len(patterns))
        return moved

    def _pieces_on(self, links: Ints) -> Iterator[tuple[int, Ints, Floats]]:
        """For each of *links* that carries anything: the pieces of activities that use it, and their flows on it."""
        wanted = np.zeros(len(self.links), dtype=np.bool_)
        wanted[links] = True
        patterns, _ = self._patterns
        order, starts = self._pieces_by_pattern
        on_link: dict[int, list[tuple[Ints, float]]] = {int(link): [] for link in links}
        for number, pattern in enumerate(patterns):
            pieces = order[starts[number] : starts[number + 1]]
            on_links = wanted[pattern.links]
            for link, flows in zip(
                pattern.links[on_links].tolist(), pattern.flows[on_links].tolist(), strict=True
            ):
                on_link[link].append((pieces, flows))
        for link, users in on_link.items():
            if users:
                yield (
                    link,
                    np.concatenate([pieces for pieces, _ in users]),
                    np.concatenate([np.full(len(pieces), flows) for pieces, flows in users]),
                )


class _Moved:
    """What pieces have moved until any moment."""

    def __init__(self, starts_s: Floats, ends_s: Floats, bytes_per_s: Floats) -> None:
        self.total_bytes = float(((ends_s - starts_s) * bytes_per_s).sum())
        self._edges = [_rising(starts_s, bytes_per_s), _rising(ends_s, bytes_per_s)]

    def between(self, starts_s: Floats, ends_s: Floats) -> Floats:
        """Bytes from each start to its end."""
        return self._until(ends_s) - self._until(starts_s)

    def _until(self, moments_s: Floats) -> Floats:
        """Of pieces that began, what they would have moved without an end, less what is after their ends."""
        begun, ended = (
            moments_s * rate[place] - rate_time[place]
            for times, rate, rate_time in self._edges
            for place in (np.searchsorted(times, moments_s, side="right"),)
        )
        return begun - ended


def _rising(times_s: Floats, rate: Floats) -> tuple[Floats, Floats, Floats]:
    """Times in order; sums of rates, and of rates times their times, up to each."""
    order = np.argsort(times_s, kind="stable")
    zero = np.zeros(1)
    return (
        times_s[order],
        np.concatenate([zero, np.cumsum(rate[order])]),
        np.concatenate([zero, np.cumsum((rate * times_s)[order])]),
    )


class Recorder:
    """Collects pieces while a network plays."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._activities: list[Activity] = []
        self._ended, self._start_s, self._end_s = array("q"), array("d"), array("d")
        self._piece, self._stopped_by = array("q"), array("q")
        self._piece_start_s, self._piece_end_s, self._rate = array("d"), array("d"), array("d")

    def add_piece(self, running: Running, now: float) -> None:
        """It kept its rate until now."""
        if now > running.since_s:
            self._piece.append(running.number)
            self._piece_start_s.append(running.since_s)
            self._piece_end_s.append(now)
            self._rate.append(running.rate)
            self._stopped_by.append(running.stopped_by)

    def add_end(self, number: int, activity: Activity, start_s: float, end_s: float) -> None:
        """An activity is over."""
        self._activities.append(activity)
        self._ended.append(number)
        self._start_s.append(start_s)
        self._end_s.append(end_s)

    def record(self, links: Links | None = None, follows: Ints | None = None) -> FlowRecord:
        """Everything that ended so far.

        Args:
            links: with their usual rates, where the network played others.
            follows: see FlowRecord; None: every link was watched.
        """
        ended, number = np.array(self._ended, dtype=np.int64), np.array(self._piece, dtype=np.int64)
        place = np.full(1 + max(ended.max(initial=-1), number.max(initial=-1)), -1, dtype=np.int64)
        place[ended] = np.arange(len(ended))
        known = place[number] >= 0
        return FlowRecord(
            links=links or self._links,
            follows=np.arange(len(self._links)) if follows is None else follows,
            activities=tuple(self._activities),
            start_s=np.array(self._start_s),
            end_s=np.array(self._end_s),
            piece_activity=place[number[known]],
            piece_start_s=np.array(self._piece_start_s)[known],
            piece_end_s=np.array(self._piece_end_s)[known],
            piece_rate=np.array(self._rate)[known],
            piece_link=np.array(self._stopped_by, dtype=np.int64)[known],
        )
