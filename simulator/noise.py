"""Random durations: jitter of every operation and slow nodes, drawn before the step is played."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cost_models.layout import Order
from simulator.execution import Noise
from simulator.plan import Plan

if TYPE_CHECKING:
    from simulator.setup import ExecutionOptions

__all__ = ["draw_noise"]

Floats = NDArray[np.float64]


def draw_noise(
    plan: Plan,
    *,
    stages: int,
    chunks: int,
    tp: int,
    gpus_per_node: int,
    options: ExecutionOptions,
    order: Order = "tp-dp-pp",
) -> Noise | None:
    """Return the factors on the plan's durations that *options* ask for, or None if they ask for none.

    Jitter: every forward and backward of every rank takes a log-normal factor of mean 1 and standard deviation
    options.jitter. Slow nodes: a share of the nodes (rounded to whole nodes), drawn without replacement, takes
    options.slow_node_factor as long for everything; a stage of a rank is slow if any of its GPUs sits on one.

    Each of the three has its own random stream: switching one on leaves the others as they were, and a larger
    share of slow nodes contains the smaller one.

    Ignored: jitter of transfers, of the gradient sync and of the optimizer; correlation in time.
    """
    slow_seed, forward_seed, backward_seed = np.random.SeedSequence(options.seed).spawn(3)
    rank_stage = None
    if options.slow_node_share > 0 and options.slow_node_factor != 1.0:
        rank_stage = _slow_stages(
            np.random.default_rng(slow_seed),
            ranks=plan.ranks,
            stages=stages,
            tp=tp,
            gpus_per_node=gpus_per_node,
            share=options.slow_node_share,
            factor=options.slow_node_factor,
            order=order,
        )
    if options.jitter <= 0:
        return None if rank_stage is None else Noise(rank_stage=rank_stage)
    shape = (len(plan.order), stages, chunks)
    return Noise(
        rank_stage=rank_stage,
        forward=_jitter(np.random.default_rng(forward_seed), options.jitter, shape),
        backward=_jitter(np.random.default_rng(backward_seed), options.jitter, shape),
    )


def _jitter(random: np.random.Generator, deviation: float, shape: tuple[int, ...]) -> Floats:
    """Log-normal factors: sigma^2 = ln(1 + deviation^2), mu = -sigma^2 / 2, so that the mean is 1."""
    variance = math.log1p(deviation * deviation)
    return random.lognormal(-variance / 2, math.sqrt(variance), shape)


def _slow_stages(
    random: np.random.Generator,
    *,
    ranks: int,
    stages: int,
    tp: int,
    gpus_per_node: int,
    share: float,
    factor: float,
    order: Order,
) -> Floats:
    """Return the slowness of every rank's stage, [ranks, stages].

    Its GPUs are (stage * ranks + rank) * tp + t in Megatron's order, (rank * stages + stage) * tp + t in the other.
    """
    gpus = ranks * stages * tp
    nodes = -(-gpus // gpus_per_node)
    slow = np.zeros(nodes, dtype=np.bool_)
    slow[random.permutation(nodes)[: round(share * nodes)]] = True
    gpu_is_slow = slow[np.arange(gpus) // gpus_per_node]
    if order == "tp-dp-pp":
        stage_is_slow = gpu_is_slow.reshape(stages, ranks, tp).any(axis=2).T
    else:
        stage_is_slow = gpu_is_slow.reshape(ranks, stages, tp).any(axis=2)
    return np.where(stage_is_slow, factor, 1.0)
