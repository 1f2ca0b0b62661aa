"""How much to believe a prediction: the band that residuals of validated runs like it give, and a note in words.

`data/residuals.csv` holds, for every published run that `hdpsim validate` judges, its features and the log error of its
prediction (no measurement); `hdpsim validate --write-residuals` makes it. A prediction is compared with all of them:

    distance^2 = sum of costs of discrete features that differ + sum of (doublings apart / scale)^2
    weight     = (exp(-distance / width) + a little) x quality of the record / sqrt(records of its source)
    band       = weighted 10 % and 90 % quantiles of the log error, stretched about the weighted median

The stretch of a source is that with which TARGET of its records lie in their own band when every record of the same
configuration is left out. A prediction of a known record leaves its own residual out in the same way, of its neighbours
and of the stretch. All other records together count as much as OTHERS of the source's own, so that a source of few
records has nearly the stretch of all. A run of a source that no record is from is less known: see new_source.py. Far
from every record the band is that of all records and wider still.

Runs on which constants were fitted that a prediction takes are in-sample: their errors are those of a fit, and a
note on a band that rests on them says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hdpsim.arrays import Bools, Floats
from hdpsim.experiments.bands.features import (
    CONTINUOUS,
    DISCRETE,
    Features,
    differences_in_words,
    in_sample,
    log2,
    size_in_words,
)

TARGET = 0.84  # of the records lie in their band: published bands shall hold 75 to 90 % of runs never seen
OTHERS = 10.0  # records of its own that the records of all others count as in a source's stretch
LOW, HIGH = 0.1, 0.9
NEAR = 1.0  # records at most this far count as alike
FAR = 2.0  # beyond this the nearest record says little; the band widens with the distance
WIDTH = 0.35  # distance at which a record's weight has fallen to 1/e
ANY_DISTANCE = 0.2  # weight of a record however far it is: few neighbours do not pretend to know the tails
QUALITY = {True: 1.0, False: 0.5}  # of records whose configuration is complete and of others
NARROWEST = 0.02  # least half width of a band (log): runs measured again differ by as much


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Where the truth lies with 80 % probability, as factors of the predicted step time.

    Attributes:
        low: P10 of the true step over the predicted one.
        middle: median of the same.
        high: P90.
        alike: records at most NEAR away.
        sources: sources of those.
        in_sample: how many of those had a part in constants of the calibration that prices the run.
        nearest: distance of the nearest record.
        median_abs_error: weighted median of absolute errors of records like this one.
        note: all that in words.
    """

    low: float
    middle: float
    high: float
    alike: int
    sources: tuple[str, ...]
    in_sample: int
    nearest: float
    median_abs_error: float
    note: str

    def document(self, step_s: float, tokens_per_s: float | None = None) -> dict[str, Any]:
        """Write the bands of the step time and of the throughput as JSON data."""
        return {
            "step_s_p10": step_s * self.low,
            "step_s_p90": step_s * self.high,
            "tokens_per_s_p10": None if tokens_per_s is None else tokens_per_s / self.high,
            "tokens_per_s_p90": None if tokens_per_s is None else tokens_per_s / self.low,
            "records_alike": self.alike,
            "sources_alike": list(self.sources),
            "records_in_sample": self.in_sample,
            "nearest_distance": self.nearest if math.isfinite(self.nearest) else None,
            "median_abs_error_alike": None if math.isnan(self.median_abs_error) else self.median_abs_error,
            "note": self.note,
        }


