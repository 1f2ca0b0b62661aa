"""What a planner believes: its estimates of time are off, by a factor that is drawn for every length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hdpsim.arrays import Floats
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Plan

DOUBTS = 16
"""Draws of errors over which a planner takes the mean."""
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateError:
    """Log-normal factors with mean 1 on estimated times.

        factor = exp(sigma z - sigma^2 / 2),  sigma^2 = ln(1 + variation^2),  z normal, by seed and length

    Counted: an estimator is a function of the length, so sequences of equal length share their error, and everybody who
    asks gets the same one (common random numbers: all strategies err alike, and a larger variation stretches z).
    Ignored: errors by group size, micro-batch or rank.

    Attributes:
        variation: coefficient of variation of the factors.
        seed: seed of the draws.
    """

    variation: float
    seed: int = 0

    def factors(self, lengths: ArrayLike) -> Floats:
        """What the estimated times of sequences of these *lengths* are multiplied by."""
        variance = np.log1p(self.variation**2)
        return np.asarray(np.exp(np.sqrt(variance) * self._normal(lengths) - 0.5 * variance))

    def doubts(self) -> Iterator[EstimateError]:
        """What a planner that knows how far off its estimates are, but not which way, reckons with."""
        for number in range(1, DOUBTS + 1):
            yield replace(self, seed=self.seed + number)

    def _normal(self, lengths: ArrayLike) -> Floats:
        """Normal numbers of lengths, by the method of Box and Muller on two hashes."""
        given = np.asarray(lengths, dtype=np.float64)
        tokens = np.rint(np.atleast_1d(given)).astype(np.uint64)
        base = _hashed(np.full_like(tokens, self.seed + 1))
        first, second = (_uniform(_hashed(base + tokens * np.uint64(2) + np.uint64(one))) for one in (0, 1))
        normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
        return np.asarray(normal.reshape(given.shape))


def estimated_costs(
    error: EstimateError | None, plan: Plan, segment_s: Floats, costs: StepCosts
) -> StepCosts:
    """What a planner believes that a plan's micro-batches take: the error of their sequences, by their shares of work.

    *segment_s*: true work of its segments; *costs*: of the plan, or of its first micro-batch, which stands for all.
    """
    if error is None:
        return costs
    weight = np.add.reduceat(segment_s, plan.segment_offsets[:-1])
    wrong = np.add.reduceat(segment_s * error.factors(plan.segment_tokens), plan.segment_offsets[:-1])
    factors = (wrong / weight)[: costs.forward_terms_s.shape[-1]]
    apart = costs.weight_terms_s
    return replace(
        costs,
        forward_terms_s=costs.forward_terms_s * factors,
        backward_terms_s=costs.backward_terms_s * factors,
        weight_terms_s=None if apart is None else apart * factors,
    )


def _hashed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): well mixed bits of every number."""
    mixed = (values + np.uint64(1)) * _STEP
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed ^ (mixed >> np.uint64(31))


def _uniform(bits: NDArray[np.uint64]) -> Floats:
    """Numbers above 0 and below 1."""
    return np.asarray(((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53)
