"""What waiting for the slowest of many ranks adds to a priced plan: tails of collectives, skew of launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layout.switches import Parallel
from hdpsim.cost_models.slowest_of_many import expected_largest, slowest_of
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import HOLE, Plan

if TYPE_CHECKING:
    from hdpsim.simulator.setup import ExecutionOptions


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
