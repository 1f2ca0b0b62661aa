"""What several batches or runs say together: a mean with its interval, a range where they are too few for one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

FEWEST = 3
"""Values an interval needs: from two, Student's t makes it twelve times as wide as their spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean and how far it can be trusted.

    Attributes:
        mean: mean of the values.
        half_width: half of the 95 % confidence interval of the mean; None of fewer than FEWEST values, or of values
            that are not independent. It speaks of sampling only: how far predictions are off is the band's matter.
        lowest: the smallest value.
        highest: the largest one.
        count: how many values.
    """

    mean: float
    half_width: float | None
    lowest: float
    highest: float
    count: int

    @property
    def ends(self) -> tuple[float, float] | None:
        """Of the bar in a plot: the interval, or the range where there is none; None of a single value."""
        if self.half_width is not None:
            return self.mean - self.half_width, self.mean + self.half_width
        return (self.lowest, self.highest) if self.count > 1 else None

    def scaled(self, factor: float) -> Estimate:
        """This estimate in another unit; *factor* is positive."""
        half_width = None if self.half_width is None else self.half_width * factor
        return replace(
            self,
            mean=self.mean * factor,
            half_width=half_width,
            lowest=self.lowest * factor,
            highest=self.highest * factor,
        )


def estimate(values: Sequence[float], *, independent: bool = True) -> Estimate:
    """Mean and Student-t confidence interval of *values*.

        half width = t(0.975, n - 1) * s / sqrt(n)

    Ignored: the interval, where the values are not *independent* (the same data again).
    Source: Student, Biometrika 6(1), 1908.
    """
    half_width = _half_width(values) if independent and len(values) >= FEWEST else None
    lowest, highest = float(min(values)), float(max(values))
    return Estimate(
        mean=float(np.mean(values)), half_width=half_width, lowest=lowest, highest=highest, count=len(values)
    )


def fixed(value: float) -> Estimate:
    """A single figure, of which nobody knows how far it can be trusted."""
    return Estimate(mean=value, half_width=None, lowest=value, highest=value, count=1)


def paired_ratio(figures: Sequence[float], base: Sequence[float]) -> Estimate:
    """Ratio of two things seen on the same batches, batch by batch.

    What a batch does to both cancels out, so the interval is that of the difference, not of either one.
    """
    return estimate([m / b for m, b in zip(figures, base, strict=True)])


def ratio_of_sums(
    over: Sequence[Sequence[float]], under: Sequence[Sequence[float]], *, independent: bool = True
) -> Estimate:
    """Ratio of sums over batches, as a run of all of them has it: all tokens over all seconds.

        R = prod(sum a) / prod(sum b) for a in *over* and b in *under*, as many, of the same batches
        half width = t(0.975, n - 1) * R * s / sqrt(n),  s^2 = var of sum_a a_i / mean(a) - sum_b b_i / mean(b)

    The mean of the batches' own ratios is another thing: of rates it is too high, as fast steps count as much as slow
    ones that last longer. What a batch does to both sides cancels out. Lowest and highest are of single batches.
    Ignored: second order of the spread; the interval, where the values are not *independent*.
    Source: Cochran, Sampling Techniques, 3rd ed., section 6.3 (one over one), by the delta method.
    """
    upper, lower = (np.array(part, dtype=np.float64) for part in (over, under))  # [factors, n]
    count = upper.shape[1]
    ratio = float(upper.sum(axis=1).prod() / lower.sum(axis=1).prod())
    single = upper.prod(axis=0) / lower.prod(axis=0)
    half_width = None
    if independent and count >= FEWEST:
        relative = sum(a / a.mean() - b / b.mean() for a, b in zip(upper, lower, strict=True))
        half_width = ratio * _half_width(np.asarray(relative))
    return Estimate(
        mean=ratio,
        half_width=half_width,
        lowest=float(single.min()),
        highest=float(single.max()),
        count=count,
    )


def _half_width(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Half the width of the interval of a mean, by Student's t."""
    count = len(values)
    return t_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)


@cache
def t_quantile(freedom: int) -> float:
    """Student's t at the upper end of an interval; a long run asks for the same a million times.

    Newton's method from below on the share within +-t, which is concave: no SciPy, which takes 0.3 s to import.
    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    powers, factors = np.arange(odd, freedom - 1, 2), np.arange(1.0 + odd, freedom - 2, 2)
    terms = np.cumprod(np.append(1.0, factors / (factors + 1.0)))[: len(powers)]
    norm = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    t, missing = 1.9, 1.0
    while missing > 1e-13:
        angle = math.atan(t / math.sqrt(freedom))
        share = math.sin(angle) * float((terms * math.cos(angle) ** powers).sum())
        missing = CONFIDENCE - (2.0 / math.pi * (share + angle) if odd else share)
        t += missing / (2.0 * norm * (1.0 + t * t / freedom) ** (-(freedom + 1) / 2))
    return t


def with_interval(value: Estimate, scale: float = 1.0, digits: int = 0) -> str:
    """`1,234 ± 56`; `1,234 (1,200 to 1,270)` where there is a range but no interval; of equals, and else, the mean.

    >>> with_interval(estimate([1.0, 2.0, 3.0]), digits=2), with_interval(estimate([1.0, 2.0]), digits=1)
    ('2.00 ± 2.48', '1.5 (1.0 to 2.0)')
    """
    text = f"{value.mean * scale:,.{digits}f}"
    if value.half_width is not None and value.half_width > 1e-9 * abs(value.mean):
        return f"{text} ± {value.half_width * scale:,.{digits}f}"
    low, high = (f"{end * scale:,.{digits}f}" for end in (value.lowest, value.highest))
    return text if low == high else f"{text} ({low} to {high})"


def bars_in_words(estimates: Iterable[Estimate]) -> str:
    """What the bars of a plot are."""
    known = all(value.half_width is not None for value in estimates if value.count > 1)
    return "95% confidence interval" if known else "range of the batches"


def estimate_json(value: Estimate) -> dict[str, float | None]:
    """The estimate as JSON data."""
    return {
        "mean": value.mean,
        "ci95_half_width": value.half_width,
        "lowest": value.lowest,
        "highest": value.highest,
    }
