"""What single machines contribute to noise: factors by the number of a node or GPU, and the stages that feel them.

A node keeps its factor whatever the layout or strategy: two of them that are compared meet the same machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hdpsim.arrays import Bools, Floats
from hdpsim.cost_models.layout.switches import RankOrder

_FORGOTTEN = math.log(1e9)

Number = TypeVar("Number", Floats, Bools)
Stream = Callable[[int], np.random.Generator]
"""The random numbers of one cause by the number of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Which GPUs a rank's stage runs on.

    In Megatron's order these are (stage * ranks + rank) * tp + t, in the other one (rank * stages + stage) * tp + t.
    """

    ranks: int
    stages: int
    tp: int
    gpus_per_node: int
    order: RankOrder = "tp-dp-pp"

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.ranks * self.stages * self.tp

    @property
    def nodes(self) -> int:
        """Nodes of the job, the last of them perhaps partly used."""
        return -(-self.gpus // self.gpus_per_node)

    def by_stage(self, by_gpu: Number) -> Number:
        """[ranks, stages, tp]: what belongs to the GPUs of every stage."""
        if self.order == "tp-dp-pp":
            return by_gpu.reshape(self.stages, self.ranks, self.tp).swapaxes(0, 1)
        return by_gpu.reshape(self.ranks, self.stages, self.tp)

    def slowest_gpu(self, by_gpu: Floats) -> Floats:
        """[ranks, stages]: the largest of the factors of a stage's GPUs: its collectives wait for that one."""
        return np.asarray(self.by_stage(by_gpu).max(axis=2))

    def slowest_node(self, by_node: Floats) -> Floats:
        """[ranks, stages]: the largest of the factors of the nodes on which a stage's GPUs sit."""
        return self.slowest_gpu(by_node[np.arange(self.gpus) // self.gpus_per_node])


def log_normal(random: np.random.Generator, deviation: float, shape: int | tuple[int, ...]) -> Floats:
    """Log-normal factors: sigma^2 = ln(1 + deviation^2), mu = -sigma^2 / 2, so that the mean is 1."""
    variance = math.log1p(deviation**2)
    return random.lognormal(-variance / 2, math.sqrt(variance), shape)


def drifting(stream: Stream, step: int, nodes: int, memory_steps: int) -> Floats:
    """[nodes]: standard normal numbers that a node carries on from step to step.

        x(k) = rho x(k - 1) + sqrt(1 - rho^2) z(k),   rho = exp(-1 / memory_steps)    (0: rho = 0)

    The first step is drawn as all others are distributed: there is no warm-up to remove.
    Source: the Ornstein-Uhlenbeck process at whole steps.
    """
    if not memory_steps:
        return stream(step).standard_normal(nodes)
    correlation = math.exp(-1.0 / memory_steps)
    fresh = math.sqrt(1.0 - correlation * correlation)
    first = _remembered_from(step, 1.0 / memory_steps)
    pace = stream(first).standard_normal(nodes)
    for number in range(first + 1, step + 1):
        pace = correlation * pace + fresh * stream(number).standard_normal(nodes)
    return pace


def _remembered_from(step: int, forgets: float) -> int:
    """The step from which a state is followed up to *step*: of what was before less than a billionth is left.

    *forgets*: share of a state that does not matter any more one step later.
    """
    return max(0, step - math.ceil(_FORGOTTEN / forgets)) if forgets > 0 else 0


def in_slow_period(stream: Stream, step: int, nodes: int, share: float, mean_steps: int) -> Bools:
    """[nodes]: whether each is in a slow period in that step.

        a period ends with 1 / mean_steps a step and begins with share / (1 - share) as much

    So that *share* of the nodes are in one at any time, the first step included.
    Source: Falcon, arXiv 2410.12588: nodes that compute slowly for tens of seconds to ten hours, and recover.
    Ignored: that such periods come in groups (a rack that gets hot).
    """
    ends = 1.0 / mean_steps
    begins = ends * share / (1.0 - share)
    first = _remembered_from(step, ends - begins)
    slow: Bools = stream(first).random(nodes) < share
    for number in range(first + 1, step + 1):
        draw = stream(number).random(nodes)
        slow = np.where(slow, draw >= ends, draw < begins)
    return slow


def slow_forwards(random: np.random.Generator, places: Places, share: float, factor: float) -> Floats:
    """[ranks, stages]: how much longer forwards take on slow nodes: the one law of steps and campaigns.

        factor of a forward = *factor* if any GPU of its stage sits on a slow node, else 1

    A share of the nodes (rounded to whole nodes) is slow, drawn without replacement: a larger share holds the smaller.
    Source: MegaScale, arXiv 2402.15627, section 5: specific hosts took about 10 % longer for the same forward.
    Ignored: backwards, of which the paper says nothing: they queue more work on the device before the host has to
        follow, so that what slows a host is hidden there first.
    """
    slowness = np.ones(places.nodes)
    slowness[random.permutation(places.nodes)[: round(share * places.nodes)]] = factor
    return places.slowest_node(slowness)


def clean_probability(nodes: int, slow_share: float) -> float:
    """Chance that a job on randomly chosen nodes meets no slow one: (1 - p)^n.

    With 0.5 % slow nodes: 85 % on 32 nodes, 53 % on 128, 0.05 % on 1,536. A synchronous job is as slow as its slowest
    node, so large jobs on unscreened clusters are always slow.
    """
    return (1.0 - slow_share) ** nodes
