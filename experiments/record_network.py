"""What a record says of its network: NICs of a cloud, buckets, collectives that the job itself measured first."""

from __future__ import annotations

import re

from cost_models import catalog
from experiments.records import RunConfig

__all__ = [
    "bucket_parameters",
    "checked_collectives",
    "node_of_cloud",
    "tensor_asynchronous",
    "tensor_exchange",
]

Finding = tuple[object, str] | None

MLP_EXCHANGE_YEAR = 2024
MEASURED_BYTES = 2.0**30
_MEASURED = re.compile(
    r"NCCL busbw measured in the same job with 1 GiB[^:]*: AR [\d.]+ AG ([\d.]+) RS ([\d.]+) GB/s"
)
_CLOUD_NODES = ((re.compile(r"\bAWS p5\b|\bEFA\b"), "H100-SXM-80G", "p5-h100-80gb"),)
_BUCKET = re.compile(r"DDP bucket (\d+) ?MB")
BYTES_PER_PARAMETER = 2.0  # torch's DDP counts gradients as the parameters are: 16 bits


def node_of_cloud(config: RunConfig) -> str | None:
    """The catalog's node of the cloud that the notes name."""
    gpu = catalog.gpu(config.gpu).name
    for pattern, of_gpu, name in _CLOUD_NODES:
        if catalog.gpu(of_gpu).name == gpu and pattern.search(config.notes):
            return name
    return None


def checked_collectives(config: RunConfig) -> Finding:
    """A job whose own gathers take longer than its wires, by a time per rank as long as hosts need that check first.

    Half of that time decides: what NICs add to a step of a ring is a tenth of it.
    """
    found, ranks = _MEASURED.search(config.notes), config.n_gpus or 1
    node = node_of_cloud(config)
    if found is None or node is None or ranks <= catalog.node(node).gpus:
        return None
    wires = catalog.node(node)
    rate = wires.nics * wires.nic_bytes_per_s * (wires.nic_efficiency or 1.0)
    share = (ranks - 1) / ranks
    gathered_s = max(MEASURED_BYTES * share / (1e9 * float(speed)) for speed in found.groups())
    per_rank_s = (gathered_s - MEASURED_BYTES * share / rate) / ranks
    if per_rank_s < CHECKED_FROM_S:
        return None
    return True, "hosts check with each other before every collective (the job's own gathers are as slow)"


CHECKED_FROM_S = 160e-6
"""Per rank; checks take 327 us, EFA 41 us."""


def bucket_parameters(config: RunConfig) -> Finding:
    """Buckets of torch's DistributedDataParallel, where their size is stated."""
    stated = _BUCKET.search(config.notes)
    return (float(stated[1]) * 2**20 / BYTES_PER_PARAMETER, "") if stated else None


def tensor_overlap(config: RunConfig) -> Finding:
    """Collectives pipelined with pieces of the GEMMs; asynchronous calls around whole GEMMs hide little of them.

    Where nothing is stated, dense models of NVIDIA's recipes: ub_tp_comm_overlap of NeMo-Framework-Launcher
    (gpt3/175b_*performance.yaml, llama/llama3_1_70b.yaml) and dgxc-benchmarking (gpt3_175b_hydra.yaml,
    nemotron4-15b-synth.yaml), tp_comm_overlap of Megatron-Bridge's.
    """
    if (config.tp or 1) == 1 or re.search(r"(?i)tp.comm.overlap False", config.notes):
        return None
    stated = re.search(r"(?i)tp.comm.overlap(?: True|,? all on)|\basync ?tp\b", config.notes)
    if stated:
        return True, ""
    recipe = not config.n_experts and re.search(r"NeMo|Megatron-Bridge", config.framework)
    return (True, "tensor-parallel communication overlapped (the framework's recipes)") if recipe else None


def tensor_asynchronous(config: RunConfig) -> Finding:
    """Asynchronous calls around whole products."""
    return (True, "") if (config.tp or 1) > 1 and "with async comm" in config.notes else None


def tensor_exchange(config: RunConfig) -> Finding:
    """Submissions to MLPerf Training say how each collective meets its product: gathers are exchanged.

    Since 2024 what the MLP sends out, too. Known of Hopper: training_results_v3.1 and _v4.0, NVIDIA, gpt3,
    conf/tp_overlap/h100tp4*.yaml (ring_exchange; fc2_fprop in v4.0).
    """
    hopper = catalog.gpu(config.gpu).calibration == "hopper"
    if (config.tp or 1) == 1 or not hopper or not re.search(r"NeMo.*MLPerf", config.framework):
        return None
    how = "mlp" if config.year is not None and config.year >= MLP_EXCHANGE_YEAR else "gathers"
    return how, "tensor-parallel chunks exchanged between neighbours (the benchmark's configurations)"
