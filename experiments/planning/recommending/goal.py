"""A goal: tokens, a date and a sum of money, two of them or all three, and the probability of meeting it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from hdpsim.cost_models.reading.units import DAY_S, HOUR_S
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.band import HIGH, LOW
from hdpsim.experiments.output.amounts import large_amount, parse_target, parse_usd
from hdpsim.quoting import quoted

if TYPE_CHECKING:
    from hdpsim.experiments.bands.band import Band

Wanted = Literal["gpus", "days", "tokens"]

USUAL_CONFIDENCE = 0.8
"""Probability of meeting a date. At the predicted mean a run is as often late as not; this is late once in five, and
what that takes lies inside the band from P10 to P90 that validated runs support."""
_UNITS_S = {"h": HOUR_S, "hour": HOUR_S, "d": DAY_S, "day": DAY_S, "w": 7 * DAY_S, "week": 7 * DAY_S}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(hours?|days?|weeks?|[hdw])\s*", re.IGNORECASE)
_LONGEST_S = 3650 * DAY_S
_LIMIT = re.compile(r"\s(in|for|by|until|before)\s")
_HALVINGS = 60
"""Of the range in which a time lies, which is far below what anybody reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Tokens, a time and a sum of money: two of them or all three. What is not given is what one wants to know.

    Attributes:
        tokens: to train on; None = as many as time and money allow.
        seconds: from the start to the last token; None = as early as the money allows.
        usd: what the GPUs may cost; None = whatever it takes.
    """

    tokens: float | None = None
    seconds: float | None = None
    usd: float | None = None

    @property
    def wanted(self) -> Wanted:
        """What is looked for: the most tokens, the earliest date, or else the GPUs that do it."""
        return "tokens" if self.tokens is None else "days" if self.seconds is None else "gpus"

    @property
    def days(self) -> float | None:
        """The time in days."""
        return None if self.seconds is None else self.seconds / DAY_S

    @property
    def words(self) -> str:
        """`300B tokens in 30 days for 20M USD`, or what is given of it; `20M USD in 60 days` without tokens."""
        if self.tokens is None:
            return f"{large_amount(self.usd or 0.0)} USD in {self.time}"
        return f"{large_amount(self.tokens)} tokens {self.limits}"

    @property
    def limits(self) -> str:
        """`in 30 days for 20M USD`, or what is given of it."""
        date = None if self.seconds is None else f"in {self.time}"
        money = None if self.usd is None else f"for {large_amount(self.usd)} USD"
        return " ".join(filter(None, (date, money)))

    @property
    def limits_named(self) -> str:
        """`the date and the budget`, or what is given of it."""
        given = {"the date": self.seconds, "the budget": self.usd}
        return " and ".join(name for name, limit in given.items() if limit is not None)

    @property
    def time(self) -> str:
        """The time in days, or hours where it is less than one."""
        days = self.until_s / DAY_S
        return f"{days:g} days" if days >= 1.0 else f"{days * DAY_S / HOUR_S:g} h"

    @property
    def until_s(self) -> float:
        """The time; endless where nobody said one."""
        return math.inf if self.seconds is None else self.seconds


def parse_goal(text: str) -> Goal:
    """What `--target` says, in any order.

    >>> parse_goal("1.5T tokens in 2 weeks")
    Goal(tokens=1500000000000.0, seconds=1209600.0, usd=None)
    >>> parse_goal("300B tokens in 30 days for 20M USD").usd
    20000000.0
    >>> parse_goal("20M USD in 60 days").wanted, parse_goal("300B tokens for 20M USD").wanted
    ('tokens', 'days')

    Raises:
        UserInputError: anything else than two or three of tokens, a time and money.
    """
    found: dict[str, float] = {}
    first, *limits = _LIMIT.split(f" {text}")
    parts = [("", first)] if first.strip() else []
    for word, part in (*parts, *zip(limits[::2], limits[1::2], strict=True)):
        name, value = _quantity(word, part.strip())
        if name in found or value is None:
            break
        found[name] = value
    else:
        if len(found) > 1:
            return Goal(**found)
    raise UserInputError(
        "--target: expected two or three of tokens, a time (hours, days or weeks from the start; at most ten years) "
        'and money, such as "300B tokens in 30 days", "300B tokens in 30 days for 20M USD", "300B tokens for 20M USD" '
        f'or "20M USD in 60 days"; got {quoted(text)}'
    )


def _quantity(word: str, text: str) -> tuple[str, float | None]:
    """Which of the three a part of a target is, after *in* or *for*, and how much; None: no time that anybody has."""
    time = _TIME.fullmatch(text)
    if time is not None:
        unit = time[2].lower()
        seconds = float(time[1]) * _UNITS_S[unit if unit in _UNITS_S else unit.removesuffix("s")]
        return "seconds", seconds if 0.0 < seconds <= _LONGEST_S else None
    if word not in ("", "for"):
        return "seconds", None
    if word == "for" or text.upper().endswith("USD"):
        return "usd", parse_usd(text, "--target")
    return "tokens", parse_target(text, "--target")


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
        return sum(run_s <= goal.until_s for run_s in runs_s) / len(runs_s)
    normal = NormalDist(middle, spread)
    return sum(normal.cdf(math.log(goal.until_s / run_s)) for run_s in runs_s) / len(runs_s)


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
