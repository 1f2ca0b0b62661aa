"""Stages of a pipeline: what virtual ones have in common, and the links between them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.tracing import shared
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageContents, stage_contents
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES


def stage_kinds(model: Model, layout: Layout) -> tuple[tuple[StageContents, ...], Ints]:
    """The distinct contents of virtual stages, which share one row of costs, and the [S, V] table of which is where."""
    contents = stage_contents(model, layout)
    kinds = tuple(dict.fromkeys(chunk for stage in contents for chunk in stage))
    table = np.array([[kinds.index(chunk) for chunk in stage] for stage in contents], dtype=np.int64)
    return kinds, table


class StageChain(NamedTuple):
    """Where the stages of all ranks are."""

    ranks: int
    stages: int
    tp: int
    rank_stride: int
    stage_stride: int
    chunks: int
    in_turn: bool
    """Whether a pass goes through the first chunks of all stages before it comes to the second one of the first."""

    @classmethod
    def of(cls, layout: Layout, ranks: int) -> StageChain:
        """The chain of a layout on so many ranks."""
        parallel, chunks = layout.parallel, layout.pipeline.vpp
        in_turn = chunks > 1 and layout.pipeline.schedule not in SPLIT_SCHEDULES
        strides = parallel.rank_stride, parallel.stage_stride(ranks)
        return cls(ranks, parallel.pp, parallel.tp, *strides, chunks, in_turn)


@shared(most=256)
def stage_links(fabric: FabricModel, chain: StageChain) -> tuple[float, float]:
    """Mean latency and seconds per byte of the links between the stages of the rank whose stages are farthest apart.

    With chunks in turn the last stage sends to the first as well.
    """
    stages = np.arange(chain.stages) * chain.stage_stride
    first_gpu = np.arange(chain.ranks)[:, None] * chain.rank_stride + stages
    target = np.roll(first_gpu, -1, axis=1) if chain.in_turn else first_gpu[:, 1:]
    source = first_gpu[:, : target.shape[1]]
    by_rank = fabric.tier(source, target)
    tiers = by_rank[int(by_rank.sum(axis=1).argmax())]
    crossing = fabric.flow_crossing(source, target, chain.tp)
    rate = fabric.slowest_bytes_per_s(tiers, np.broadcast_to(crossing, (len(tiers), 2)))
    passes = np.full(len(tiers), chain.chunks)
    passes[chain.stages - 1 :] -= 1  # the way back to the first stage is gone once less
    latency_s = np.average(fabric.latency_s(tiers), weights=passes)
    return float(latency_s), float(np.average(1.0 / rate, weights=passes))
