"""The way of activations to host memory and back: what the GPUs of a node share there."""

from __future__ import annotations

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout


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
