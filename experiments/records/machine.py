"""What a record says of its machines: the node of a cloud, the network of a server."""

from __future__ import annotations

import re

from hdpsim.cost_models.hardware import catalog
from hdpsim.experiments.software.run import RunConfig

_CLOUD_NODES = ((re.compile(r"\bAWS p5\b|\bEFA\b"), "H100-SXM-80G", "p5-h100-80gb"),)
_OF_A_SERVER = re.compile(r"\b(?:(\d+) ?x ?)?(\d+) ?Gb(?:ps|it/s|/s)?\b[^;,]*\bper node\b")
_GPUS_OF_A_SERVER = 8


def node_of_cloud(config: RunConfig) -> str | None:
    """The catalog's node of the cloud that the notes name."""
    gpu = catalog.gpu(config.gpu).name
    for pattern, of_gpu, name in _CLOUD_NODES:
        if catalog.gpu(of_gpu).name == gpu and pattern.search(config.notes):
            return name
    return None


def nic_gbps(config: RunConfig) -> float | None:
    """Network of a GPU in Gbit/s: the column, or what the notes say of a server."""
    if config.nic_gbps_per_gpu is not None:
        return config.nic_gbps_per_gpu
    stated = _OF_A_SERVER.search(config.notes)
    if stated is None:
        return None
    return int(stated[1] or 1) * int(stated[2]) / (config.gpus_per_node or _GPUS_OF_A_SERVER)


def collective_share(config: RunConfig) -> float:
    """Share of a server's links that collectives use: of Omni-Path one.

    NCCL has no transport of its own for it: on 16 servers with four links all-reduces reached 44 to 57 of 400 Gbit/s
    (bigscience-workshop/bigscience, experiments/bandwidth: "an issue with nccl that doesn't fully utilize Intel OPA").
    Inferred: one whole link; send and receive find the link next to their GPU.
    """
    stated = _OF_A_SERVER.search(config.notes)
    if stated is None or not re.search(r"\bOPA\b|Omni-?Path", stated[0]):
        return 1.0
    return 1.0 / int(stated[1] or 1)
