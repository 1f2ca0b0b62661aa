"""Reading and preprocessing a step's tokens on every node, and how much of it the GPUs wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cost_models.calibration import Calibration
from cost_models.checked import Checked
from cost_models.hardware import Cluster
from cost_models.layout import Layout

__all__ = ["DataPipeline", "Loader", "node_loading_s"]

Loader = Literal["shared", "redundant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPipeline(Checked):
    """How a node feeds its GPUs."""

    loader: Loader = "shared"
    """One loader a node writes into shared memory, or every GPU's process reads and preprocesses for itself."""
    asynchronous: bool = True
    """The next step's data is prepared while this step trains; off: when the step begins."""


def node_loading_s(
    tokens: float, layout: Layout, cluster: Cluster, cal: Calibration, pipeline: DataPipeline
) -> float:
    """Time the node that reads most needs for one step's data.

        t = copies x tokens of the node / rate of a node
        tokens of the node = tokens of the batch / d x ranks on the node        d: data-parallel ranks
        copies: 1 (shared), or the GPUs of a TP group on the node, all of which read the same (redundant)

    Counted: disk and CPU of a node are shared by its loaders, so redundant ones contend; context-parallel ranks read
        the sequences they share.
    Ignored: transfer to the GPU; that middle pipeline stages need no tokens (the first and the last do, and everybody
        waits for them).
    Source: MegaScale, arXiv 2402.15627 section 3.4 (redundant data loaders, two-layer tree); rate: calibration.
    """
    node_gpus = cluster.node.gpus
    ranks = layout.ranks(cluster.gpus)
    here = max(1, min(ranks, node_gpus // layout.rank_stride))
    copies = min(layout.tp, node_gpus) if pipeline.loader == "redundant" else 1
    data_parallel = ranks / (layout.cp or 1)
    groups = max(1.0, here / (layout.cp or 1))
    return copies * groups * tokens / data_parallel / cal.loader_tokens_per_s
