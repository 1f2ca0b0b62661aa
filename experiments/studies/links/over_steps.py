"""What links carried in all steps of a run, summed as the steps come: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.network.links import Links
from hdpsim.simulator.play.execution import SharedLinks

NAMED = 3
"""Hottest links in a sentence."""

IN_DATA = 10
"""Hottest links in JSON."""

EQUAL_DIGITS = 9
"""Links whose bytes agree to so many digits carry the same."""


def mean_load(links: Links, carried_bytes: Floats, seconds: float) -> Floats:
    """[links]: share of what each could have carried meanwhile."""
    could = links.capacity_bytes_per_s * seconds
    return np.divide(carried_bytes, could, out=np.zeros_like(carried_bytes), where=could > 0)


def hot_words(row: dict[str, Any]) -> str:
    """A link, how hot it is and how many are like it."""
    others = row["equal_links"] - 1
    return f"{row['link']} at {row['mean_load']:.1%}" + (f" ({others:,} more like it)" if others else "")


@dataclass(slots=True)
class LinksOverSteps:
    """Bytes of every link that can hold anybody up, and the step in which it was hottest.

    Attributes:
        links: of the cluster.
        seconds: of all steps, one after the other.
        carried_bytes: [links]: in all of them.
        highest_load: [links]: share of its rate in the step that loaded it most.
        in_step: [links]: the number of that step, from 1.
        hottest: by number of step: its hottest link, and how hot.
    """

    links: Links
    seconds: float = 0.0
    carried_bytes: Floats = field(init=False)
    highest_load: Floats = field(init=False)
    in_step: Ints = field(init=False)
    hottest: dict[int, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.carried_bytes, self.highest_load = np.zeros((2, len(self.links)))
        self.in_step = np.zeros(len(self.links), dtype=np.int64)

    def add(self, numbers: Sequence[int], shared: SharedLinks, step_s: float) -> SharedLinks:
        """Equal steps of these *numbers*; returns what there is to keep of them."""
        carried = shared.carried_bytes
        if carried is None:
            return shared
        load = mean_load(self.links, carried, step_s)
        self.seconds += len(numbers) * step_s
        self.carried_bytes += len(numbers) * carried
        more = load > self.highest_load
        self.highest_load[more], self.in_step[more] = load[more], numbers[0]
        first = int(load.argmax())
        for number in numbers:
            self.hottest[number] = (self.links.name(first) if load[first] else "", float(load[first]))
        return replace(shared, carried_bytes=None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per link that carries anything, the hottest first."""
        load = mean_load(self.links, self.carried_bytes, self.seconds)
        for number in np.argsort(-load, kind="stable").tolist():
            if not load[number]:
                break
            yield {
                "link": self.links.name(number),
                "capacity_bytes_per_s": float(self.links.capacity_bytes_per_s[number]),
                "bytes": float(self.carried_bytes[number]),
                "mean_load": float(load[number]),
                "highest_load": float(self.highest_load[number]),
                "in_step": int(self.in_step[number]),
            }

    def hottest_links(self, count: int) -> list[dict[str, Any]]:
        """The first rows, of links that carry the same the first one, with how many there are."""
        hottest: dict[str, dict[str, Any]] = {}
        for row in self.rows():
            same = f"{row['bytes']:.{EQUAL_DIGITS}g} at {row['mean_load']:.{EQUAL_DIGITS}g}"
            if same not in hottest:
                if len(hottest) == count:
                    break
                hottest[same] = {**row, "equal_links": 0}
            hottest[same]["equal_links"] += 1
        return list(hottest.values())

    def words(self, step: str = "step") -> str:
        """The hottest links in a sentence; *step*: what a step is called."""
        return (
            "; ".join(
                f"{hot_words(row)}, at most {row['highest_load']:.1%} in {step} {row['in_step']}"
                for row in self.hottest_links(NAMED)
            )
            or "nothing crosses nodes"
        )
