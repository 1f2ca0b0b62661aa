"""Activities of rows of links that send at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hdpsim.cost_models.network.links import Pattern
from hdpsim.simulator.network.activity import Activity

from .routes import Rows


class Part(NamedTuple):
    """What one row of a name sends of an activity."""

    name: str
    rows: Rows
    row: int
    sent: float


class Combined:
    """Activities of rows that send at once; what they put on links is worked out once."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], tuple[Pattern, float]] = {}

    def activity(self, parts: list[Part], alone_s: float, label: str, who: str) -> Activity | None:
        """What rows put on links together, for so long alone; None: nothing.

        *parts*: name of the rows, rows, which of them, bytes that its busiest GPU sends.
        """
        parts = [part for part in parts if part.sent > 0 and len(part.rows.entries(part.row)[0])]
        if not parts:
            return None
        total_bytes = sum(part.sent for part in parts)
        key = tuple((name, row, round(sent / total_bytes, 12)) for name, _, row, sent in parts)
        if key not in self._made:
            entries = [rows.entries(row) for _, rows, row, _ in parts]
            largest = max(rows.largest[row] * sent for _, rows, row, sent in parts)
            numbers, place = np.unique(np.concatenate([link for link, _ in entries]), return_inverse=True)
            weights = [flows * sent / largest for (_, flows), (*_, sent) in zip(entries, parts, strict=True)]
            flows = np.bincount(place, weights=np.concatenate(weights), minlength=len(numbers))
            self._made[key] = Pattern(links=numbers, flows=flows.astype(np.float64)), largest / total_bytes
        pattern, share = self._made[key]
        return Activity(
            pattern=pattern, volume_bytes=share * total_bytes, alone_s=alone_s, label=label, who=who
        )
