"""Step times that were computed and not measured: they lie on a line over the batch closer than any clock repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hdpsim.experiments.records.columns import MEASURED_COLUMNS
from hdpsim.experiments.validation.order import grouped

LEAST_BATCHES = 4
"""Two lie on a line always; of sets of three steps that repeat within 0.3 % one in some hundred does by chance."""
STRAIGHT = 2e-5
"""Distance from the line over the shortest step. Steps of real jobs differ by 1e-3 and more from each other."""
LEAST_FIXED = 1e-4
"""What is left without micro-batches, over the shortest step: less is the same rounded rate, told at every batch."""

_BATCH = ("global_batch_seqs", "grad_accum")
_ABOUT = ("id", "notes", "source_fields", "derived_fields", "confidence", "complete", "suspect")


def computed(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Of each of these records, whether its step time belongs to a set that was computed.

        | t_i - (a + b n_i) | <= 2e-5 min t     for all i of at least 4 batches n_i, with a > 1e-4 min t

    A set are the records that differ in nothing but the batch. The line is that of least squares.
    Counted: `measured_step_s`. Ignored: rates, which sources round; computed times that follow no line.
    """
    left_out = (*_BATCH, *_ABOUT, *MEASURED_COLUMNS)
    timed = (
        place for place, row in enumerate(rows) if row.get("measured_step_s") and row.get("global_batch_seqs")
    )
    alike = grouped(
        timed,
        lambda place: frozenset(
            (name, str(cell)) for name, cell in rows[place].items() if name not in left_out
        ),
    )
    is_computed = [False] * len(rows)
    for members in alike.values():
        batches = np.array([float(rows[index]["global_batch_seqs"]) for index in members])
        steps_s = np.array([float(rows[index]["measured_step_s"]) for index in members])
        if len(np.unique(batches)) >= LEAST_BATCHES and _straight(batches, steps_s):
            for index in members:
                is_computed[index] = True
    return is_computed


def _straight(batches: np.ndarray[Any, Any], steps_s: np.ndarray[Any, Any]) -> bool:
    slope_s, fixed_s = np.polyfit(batches, steps_s, 1)
    off_s = np.abs(steps_s - (fixed_s + slope_s * batches)).max()
    shortest_s = steps_s.min()
    return bool(off_s <= STRAIGHT * shortest_s and fixed_s > LEAST_FIXED * shortest_s)


def computed_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for every source that has such records."""
    by_source = grouped((row for row in rows if row["computed"]), lambda row: str(row["group"][0]))
    return [
        f"{source}: step times of {len(members)} records ({members[0]['record']}, ...) lie on lines over the batch to "
        f"{STRAIGHT:.0e} of a step: no job repeats that well, so they were put together from parts and count in no "
        "figure of accuracy of complete runs"
        for source, members in sorted(by_source.items())
    ]
