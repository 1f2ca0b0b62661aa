"""Links that go down for seconds: how long a synchronous job stands still, and how often it dies of it.

While a link is down its packets are lost; the NIC sends them again after a timeout, a limited number of times. A flap
shorter than all tries together only stalls the job, a longer one ends it (the error surfaces as a hang or an NCCL
error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hdpsim.cost_models.reading.units import DAY_S
from hdpsim.cost_models.reliability.failures import FailureCause

# InfiniBand's local ACK timeout is 4.096 us x 2^t: InfiniBand Architecture Specification, volume 1, section 9.7.6.1.3
ACK_TIMEOUT_UNIT_S = 4.096e-6
# Adaptive retransmission tries again after milliseconds and doubles: NVIDIA adaptive retransmission of RoCE NICs.
# Assumed: 2^14 units, the default before NCCL 2.14 raised it
ADAPTIVE_TIMEOUT = 14


def nccl_timeout_s(timeout: int, retries: int) -> float:
    """How long a connection survives a dead link: one timeout for the first try and each of *retries* more.

    timeout = 20, retries = 7 (NCCL 2.30: NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT): 4.29 s x 8 = 34 s; timeout = 14: 0.5 s.
    """
    return ACK_TIMEOUT_UNIT_S * 2.0**timeout * (retries + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFlaps:
    """Flaps of the links between NICs and leaves, and how the stack is set up for them.

    Attributes:
        per_link_day: flaps per link and day.
        mean_s: mean length of a flap (exponential). MegaScale section 3.6: several seconds.
        timeout: NCCL_IB_TIMEOUT.
        retries: NCCL_IB_RETRY_CNT.
        adaptive: the NIC retransmits soon after the link is back instead of at the next full timeout.
    """

    per_link_day: float = 0.0
    mean_s: float = 5.0
    timeout: int = 20
    retries: int = 7
    adaptive: bool = False

    @property
    def survived_share(self) -> float:
        """Share of flaps that end before the connection gives up: 1 - exp(-T / mean)."""
        return -math.expm1(-self.gives_up_s / self.mean_s)

    @property
    def stall_s(self) -> float:
        """Mean stall of a flap that the job survives.

            fixed:     the end of the flap rounded up to a whole timeout r
            adaptive:  the same with a timeout of 67 ms

        Exponential flaps: E[r ceil(D / r) | D < T] = r (1 / (1 - q) - n q^n / (1 - q^n)), q = exp(-r / mean),
        T = n r.
        """
        timeout_s, tries = self._tries
        lasts = math.exp(-timeout_s / self.mean_s)  # probability that the link stays down for one more try
        lasts_all = lasts**tries
        return timeout_s * (1.0 / (1.0 - lasts) - tries * lasts_all / (1.0 - lasts_all))

    @property
    def _tries(self) -> tuple[float, int]:
        """Timeout of one try, and how many there are."""
        tries, timeout = self.retries + 1, self.timeout
        if self.adaptive and timeout > ADAPTIVE_TIMEOUT:
            tries, timeout = tries * 2 ** (timeout - ADAPTIVE_TIMEOUT), ADAPTIVE_TIMEOUT
        return nccl_timeout_s(timeout, 0), tries

    @property
    def gives_up_s(self) -> float:
        """When a connection over a dead link ends."""
        return nccl_timeout_s(self.timeout, self.retries)

    def stall_of(self, down_s: float) -> float | None:
        """How long flows stand still when a link is down for *down_s*; None: for good."""
        timeout_s, _ = self._tries
        return None if down_s >= self.gives_up_s else timeout_s * max(1, math.ceil(down_s / timeout_s))

    def stall_share(self, links: float) -> float:
        """Share of the wall-clock time a job on *links* links stands still (it may not exceed 1).

            stall = rate x survived x mean stall

        Counted: every flap stops the whole job, since every collective waits for its slowest member.
        Ignored: flaps that overlap, flaps of links that are idle until they are back.
        """
        return min(1.0, self.per_link_day * links * self.survived_share * self.stall_s / DAY_S)

    @property
    def cause(self) -> FailureCause | None:
        """The flaps that end the job, as a cause of a campaign; None when nothing flaps."""
        fatal = self.per_link_day * (1.0 - self.survived_share)
        if fatal <= 0:
            return None
        return FailureCause(name="link flap", per_day=fatal, scope="link", detection="in-band", evict=False)
