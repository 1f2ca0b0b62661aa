"""What happens to a campaign from outside: failures, their detection, slow nodes, spares and repairs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import simpy

from hdpsim.cost_models.reliability.failures import FailureCause
from hdpsim.simulator.campaign.between_failures import TICKS_PER_S
from hdpsim.simulator.campaign.diagnosis import TESTS, Diagnosis, TestName

_NEVER_S = 1e12  # 30,000 years
IN_BAND_S = (0.3, 5.6)  # errors reported by the process or the driver; Unicron, arXiv 2401.00134
STRAGGLER = FailureCause(name="straggler", per_day=0.0, scope="node", detection="planned", evict=True)
"""A slow node that was found: it leaves at the next checkpoint."""
FALSE_ALARM = FailureCause(name="false alarm", per_day=0.0, scope="node", detection="planned", evict=True)
"""A healthy node that was taken for one at fault: it leaves too."""


def ticks(seconds: float) -> int:
    """Seconds as whole microseconds; what lies beyond all campaigns stays a number."""
    return round(min(seconds, _NEVER_S) * TICKS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How failures are noticed and dealt with.

    Attributes:
        heartbeat_s: period of the heartbeats.
        heartbeat_misses: missed heartbeats that make a node count as dead.
        hang_timeout_s: after which a silent hang is an error.
        diagnosis_s: one round of tests for the culprit.
        manual_share: share of failures that need a person.
        manual_s: how long that takes, instead of diagnosis_s.
        repair_s: mean time until an evicted node is a spare again (exponential).
        diagnosis_tests, diagnosis_misses, diagnosis_false_positives, diagnosis_rounds: see Diagnosis.
        fault_recurrence_s: mean time until a fault that was overlooked stops the job again (exponential).
        straggler_misses: probability that one look overlooks a slow node.
        straggler_false_positives: probability that one look takes a healthy node for a slow one.
    """

    heartbeat_s: float
    heartbeat_misses: int
    hang_timeout_s: float
    diagnosis_s: float
    manual_share: float
    manual_s: float
    repair_s: float
    diagnosis_tests: tuple[TestName, ...] = TESTS
    diagnosis_misses: float = 0.0
    diagnosis_false_positives: float = 0.0
    fault_recurrence_s: float = 1800.0
    diagnosis_rounds: int = 3
    straggler_misses: float = 0.0
    straggler_false_positives: float = 0.0

    @property
    def diagnosis(self) -> Diagnosis:
        """The tests that look for the culprit."""
        return Diagnosis(
            round_s=self.diagnosis_s,
            tests=self.diagnosis_tests,
            misses=self.diagnosis_misses,
            false_positives=self.diagnosis_false_positives,
            most_rounds=self.diagnosis_rounds,
        )

    @property
    def is_perfect(self) -> bool:
        """Whether whatever is wrong is found, and nothing else."""
        return self.diagnosis.is_perfect and not (self.straggler_misses or self.straggler_false_positives)


def mean_detection_s(cause: FailureCause, handling: Handling) -> float:
    """Mean time from failure to detection.

        in band: U(0.3, 5.6) s | heartbeat: period (misses - U(0, 1)) | hang: the timeout | planned: 0

    A node that dies just after a heartbeat is noticed after all its misses, just before one a period sooner.
    Source: Unicron, arXiv 2401.00134 (in-band times; hangs end in the collective's timeout).
    """
    return {
        "in-band": sum(IN_BAND_S) / 2.0,
        "heartbeat": handling.heartbeat_s * (handling.heartbeat_misses - 0.5),
        "hang": handling.hang_timeout_s,
        "planned": 0.0,
    }[cause.detection]


def detection_ticks(cause: FailureCause, handling: Handling, random: np.random.Generator) -> int:
    """One draw of the time whose mean is mean_detection_s."""
    match cause.detection:
        case "in-band":
            return ticks(random.uniform(*IN_BAND_S))
        case "heartbeat":
            return ticks(handling.heartbeat_s * (handling.heartbeat_misses - random.uniform()))
        case "hang" | "planned":
            return ticks(mean_detection_s(cause, handling))
        case _:
            assert_never(cause.detection)


def failure_draws(
    causes: tuple[FailureCause, ...], per_s: tuple[float, ...], random: np.random.Generator
) -> Iterator[tuple[int, FailureCause]]:
    """Pairs of (ticks since the last failure, its cause), without end; nothing if all rates *per_s* are zero.

    All causes together are one Poisson process whose events get a cause by their rates.
    """
    total = sum(per_s)
    if total <= 0:
        return
    shares = np.cumsum(per_s) / total
    while True:
        gap = ticks(random.exponential(1.0 / total))
        index = int(np.searchsorted(shares, random.uniform(), side="right"))
        yield gap, causes[min(index, len(causes) - 1)]


class SparePool:
    """Healthy nodes that wait to be used, and those in repair that will come back."""

    def __init__(
        self, env: simpy.Environment, spares: int, repair_s: float, random: np.random.Generator
    ) -> None:
        """*spares* nodes at the start."""
        self._env, self._repair_s, self._random = env, repair_s, random
        self.spares = spares
        self.least_spares = spares
        self.arrival = env.event()
        """Fires when the next node comes back."""

    def take(self) -> bool:
        """Take a spare if there is one."""
        if self.spares < 1:
            return False
        self.spares -= 1
        self.least_spares = min(self.least_spares, self.spares)
        return True

    def repair(self) -> None:
        """Send one node to repair; it comes back on its own."""
        self._env.process(self._repaired())

    def _repaired(self) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(ticks(self._random.exponential(self._repair_s)))
        self.spares += 1
        arrived, self.arrival = self.arrival, self._env.event()
        arrived.succeed()
