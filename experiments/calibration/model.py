"""Measurements to fit on: their predictions as a function of constants, residuals and derivatives, weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.experiments.calibration.constants import Constant

Predictor = Callable[[Sequence[Any], Calibration, Mapping[Constant, float]], list[float]]

LIKENESS = 0.4
"""Correlation of errors within a source: 0.47, 0.34, 0.30 by analysis of variance on runs of three generations."""
STEP_SHARE = 0.01
"""Finite-difference step, share of the bounds' distance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement to fit on.

    Attributes:
        name: of the record or kernel.
        source: who published it; left out together.
        group: what shares hardware, software and reader; weighs as one.
        work: what the model's predictor takes.
        measured_s: seconds.
    """

    name: str
    source: str
    group: str
    work: Any
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearised:
    """Residuals at *values* and their derivatives [samples, constants]."""

    values: Floats
    residuals: Floats
    jacobian: Floats

    def at(self, values: Floats) -> Floats:
        """Residuals elsewhere, to first order."""
        return np.asarray(self.residuals + self.jacobian @ (values - self.values))

    def of(self, samples: Any, constants: Any = slice(None)) -> Linearised:
        """Some samples (a mask), some constants (indices)."""
        return Linearised(
            values=self.values[constants],
            residuals=self.residuals[samples],
            jacobian=self.jacobian[samples][:, constants],
        )


def _predict(task: tuple[Predictor, Sequence[Any], Calibration, Mapping[Constant, float]]) -> list[float]:
    """Seconds of some pieces of work (in a worker process)."""
    predictor, work, base, values = task
    return predictor(work, base, values)


class Model:
    """Log residuals of samples as a function of constants, evaluated on a pool of processes or here."""

    def __init__(
        self,
        samples: Sequence[Sample],
        base: Calibration,
        predictor: Predictor,
        pool: ProcessPoolExecutor | None = None,
        *,
        chunk: int = 8,
        report: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.samples, self.base = samples, base
        self._predictor, self._pool, self._chunk, self._report = predictor, pool, chunk, report
        self._measured = np.log([sample.measured_s for sample in samples])
        self.evaluations = 0

    def residuals(self, settings: Sequence[Mapping[Constant, float]]) -> Floats:
        """[settings, samples]: log(predicted / measured) under each setting of constants."""
        work = [sample.work for sample in self.samples]
        chunks = [work[first : first + self._chunk] for first in range(0, len(work), self._chunk)]
        tasks = [(self._predictor, chunk, self.base, dict(values)) for values in settings for chunk in chunks]
        results = self._pool.map(_predict, tasks) if self._pool else map(_predict, tasks)
        predicted: list[float] = []
        for part in results:
            predicted += part
            self.evaluations += len(part)
            self._report(self.evaluations)
        seconds = np.array(predicted).reshape(len(settings), len(work))
        return np.asarray(np.log(seconds) - self._measured)


def weights_of(samples: Sequence[Sample]) -> Floats:
    """Weights of the squares: n measurements of a group count as n / (1 + (n - 1) likeness).

    One counts as 1, ten as 2.2, ever so many as 2.5: they share hardware, software and reader, so do their errors.
    Source: Kish, Survey Sampling, 1965 (design effect of clusters).
    """
    sizes = Counter(sample.group for sample in samples)
    return np.array([1.0 / (1.0 + (sizes[sample.group] - 1) * LIKENESS) for sample in samples])


def linearised(model: Model, constants: Sequence[Constant], values: Floats) -> Linearised:
    """Residuals at *values* and their derivatives, one-sided differences within bounds."""
    known = dict(zip(constants, values.tolist(), strict=True))
    steps = [_difference_step(constant, known[constant]) for constant in constants]
    moved = (
        {**known, constant: known[constant] + step} for constant, step in zip(constants, steps, strict=True)
    )
    residuals = model.residuals([known, *moved])
    jacobian = np.asarray((residuals[1:] - residuals[0]).T / np.array(steps))
    return Linearised(values=values, residuals=residuals[0], jacobian=jacobian)


def _difference_step(constant: Constant, value: float) -> float:
    step = STEP_SHARE * constant.span
    return -step if value + step > constant.high else step
