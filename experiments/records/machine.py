"""What a record says of the network of its servers, and whose constants price it."""

from __future__ import annotations

import re
from dataclasses import replace

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.experiments.software.seen_columns import RunConfig
from hdpsim.simulator.setup import Setup

_OF_A_SERVER = re.compile(r"\b(?:(\d+) ?x ?)?(\d+) ?Gb(?:ps|it/s|/s)?\b[^;,]*\bper node\b")
_GPUS_OF_A_SERVER = 8


def calibrated(setup: Setup, own: Calibration | None) -> Setup:
    """The setup with the user's *own* constants, where they are of its GPUs' generation (or of any)."""
    if own is None or own.generation not in ("", setup.cluster.gpu.calibration):
        return setup
    return replace(setup, calibration=own)


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
