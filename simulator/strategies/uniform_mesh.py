"""Equal micro-batches of whole sequences on one group of a static mesh: what a published run did, without packing."""

from __future__ import annotations

import numpy as np

from simulator.plan import Plan

__all__ = ["plan_uniform"]


def plan_uniform(
    group_ranks: int, micro_batches: int, sequences: int, sequence_tokens: int, *, documents: int = 1
) -> Plan:
    """*micro_batches* of *sequences* equal sequences, one after the other on one context-parallel group.

    Every data-parallel replica of a run with equal micro-batches does the same at the same time, so that one stands
    for all of them; what replicas do together (gradients, parameters) is priced by their true number.
    Each sequence may be a pack of as many *documents*, as equal as whole tokens allow: attention stays inside each.
    No lower bound: there is nothing to plan.
    """
    whole, rest = divmod(sequence_tokens, documents)
    lengths = np.full(documents, whole, dtype=np.int64)
    lengths[:rest] += 1
    segments = micro_batches * sequences * documents
    numbers = np.arange(micro_batches, dtype=np.int64)
    members = np.arange(group_ranks, dtype=np.int64)
    return Plan(
        strategy="static",
        ranks=group_ranks,
        capacity_tokens=-(-sequences * sequence_tokens // group_ranks),
        segment_tokens=np.tile(lengths, micro_batches * sequences),
        segment_sequence=np.arange(segments, dtype=np.int64),
        segment_start=np.zeros(segments, dtype=np.int64),
        segment_offsets=np.arange(micro_batches + 1, dtype=np.int64) * sequences * documents,
        member_ranks=np.tile(members, micro_batches),
        member_offsets=np.arange(micro_batches + 1, dtype=np.int64) * group_ranks,
        offload_ratio=np.zeros(micro_batches),
        order=np.tile(numbers, group_ranks),
        order_offsets=np.arange(group_ranks + 1, dtype=np.int64) * micro_batches,
        in_step=True,
    )