View = Literal["published", "plain", "unseen"]
VIEWS: tuple[View, ...] = get_args(View)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One validated run: what it was, whose, and log(predicted / true) of its step time."""

    features: Features
    key: str
    source: str
    complete: bool
    log_error: float
    view: View = "published"
    """What the prediction saw of the run, see hdpsim.experiments.validation.views."""


class Residuals:
    """The validated runs: features, keys, log errors; asked for the band of a run."""

    width: ClassVar[float] = WIDTH
    crowding: ClassVar[float] = 0.5
    """A source's say grows with this power less than the number of its records."""

    def __init__(
        self, rows: Sequence[Residual], stretches: Mapping[str, float] | None = None, about: str = ""
    ) -> None:
        """*stretches*, by source: None: found, which takes a second for a thousand rows; *about*: ends every note."""
        self.about = about
        self.features = [row.features for row in rows]
        self.keys = np.array([row.key for row in rows], dtype=np.str_)
        self.sources = np.array([row.source for row in rows], dtype=np.str_)
        self.quality = np.array([QUALITY[row.complete] for row in rows])
        self.log_error = np.array([row.log_error for row in rows], dtype=np.float64)
        self._numbers = {
            name: np.array([log2(getattr(feature, name)) for feature in self.features]) for name in CONTINUOUS
        }
        words = {name: [str(getattr(feature, name)) for feature in self.features] for name in DISCRETE}
        self._codes = {
            name: {word: code for code, word in enumerate(dict.fromkeys(of))} for name, of in words.items()
        }
        self._coded = {name: np.array([self._codes[name][word] for word in of]) for name, of in words.items()}
        self._by_error = np.argsort(self.log_error, kind="stable")
        _, number, counts = np.unique(self.sources, return_inverse=True, return_counts=True)
        self._of_source = counts[number]  # how many records the source of a record has
        self.stretches = self.found_stretches() if stretches is None else stretches

    def distances(self, features: Features) -> Floats:
        """How far every record is from a run."""
        square = np.zeros(len(self.features))
        for name, scale in CONTINUOUS.items():
            square += ((self._numbers[name] - log2(getattr(features, name))) / scale) ** 2
        for name, cost in DISCRETE.items():
            square += cost * (self._coded[name] != self._codes[name].get(str(getattr(features, name)), -1))
        return np.asarray(np.sqrt(square))

    def quantiles(
        self, features: Features, left_out: Bools | None = None
    ) -> tuple[float, float, float, Floats, Floats]:
        """P10, median, P90 of the log error before stretching, distances and weights (0 of what is left out)."""
        distance = self.distances(features)
        known = np.ones(len(distance), dtype=bool) if left_out is None else ~left_out
        if not known.any():
            return -1.0, 0.0, 1.0, np.full(len(distance), math.inf), np.zeros(len(distance))
        near = np.exp(-distance / self.width) + ANY_DISTANCE * np.exp(-FAR / WIDTH)
        weight = near * self.quality * known / self._of_source**self.crowding
        order = self._by_error
        share = np.cumsum(weight[order])
        share = (share - 0.5 * weight[order]) / share[-1]
        low, middle, high = (
            float(np.interp(level, share, self.log_error[order])) for level in (LOW, 0.5, HIGH)
        )
        wider = 1.0 + max(0.0, float(distance[known].min()) - NEAR) / (FAR - NEAR)
        return middle + wider * (low - middle), middle, middle + wider * (high - middle), distance, weight

    def found_stretches(self) -> Mapping[str, float]:
        """The stretch of every source."""
        return {source: self._pooled(source, self.quality) for source in np.unique(self.sources).tolist()}

    def _pooled(self, source: str, quality: Floats) -> float:
        """The stretch of a source: its records, and all others as OTHERS more, each with its quality."""
        of_source = self.sources == source
        others = OTHERS * quality / max(float(quality[~of_source].sum()), 1e-9)
        return weighted_level(self.needed_alone, np.where(of_source, quality, others))

    def left_out(self, key: str, source: str) -> Bools:
        """The records that a run of a source does not see: those of its configuration."""
        del source
        return np.asarray(self.keys == key)

    def stretch(self, source: str, left_out: Bools, features: Features) -> float:
        """The stretch of a run of a source, in which the residuals that are left out have no say."""
        del features
        if left_out.all():
            return 1.0
        if not left_out.any() and source in self.stretches:
            return self.stretches[source]
        return self._pooled(source, np.where(left_out, 0.0, self.quality))

    @cached_property
    def needed_alone(self) -> Floats:
        """What each record needs where the records of its configuration are left out."""
        return self.needed(self.keys)

    def needed(self, groups: NDArray[np.str_], asked: Bools | None = None) -> Floats:
        """The factor on its half width with which each record that is *asked* lies in the band without its group."""
        needed = np.zeros(len(self.features))
        for place in range(len(needed)) if asked is None else np.flatnonzero(asked).tolist():
            low, middle, high, _, _ = self.quantiles(self.features[place], groups == groups[place])
            error = self.log_error[place] - middle
            half = max(high - middle, NARROWEST) if error >= 0 else max(middle - low, NARROWEST)
            needed[place] = abs(error) / half
        return needed

    def band(self, features: Features, key: str = "", source: str = "") -> Band:
        """The band of a run of a *source*; residuals that `left_out` names are not looked at."""
        same_run = self.left_out(key, source)
        low, middle, high, distance, weight = self.quantiles(features, same_run)
        stretch = self.stretch(source, same_run, features)
        low = middle - stretch * max(middle - low, NARROWEST)
        high = middle + stretch * max(high - middle, NARROWEST)
        near = (distance <= NEAR) & ~same_run
        nearest = float(distance[~same_run].min(initial=math.inf))
        typical = _weighted_median(np.abs(np.expm1(self.log_error)), weight) if weight.any() else math.nan
        sources = tuple(sorted(set(self.sources[near].tolist())))
        fitted = in_sample(features.generation, sources)
        band = Band(
            low=min(
                1.0, math.exp(-high)
            ),  # where all like it were off to one side, the prediction is the end
            middle=math.exp(-middle),
            high=max(1.0, math.exp(-low)),
            alike=int(near.sum()),
            sources=sources,
            in_sample=int(np.isin(self.sources[near], fitted).sum()),
            nearest=nearest,
            median_abs_error=typical,
            note="no validated run to compare with",
        )
        if same_run.all():
            return band
        closest = int(np.where(same_run, np.inf, distance).argmin())
        near_by = f"The nearest ({self.sources[closest]}: {size_in_words(self.features[closest])}) has"
        differences = differences_in_words(features, self.features[closest])
        if band.alike:
            known = {one.strategy for one, alike in zip(self.features, near, strict=True) if alike}
            stranger = "" if features.strategy in known else f"; none of them ran {features.strategy}"
            like = f"{_likeness(band, fitted, features.generation)}{stranger}"
        else:
            like = "No validated run is like this one"
        sentences = (band_words(band.low, band.high), like, f"{near_by} {differences}", self.about)
        return replace(band, note=". ".join(filter(None, sentences)))

    def coverage(self) -> float:
        """Share of the records inside their bands."""
        held = [
            band.low <= math.exp(-error) <= band.high
            for band, error in (
                (self.band(features, key, source), error)
                for features, key, source, error in zip(
                    self.features, self.keys.tolist(), self.sources.tolist(), self.log_error, strict=True
                )
            )
        ]
        return float((np.array(held) * self.quality).sum() / self.quality.sum())


