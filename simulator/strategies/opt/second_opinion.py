"""What hdp-opt believes of estimates that are known to err: it holds them against counts of FLOP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats
from hdpsim.cost_models.transformer.flop import sequence_flop
from hdpsim.simulator.strategies.estimate_errors import EstimateError
from hdpsim.simulator.strategies.problem import PlanningProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedError(EstimateError):
    """What is left of errors where estimates and what FLOP say are weighed by how far off either is.

        believed = estimate^w x (k FLOP)^(1 - w),   w = m^2 / (m^2 + e^2)
        k  estimated seconds of the batch over its FLOP
        e  spread of the estimates' errors (of their logarithm), which the planner is told
        m  spread of how far off FLOP are: that of estimate / (k FLOP) over the batch, by work, less e (squares)

    FLOP are counted, so nobody's error is in them. They are no times either: kernels take short sequences and long ones
    at different rates. Of two independent opinions with log-normal errors this mean errs least, by e^2 w (squares).
    Ignored: that like lengths have like rates, so that their estimates could correct each other. Errors of real
    estimators are alike for like lengths; only those that are drawn here are not.

    Attributes:
        variation, seed: of what is left of the errors.
        told: the errors of the estimates.
        problem: whose estimates and FLOP these are, without errors.
        estimate_share: w.
        seconds_per_flop: k.
    """

    told: EstimateError
    problem: PlanningProblem
    estimate_share: float
    seconds_per_flop: float

    @classmethod
    def of(cls, problem: PlanningProblem, told: EstimateError) -> WeighedError:
        """Weigh the estimates of a batch, which err as *told*."""
        estimated_s = problem.piece_s(problem.lengths)
        flop = sequence_flop(problem.cost.model, problem.lengths)
        seconds_per_flop = float(estimated_s.sum() / flop.sum())
        apart = np.log(estimated_s / (seconds_per_flop * flop))
        mean = np.average(apart, weights=estimated_s)
        seen = float(np.average((apart - mean) ** 2, weights=estimated_s))
        of_estimates = float(np.log1p(told.variation**2))
        of_flop = max(0.0, seen - of_estimates)
        share = of_flop / (of_flop + of_estimates)
        return cls(
            variation=float(np.sqrt(np.expm1(share * of_estimates))),
            seed=told.seed,
            told=told,
            problem=replace(problem, error=None),
            estimate_share=share,
            seconds_per_flop=seconds_per_flop,
        )

    def factors(self, lengths: ArrayLike) -> Floats:
        """What is believed over the true times of sequences of these *lengths*."""
        tokens = np.maximum(np.asarray(lengths, dtype=np.float64), 1.0)
        by_flop_s = self.seconds_per_flop * sequence_flop(self.problem.cost.model, tokens)
        of_estimates = self.told.factors(lengths) ** self.estimate_share
        return np.asarray(
            of_estimates * (by_flop_s / self.problem.piece_s(tokens)) ** (1.0 - self.estimate_share)
        )

    def doubts(self) -> Iterator[EstimateError]:
        """What is left of the errors, drawn as those of estimates are."""
        return EstimateError(variation=self.variation, seed=self.seed).doubts()
