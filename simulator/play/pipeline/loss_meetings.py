"""Ranks that average the loss of every micro-batch: all meet between its forward and its backward on the last stage.

The sum over all ranks is a kernel on the stream on which the last virtual stage computes: its backward begins when the
forwards of all ranks at that slot have ended. Nothing else waits, and the host does not. A rank without a micro-batch
at a slot is not waited for; of a shared micro-batch the slot on its first member counts.
Source: see cost_models/layer/loss_average.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints, offsets_of, ranges
from hdpsim.simulator.plan import Entries


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMeetings:
    """Which operations meet.

    Attributes:
        meeting: [units]: the slot at which each unit meets others.
        parties: [meetings]: units of each.
        last_forward: number of the first unit's forward on the last virtual stage; those of all others follow.
    """

    meeting: Ints
    parties: Ints
    last_forward: int

    @classmethod
    def of(cls, entries: Entries, units: int, virtual_stages: int) -> LossMeetings:
        """The meetings of a plan's units."""
        meeting = np.zeros(units, dtype=np.int64)
        meeting[entries.micro_batch[::-1]] = entries.slot[::-1]
        parties = np.bincount(meeting, minlength=1)
        return cls(meeting=meeting, parties=parties, last_forward=(virtual_stages - 1) * units)

    @property
    def forwards(self) -> Ints:
        """Numbers of the forwards that meet others, by meeting; as many units further follow their backwards."""
        return self.last_forward + np.argsort(self.meeting, kind="stable")


class Arrivals:
    """Who has come to the meetings of a step so far."""

    def __init__(self, loss: LossMeetings) -> None:
        self._loss, self._absent = loss, loss.parties.copy()
        self._backwards, self._first = loss.forwards + len(loss.meeting), offsets_of(loss.parties)
        self._latest_s = np.zeros(len(loss.parties))

    def after(self, ended: Ints, end_s: Floats) -> tuple[Ints, Floats]:
        """Backwards that may begin once these operations have *ended*, too, and since when."""
        unit = ended - self._loss.last_forward
        came = np.flatnonzero((unit >= 0) & (unit < len(self._loss.meeting)))
        meeting = self._loss.meeting[unit[came]]
        np.maximum.at(self._latest_s, meeting, end_s[came])
        np.subtract.at(self._absent, meeting, 1)
        held = np.unique(meeting[self._absent[meeting] == 0])
        parties = self._loss.parties[held]
        return self._backwards[ranges(self._first[held], parties)], np.repeat(self._latest_s[held], parties)
