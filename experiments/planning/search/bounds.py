"""Times that no candidate of a search undercuts: what may be left out without being replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.simulator.lower_bound import lower_bound_s
from hdpsim.simulator.planning import micro_batch_cost
from hdpsim.simulator.play.randomness.noise import fastest_gpu
from hdpsim.simulator.uniform import price_uniform

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.data_use import Lengths
    from hdpsim.simulator.setup import Setup


def bounds_of(setup: Setup, batches: Sequence[Lengths]) -> tuple[float, ...]:
    """For every batch a time that no candidate of this layout undercuts; empty where jitter may.

    The rank capacity is the whole context: a larger one than any candidate has only lowers the bound. Sequences are
    taken as attention sees them if a packer may cut them. Unequal GPUs are taken as if all were the fastest.
    """
    if setup.execution.may_hurry:
        return ()
    tp = setup.layout.parallel.tp
    whole_context = -(-setup.context_tokens // tp) * tp
    free = replace(setup, layout=setup.layout.changed(cp=None, rank_capacity_tokens=whole_context))
    fastest = fastest_gpu(setup.execution, setup.cluster.gpus)
    known: dict[bytes, float] = {}
    for lengths in batches:
        key = lengths.tobytes()
        if key not in known:
            known[key] = fastest * lower_bound_s(free, lengths)
    return tuple(known[lengths.tobytes()] for lengths in batches)


def mesh_bound_s(setup: Setup, sequences: int, tokens: int) -> float:
    """A time that the static mesh of a setup takes at least for equal sequences; 0 where nothing is known.

        most micro-batches of a rank x time of one on the busiest stage x factor of the fastest GPU

    Ignored: filling and draining the pipeline, the epilogue. The group is taken as if its ring were the best there is.
    """
    layout, context = setup.layout, setup.context_tokens
    held, cp = context // tokens, layout.parallel.cp
    cut = setup.strategy.packing == "concatenate" and context % tokens
    if setup.execution.may_hurry or cp is None or cut or layout.pipeline.schedule == "dualpipe":
        return 0.0
    if setup.execution.network == "flows":  # prices assume the worst of shared NICs and up-links
        return 0.0
    cost = micro_batch_cost(setup)
    packs = -(-sequences // held)
    batches = MicroBatches(
        segment_tokens=np.full(held, tokens, dtype=np.int64),
        segment_offsets=np.array([0, held]),
        group_size=np.array([cp]),
        tier=cost.fabric.tier(np.array([0]), np.array([(cp - 1) * layout.parallel.rank_stride])),
        offload_ratio=np.array([setup.strategy.activation_offload]),
        padding_tokens=np.array([context - held * tokens]) if setup.strategy.padding else None,
    )
    slots = -(-packs // max(1, setup.ranks // cp))
    fastest = fastest_gpu(setup.execution, setup.cluster.gpus)
    return float(slots * cost.busy_s(batches)[0] * fastest)


def quiet_bound_s(setup: Setup, sequences: int, tokens: int) -> float:
    """A time that the static mesh takes at least where GPUs are drawn unequal or slow; 0 where nothing is known.

        step without what is drawn x factor of the fastest GPU: no duration is shorter than that part of it

    Raises:
        InfeasibleError: it cannot run.
    """
    execution = setup.execution
    if execution.may_hurry or execution.draws_nothing or execution.network == "flows":
        return 0.0
    equal = None if execution.gpu_spread is None else 0.0
    quiet = replace(
        setup,
        execution=replace(
            execution,
            gpu_spread=equal,
            slow_node_share=0.0,
            slow_period_share=0.0,
            gc_pause_s=0.0,
            collective_jitter=0.0,
            launch_skew_s=0.0,
        ),
    )
    (price,) = price_uniform(quiet, (setup.layout,), sequences=sequences, tokens=tokens)
    if price.refused is not None:
        raise price.refused
    return price.step_s * fastest_gpu(execution, setup.cluster.gpus)
