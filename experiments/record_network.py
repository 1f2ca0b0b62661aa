"""What a record says of its network: NICs of a cloud, buckets, collectives that the job itself measured first."""

from __future__ import annotations

import re

from cost_models import catalog
from experiments.record_frameworks import is_internevo, is_nemo
from experiments.records import RunConfig

__all__ = [
    "bucket_parameters",
    "checked_collectives",
    "context_kind",
    "node_of_cloud",
    "tensor_asynchronous",
    "tensor_batch_first",
    "tensor_exchange",
]

Finding = tuple[object, str] | None

MLP_EXCHANGE_YEAR = 2024
GATHERED_ONLY_YEAR = 2026
ADAPTER_YEAR = 2025  # NeMo 25.02: userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora
MEASURED_BYTES = 2.0**30
_MEASURED = re.compile(
    r"NCCL busbw measured in the same job with 1 GiB[^:]*: AR [\d.]+ AG ([\d.]+) RS ([\d.]+) GB/s"
)
_CLOUD_NODES = ((re.compile(r"\bAWS p5\b|\bEFA\b"), "H100-SXM-80G", "p5-h100-80gb"),)
_BUCKET = re.compile(r"DDP bucket (\d+) ?MB")
INTERNEVO_BUCKET = 2.0**29
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
    """Buckets of gradients: of torch's DistributedDataParallel, where their size is stated, and of InternEvo.

    Source: InternEvo, configs/7B_sft.py (reduce_bucket_size, in elements).
    """
    stated = _BUCKET.search(config.notes)
    if stated:
        return float(stated[1]) * 2**20 / BYTES_PER_PARAMETER, ""
    return (INTERNEVO_BUCKET, "") if is_internevo(config) else None


def tensor_overlap(config: RunConfig) -> Finding:
    """Collectives pipelined with pieces of the GEMMs; asynchronous calls around whole GEMMs hide little of them.

    Where nothing is stated, dense models of NVIDIA's recipes: ub_tp_comm_overlap of NeMo-Framework-Launcher
    (gpt3/175b_*performance.yaml, llama/llama3_1_70b.yaml) and dgxc-benchmarking (gpt3_175b_hydra.yaml,
    nemotron4-15b-synth.yaml), tp_comm_overlap of Megatron-Bridge's. Models of experts whose degree NeMo prints, too,
    but for latent attention: its launcher of before had it off (grok1_314b.yaml), recipes of NeMo 2 have it on
    (without it reference figures of Grok-1 on B200 are missed by 3 % in 16 bit, 11 to 18 % in 8: together-dgxc-
    benchmarking, report of April 2026). Of LoRA 8-bit runs since 2025: NeMo,
    scripts/performance/llm/finetune_llama3_70b.py.
    """
    if (config.tp or 1) == 1 or re.search(r"(?i)tp.comm.overlap False", config.notes):
        return None
    stated = re.search(r"(?i)tp.comm.overlap(?: True|,? all on)|\basync ?tp\b", config.notes)
    if stated:
        return True, ""
    plain_adapters = config.task == "lora" and (
        config.precision in (None, "bf16", "fp16") or (config.year or 0) < ADAPTER_YEAR
    )
    second = re.search(r"expert tensor parallel \d+ printed", config.notes) and config.kv_heads is not None
    recipe = (
        (not config.n_experts or second)
        and not plain_adapters
        and (is_nemo(config) or "Megatron-Bridge" in config.framework)
    )
    return (True, "tensor-parallel communication overlapped (the framework's recipes)") if recipe else None


def tensor_batch_first(config: RunConfig) -> Finding:
    """Torchtitan cuts tensors of [batch, sequence, hidden] as DTensor along the sequence."""
    dtensor = re.search(r"torchtitan|DTensor", f"{config.framework} {config.notes}")
    return (True, "") if (config.tp or 1) > 1 and dtensor else None


def tensor_asynchronous(config: RunConfig) -> Finding:
    """Asynchronous calls around whole products, where kernels start in the order of their launches.

    Otherwise a product that is ready at the same time takes all SMs, and the collective beside it starts when that
    ends: nothing is hidden. Source: Megatron-LM, issue 533; NeMo, comm_overlap (CUDA_DEVICE_MAX_CONNECTIONS = 1 keeps
    the order, "otherwise, the communication kernel will be pushed to the end of the GEMM kernel so failing to
    overlap"); nanotron, tensor_parallel/functional.py ("Here we rely on CUDA_DEVICE_MAX_CONNECTIONS=1") and issue 236
    (set in some of its examples).
    """
    ordered = re.search(r"CUDA_DEVICE_MAX_CONNECTIONS ?= ?1\b", config.notes)
    return (True, "") if (config.tp or 1) > 1 and ordered and "with async comm" in config.notes else None


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


def context_kind(config: RunConfig) -> Finding:
    """How a context-parallel group shares a sequence: as named; torchtitan's gathers keys and values.

    Until 2025 PyTorch then ran the steps of a ring on them. Source: pytorch/pytorch, pull request 132820 and
    distributed/tensor/experimental/_attention.py (_templated_ring_attention, _AllGatherRotater, _SDPAMerger);
    pytorch/torchtitan, issue 3086 (rings given up), models/llama3/model.py (repeat_kv before attention).
    """
    if (config.cp or 1) == 1:
        return None
    text = f"{config.framework} {config.notes} {config.attention}"
    if re.search(r"(?i)(?<!not )(?<!no )\bulysses", text):
        return "ulysses", ""
    if re.search(r"(?i)all-?gather(?:s|ed|ing|-based| based)? (?:CP|context|keys|KV)", text):
        return "all-gather", ""
    if "torchtitan" in config.framework and config.year is not None and config.year >= GATHERED_ONLY_YEAR:
        return "all-gather", "context parallelism gathers keys and values (the framework's default)"
    if "torchtitan" in config.framework:
        words = "context parallelism gathers keys and values beside the first step of a ring (the framework's default)"
        return "gathered-ring", words
    return None
