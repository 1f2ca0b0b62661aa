"""Activations on their way to host memory and back: how fast they go, and what of that compute does not hide."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.activations import usual_activation_bytes
from hdpsim.cost_models.step.layer_prices import LayerTerms
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import LayerKind
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageContents


class Offloading:
    """What a layout offloads of micro-batches; how much of each, its strategy says (offload_ratio)."""

    def __init__(self, model: Model, layout: Layout, cluster: Cluster, cal: Calibration) -> None:
        self._model, self._layout, self._cluster, self._cal = model, layout, cluster, cal

    @property
    def bytes_per_s(self) -> float:
        """Rate of a GPU's activations on their way to the host, or back."""
        return offload_bytes_per_s(self._cluster, self._layout, self._cal)

    @cached_property
    def activation_bytes_per_token(self) -> float:
        """Return the activations that one layer keeps of a token (see usual_activation_bytes)."""
        return usual_activation_bytes(self._model, self._layout)

    @priced("offload_wait")
    def wait_s(
        self, batches: MicroBatches, layers: LayerTerms, kind: StageContents, backward: bool
    ) -> Floats:
        """Host-link time of a stage's offloaded activations beyond its compute (first and last layer stay)."""
        moving = kind.offloading_layers
        if not moving or not batches.offload_ratio.any():
            return np.zeros(batches.count)
        moved = self.sent(batches, kind, layers, backward=backward)
        return np.asarray(moving * np.maximum(0.0, moved.sent_bytes / moved.bytes_per_s - moved.hidden_s))

    def sent(
        self, batches: MicroBatches, kind: StageContents, layers: LayerTerms, *, backward: bool
    ) -> SentTimes:
        """What a layer moves to the host, or back, beside all it does: of the usual kind; of a hybrid the mean."""
        volume = batches.offload_ratio * self.activation_bytes_per_token * batches.tokens_per_rank
        terms_s = sum(count * layers[each, backward] for each, count in kind.usual)
        return SentTimes(
            times=(volume > 0).astype(np.float64),
            hidden_s=np.asarray(terms_s / sum(count for _, count in kind.usual)).sum(axis=0),
            fixed_s=np.zeros_like(volume),
            sent_bytes=volume,
            bytes_per_s=np.full_like(volume, self.bytes_per_s),
        )


def alike_for_offload(kinds: tuple[StageContents, ...]) -> list[list[StageContents]]:
    """Stages whose layers move beside the same work, together."""
    by_layers: dict[object, list[StageContents]] = {}
    for kind in sorted(kinds, key=lambda kind: LayerKind.MOE in dict(kind.usual)):
        by_layers.setdefault(kind.usual, []).append(kind)
    return list(by_layers.values())


def offload_bytes_per_s(cluster: Cluster, layout: Layout, cal: Calibration) -> float:
    """What one GPU gets while all GPUs of its node send activations to the host or fetch them.

        B = e x link / k                     k: GPUs behind one link (node.host_link_gpus); at most memory / GPUs
        without a pipeline: link and memory one way; in a pipeline: the link's duplex rate, half of the memory's

    Counted: GPUs of a tensor-parallel group do the same at the same time. Without a pipeline a forward sends and the
    backward behind it fetches, so a link is busy one way; two ranks behind one link that are at different passes share
    it no worse. In a pipeline forwards and backwards alternate, and both streams run.
    Host memory streams as fast as processors do (host_memory_bytes_per_s); copies may do a little better.
    Ignored: traffic of NICs through the same switch (it stays below the switch), start-up of single copies.
    Source: ByteScale, arXiv 2502.21231, section 5.2 (streams in first-in-last-out order, both directions).
    """
    node, streams = cluster.node, 1 if layout.parallel.pp == 1 else 2
    link = node.gpu.host_link_bytes_per_s if streams == 1 else node.gpu.host_link_duplex_bytes_per_s
    memory = cal.host_memory_bytes_per_s / (streams * node.gpus)
    return min(cal.host_link_efficiency * link / min(node.host_link_gpus, node.gpus), memory)
