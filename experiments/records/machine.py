"""What a record says of the network of its servers and of its hosts, and whose constants price it."""

from __future__ import annotations

import re
from dataclasses import replace

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.host import check_s
from hdpsim.cost_models.network.collectives import Collectives, bus_bandwidth_factor
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.experiments.software.run import RunConfig
from hdpsim.simulator.setup import Setup

_OF_A_SERVER = re.compile(r"\b(?:(\d+) ?x ?)?(\d+) ?Gb(?:ps|it/s|/s)?\b[^;,]*\bper node\b")
_GPUS_OF_A_SERVER = 8
_GATHERED = re.compile(r"NCCL busbw measured in the same job with (\d+) GiB\b[^;]*?\bAG (\d+(?:\.\d+)?)")


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


def checks_seen(config: RunConfig, cluster: Cluster, constants: Calibration) -> str:
    """Why a job's hosts are taken to check each other before every collective; empty where nothing says so.

    A job that timed a gather over all of its GPUs took the network's time, or that and the checks of its hosts: the
    nearer of the two, as a ratio, counts. Hosts of one node meet without leaving it.
    """
    gathered = _GATHERED.search(config.notes)
    if gathered is None or cluster.nodes < 2 or float(gathered[2]) <= 0.0:
        return ""
    collectives = Collectives(FabricModel(cluster, constants.network))
    group, size = collectives.group(cluster.gpus), float(gathered[1]) * 2**30
    measured_s = size * bus_bandwidth_factor("all_gather", group.ranks) / (float(gathered[2]) * 1e9)
    network_s = float(collectives.all_gather_s(size, group))
    if measured_s**2 <= network_s * (network_s + check_s(group, constants.network)):
        return ""
    slower = f"{measured_s / network_s:.1f} times the network's time"
    return f"hosts that check every collective (the job's own gather took {slower})"
