"""How much of a step's traffic crosses each layer of the fabric, for either order of the parallel groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from cost_models.fabric import FabricModel
from cost_models.hardware import Cluster
from cost_models.kernels import BF16_BYTES
from cost_models.layout import Layout, Order
from cost_models.model import Model
from cost_models.parameters import parameters_per_gpu

__all__ = ["Traffic", "traffic_of"]

Ints = NDArray[np.int64]

GRADIENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes one GPU sends in a step, mean over GPUs, and the share of them that crosses each tier.

    Attributes:
        kind: data-parallel or pipeline.
        order: which groups are placed next to each other.
        bytes_per_gpu: sent per step.
        share: by tier 0 .. 3, adds up to 1: node, block, pod, cluster.
    """

    kind: str
    order: Order
    bytes_per_gpu: float
    share: tuple[float, float, float, float]

    @property
    def leaves_block(self) -> float:
        """Share that needs more than one leaf switch."""
        return self.share[2] + self.share[3]


def traffic_of(
    model: Model, layout: Layout, cluster: Cluster, *, micro_batches: int, tokens: int
) -> tuple[Traffic, ...]:
    """Data-parallel and pipeline traffic under both orders.

        data parallel: (n - 1) / n (4 + 2) bytes per parameter: gradients out, parameters back, on a ring
        pipeline:      2 B x tokens x h / tp for every neighbour, chunk and micro-batch, there and back

    Counted: every hop of every data-parallel ring and every pair of pipeline neighbours, wrap-around of interleaved
        chunks included; grouped or scattered nodes as the fabric says.
    Ignored: tensor-parallel traffic (inside nodes), embedding and norm all-reduces.
    Source: MegaScale, arXiv 2402.15627 section 3.6 (data-intensive nodes below the same switches).
    """
    found = []
    for order in get_args(Order):
        placed = replace(layout, order=order)
        ranks = placed.ranks(cluster.gpus)
        stages = np.arange(layout.pp)[None, :] * placed.stage_stride(ranks)
        first = np.arange(ranks)[:, None] * placed.rank_stride + stages  # first GPU of every rank and stage
        fabric = FabricModel(cluster)
        parameters = np.mean([parameters_per_gpu(model, layout, s).total for s in range(layout.pp)])
        data_bytes = (ranks - 1) / ranks * (GRADIENT_BYTES + BF16_BYTES) * float(parameters)
        data = fabric.tier(first, np.roll(first, -1, axis=0))
        hops = np.roll(first, -1, axis=1) if layout.vpp > 1 else first[:, 1:]
        pipeline = fabric.tier(first[:, : hops.shape[1]], hops)
        links = layout.pp * layout.vpp - 1
        sent = 2 * BF16_BYTES * tokens * model.hidden / layout.tp * links * micro_batches / layout.pp
        for kind, tiers, volume in (("data-parallel", data, data_bytes), ("pipeline", pipeline, sent)):
            found.append(Traffic(kind=kind, order=order, bytes_per_gpu=float(volume), share=_shares(tiers)))
    return tuple(found)


def _shares(tiers: Ints) -> tuple[float, float, float, float]:
    counts = np.bincount(tiers.ravel(), minlength=4) / max(1, tiers.size)
    return (float(counts[0]), float(counts[1]), float(counts[2]), float(counts[3]))
