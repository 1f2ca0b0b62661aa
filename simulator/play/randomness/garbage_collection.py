"""Garbage collections of training processes: the pauses that they add to the forwards of a step."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.randomness.slow_machines import Places
from hdpsim.simulator.setup import ExecutionOptions


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
