"""What a campaign depends on, and what comes out: plain values."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from hdpsim.cost_models.reliability.failures import FailureProfile
from hdpsim.simulator.campaign.between_failures import CYCLE_ACCOUNTS, TICKS_PER_S
from hdpsim.simulator.campaign.events import Handling

ACCOUNTS = (
    *CYCLE_ACCOUNTS, "lost_work", "detection", "diagnosis", "waiting_for_node", "scheduling",
    "group_initialisation", "checkpoint_load",
)  # fmt: skip
"""Every tick of a campaign is in exactly one of these."""

EFFECTIVE = frozenset({"training", "drift", "stragglers"})
"""Accounts of steps whose result was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSetup:
    """Everything one run depends on.

    Attributes:
        duration_s: wall-clock time simulated.
        nodes: nodes of the job; evicted ones are replaced.
        links_per_node: for causes per link.
        step_s: a step without slow nodes, jitter and drift; stalls of links that come back are in it.
        stalled_share: the part of it for which such links hold up the job.
        tokens_per_step: tokens of the global batch.
        steps_per_checkpoint: the checkpoint interval.
        block_s: stage 1 of a checkpoint.
        upload_s: stage 2 of a checkpoint.
        load_s: reading a checkpoint back.
        scheduling_s: placing the job and starting its processes.
        group_initialisation_s: making the communication groups.
        jitter: coefficient of variation of a step.
        drift_per_day: growth of the step per day since the last restart.
        failures: what breaks and how often.
        failure_scale: multiplies all rates.
        handling: detection, diagnosis, repair.
        spares: healthy nodes in the pool at the start.
        straggler_share: probability that a node, at the start or from the pool, is slow.
        slow_steps: what slow nodes do to the step, by the step's own law: (nodes, factor) from one node upwards.
        straggler_detection_s: time until a slow node is found.
        straggler_mttf_s: mean time until a healthy node becomes slow; None = never.
        straggler_recovery_s: mean time until such a node is as fast as the others again; None = never.
        seed: of this run, and its number among the runs of a study.
    """

    duration_s: float
    nodes: int
    links_per_node: int
    step_s: float
    tokens_per_step: float
    steps_per_checkpoint: int
    block_s: float
    upload_s: float
    load_s: float
    scheduling_s: float
    group_initialisation_s: float
    jitter: float
    drift_per_day: float
    failures: FailureProfile
    failure_scale: float
    handling: Handling
    spares: int
    straggler_share: float
    slow_steps: tuple[tuple[int, float], ...]
    straggler_detection_s: float
    straggler_mttf_s: float | None
    straggler_recovery_s: float | None = None
    stalled_share: float = 0.0
    seed: tuple[int, int] = (0, 0)

    def slowness(self, nodes: int) -> float:
        """Factor on the step while so many nodes are slow; between two known numbers linear in the logarithm."""
        if nodes < 1 or not self.slow_steps:
            return 1.0
        known, factors = zip(*self.slow_steps, strict=True)
        return float(np.interp(math.log(nodes), np.log(known), factors))


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One restart: what stopped the job, when, and what it cost."""

    cause: str
    at_s: float
    lost_s: float
    """Work thrown away."""
    down_s: float
    """Until training went on (or the run ended)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignResult:
    """One run.

    Attributes:
        duration_s: simulated time.
        account_ticks: microseconds in each of ACCOUNTS; they sum to the duration exactly.
        steps: kept steps.
        tokens: trained on and kept.
        goodput: tokens against what an undisturbed run would reach in the same time.
        incidents: every restart.
        failures: unplanned restarts.
        evictions: nodes taken out for repair.
        false_evictions: healthy ones among them.
        overlooked: how often a round of tests missed a node at fault, or a look a slow one.
        curve_s, curve_tokens: tokens against wall-clock time; falls back where work was lost.
        least_spares: lowest level of the pool.
    """

    duration_s: float
    account_ticks: tuple[int, ...]
    steps: float
    tokens: float
    goodput: float
    incidents: tuple[Incident, ...]
    failures: int
    evictions: int
    curve_s: tuple[float, ...]
    curve_tokens: tuple[float, ...]
    least_spares: int
    false_evictions: int = 0
    overlooked: int = 0

    @property
    def account_s(self) -> dict[str, float]:
        """Seconds in each account."""
        return {name: t / TICKS_PER_S for name, t in zip(ACCOUNTS, self.account_ticks, strict=True)}

    @property
    def ettr(self) -> float:
        """Effective-training-time ratio: time of kept steps over wall-clock time.

        Source: MegaScale, arXiv 2402.15627 section 6 (iterations x iteration time over the total).
        """
        kept = sum(t for name, t in zip(ACCOUNTS, self.account_ticks, strict=True) if name in EFFECTIVE)
        return kept / sum(self.account_ticks)

    @property
    def restarts(self) -> dict[str, int]:
        """Restarts by cause, planned ones included."""
        return dict(Counter(incident.cause for incident in self.incidents))
