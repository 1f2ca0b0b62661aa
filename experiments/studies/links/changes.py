"""What a change of a scenario moves on the links of its network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .report import SeenLinks

if TYPE_CHECKING:
    from hdpsim.experiments.studies.changes.variants import Variant
    from hdpsim.experiments.studies.comparing.compare import Outcome

NAMED = 3
"""Links in a sentence."""

WORTH_NAMING = 0.01
"""Change of a link's mean load from which it is named."""


def moved_lines(block: Sequence[Variant]) -> tuple[str, ...]:
    """The base of a strategy, then one line for every change: what sharing links costs, and what moved."""
    base = block[0]
    was = SeenLinks.of(base.outcome) if base.feasible else None
    lines = []
    for variant in block:
        now = SeenLinks.of(variant.outcome) if variant.feasible else None
        if now is None:
            continue
        text = f"{variant.label}: contention costs {_contention(variant.outcome):.1%}, "
        text += f"transfers that met lost {now.lost_s:.3g} s{_flaps(variant.outcome)}"
        if variant is base or was is None:
            lines.append(f"{text}; hottest links {_hottest(now)}.")
        else:
            lines.append(f"{text}; {_moved_words(now, was)}.")
    return ("Links in the first batch:", *(f"  {line}" for line in lines)) if lines else ()


def _contention(outcome: Outcome) -> float:
    first = outcome.results[0]
    return first.network.contention(first.step_s) if first.network else 0.0


def _flaps(outcome: Outcome) -> str:
    network = outcome.results[0].network
    if not (network and network.flaps):
        return ""
    count = len(network.flaps)
    return f", {count:,} link {'flap costs' if count == 1 else 'flaps cost'} {network.flaps_s:.3g} s"


def _moved_words(now: SeenLinks, was: SeenLinks) -> str:
    """What moved, in words; of links that carry the same in both the first stands for all."""
    links, old = now.record.links, was.record.links
    if links.count != old.count:
        return f"other links than in the base, hottest {_hottest(now)}"
    words = _loads_words(now, was)
    rate, old_rate = links.capacity_bytes_per_s, old.capacity_bytes_per_s
    left = np.divide(rate, old_rate, out=np.ones(len(links)), where=np.isfinite(old_rate) & (old_rate > 0))
    slower = np.flatnonzero(left < 1.0 - 1e-9)
    if len(slower):
        few = ", ".join(
            f"{links.name(link)} ({left[link]:.0%})" if left[link] else f"{links.name(link)} (cut)"
            for link in slower[:NAMED].tolist()
        )
        more = f" and {len(slower) - NAMED:,} more" if len(slower) > NAMED else ""
        words += f"; left of their rates: {few}{more}"
    return words


def _loads_words(now: SeenLinks, was: SeenLinks) -> str:
    before, after = was.mean_load, now.mean_load
    change = np.abs(after - before)
    moved = np.flatnonzero(change >= WORTH_NAMING)
    if not len(moved):
        return "no link's load moves by a point"
    pairs: dict[tuple[float, float], int] = {}
    for link in moved[np.argsort(-np.round(change[moved], 9), kind="stable")].tolist():
        pairs.setdefault((round(before[link], 6), round(after[link], 6)), link)
        if len(pairs) == NAMED:
            break
    named = ", ".join(
        f"{now.record.links.name(link)} {old:.1%} -> {new:.1%}" for (old, new), link in pairs.items()
    )
    links = "link" if len(moved) == 1 else "links"
    return f"the load of {len(moved):,} {links} moves, most {named}"


def _hottest(seen: SeenLinks) -> str:
    return ", ".join(f"{row['link']} at {row['mean_load']:.1%}" for row in seen.hottest(NAMED)) or "none"
