"""Which nodes are at fault: tests that run on all nodes after a failure, what they find, what they get wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from hdpsim.cost_models.reliability.failures import FailureCause, Scope

TestName = Literal["loopback", "rnic", "all-to-all", "all-reduce"]
TESTS: tuple[TestName, ...] = get_args(TestName)

# All nodes run a test at the same time. What MegaScale runs, arXiv 2402.15627 section 4.3: loopback from every NIC to
# memory and GPUs of its host; NIC to NIC of a host; NCCL all-to-all in a node; NCCL all-reduce among neighbours below
# the same leaves. Shares of the time of a round: assumed, the paper says only that all of it takes under 10 minutes.
_SHARE: dict[TestName, float] = {"loopback": 0.1, "rnic": 0.1, "all-to-all": 0.3, "all-reduce": 0.5}
# A fault of a node shows wherever its GPUs move data, one of a link wherever its NIC sends to another
_SEES: dict[TestName, frozenset[Scope]] = {
    "loopback": frozenset({"node", "job"}),
    "rnic": frozenset({"link"}),
    "all-to-all": frozenset({"node", "job"}),
    "all-reduce": frozenset({"node", "link", "job"}),
}


@dataclass(eq=False, slots=True)
class Fault:
    """A node at fault that is still part of the job.

    Attributes:
        cause: what is wrong with it.
        rounds: rounds of tests that overlooked it.
    """

    cause: FailureCause
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The tests of a job.

    Attributes:
        round_s: one round of all of TESTS; of fewer tests their share of it.
        tests: those that run, in the order of TESTS.
        misses: probability that a test overlooks a fault that it can see.
        false_positives: probability that a test finds fault with a healthy node.
        most_rounds: rounds that may overlook a fault before people look for it.
    """

    round_s: float
    tests: tuple[TestName, ...] = TESTS
    misses: float = 0.0
    false_positives: float = 0.0
    most_rounds: int = 3

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long each test takes."""
        return tuple(self.round_s * _SHARE[test] for test in self.tests)

    @property
    def is_perfect(self) -> bool:
        """Whether every fault is found and no healthy node is."""
        seen = frozenset[Scope]().union(*(_SEES[test] for test in self.tests))
        return not (self.misses or self.false_positives) and seen == frozenset({"node", "link", "job"})


@dataclass(slots=True)
class Round:
    """The tests of one round, one after the other."""

    suite: Diagnosis
    random: np.random.Generator
    found: list[Fault] = field(default_factory=list)
    """Nodes at fault that were found."""
    wrongly_found: int = 0
    """Healthy nodes with which a test found fault."""

    def run(self, test: TestName, faults: list[Fault], healthy: int) -> None:
        """What a test finds among the nodes at fault and so many *healthy* ones.

        Every fault and every test takes one number, whatever the probabilities: with more false positives no round
        finds fault with fewer healthy nodes, with fewer misses none finds fewer faults.
        """
        for fault in faults:
            seen = fault.cause.scope in _SEES[test] and self.random.uniform() >= self.suite.misses
            if seen and fault not in self.found:
                self.found.append(fault)
        chance = self.random.uniform()
        if self.suite.false_positives:
            from scipy.stats import binom

            left = healthy - self.wrongly_found
            self.wrongly_found += int(binom.ppf(chance, left, self.suite.false_positives))
