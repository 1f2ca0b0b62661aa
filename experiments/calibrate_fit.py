"""Robust least squares on records: evaluation, Jacobian, what the records determine, intervals, cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration import Calibration
from experiments.calibrate_constants import Constant, apply
from experiments.record_prediction import predict_step
from experiments.record_setup import Job

__all__ = ["Fit", "Model", "Sample", "determined", "fit", "linear_refit"]

Floats = NDArray[np.float64]

LOSS_SCALE = 0.05
"""Log error from which soft_l1 counts a record linearly instead of by the square: runs drift by 2 to 15 %."""
NOISE = 0.02
"""Least log error of a record: re-measured runs differ by as much; intervals are never narrower than it makes them."""
WIDEST_SHARE = 0.25
"""A constant is determined when half of its 95 % interval is at most this share of its bounds' distance."""
STEP_SHARE = 0.01
"""Finite-difference step, share of the bounds' distance."""
NORMAL_95 = 1.96
CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One record to fit on."""

    name: str
    source: str
    job: Job
    measured_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fit and how well it is determined. Arrays run over constants, samples, or both.

    Attributes:
        constants: what was fitted.
        start: where the fit began: what is known without runs.
        values: their values.
        half_width: half of the 95 % confidence interval of each.
        correlation: of their estimates.
        residuals: log(predicted / measured) of every sample.
        jacobian: of the residuals by constants.
        weights: of the samples' squares.
    """

    constants: tuple[Constant, ...]
    start: Floats
    values: Floats
    half_width: Floats
    correlation: Floats
    residuals: Floats
    jacobian: Floats
    weights: Floats


def _predict(task: tuple[Sequence[Job], Calibration, Mapping[Constant, float]]) -> list[float]:
    """Step seconds of some jobs (in a worker process)."""
    jobs, base, values = task
    return [predict_step(job, apply(job.setup.calibration, base, values))[0] for job in jobs]