def band_words(low: float, high: float) -> str:
    """A band in words, from its factors of the predicted step.

    >>> band_words(0.83, 1.37)
    'true step -17 to +37 % of the predicted one (P10-P90)'
    """
    return f"true step {100 * (low - 1):+.0f} to {100 * (high - 1):+.0f} % of the predicted one (P10-P90)"


def widest_band(bands: Iterable[Band | None]) -> str:
    """One band in words that holds all of them; empty where there is none."""
    known = [band for band in bands if band is not None]
    return band_words(min(b.low for b in known), max(b.high for b in known)) if known else ""


def _listed(sources: Sequence[str]) -> str:
    return ", ".join(sources[:4]) + (" and others" if len(sources) > 4 else "")


def weighted_level(needed: Floats, weights: Floats) -> float:
    """What TARGET of the weight needs at most."""
    order = np.argsort(needed, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    return float(needed[order][np.searchsorted(share, TARGET)])


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(share, 0.5 * share[-1])])


def _likeness(band: Band, fitted: Sequence[str], generation: str) -> str:
    """How many records are like the run; *fitted*: those of their sources that constants were fitted on."""
    words = f"{band.alike} validated {'run' if band.alike == 1 else 'runs'} like this one ({_listed(band.sources)})"
    if band.in_sample:
        number = "all" if band.in_sample == band.alike else f"{band.in_sample}"
        words += f", {number} in-sample: constants of {generation} were fitted on runs of {_listed(fitted)}"
    return f"{words}; median error of runs near it {100 * band.median_abs_error:.0f} %"
