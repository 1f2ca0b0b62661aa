"""Random durations: jitter of every operation and slow nodes, drawn before the step is played."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.layout import Order
from hdpsim.cost_models.step.micro_batch import StepCosts
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.execution import Noise

if TYPE_CHECKING:
    from hdpsim.simulator.setup import ExecutionOptions


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


_PAUSE_STREAM, _SPREAD_STREAM = 3, 4  # of the seed: jitter and slow nodes have the first three
_COMPUTE = frozenset({"gemm", "attention", "ring_merge", "small_kernels", "recompute", "logits"})
"""Terms of a micro-batch that a slower GPU lengthens; transfers and the host are as fast as elsewhere."""


@lru_cache(maxsize=256)
def expected_maximum(ranks: int, deviation: float) -> float:
    """Expected slowest of *ranks* log-normal durations of mean 1 and that deviation, each drawn as the simulator does.

        E[max] = integral over z of  phi_N(z) exp(sigma z - sigma^2 / 2),   phi_N = d/dz Phi(z)^N

    Source: order statistics; numerical quadrature.
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    if deviation <= 0 or ranks == 1:
        return 1.0
    from scipy.special import log_ndtr

    sigma = math.sqrt(math.log1p(deviation * deviation))
    z = np.linspace(-10.0, 14.0, 48_001)
    at_most = np.exp(ranks * log_ndtr(z))
    values = np.exp(sigma * z - sigma * sigma / 2.0)
    middle = 0.5 * (values[1:] + values[:-1])
    return float((middle * np.diff(at_most)).sum())


def clean_probability(nodes: int, slow_share: float) -> float:
    """Chance that a job on randomly chosen nodes meets no slow one: (1 - p)^n.

    With 0.5 % slow nodes: 85 % on 32 nodes, 53 % on 128, 0.05 % on 1,536. A synchronous job is as slow as its slowest
    node, so large jobs on unscreened clusters are always slow.
    """
    return (1.0 - slow_share) ** nodes


def synchronised_pause_s(options: ExecutionOptions) -> float:
    """Mean pause per step when all processes collect in the same step."""
    return options.gc_pause_s / options.gc_period_steps if options.gc_synchronised else 0.0


def with_pauses(
    noise: Noise | None, plan: Plan, costs: StepCosts, tp: int, options: ExecutionOptions
) -> Noise | None:
    """*noise* and the garbage collections of one step.

    Every process (GPU) collects in one step out of `gc_period_steps`, in a random one, during a random forward; the
    TP group of that stage waits for it. A pause lengthens the forward by `gc_pause_s`.

    Ignored: collections while the device still has queued work (they would be hidden), growth of the heap.
    Source: MegaScale, arXiv 2402.15627 section 6.3 (steps slow down with irregular garbage collection).
    """
    if options.gc_pause_s <= 0 or options.gc_synchronised:
        return noise
    random = _stream(options.seed, _PAUSE_STREAM)
    stages, chunks = costs.stages, costs.chunks
    entries = np.flatnonzero(plan.order != HOLE)
    rank = np.repeat(np.arange(plan.ranks), np.diff(plan.order_offsets))[entries]
    first, counts = np.searchsorted(rank, np.arange(plan.ranks)), np.bincount(rank, minlength=plan.ranks)
    pauses = random.binomial(tp, 1.0 / options.gc_period_steps, (plan.ranks, stages))
    pauses[counts == 0] = 0
    who, stage = (np.repeat(index, pauses.ravel()) for index in np.indices(pauses.shape).reshape(2, -1))
    slot = random.integers(0, counts[who])
    chunk = random.integers(0, chunks, len(who))
    entry = entries[first[who] + slot]
    forward_s = costs.forward_s[costs.kind[stage, chunk], plan.order[entry]]
    shape = (len(plan.order), stages, chunks)
    factor = np.ones(shape) if noise is None or noise.forward is None else noise.forward.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.where(forward_s > 0, options.gc_pause_s / forward_s, 0.0)
    np.add.at(factor, (entry, stage, chunk), longer)
    return Noise(forward=factor) if noise is None else replace(noise, forward=factor)


def with_spread(
    noise: Noise | None, plan: Plan, costs: StepCosts, tp: int, options: ExecutionOptions
) -> Noise | None:
    """*noise* and the spread of equal GPUs: silicon, cooling and power make some slower than others, all the time.

        factor of a stage = 1 + (g - 1) x compute's share of it,   g = max of tp log-normal draws of mean 1

    Every tensor-parallel collective waits for the slowest GPU of its group, a pipeline for its slowest stage, the
    gradients for the slowest pipeline: a job of N GPUs runs at about the slowest of N, expected_maximum(N, spread).
    Source: Sinha et al., "Not all GPUs are created equal", SC 2022: 8 % on average between the whiskers of a
        cluster's GPUs of one kind, 22 % at most; whiskers as four deviations make the spread 0.02.
    Ignored: that memory-bound kernels vary less than matrix products; drift of the spread.
    """
    if not options.gpu_spread:
        return noise
    variance = math.log1p(options.gpu_spread**2)
    random = _stream(options.seed, _SPREAD_STREAM)
    drawn = random.lognormal(-variance / 2, math.sqrt(variance), (plan.ranks, costs.stages, tp)).max(axis=2)
    terms = (
        (costs.forward_terms_s + costs.backward_terms_s)[:, :, :1]
        if costs.alike
        else (costs.forward_terms_s + costs.backward_terms_s)
    )
    by_stage = terms.mean(axis=2)[:, costs.kind].sum(axis=2)  # [terms, stages]
    compute = [row for row, name in enumerate(costs.terms) if name in _COMPUTE]
    total = by_stage.sum(axis=0)
    share = np.divide(by_stage[compute].sum(axis=0), total, out=np.zeros_like(total), where=total > 0)
    factor = 1.0 + (drawn - 1.0) * share
    if noise is None:
        return Noise(rank_stage=factor)
    return replace(noise, rank_stage=factor if noise.rank_stage is None else factor * noise.rank_stage)


def _stream(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(number + 1)[-1])
