"""What a step played as flows did on every link: the hottest, who met whom, as sentences, data and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.experiments.output.document import OutputFile, files_of
from hdpsim.experiments.output.timeline.step import LinkLane

from .over_steps import IN_DATA, NAMED, hot_words, mean_load

if TYPE_CHECKING:
    from hdpsim.experiments.studies.comparing.compare import Outcome
    from hdpsim.simulator.network.flow_record import Collision, FlowRecord
    from hdpsim.simulator.network.link_flaps_on_flows import Flap

LANES = 16
"""Hottest links of a timeline."""

LANE_PERIODS = 1_000
"""Points of each one's load."""

MOST_COLLISIONS = 10_000  # data/files.yaml says it, too
"""Rows of a table of collisions for each strategy: the dearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLinks:
    """The links of one strategy's first batch.

    Attributes:
        strategy: the row it belongs to.
        step_s: of that batch.
        record: what went over the links.
        flaps: links that went down.
        carried_bytes: [links].
        mean_load: [links]: share of what each could have carried during the step.
    """

    strategy: str
    step_s: float
    record: FlowRecord
    flaps: tuple[Flap, ...] = ()
    carried_bytes: Floats = field(init=False)
    mean_load: Floats = field(init=False)

    def __post_init__(self) -> None:
        carried = self.record.link_bytes()
        load = mean_load(self.record.links, carried, self.step_s)
        object.__setattr__(self, "carried_bytes", carried)
        object.__setattr__(self, "mean_load", load)

    @classmethod
    def of(cls, outcome: Outcome) -> SeenLinks | None:
        """What was seen in a result; None: transfers are independent, or nobody recorded them."""
        first = outcome.results[0] if outcome.results else None
        network = first.network if first is not None else None
        if first is None or network is None or network.record is None:
            return None
        return cls(strategy=outcome.strategy, step_s=first.step_s, record=network.record, flaps=network.flaps)

    @property
    def stood_still_s(self) -> Floats:
        """[links]: seconds of the step in which nothing could move over each, as it flapped."""
        links = self.record.links
        still_s = np.zeros(len(links))
        for flap in self.flaps:
            still_s[flap.links(links)] += min(flap.stall_s, self.step_s - flap.at_s)
        return still_s

    @property
    def lost_s(self) -> float:
        """Seconds that all transfers together lose because of others."""
        return float(np.maximum(self.record.lost_s, 0.0).sum())

    def hottest_links(self, count: int) -> list[int]:
        """Numbers of links, of equal ones the first; without those that only pass on what a slower one carries."""
        capacity = self.record.links.capacity_bytes_per_s
        narrowest: dict[float, float] = {}
        numbers = []
        for number in self.record.hottest(len(self.record.links)).tolist():
            carried = float(f"{self.carried_bytes[number]:.9g}")
            if narrowest.setdefault(carried, capacity[number]) >= capacity[number] * (1.0 - 1e-9):
                numbers.append(number)
            if len(numbers) == count:
                break
        return numbers

    def hottest(self, count: int) -> list[dict[str, Any]]:
        """Return one object for each of the hottest links."""
        links, equal = self.record.links, self.record.equal_links()
        return [
            {
                "link": links.name(number),
                "mean_load": float(self.mean_load[number]),
                "equal_links": int(equal[number]),
            }
            for number in self.hottest_links(count)
        ]


def seen_links(outcomes: Iterable[Outcome]) -> tuple[SeenLinks, ...]:
    """What was seen on the links of every strategy that has a record."""
    return tuple(seen for outcome in outcomes if (seen := SeenLinks.of(outcome)) is not None)


def links_line(seen: SeenLinks) -> str:
    """The hottest links, and what it costs that transfers meet."""
    hottest = ", ".join(hot_words(row) for row in seen.hottest(NAMED))
    if not hottest:
        return f"{seen.strategy}: nothing crosses nodes."
    return f"{seen.strategy}: hottest links {hottest}. {_collision_words(seen)}{_flap_words(seen)}"


def _flap_words(seen: SeenLinks) -> str:
    if not seen.flaps:
        return ""
    longest = sorted(seen.flaps, key=lambda flap: -flap.stall_s)[:NAMED]
    named = ", ".join(
        f"{row['link']} {row['down_s']:.3g} s at {row['at_s']:.3g} s (nothing moves for {row['stall_s']:.3g} s)"
        for row in (_flap_row(seen, flap) for flap in longest)
    )
    return f" {len(seen.flaps):,} link flaps, longest {named}."


def _flap_row(seen: SeenLinks, flap: Flap) -> dict[str, Any]:
    """The row of a flap; one direction of the link stands for both."""
    name = seen.record.links.name(int(flap.links(seen.record.links)[0]))
    return {"link": name, "at_s": flap.at_s, "down_s": flap.down_s, "stall_s": flap.stall_s}


def _collision_words(seen: SeenLinks) -> str:
    collisions = seen.record.collisions()
    if not collisions:
        return "No transfer slows another down."
    pairs: dict[tuple[str, str], float] = {}
    for collision in collisions:
        key = (collision.label, collision.other)
        pairs[key] = pairs.get(key, 0.0) + collision.lost_s
    (label, other), lost_s = max(pairs.items(), key=lambda item: item[1])
    worst = next(
        collision for collision in collisions if (collision.label, collision.other) == (label, other)
    )
    total_s = sum(pairs.values())
    slowed = int((seen.record.lost_s > 1e-9 * (seen.record.end_s - seen.record.start_s)).sum())
    met = f"{label} that meets {other}" if other else f"{label} behind paused or slow links"
    return (
        f"Transfers that met lost {total_s:.3g} s in all ({slowed:,} of {len(seen.record.activities):,}), most of it "
        f"{met}: {lost_s:.3g} s, first on {seen.record.links.name(worst.link)}."
    )


def links_json(seen: SeenLinks) -> dict[str, Any]:
    """The hottest links and the dearest meetings of the first batch."""
    links = seen.record.links
    return {
        "hottest_links": seen.hottest(IN_DATA),
        "lost_s": seen.lost_s,
        "collisions": [_collision_row(seen, one) for one in seen.record.collisions()[:IN_DATA]],
        "link_flaps": [_flap_row(seen, flap) for flap in seen.flaps[:IN_DATA]],
        "links_that_carry": int((seen.carried_bytes > 0).sum()),
        "links": len(links),
    }


def _collision_row(seen: SeenLinks, collision: Collision) -> dict[str, Any]:
    return {
        "link": seen.record.links.name(collision.link),
        "transfer": collision.label,
        "met": collision.other,
        "lost_s": collision.lost_s,
    }


def link_rows(seen: SeenLinks) -> Iterator[dict[str, object]]:
    """One row per link that carries anything."""
    record, links = seen.record, seen.record.links
    peak, full_s = record.peaks()
    still_s = seen.stood_still_s
    for number in np.flatnonzero(seen.carried_bytes > 0).tolist():
        name = links.name(number)
        kind, _, place = name.partition(":")
        yield {
            "strategy": seen.strategy,
            "link": name,
            "kind": kind,
            "place": place,
            "capacity_bytes_per_s": float(links.capacity_bytes_per_s[number]),
            "bytes": float(seen.carried_bytes[number]),
            "mean_load": float(seen.mean_load[number]),
            "peak_load": float(peak[number]),
            "nearly_full_s": float(full_s[number]),
            "stood_still_s": float(still_s[number]),
            "same_as": links.name(int(record.follows[number])),
        }


def collision_rows(several: Iterable[SeenLinks]) -> list[dict[str, object]]:
    """One row per strategy, link, transfer and whom it met, the dearest of each strategy first."""
    rows: list[dict[str, object]] = []
    for seen in several:
        equal = seen.record.equal_links()
        for collision in seen.record.collisions(single=True)[:MOST_COLLISIONS]:
            row = {"strategy": seen.strategy, **_collision_row(seen, collision)}
            rows.append({**row, "equal_links": int(equal[collision.link])})
    return rows


def link_lanes(seen: SeenLinks) -> list[LinkLane]:
    """The hottest links for a timeline."""
    record, edges_s = seen.record, np.linspace(0.0, seen.step_s, LANE_PERIODS + 1)
    numbers = seen.hottest_links(LANES)
    loads = record.load(edges_s, numbers)
    lanes = []
    for number, load in zip(numbers, loads, strict=True):
        users = record.activities_on(number)
        activities = [record.activities[one] for one in users.tolist()]
        lanes.append(
            LinkLane(
                name=record.links.name(number),
                transfers=[one.who or one.label for one in activities],
                start_s=record.start_s[users],
                end_s=record.end_s[users],
                edges_s=edges_s,
                load=load,
            )
        )
    return lanes


def links_files(outcomes: Iterable[Outcome]) -> tuple[OutputFile, ...]:
    """Tables of the links, of the strategies whose links were recorded."""
    several = seen_links(outcomes)
    if not several:
        return ()
    over = {one.strategy: one.links for one in outcomes if one.links}
    contents: dict[str, Callable[[], object]] = {
        "links.csv": lambda: [row for seen in several for row in link_rows(seen)],
        "collisions.csv": partial(collision_rows, several),
    }
    if over:
        contents["links_all_batches.csv"] = lambda: [
            {"strategy": name, **row} for name, links in over.items() for row in links.rows()
        ]
    collisions = ("strategy", "link", "transfer", "met", "lost_s", "equal_links")
    return files_of("links", contents, collisions=collisions)
