"""Random durations: jitter of every operation, slow nodes, unequal GPUs, garbage collections, and waiting for the last.

What is drawn is drawn before the step is played, so that both executors see the same numbers. What waiting for the
slowest of many ranks adds to collectives and launches is an expectation: prices hold it before anything is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.switches import Parallel, RankOrder
from hdpsim.cost_models.slowest_of_many import expected_largest, slowest_of
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import HOLE, Plan
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.setup import ExecutionOptions

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


def with_tails(costs: StepCosts, options: ExecutionOptions, parallel: Parallel, plan: Plan) -> StepCosts:
    """The costs with what *options* say about collectives and launches; the same object where they say nothing.

        collective of n ranks:  exposed time x E[slowest of n]                             collective_jitter
        gradient sums:          + launch_skew x sqrt(m) x E[largest of n standard normals]  launch_skew

    m: micro-batches of a rank from one gradient sum to the next. Launches drift apart independently in each of them, so
    that their spread grows with its root until the sums bring all together again.
    Counted: tensor-parallel groups, rings, experts, and all ranks where parameters and gradients are exchanged.
    Ignored: what of a tail compute hides; that the rank which launches last need not be the slowest one.
    Source: MegaScale, arXiv 2402.15627, section 6.3 (reduce-scatters that ranks launch ever further apart); the
        normal walk is assumed.
    """
    if not (options.collective_jitter or options.launch_skew_s):
        return costs
    alike = costs.alike and costs.forward_terms_s.shape[-1] > 0
    sizes = plan.group_size[:1] if alike else plan.group_size
    tails = _tails(costs, sizes, parallel, plan.ranks, options.collective_jitter)
    forward, backward = (
        np.ascontiguousarray((terms[:, :, :1] if alike else terms) * tails[:, None, :])
        for terms in (costs.forward_terms_s, costs.backward_terms_s)
    )
    summed = slowest_of(plan.ranks, options.collective_jitter)
    micro_batches = np.count_nonzero(plan.order != HOLE) / plan.ranks
    skew_s = options.launch_skew_s * math.sqrt(micro_batches) * expected_largest(plan.ranks)
    epilogue = replace(
        costs.epilogue,
        parameter_gather_s=costs.epilogue.parameter_gather_s * summed,
        gradient_sync_s=costs.epilogue.gradient_sync_s * summed + skew_s,
    )
    longer = replace(costs, forward_terms_s=forward, backward_terms_s=backward, epilogue=epilogue)
    return longer.repeated(costs.forward_terms_s.shape[-1]) if alike else longer


def _tails(costs: StepCosts, sizes: np.ndarray, parallel: Parallel, ranks: int, jitter: float) -> Floats:
    """[terms, n]: the factor on each term of micro-batches that so many ranks share."""
    members: Mapping[str, int] = {
        "tp_communication": parallel.tp,
        "expert_all_to_all": parallel.expert_gpus,
        "layer_gather": ranks,
        "layer_reduce": ranks,
    }
    tails = np.ones((len(costs.terms), len(sizes)))
    for row, name in enumerate(costs.terms):
        if name == "ring_wait":
            known, place = np.unique(sizes, return_inverse=True)
            tails[row] = np.array([slowest_of(int(size), jitter) for size in known])[place]
        elif name in members:
            tails[row] = slowest_of(members[name], jitter)
    return tails


def add_garbage_collections(
    forward: Floats,
    random: np.random.Generator,
    plan: Plan,
    costs: StepCosts,
    places: Places,
    options: ExecutionOptions,
) -> None:
    """Lengthen the factors of forwards by the garbage collections of one step.

    Every process (GPU) collects in one step out of `gc_period_steps`, in a random one, during a random forward; the
    TP group of that stage waits for it. A pause lengthens the forward by `gc_pause_s`.

    Ignored: collections while the device still has queued work (they would be hidden), growth of the heap.
    Source: MegaScale, arXiv 2402.15627 section 6.3 (steps slow down with irregular garbage collection).
    """
    entries, rank, *_ = plan.entries
    first, counts = np.searchsorted(rank, np.arange(plan.ranks)), np.bincount(rank, minlength=plan.ranks)
    moment = places.by_stage(random.random(places.gpus))  # of its pause, should it make one
    pauses = places.by_stage(random.random(places.gpus) * options.gc_period_steps < 1.0)
    rank, stage, gpu = np.nonzero(pauses & (counts > 0)[:, None, None])
    passed = (moment[rank, stage, gpu] * counts[rank] * costs.chunks).astype(np.int64)
    slot, chunk = np.divmod(passed, costs.chunks)
    entry = entries[first[rank] + slot]
    forward_s = costs.forward_s[costs.kind[stage, chunk], plan.order[entry]]
    longer = np.divide(options.gc_pause_s, forward_s, out=np.zeros_like(forward_s), where=forward_s > 0)
    np.add.at(forward, (entry, stage, chunk), longer)


def synchronised_pause_s(options: ExecutionOptions) -> float:
    """Mean pause per step when all processes collect in the same step."""
    return options.gc_pause_s / options.gc_period_steps if options.gc_synchronised else 0.0
