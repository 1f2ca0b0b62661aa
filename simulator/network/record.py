"""What a network of flows did: pieces of constant rate, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.links import Links

if TYPE_CHECKING:
    from hdpsim.simulator.network.flows import Activity, _Slots


class Recorder:
    """Collects, for every activity, the pieces of time in which its rate was the same."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.activities: dict[int, Activity] = {}
        self._pieces: list[tuple[Ints, Floats, Floats, Floats, Ints]] = []

    def add(self, which: Ints, slots: _Slots, now: float) -> None:
        """Close the current piece of these activities."""
        for slot in which.tolist():
            self.activities.setdefault(int(slots.number[slot]), slots.activity(slot))
        self._pieces.append(
            (
                slots.number[which].copy(),
                slots.since_s[which].copy(),
                np.full(len(which), now),
                slots.rate[which].copy(),
                slots.stopped_by[which].copy(),
            )
        )
