"""Robust least squares on measurements with what is known before: what is determined, values, intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.experiments.calibration.constants import Constant, Prior
from hdpsim.experiments.calibration.model import Linearised, Model, linearised, weights_of

NOISE = 0.02
"""Least log error of a measurement: re-measured runs differ by as much, so intervals are never narrower."""
BEND = 1.345
"""In units of the noise: errors beyond this count linearly instead of by the square (Huber's 95 % efficiency)."""
WIDEST_SHARE = 0.25
"""Of the distance of its bounds: half of the 95 % interval of a constant of which nothing is known before."""
FEWEST_SOURCES = 4
NORMAL_95 = 1.96
MEDIAN_TO_SIGMA = 1.4826
LOOSER = 10.0
TELLING = 2.0**0.5
"""What measurements say may be this much less certain than what is known before: half as much information."""
ROUNDS = 5
CLOSE = 0.05
"""Steps of less than this share of an interval end the search."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Standard deviation of a sample's log error, and the error from which the loss grows linearly."""

    noise: float
    bend: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fit and how well it is determined. Arrays run over constants, samples, or both.

    Attributes:
        constants: what was fitted.
        prior: what was known before.
        values: their values.
        half_width: half of the 95 % interval of each.
        error: standard error of each, all others known.
        correlation: correlations of the constants' estimates.
        line: log(predicted / measured) of every sample at the values, and its derivatives.
        weights: weight of each sample's squared error.
        scale: typical size of the samples' errors.
    """

    constants: tuple[Constant, ...]
    prior: Prior
    values: Floats
    half_width: Floats
    error: Floats
    correlation: Floats
    line: Linearised
    weights: Floats
    scale: Scale

    @property
    def residuals(self) -> Floats:
        """log(predicted / measured) of every sample."""
        return self.line.residuals


def _bent(residuals: Floats, bend: float) -> tuple[Floats, Floats]:
    """Numbers whose squares are the soft L1 loss of the residuals, and their derivative.

        h(r)^2 = 2 b^2 (sqrt(1 + (r/b)^2) - 1)

    The loss bends before weights are applied: a record of a large source is no less of an outlier for it.
    """
    root = np.sqrt(1.0 + (residuals / bend) ** 2)
    size = bend * np.sqrt(2.0 * np.maximum(root - 1.0, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(size > 1e-9, np.abs(residuals) / (root * size), 1.0)
    return np.sign(residuals) * size, slope


def _bounds(constants: Sequence[Constant]) -> tuple[Floats, Floats]:
    low, high = np.array([(constant.low, constant.high) for constant in constants], dtype=np.float64).T
    return low, high


def _minimum(
    line: Linearised, constants: Sequence[Constant], prior: Prior, weights: Floats, scale: Scale
) -> Floats:
    """The values that minimise the objective with linearised residuals, within the bounds."""
    from scipy.optimize import least_squares

    low, high = _bounds(constants)
    spans, root = high - low, np.sqrt(weights) / scale.noise

    def gap(point: Floats) -> Floats:
        values = low + point * spans
        return np.concatenate(
            [root * _bent(line.at(values), scale.bend)[0], (values - prior.centre) / prior.doubt]
        )

    def slope(point: Floats) -> Floats:
        bent = _bent(line.at(low + point * spans), scale.bend)[1]
        return np.vstack([(root * bent)[:, None] * line.jacobian * spans, np.diag(spans / prior.doubt)])

    begin = np.clip((line.values - low) / spans, 1e-6, 1.0 - 1e-6)
    minimum = least_squares(gap, begin, jac=slope, bounds=(0.0, 1.0), xtol=1e-10, ftol=1e-10)
    return np.asarray(low + minimum.x * spans)


def _objective(line: Linearised, prior: Prior, weights: Floats, scale: Scale) -> float:
    bent, away = _bent(line.residuals, scale.bend)[0], (line.values - prior.centre) / prior.doubt
    return float(weights @ bent**2 / scale.noise**2 + (away**2).sum())


def _spread(residuals: Floats) -> float:
    return max(MEDIAN_TO_SIGMA * float(np.median(np.abs(residuals))), NOISE)


def _settled(
    line: Linearised, constants: Sequence[Constant], prior: Prior, weights: Floats
) -> tuple[Floats, Scale]:
    """Linearised fit and its scale.

    The noise is what a fit leaves that is held ten times less by what is known before: a world unlike the prior would
    else count as noise, which makes the prior the stronger. The loss bends at what the fit itself leaves, a common
    shift included: measurements that all say the same are no outliers.
    """
    loose = Prior(centre=prior.centre, doubt=LOOSER * prior.doubt)
    values, noise = line.values, 0.0
    for known in (loose, prior):
        for _ in range(4):
            left = _spread(line.at(values))
            noise = left if known is loose else noise
            values = _minimum(line, constants, known, weights, Scale(noise, BEND * left))
    return values, Scale(noise, BEND * _spread(line.at(values)))


def covariance(
    line: Linearised, weights: Floats, sources: Sequence[str], scale: Scale, precision: Floats
) -> Floats:
    """Of the constants: inverse information; wider where the measurements of a source err together.

        C = (J' W J / noise^2 + prior)^-1
        diagonal at least that of C (sum of gradients' squares by source + prior) C, with four sources or more

    Source: Huber, Robust Statistics (1981); Liang and Zeger, Biometrika 73(1), 1986 (clustered sandwich).
    """
    jacobian, residuals = line.jacobian, line.residuals
    inverse = jacobian.T @ (weights[:, None] * jacobian) / scale.noise**2 + np.diag(precision)
    units = np.sqrt(np.maximum(np.diag(inverse), 1e-300))  # constants of 1e-12 beside constants of 1
    inverted = np.linalg.pinv(inverse / np.outer(units, units)) / np.outer(units, units)
    groups = sorted(set(sources))
    if len(groups) < FEWEST_SOURCES:
        return np.asarray(inverted)
    bounded = weights * residuals / np.sqrt(1.0 + (residuals / scale.bend) ** 2) / scale.noise**2
    members = np.array([[source == group for source in sources] for group in groups], dtype=np.float64)
    gradients = members @ (bounded[:, None] * jacobian)
    inner = gradients.T @ gradients * len(groups) / (len(groups) - 1) + np.diag(precision)
    sandwich = inverted @ inner @ inverted
    wider = np.sqrt(np.maximum(1.0, np.diag(sandwich) / np.maximum(np.diag(inverted), 1e-300)))
    return np.asarray(inverted * np.outer(wider, wider))


def determined(
    model: Model, constants: Sequence[Constant], prior: Prior, line: Linearised
) -> tuple[tuple[int, ...], dict[int, float]]:
    """Places of the constants that the measurements determine, and the half widths of the others.

    Determined: half of the 95 % interval from the measurements alone, the other constants as uncertain as they are
    known, is at most 1.4 times that of what is known of it before; a quarter of the range the constant may have where
    nothing is. The widest is set aside, one after the other, until the rest is narrow.
    """
    weights = weights_of(model.samples)
    spans = np.array([constant.span for constant in constants])
    seen = np.abs(line.jacobian).max(axis=0, initial=0.0) * spans > 1e-6
    dropped: dict[int, float] = {int(place): np.inf for place in np.flatnonzero(~seen)}
    kept = [int(place) for place in np.flatnonzero(seen)]
    limits = np.where(np.isinf(prior.doubt), WIDEST_SHARE * spans, TELLING * NORMAL_95 * prior.doubt)
    while kept:
        part, known = line.of(slice(None), kept), prior.of(kept)
        values, scale = _settled(part, [constants[place] for place in kept], known, weights)
        scaled = Linearised(values=values, residuals=part.at(values), jacobian=part.jacobian * spans[kept])
        widths = _widths_without_own_prior(scaled, weights, scale, (spans[kept] / known.doubt) ** 2)
        widths = widths * spans[kept]
        if len(kept) > len(model.samples) // 2:
            widths = np.full(len(kept), np.inf)
        excess = widths / limits[kept]
        if excess.max() <= 1.0:
            break
        worst = int(excess.argmax())
        if not np.isfinite(widths[worst]):
            worst = int(np.linalg.norm(scaled.jacobian, axis=0).argmin())
        dropped[kept.pop(worst)] = float(widths[worst])
    return tuple(kept), dropped


def _widths_without_own_prior(line: Linearised, weights: Floats, scale: Scale, precision: Floats) -> Floats:
    """Half widths of every constant from the measurements and what is known of the others."""
    singular = np.linalg.svd(line.jacobian, compute_uv=False)
    if not precision.any() and singular[-1] < 1e-6 * singular[0]:
        return np.full(len(precision), np.inf)
    widths = np.zeros(len(precision))
    for place in range(len(precision)):
        others = np.where(np.arange(len(precision)) == place, 0.0, precision)
        spread = covariance(line, weights, (), scale, others)
        widths[place] = NORMAL_95 * np.sqrt(max(spread[place, place], 0.0))
    return widths


def fit(model: Model, constants: Sequence[Constant], prior: Prior, line: Linearised) -> Fit:
    """Bounded least squares of weighted log residuals with a loss that grows linearly, held by what is known before.

        minimise  sum of w soft_l1(log(predicted / measured)) / noise^2  +  sum of ((value - prior) / doubt)^2

    Gauss-Newton: linearise, minimise, again, until a step is small against the intervals. The noise is what the first
    linear fit leaves. Of what the measurements say little, they change little.
    """
    weights, sources = weights_of(model.samples), [sample.source for sample in model.samples]
    low, high = _bounds(constants)
    precision = prior.doubt**-2.0
    values, scale = _settled(line, constants, prior, weights)
    for _ in range(ROUNDS):
        widths = NORMAL_95 * np.sqrt(np.diag(covariance(line, weights, sources, scale, precision)))
        if np.all(np.abs(values - line.values) <= CLOSE * widths):
            break

        def objective(at: Linearised) -> float:
            return _objective(at, prior, weights, scale)

        line = _improved(model, constants, objective, line, values)
        values = _minimum(line, constants, prior, weights, scale)
    values = np.clip([rounded(value) for value in values.tolist()], low, high)
    residuals = model.residuals([dict(zip(constants, values.tolist(), strict=True))])[0]
    line = Linearised(values=values, residuals=residuals, jacobian=line.jacobian)
    spread = covariance(line, weights, sources, scale, precision)
    sigma = np.sqrt(np.maximum(np.diag(spread), 1e-300))
    return Fit(
        constants=tuple(constants),
        prior=prior,
        values=values,
        half_width=NORMAL_95 * sigma,
        error=((weights @ line.jacobian**2) / scale.noise**2 + precision) ** -0.5,
        correlation=np.asarray(spread / np.outer(sigma, sigma)),
        line=line,
        weights=weights,
        scale=scale,
    )


def _improved(
    model: Model,
    constants: Sequence[Constant],
    objective: Callable[[Linearised], float],
    line: Linearised,
    values: Floats,
) -> Linearised:
    """Linearised at *values*, or half way there (and again) while the true objective is worse than at the start."""
    before = objective(line)
    for _ in range(3):
        tried = linearised(model, constants, values)
        if objective(tried) <= before:
            break
        values = (values + line.values) / 2.0
    return tried


def rounded(value: float) -> float:
    """Three digits: intervals are wider than the rest."""
    return float(f"{value:.3g}")


def refit(fitted: Fit, kept: Any) -> Floats:
    """Values fitted on the samples *kept* (a mask) alone, with the residuals linearised round the fit.

    What nothing was known of before is taken as uncertain as a constant may be that still counts as determined: of what
    only the others tell, these samples say nothing.
    """
    spans = np.array([constant.span for constant in fitted.constants])
    free = np.isinf(fitted.prior.doubt)
    prior = Prior(
        centre=np.where(free, fitted.values, fitted.prior.centre),
        doubt=np.where(free, WIDEST_SHARE * spans / NORMAL_95, fitted.prior.doubt),
    )
    return _minimum(fitted.line.of(kept), fitted.constants, prior, fitted.weights[kept], fitted.scale)
