"""The throughput of a run while it goes on, and how far its mean can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hdpsim.experiments.output.statistics import t_quantile

FEWEST_STEPS = 16
"""Below this an interval is shown, but nothing is decided by it."""

MOST_GROUPS = 64


@dataclass(slots=True)
class RunningThroughput:
    """Tokens over seconds of all steps so far, with a confidence interval.

        R = sum T / sum S,   half width = t(0.975, k - 1) * sqrt(sum (T_g - R S_g)^2 / (k - 1) / k) / mean(S_g)

    over k groups g of consecutive steps (a ratio estimator with non-overlapping batch means). Groups hold one step each
    until there are 64; then neighbours are joined, and groups hold two, four, ... steps. So k stays between 32 and 64,
    and steps that resemble their neighbours (a data set sorted by source) widen the interval as they should once
    groups are longer than such runs.

    Source: Cochran, Sampling Techniques, 3rd ed., section 6.4 (ratio); Law, Simulation Modeling and Analysis, 5th ed.,
    section 9.5.3 (batch means).
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    _group_steps: int = 1
    _tokens: list[float] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)
    _open_steps: int = 0
    _open_tokens: float = 0.0
    _open_seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count one more step."""
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self._open_steps += 1
        self._open_tokens += tokens
        self._open_seconds += seconds
        if self._open_steps < self._group_steps:
            return
        self._tokens.append(self._open_tokens)
        self._seconds.append(self._open_seconds)
        self._open_steps, self._open_tokens, self._open_seconds = 0, 0.0, 0.0
        if len(self._tokens) == MOST_GROUPS:
            self._tokens = [a + b for a, b in zip(self._tokens[::2], self._tokens[1::2], strict=True)]
            self._seconds = [a + b for a, b in zip(self._seconds[::2], self._seconds[1::2], strict=True)]
            self._group_steps *= 2

    @property
    def tokens_per_s(self) -> float:
        """R."""
        return self.tokens / self.seconds

    def half_width(self) -> float | None:
        """Half width of the 95 % interval around R; None from fewer than two groups."""
        groups = len(self._tokens)
        if groups < 2:
            return None
        ratio = self.tokens_per_s
        squares = math.fsum((t - ratio * s) ** 2 for t, s in zip(self._tokens, self._seconds, strict=True))
        mean_s = math.fsum(self._seconds) / groups
        return t_quantile(groups - 1) * math.sqrt(squares / (groups - 1) / groups) / mean_s

    def relative_half_width(self) -> float | None:
        """The half width over R; None while nothing should be decided by it."""
        if self.steps < FEWEST_STEPS:
            return None
        half = self.half_width()
        return None if half is None else half / self.tokens_per_s
