"""Bands of runs of a source that nobody has validated, as a user's own are.

The error of a new source is a bias of its own (its cluster, its stack, its way to measure, whatever of it no rule
knows) and a scatter within. So every source weighs alike, however many records it has, and the neighbourhood is
WIDER than that of a known source: a bias follows the publisher more than sizes and degrees. Where the runs near by are
of one source, their quantiles hold its scatter alone, so the biases of all sources are added:

    half width^2 = (quantile - median)^2 + (NORMAL x rms over sources of the median log error)^2

Records that rules were written from understate both, even with these rules left out (the view `unseen`): mechanisms
were looked for until their errors were small. Only *first* errors, of sources that were written down before anybody
had predicted them, are errors of a new source. They join the records, and decide the stretch alone:

    stretch = TARGET quantile of what first records need where their whole source is left out, every source alike

Three kinds of runs have a stretch each: mixtures of experts, small models and all others. Which a run is is known
before it starts, and their first errors differ more than the records near by do: with one stretch for all, bands
held 87 % of the other runs, 69 % of the small models and 64 % of the mixtures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from hdpsim.arrays import Bools, Floats
from hdpsim.experiments.bands.band import WIDTH, Residual, Residuals, weighted_level
from hdpsim.experiments.bands.features import Features

NORMAL = 1.28  # standard deviations from the middle of a normal distribution to its P10 and P90
WIDER = 2.0  # neighbourhoods than those of known sources
SMALL = 3e9  # parameters below which hosts, launches and losses of large vocabularies tell
KINDS = ("", "small", "mixture")


def kind_of(features: Features) -> str:
    """One of KINDS, "" the usual one."""
    return "mixture" if features.experts else "small" if features.parameters < SMALL else ""


class NewSource(Residuals):
    """The validated runs as they were predicted, as far as that can be told, when nobody knew them."""

    width = WIDER * WIDTH
    crowding = 1.0

    def __init__(
        self,
        rows: Sequence[Residual],
        first: Sequence[Residual],
        stretches: Mapping[str, float] | None = None,
        about: str = "",
    ) -> None:
        """*first*: the records whose errors nobody knew when they were predicted; none: all count as such."""
        self._first = np.arange(len(rows) + len(first)) >= (len(rows) if first else 0)
        every = [*rows, *first]
        _, self._number = np.unique([row.source for row in every], return_inverse=True)
        errors = np.array([row.log_error for row in every])
        sources = range(self._number.max(initial=-1) + 1)
        self._bias = np.array([np.median(errors[self._number == source]) for source in sources])
        self._kinds = np.array([kind_of(row.features) for row in every], dtype=np.str_)
        super().__init__(every, stretches, about)

    def quantiles(
        self, features: Features, left_out: Bools | None = None
    ) -> tuple[float, float, float, Floats, Floats]:
        """P10, median, P90 of the log error before stretching, as of a source with a bias of its own."""
        low, middle, high, distance, weight = super().quantiles(features, left_out)
        seen = np.bincount(self._number, weight, len(self._bias)) > 0.0
        if not seen.any():
            return low, middle, high, distance, weight
        bias = NORMAL * math.sqrt(float(np.mean(self._bias[seen] ** 2)))
        below, above = math.hypot(middle - low, bias), math.hypot(high - middle, bias)
        return middle - below, middle, middle + above, distance, weight

    def found_stretches(self) -> Mapping[str, float]:
        """The stretch of every kind of runs."""
        nothing = np.zeros(len(self.features), dtype=bool)
        return {kind: self._stretch_without(nothing, kind) for kind in KINDS}

    def left_out(self, key: str, source: str) -> Bools:
        """All records of the source, and those of the configuration."""
        return np.asarray((self.keys == key) | (self.sources == source))

    def stretch(self, source: str, left_out: Bools, features: Features) -> float:
        """What first records of the same kind and other sources need."""
        del source
        kind = kind_of(features)
        if (left_out & self._first).any() or kind not in self.stretches:
            return self._stretch_without(left_out, kind)
        return self.stretches[kind]

    def _stretch_without(self, left_out: Bools, kind: str) -> float:
        """Where no other source has runs of the kind, those of all kinds tell."""
        asked = self._first & ~left_out
        of_kind = asked & (self._kinds == kind)
        asked = of_kind if of_kind.any() else asked
        records = np.bincount(self._number, asked)[self._number]
        weights = self.quality * asked / np.maximum(records, 1.0)
        return weighted_level(self._needed_new, weights) if weights.any() else 1.0

    @cached_property
    def _needed_new(self) -> Floats:
        """What each first record needs where all records of its source are left out."""
        return self.needed(self.sources, self._first)
