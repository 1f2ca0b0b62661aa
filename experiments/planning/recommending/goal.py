"""A goal: so many tokens by a date, for a sum of money, and the probability of meeting it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from hdpsim.cost_models.reading.units import DAY_S, HOUR_S
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.band import HIGH, LOW
from hdpsim.experiments.output.amounts import large_amount, parse_target, parse_usd
from hdpsim.quoting import quoted

if TYPE_CHECKING:
    from hdpsim.experiments.bands.band import Band

USUAL_CONFIDENCE = 0.8
"""Probability of meeting a date. At the predicted mean a run is as often late as not; this is late once in five, and
what that takes lies inside the band from P10 to P90 that validated runs support."""
_UNITS_S = {"h": HOUR_S, "hour": HOUR_S, "d": DAY_S, "day": DAY_S, "w": 7 * DAY_S, "week": 7 * DAY_S}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(hours?|days?|weeks?|[hdw])\s*", re.IGNORECASE)
_LONGEST_S = 3650 * DAY_S
_LIMIT = re.compile(r"\s(in|for)\s")
_HALVINGS = 60
"""Of the range in which a time lies, which is far below what anybody reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """So many tokens in so many seconds, for so much money where somebody said how much.

    Attributes:
        usd: what the GPUs may cost; None = whatever it takes.
    """

    tokens: float
    seconds: float
    usd: float | None = None

    @property
    def days(self) -> float:
        """The time in days."""
        return self.seconds / DAY_S

    @property
    def words(self) -> str:
        """`300B tokens in 30 days for 20M USD`."""
        return f"{large_amount(self.tokens)} tokens in {self.limits}"

    @property
    def limits(self) -> str:
        """`30 days for 20M USD`."""
        return self.time if self.usd is None else f"{self.time} for {large_amount(self.usd)} USD"

    @property
    def time(self) -> str:
        """The time in days, or hours where it is less than one."""
        return f"{self.days:g} days" if self.days >= 1.0 else f"{self.seconds / HOUR_S:g} h"

    def paid(self, usd_per_s: float | None) -> Goal:
        """The same in the time that the money lasts, where that is shorter."""
        if self.usd is None or not usd_per_s:
            return self
        return replace(self, seconds=min(self.seconds, self.usd / usd_per_s))


def parse_goal(text: str) -> Goal:
    """What `--target` says.

    >>> parse_goal("1.5T tokens in 2 weeks")
    Goal(tokens=1500000000000.0, seconds=1209600.0, usd=None)
    >>> parse_goal("300B tokens in 30 days for 20M USD").usd
    20000000.0

    Raises:
        UserInputError: anything else than tokens in a time, for an amount of money or not.
    """
    tokens_text, *limits = _LIMIT.split(text)
    known = dict(zip(limits[::2], limits[1::2], strict=True))
    found = _TIME.fullmatch(known.get("in", "")) if len(limits) == 2 * len(known) else None
    if found is not None:
        unit = found[2].lower()
        seconds = float(found[1]) * _UNITS_S[unit if unit in _UNITS_S else unit.removesuffix("s")]
        if 0.0 < seconds <= _LONGEST_S:
            tokens = parse_target(tokens_text, "--target")
            usd = parse_usd(known["for"], "--target") if "for" in known else None
            return Goal(tokens=tokens, seconds=seconds, usd=usd)
    raise UserInputError(
        f"--target: expected tokens in hours, days or weeks (at most ten years), such as "
        f'"300B tokens in 30 days" or "300B tokens in 30 days for 20M USD"; got {quoted(text)}'
    )


def probability(goal: Goal, runs_s: Sequence[float], band: Band | None, sampling: float = 0.0) -> float:
    """Probability that runs of a campaign end in time.

        P = mean over runs of Phi((ln(time of the goal / time of the run) - mu) / sigma)
        mu = (ln P10 + ln P90) / 2, sigma^2 = ((ln P90 - ln P10) / (2 * 1.2816))^2 + sampling^2

    The truth over the prediction is log-normal through the 10 % and the 90 % quantile of the band. *sampling* is the
    relative standard error of the mean step: a few batches stand for the thousands of a run.
    Ignored: that a slower step changes how often failures strike within it.
    Limits: without a band and with a single batch, the share of the runs that end in time.
    """
    middle, spread = _log_normal(band, sampling)
    if not spread:
        return sum(run_s <= goal.seconds for run_s in runs_s) / len(runs_s)
    normal = NormalDist(middle, spread)
    return sum(normal.cdf(math.log(goal.seconds / run_s)) for run_s in runs_s) / len(runs_s)


def surely_s(confidence: float, runs_s: Sequence[float], band: Band | None, sampling: float = 0.0) -> float:
    """The time in which runs of a campaign end with that confidence: where their probability reaches it.

    It lies between what the fastest and what the slowest run take with that confidence, and is found by halving.
    """
    slower = slower_with(confidence, band, sampling)
    low_s, high_s = min(runs_s) * slower, max(runs_s) * slower
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2.0
        if probability(Goal(tokens=1.0, seconds=middle_s), runs_s, band, sampling) >= confidence:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s


def slower_with(confidence: float, band: Band | None, sampling: float = 0.0) -> float:
    """How many times as long as predicted it takes at most, with that confidence."""
    middle, spread = _log_normal(band, sampling)
    return math.exp(NormalDist(middle, spread).inv_cdf(confidence)) if spread else math.exp(middle)


def _log_normal(band: Band | None, sampling: float) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm of the truth over the prediction."""
    if band is None:
        return 0.0, sampling
    low, high = math.log(band.low), math.log(band.high)
    quantiles = NormalDist().inv_cdf(HIGH) - NormalDist().inv_cdf(LOW)
    return (low + high) / 2.0, math.hypot((high - low) / quantiles, sampling)
