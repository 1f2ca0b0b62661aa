"""What a network of flows did: pieces of constant rate, and what follows from them for links and activities.

network = FlowNetwork(env, links, record=True)
...
record = network.recorder.record()
record.link_bytes()            # [links]
record.load(edges_s, links)    # [links, periods]: share of their rate that they carried, for a picture
record.hottest(10)
record.collisions()            # who lost how many seconds to whom, on which link
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.links import Links, Pattern

if TYPE_CHECKING:
    from hdpsim.simulator.network.flows import Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """Seconds that activities of one label lost to those of another one on a link, all of them together.

    *other* is empty where nobody else was there: the link itself was too slow, or down.
    """

    link: int
    label: str
    other: str
    lost_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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

    @property
    def lost_s(self) -> Floats:
        """[activities]: seconds that each took longer than alone."""
        alone_s: Floats = np.array([activity.alone_s for activity in self.activities], dtype=np.float64)
        return self.end_s - self.start_s - alone_s

    def link_bytes(self) -> Floats:
        """[links]: bytes that every link carried: what its flows moved, piece by piece."""
        moved = self._moved(np.array([-np.inf, np.inf]))[:, 0]
        carried = np.zeros(len(self.links))
        for pattern, bytes_ in zip(self._patterns()[0], moved, strict=True):
            carried[pattern.links] += pattern.flows * bytes_
        return carried

    def load(self, edges_s: ArrayLike, links: ArrayLike) -> Floats:
        """[links, periods]: share of its rate that each of *links* carried between one edge and the next."""
        edges = np.asarray(edges_s, dtype=np.float64)
        numbers = np.asarray(links, dtype=np.int64)
        row = np.full(len(self.links), -1, dtype=np.int64)
        row[numbers] = np.arange(len(numbers))
        moved, carried = self._moved(edges), np.zeros((len(numbers), len(edges) - 1))
        for pattern, bytes_ in zip(self._patterns()[0], moved, strict=True):
            wanted = row[pattern.links] >= 0
            carried[row[pattern.links[wanted]]] += pattern.flows[wanted, None] * bytes_
        could = self.links.capacity_bytes_per_s[numbers][:, None] * np.diff(edges)
        return np.divide(carried, could, out=np.zeros_like(carried), where=could > 0)

    def hottest(self, count: int) -> Ints:
        """The links that were nearest to their rate, on average over the record, hottest first."""
        with np.errstate(divide="ignore", invalid="ignore"):
            busy_s = np.where(
                self.links.capacity_bytes_per_s > 0, self.link_bytes() / self.links.capacity_bytes_per_s, 0.0
            )
        order = np.argsort(-busy_s, kind="stable")[:count]
        return order[busy_s[order] > 0]

    def collisions(self) -> tuple[Collision, ...]:
        """Who lost how much to whom, most first: a piece's loss is divided by what others moved over its link."""
        limit = np.array([one.volume_bytes / one.alone_s if one.alone_s else 0.0 for one in self.activities])
        with np.errstate(divide="ignore", invalid="ignore"):
            slowed = self.piece_rate / limit[self.piece_activity]
        lost_s = np.where(self.piece_link >= 0, (1.0 - slowed) * (self.piece_end_s - self.piece_start_s), 0.0)
        total: dict[tuple[int, str, str], float] = {}
        for link, pieces, flows in self._pieces_on(np.unique(self.piece_link[lost_s > 0])):
            labels = [self.activities[number].label for number in self.piece_activity[pieces].tolist()]
            names = sorted(set(labels))
            label = np.array([names.index(name) for name in labels])
            starts, ends = self.piece_start_s[pieces], self.piece_end_s[pieces]
            bytes_per_s = self.piece_rate[pieces] * flows
            for place in np.flatnonzero((self.piece_link[pieces] == link) & (lost_s[pieces] > 0)).tolist():
                overlap_s = np.minimum(ends, ends[place]) - np.maximum(starts, starts[place])
                overlap_s[self.piece_activity[pieces] == self.piece_activity[pieces[place]]] = 0.0
                others = np.bincount(label, np.maximum(overlap_s, 0.0) * bytes_per_s, minlength=len(names))
                shares = (
                    zip(names, (others / others.sum()).tolist(), strict=True) if others.any() else [("", 1.0)]
                )
                for name, share in shares:
                    key = (link, labels[place], name)
                    total[key] = total.get(key, 0.0) + share * float(lost_s[pieces[place]])
        found = [
            Collision(link=link, label=label, other=other, lost_s=seconds)
            for (link, label, other), seconds in total.items()
            if seconds > 0
        ]
        return tuple(sorted(found, key=lambda one: (-one.lost_s, one.link, one.label, one.other)))

    def _patterns(self) -> tuple[list[Pattern], Ints]:
        """Patterns, each once, and which one each activity has."""
        place: dict[int, int] = {}
        patterns: list[Pattern] = []
        which = np.zeros(len(self.activities), dtype=np.int64)
        for number, activity in enumerate(self.activities):
            if id(activity.pattern) not in place:
                place[id(activity.pattern)] = len(patterns)
                patterns.append(activity.pattern)
            which[number] = place[id(activity.pattern)]
        return patterns, which

    def _moved(self, edges_s: Floats) -> Floats:
        """[patterns, periods]: bytes of the largest flow that activities of a pattern moved in each period."""
        patterns, which = self._patterns()
        moved = np.zeros((len(patterns), len(edges_s) - 1))
        of_piece = which[self.piece_activity]
        for period, (start, end) in enumerate(pairwise(edges_s.tolist())):
            inside_s = np.minimum(self.piece_end_s, end) - np.maximum(self.piece_start_s, start)
            bytes_ = np.maximum(inside_s, 0.0) * self.piece_rate
            moved[:, period] = np.bincount(of_piece, bytes_, minlength=len(patterns))
        return moved

    def _pieces_on(self, links: Ints) -> Sequence[tuple[int, Ints, Floats]]:
        """For each of *links*: the pieces of activities that use it, and their flows on it."""
        wanted = np.zeros(len(self.links), dtype=np.bool_)
        wanted[links] = True
        patterns, which = self._patterns()
        order = np.argsort(which[self.piece_activity], kind="stable")
        starts = np.searchsorted(which[self.piece_activity][order], np.arange(len(patterns) + 1))
        on_link: dict[int, list[tuple[Ints, float]]] = {int(link): [] for link in links}
        for number, pattern in enumerate(patterns):
            pieces = order[starts[number] : starts[number + 1]]
            there = wanted[pattern.links]
            for link, flows in zip(pattern.links[there].tolist(), pattern.flows[there].tolist(), strict=True):
                on_link[link].append((pieces, flows))
        return [
            (
                link,
                np.concatenate([pieces for pieces, _ in found]),
                np.concatenate([np.full(len(pieces), flows) for pieces, flows in found]),
            )
            for link, found in on_link.items()
        ]