class Model:
    """Log residuals of samples as a function of constants, evaluated on a pool of processes or here."""

    def __init__(
        self,
        samples: Sequence[Sample],
        base: Calibration,
        pool: ProcessPoolExecutor | None = None,
        report: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.samples, self.base = samples, base
        self._pool, self._report = pool, report
        self._measured = np.log([sample.measured_step_s for sample in samples])
        self.evaluations = 0

    def residuals(self, settings: Sequence[Mapping[Constant, float]]) -> Floats:
        """[settings, samples]: log(predicted / measured) under each setting of constants."""
        jobs = [sample.job for sample in self.samples]
        chunks = [jobs[first : first + CHUNK] for first in range(0, len(jobs), CHUNK)]
        tasks = [(chunk, self.base, dict(values)) for values in settings for chunk in chunks]
        results = self._pool.map(_predict, tasks) if self._pool else map(_predict, tasks)
        predicted: list[float] = []
        for part in results:
            predicted += part
            self.evaluations += len(part)
            self._report(self.evaluations)
        steps = np.array(predicted).reshape(len(settings), len(jobs))
        return np.asarray(np.log(steps) - self._measured)

    def with_jacobian(self, constants: Sequence[Constant], values: Floats) -> tuple[Floats, Floats]:
        """Residuals at *values* and their derivatives [samples, constants], one-sided differences within bounds."""
        here = dict(zip(constants, values.tolist(), strict=True))
        steps = [_difference_step(constant, here[constant]) for constant in constants]
        moved = [
            {**here, constant: here[constant] + step} for constant, step in zip(constants, steps, strict=True)
        ]
        found = self.residuals([here, *moved])
        return found[0], np.asarray((found[1:] - found[0]).T / np.array(steps))


def _difference_step(constant: Constant, value: float) -> float:
    step = STEP_SHARE * (constant.high - constant.low)
    return -step if value + step > constant.high else step


def weights_of(samples: Sequence[Sample]) -> Floats:
    """Weights of the squares: n records of a source count as sqrt(n), for they share hardware, software and reader."""
    sizes: dict[str, int] = {}
    for sample in samples:
        sizes[sample.source] = sizes.get(sample.source, 0) + 1
    return np.array([sizes[sample.source] ** -0.5 for sample in samples])


def covariance(jacobian: Floats, residuals: Floats, weights: Floats, sources: Sequence[str]) -> Floats:
    """Of the constants: inverse normal matrix times the variance; wider where a source's records err together.

        C = s^2 (J' W J)^-1,     s = max(1.48 median |r|, noise)
        diagonal at least that of the sandwich clustered by source, where there are four sources or more

    Source: Huber, Robust Statistics (1981); Liang and Zeger, Biometrika 73(1), 1986 (clustered sandwich).
    """
    normal = np.linalg.pinv(jacobian.T @ (weights[:, None] * jacobian))
    scale = max(1.4826 * float(np.median(np.abs(residuals - np.median(residuals)))), NOISE)
    found = np.asarray(normal * scale**2)
    groups = sorted(set(sources))
    if len(groups) < 4:
        return found
    bounded = weights * residuals / np.sqrt(1.0 + (residuals / LOSS_SCALE) ** 2)
    members = np.array([[source == group for source in sources] for group in groups], dtype=np.float64)
    gradients = members @ (bounded[:, None] * jacobian)
    sandwich = normal @ (gradients.T @ gradients) @ normal * len(groups) / (len(groups) - 1)
    wider = np.sqrt(np.maximum(1.0, np.diag(sandwich) / np.maximum(np.diag(found), 1e-300)))
    return np.asarray(found * np.outer(wider, wider))


def half_widths(found: Floats) -> Floats:
    """Half of the 95 % intervals."""
    return np.asarray(NORMAL_95 * np.sqrt(np.maximum(np.diag(found), 0.0)))


def determined(
    model: Model, constants: Sequence[Constant], values: Floats
) -> tuple[tuple[Constant, ...], dict[Constant, float]]:
    """The constants whose interval would be narrow enough, and the relative widths of the others.

    The widest is set aside, one after the other, until the rest is narrow: constants that only move together with
    others, and those no record depends on, go first.
    """
    residuals, jacobian = model.with_jacobian(constants, values)
    weights, sources = weights_of(model.samples), [sample.source for sample in model.samples]
    kept, dropped = list(range(len(constants))), dict[Constant, float]()
    spans = np.array([constant.high - constant.low for constant in constants])
    dependent = np.abs(jacobian).max(axis=0, initial=0.0) * spans > 1e-6
    for place in np.flatnonzero(~dependent).tolist():
        dropped[constants[place]] = np.inf
        kept.remove(place)
    while kept:
        scaled = jacobian[:, kept] * spans[kept]
        singular = np.linalg.svd(scaled, compute_uv=False)
        widths = half_widths(covariance(scaled, _left_over(scaled, residuals, weights), weights, sources))
        if len(kept) > len(residuals) // 2 or singular[-1] < 1e-6 * singular[0]:
            widths = 1.0 / np.maximum(np.linalg.norm(scaled, axis=0), 1e-12)  # the least noticed goes
        elif widths.max() <= WIDEST_SHARE:
            break
        worst = int(widths.argmax())
        dropped[constants[kept[worst]]] = float(widths[worst])
        kept.pop(worst)
    return tuple(constants[place] for place in kept), dropped


@dataclass(frozen=True, slots=True)
class _Prior:
    """What is known without runs, as one residual per constant in shares of its bounds' distance."""

    centre: Floats
    slope: Floats

    @classmethod
    def of(cls, constants: Sequence[Constant], start: Floats) -> _Prior:
        low, high, doubt = (
            np.array([getattr(constant, side) for constant in constants]) for side in ("low", "high", "doubt")
        )
        return cls(centre=(start - low) / (high - low), slope=LOSS_SCALE * (high - low) / doubt)


def _left_over(slope: Floats, residuals: Floats, weights: Floats) -> Floats:
    """What a weighted linear fit leaves of the residuals: the noise that intervals are made of."""
    root = np.sqrt(weights)
    change = np.linalg.lstsq(root[:, None] * slope, root * residuals, rcond=None)[0]
    return np.asarray(residuals - slope @ change)


def fit(model: Model, constants: Sequence[Constant], start: Floats) -> Fit:
    """Bounded least squares of weighted log residuals with the loss soft_l1, derivatives by differences.

        minimise  sum of w rho(log(predicted / measured))  +  sum of ((value - start) / doubt)^2 LOSS_SCALE^2

    The start counts as one observation of every constant, as uncertain as `Constant.doubt` says: of what records say
    little, they change little.
    """
    from scipy.optimize import least_squares

    low, high = (np.array([getattr(constant, side) for constant in constants]) for side in ("low", "high"))
    spans = high - low
    root = np.sqrt(weights_of(model.samples))
    seen: dict[bytes, tuple[Floats, Floats]] = {}

    def at(point: Floats) -> tuple[Floats, Floats]:
        key = point.tobytes()
        if key not in seen:
            seen[key] = model.with_jacobian(constants, low + np.clip(point, 0.0, 1.0) * spans)
        return seen[key]

    prior = _Prior.of(constants, start)
    found = least_squares(
        lambda point: np.concatenate([root * at(point)[0], prior.slope * (point - prior.centre)]),
        np.clip(prior.centre, 1e-3, 1.0 - 1e-3),
        jac=lambda point: np.vstack([root[:, None] * at(point)[1] * spans, np.diag(prior.slope)]),
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        xtol=1e-4,
        ftol=1e-4,
        max_nfev=12,
    )
    residuals, jacobian = at(found.x)
    values = low + found.x * spans
    sources = [sample.source for sample in model.samples]
    spread = covariance(jacobian, residuals, root**2, sources)
    sigma = np.sqrt(np.maximum(np.diag(spread), 1e-300))
    return Fit(
        constants=tuple(constants),
        start=start,
        values=values,
        half_width=half_widths(spread),
        correlation=np.asarray(spread / np.outer(sigma, sigma)),
        residuals=residuals,
        jacobian=jacobian,
        weights=root**2,
    )


def linear_refit(found: Fit, kept: Any) -> Floats:
    """Values fitted on the samples *kept* (a mask) alone, with the residuals linearised round the fit."""
    from scipy.optimize import least_squares

    low, high = (
        np.array([getattr(constant, side) for constant in found.constants]) for side in ("low", "high")
    )
    spans = high - low
    root = np.sqrt(found.weights[kept])
    slope, residuals = found.jacobian[kept] * spans, found.residuals[kept]
    centre = (found.values - low) / spans
    prior = _Prior.of(found.constants, found.start)
    again = least_squares(
        lambda point: np.concatenate(
            [root * (residuals + slope @ (point - centre)), prior.slope * (point - prior.centre)]
        ),
        np.clip(centre, 1e-6, 1.0 - 1e-6),
        jac=lambda point: np.vstack([root[:, None] * slope, np.diag(prior.slope)]),
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
    )
    return np.asarray(low + again.x * spans)
