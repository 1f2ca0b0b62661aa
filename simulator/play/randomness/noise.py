"""Random durations: jitter of every operation, slow nodes, unequal GPUs, and garbage collections.

All of them are drawn before the step is played, so that both executors see the same ones.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.switches import RankOrder
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.execution import Noise

from .garbage_collection import add_garbage_collections
from .slow_machines import Places, drifting, in_slow_period, log_normal, slow_forwards

if TYPE_CHECKING:
    from hdpsim.simulator.setup import ExecutionOptions

_COMPUTE = frozenset({"gemm", "attention", "ring_merge", "small_kernels", "recompute", "logits"})
"""Terms of a micro-batch that a slower GPU lengthens; transfers and the host are as fast as elsewhere."""


class _Cause(IntEnum):
    """What random numbers are drawn for; each cause has a stream of its own."""

    SLOW_NODES = 0
    JITTER_FORWARD = 1
    JITTER_BACKWARD = 2
    PAUSES = 3
    SPREAD = 4
    NODE_JITTER = 5
    STEP_JITTER = 6
    SLOW_PERIODS = 7
    LINK_FLAPS = 8


def _stream(options: ExecutionOptions, cause: _Cause, step: int = 0) -> np.random.Generator:
    """The random numbers of a cause in a step; what lasts is drawn for step 0."""
    later = (options.replication, step) if options.replication or step else ()
    return np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(cause, *later)))


def draw_noise(
    plan: Plan,
    costs: StepCosts,
    options: ExecutionOptions,
    *,
    tp: int,
    gpus_per_node: int,
    order: RankOrder = "tp-dp-pp",
) -> Noise | None:
    """Return the factors on the plan's durations that *options* ask for, or None if they ask for none.

    Jitter: every forward and backward of every rank takes a log-normal factor of mean 1 and standard deviation
    options.jitter. Each cause has its own random stream: switching one on leaves the others as they were, and a larger
    share of slow nodes contains the smaller one. What belongs to a machine or a step is drawn by their numbers, so that
    strategies and layouts that are compared meet the same; jitter of single operations is not, for they have others.

    Ignored: jitter of transfers and of the optimizer; what collectives wait for is a matter of costs (tails).
    """
    if options.draws_nothing:
        return None
    now = partial(_stream, options, step=options.step)
    places = Places(ranks=plan.ranks, stages=costs.stages, tp=tp, gpus_per_node=gpus_per_node, order=order)
    forward_stage: Floats | None = None
    forward: Floats | None = None
    backward: Floats | None = None
    if options.slow_node_share > 0 and options.slow_node_factor != 1.0:
        law = (options.slow_node_share, options.slow_node_factor)
        forward_stage = slow_forwards(_stream(options, _Cause.SLOW_NODES), places, *law)
    shape = (len(plan.order), costs.stages, costs.chunks)
    if options.jitter > 0:
        forward = log_normal(now(_Cause.JITTER_FORWARD), options.jitter, shape)
        backward = log_normal(now(_Cause.JITTER_BACKWARD), options.jitter, shape)
    if options.gc_pause_s > 0 and not options.gc_synchronised:
        forward = np.ones(shape) if forward is None else forward
        add_garbage_collections(forward, now(_Cause.PAUSES), plan, costs, places, options)
    return Noise(
        rank_stage=_stage_factors(places, costs, options),
        forward_stage=forward_stage,
        forward=forward,
        backward=backward,
    )


def _stage_factors(places: Places, costs: StepCosts, options: ExecutionOptions) -> Floats | None:
    """[ranks, stages]: how much longer all that a stage computes takes in this step; None = as the costs say.

    The spread of equal GPUs: silicon, cooling and power make some slower than others, all the time.

        factor of a stage = 1 + (g - 1) x compute's share of it,   g = max of tp log-normal draws of mean 1

    Every tensor-parallel collective waits for the slowest GPU of its group, a pipeline for its slowest stage, the
    gradients for the slowest pipeline: a job of N GPUs runs at about the slowest of N.
    Source: Sinha et al., "Not all GPUs are created equal", SC 2022: 8 % on average between the whiskers of a
        cluster's GPUs of one kind, 22 % at most; whiskers as four deviations make the spread 0.02.
    Ignored: that memory-bound kernels vary less than matrix products; drift of the spread.
    """
    slowest: list[Floats] = []
    if options.gpu_spread:
        drawn = log_normal(_stream(options, _Cause.SPREAD), options.gpu_spread, places.gpus)
        slowest.append(places.slowest_gpu(drawn))
    by_node = _node_factors(places.nodes, options)
    if by_node is not None:
        slowest.append(places.slowest_node(by_node))
    factors = [1.0 + (factor - 1.0) * _compute_share(costs) for factor in slowest]
    if options.step_jitter:
        stream = _stream(options, _Cause.STEP_JITTER, options.step)
        factors.append(log_normal(stream, options.step_jitter, (1, 1)))
    return np.asarray(np.broadcast_to(math.prod(factors), (places.ranks, places.stages))) if factors else None


def _node_factors(nodes: int, options: ExecutionOptions) -> Floats | None:
    """[nodes]: how much longer what each node computes takes in this step; None = as long as ever."""
    factors: list[Floats] = []
    if options.node_jitter:
        stream = partial(_stream, options, _Cause.NODE_JITTER)
        pace = drifting(stream, options.step, nodes, options.node_jitter_steps)
        variance = math.log1p(options.node_jitter**2)
        factors.append(np.exp(math.sqrt(variance) * pace - variance / 2.0))
    if options.slow_period_share:
        stream = partial(_stream, options, _Cause.SLOW_PERIODS)
        share, steps = options.slow_period_share, options.slow_period_steps
        slow = in_slow_period(stream, options.step, nodes, share, steps)
        factors.append(np.where(slow, options.slow_period_factor, 1.0))
    return np.asarray(math.prod(factors)) if factors else None


def fastest_gpu(options: ExecutionOptions, gpus: int) -> float:
    """The least factor that the spread of equal GPUs can put on a duration, at most 1.

    A job of so many GPUs draws the same factors whatever its layout; only who gets which differs.
    """
    if not options.gpu_spread:
        return 1.0
    return min(1.0, float(log_normal(_stream(options, _Cause.SPREAD), options.gpu_spread, (gpus,)).min()))


def _compute_share(costs: StepCosts) -> Floats:
    """[stages]: share of compute in a stage's forwards and backwards."""
    terms = costs.forward_terms_s + costs.backward_terms_s
    terms = terms[:, :, :1] if costs.alike else terms
    by_stage = terms.mean(axis=2)[:, costs.kind].sum(axis=2)  # [terms, stages]
    compute = [row for row, name in enumerate(costs.terms) if name in _COMPUTE]
    computed, total = by_stage[compute].sum(axis=0), by_stage.sum(axis=0)
    return np.asarray(np.divide(computed, total, out=np.zeros_like(total), where=total > 0))


def flaps_stream(options: ExecutionOptions) -> np.random.Generator:
    """The random numbers of the step's link flaps."""
    return _stream(options, _Cause.LINK_FLAPS, options.step)