class Recorder:
    """Collects pieces while a network plays."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._ended: list[tuple[int, Activity, float, float]] = []
        self._pieces: list[tuple[Ints, Floats, float, Floats, Ints]] = []

    def add_pieces(self, number: Ints, since_s: Floats, now: float, rate: Floats, stopped_by: Ints) -> None:
        """The activities of these numbers kept their rates from *since_s* until now."""
        self._pieces.append((number, since_s, now, rate, stopped_by))

    def add_end(self, number: int, activity: Activity, start_s: float, end_s: float) -> None:
        """An activity is over."""
        self._ended.append((number, activity, start_s, end_s))

    def record(self) -> FlowRecord:
        """Everything that ended so far."""
        place = np.full(1 + max((number for number, *_ in self._ended), default=-1), -1, dtype=np.int64)
        place[[number for number, *_ in self._ended]] = np.arange(len(self._ended))
        columns = [
            np.concatenate(
                [np.zeros(0), *(np.broadcast_to(piece[column], piece[0].shape) for piece in self._pieces)]
            )
            for column in range(5)
        ]
        number = columns[0].astype(np.int64)
        known = number < len(place)
        known[known] = place[number[known]] >= 0
        known &= columns[2] > columns[1]
        return FlowRecord(
            links=self._links,
            activities=tuple(activity for _, activity, _, _ in self._ended),
            start_s=np.array([start for *_, start, _ in self._ended]),
            end_s=np.array([end for *_, end in self._ended]),
            piece_activity=place[number[known]],
            piece_start_s=columns[1][known],
            piece_end_s=columns[2][known],
            piece_rate=columns[3][known],
            piece_link=columns[4][known].astype(np.int64),
        )
