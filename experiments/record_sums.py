"""What a record says of sums and transfers: gradients over micro-batches and ranks, activations between stages."""

from __future__ import annotations

import re

from experiments.record_frameworks import (
    SPLIT_SCHEDULE,
    is_deepspeed,
    is_internevo,
    is_megatron,
    is_nemo,
    is_pytorch,
)
from experiments.record_pipeline import interleaves
from experiments.records import RunConfig

__all__ = [
    "collective_share",
    "dp_overlap",
    "gather_overlap",
    "gradient_all_reduce",
    "owner_broadcasts",
    "gather_lists",
    "gradient_accumulation",
    "gradient_bytes",
    "nic_gbps",
    "pp_overlap",
    "prefetch_gather",
    "shard_copies",
    "shard_ranks",
    "stays_gathered",
]

Finding = tuple[object, str] | None

GRADIENT_OVERLAP_YEAR = 2024  # Megatron-LM: overlap_grad_reduce, in releases of this year
ASYNCHRONOUS_TRANSFER_YEAR = 2024  # Megatron-Core: interleaved schedules send and receive beside compute
ACCUMULATION_FUSION_YEAR = 2022  # Megatron-LM: weight-gradient products add to the sum
LISTS_UNTIL_YEAR = 2022
FULLY_SHARD_YEAR = 2024  # PyTorch 2.4
_GPUS_OF_A_SERVER = 8


def dp_overlap(config: RunConfig) -> Finding:
    """Megatron-LM overlaps gradient sync with the backward since 2024; its forks of before cannot unless named so.

    DeepSpeed's overlap_comm is off by default but for ZeRO-3, where it came in 2022; its pipeline engine reduces after
    the last backward. Source: DeepSpeed, configuration documentation and runtime/pipe/engine.py.
    """
    if re.search(r"grad overlap OFF", config.notes):
        return False, ""
    year = config.year
    if is_deepspeed(config):
        whole = config.zero_stage != "zero3"
        if whole or (year is not None and year < 2022):
            return False, "gradients are summed after the last backward (the framework's default)"
        return None
    early = year is not None and year < GRADIENT_OVERLAP_YEAR
    if early and re.search(r"Megatron-L\w+", config.framework) and "Overlapped" not in config.framework:
        return False, "gradients are summed after the last backward (frameworks before 2024)"
    return None


def gather_lists(config: RunConfig) -> Finding:
    """DeepSpeed's ZeRO-3 gathered and reduced lists of tensors before 2022 (release 0.6: one flat tensor for several).

    Source: DeepSpeed 0.3.10 to 0.5, runtime/zero/partition_parameters.py (_allgather_param) and stage3.py.
    """
    early = config.year is not None and config.year < LISTS_UNTIL_YEAR
    if early and is_deepspeed(config) and config.zero_stage == "zero3":
        return True, "a collective per matrix, over lists of all ranks' pieces (the framework before 2022)"
    return None


def shard_copies(config: RunConfig) -> Finding:
    """What FSDP copies around its collectives; PyTorch's second one, and DeepSpeed: parameters and gradients.

    Source: FSDP, arXiv 2304.11277, section 4.2 (parameters are views of the unsharded FlatParameter); PyTorch 2.4
    brought fully_shard, whose parameters are copied out of the buffer. MaxText's GPU scripts set
    --xla_gpu_enable_while_loop_double_buffering=true (as NVIDIA/dgxc-benchmarking, maxtext/configure.sh): a layer's
    gathered weights are then where its products read them, XLA's other copies are gone (openxla/xla, pull request
    5473); Paxml's leave it off.
    """
    if config.zero_stage not in ("fsdp", "hsdp", "zero3"):
        return None
    if "MaxText" in config.framework:
        return "none", ""
    flat = re.search(r"FSDP1|Composer|LLM-Foundry|fms-fsdp", config.framework)
    early = config.year is not None and config.year < FULLY_SHARD_YEAR and is_pytorch(config)
    if flat or (early and re.search(r"(?i)fsdp", f"{config.framework} {config.zero_stage}")):
        return "gradients", ""
    return None


def prefetch_gather(config: RunConfig) -> Finding:
    """Megatron's optimizer leaves the gather of parameters to the next forward, whose first one waits for it.

    Source: Megatron-Core, DistributedDataParallelConfig (overlap_param_gather: a bucket is gathered while the one
    before computes; --overlap-param-gather-with-optimizer-step hides the first one, with few layouts); NeMo,
    megatron_gpt_model.py (param_sync_func: the next chunk's parameters while a chunk computes).
    """
    if config.zero_stage not in ("zero1", "zero2") or not is_megatron(config) or is_deepspeed(config):
        return None
    return False, ""


def gather_overlap(config: RunConfig) -> Finding:
    """InternEvo's owners of parameters broadcast them after the update, and all wait.

    Source: InternEvo, solver/optimizer/hybrid_zero_optim.py (broadcast_params; overlap_sync_param is off in the
    configurations of its repository).
    """
    return (
        (False, "parameters broadcast after the update (the framework's optimizer)")
        if is_internevo(config)
        else None
    )


def owner_broadcasts(config: RunConfig) -> Finding:
    """InternEvo deals whole tensors to the ranks of its group. Source: the same file, _partition_param_list."""
    return (True, "") if is_internevo(config) and config.zero_stage in ("zero1", "zero2") else None


def gradient_all_reduce(config: RunConfig) -> Finding:
    """And sums gradients on all ranks. Source: the same file, _attach_reduction_hook (reduce_rank is None)."""
    return owner_broadcasts(config)


def shard_ranks(config: RunConfig) -> Finding:
    """Ranks over which parameters (HSDP) or optimizer states are sharded: stated, or those of a server.

    InternEvo names the size of that group zero1, -1 for all ranks; the configurations of its repository say 8.
    """
    axis = re.search(r"FSDP axis (\d+)", config.notes)
    if axis:
        return int(axis[1]), ""
    if is_internevo(config) and config.zero_stage not in (None, "none", "zero3", "fsdp"):
        group = re.search(r"(?i)\bzero1(?: group)?(?: size)?(?: of)? ?[=:]? ?(-?\d+)\b", config.notes)
        if group:
            return (int(group[1]), "") if int(group[1]) > 0 else None
        if re.search(r"(?i)(?:over|across|among) all (?:\w+[- ])?(?:ranks|GPUs|replicas|data)", config.notes):
            return None
        return _ranks_of_a_server(
            config
        ), "optimizer states shared by a server (the framework's configurations)"
    if config.zero_stage != "hsdp":
        return None
    return _ranks_of_a_server(config), "parameters sharded over the GPUs of a server, replicated over servers"


def _ranks_of_a_server(config: RunConfig) -> int:
    return max(1, (config.gpus_per_node or _GPUS_OF_A_SERVER) // (config.tp or 1))


def stays_gathered(config: RunConfig) -> bool:
    """Whether PyTorch's pipelines gather parameters for a step and sum gradients over its micro-batches first.

    Source: PyTorch, distributed/pipelining/stage.py (backward_maybe_with_nosync: no resharding and no reduction before
    the last micro-batch); torchtitan, parallelize_llama.py (reshard_after_forward "default": not with a pipeline);
    Llama 3, arXiv 2407.21783, section 3.3.2 (model shards are not resharded after the forward).
    """
    sharded = config.zero_stage in ("zero3", "fsdp", "hsdp")
    return sharded and (config.pp or 1) > 1 and not (is_deepspeed(config) or is_megatron(config))


def gradient_bytes(config: RunConfig) -> Finding:
    """Gradients are kept and reduced in 16 bits where stated, by NVIDIA's recipes, fms-fsdp, JAX, in fp16 training.

    Source: NeMo's launcher (grad_sync_dtype: bf16), Megatron-Bridge's performance recipes (grad_reduce_in_fp32=False);
    fms-fsdp (policies/mixed_precision.py: reduce_dtype bfloat16); Megatron-LM (accumulate_allreduce_grads_in_fp32 is
    forced by bf16, off with fp16); DeepSpeed reduces gradients as they are, but sums those of bf16 in fp32
    (bf16_optimizer.py); JAX's partitioner sums what the products put out, the cast to fp32 comes later (jax-ml/jax,
    issue 27496).
    """
    if re.search(r"mixed_precision=PURE\b", config.notes):
        return 2, ""
    if "fms-fsdp" in config.framework:
        return 2, "gradients in 16 bits (the framework's policy)"
    if is_nemo(config) or "Megatron-Bridge" in config.framework:
        return 2, "gradients in 16 bits (the framework's performance recipes)"
    if re.search(r"MaxText|Paxml|\bJAX\b", config.framework):
        return 2, "gradients in 16 bits (the framework sums what its products put out)"
    if is_internevo(config):
        return 2, "gradients in 16 bits (the framework's optimizer)"
    if config.precision == "fp16" and (is_deepspeed(config) or is_megatron(config)):
        return 2, "gradients in 16 bits (fp16 training)"
    return None


def gradient_accumulation(config: RunConfig) -> Finding:
    """DeepSpeed's engine adds gradients apart from the products, those of bf16 after a copy to fp32; nanotron adds too.

    Megatron-LM's products add since 2022 (gradient_accumulation_fusion). Of ZeRO-3 only shards are summed.
    """
    if is_deepspeed(config):
        if config.zero_stage == "zero3":
            return None
        if config.precision == "fp16":
            return "separate", "gradients added by kernels of their own (the framework's engine)"
        return "cast", "gradients copied to fp32 and added (the framework's engine)"
    if (
        "nanotron" in config.framework
    ):  # nanotron, optim/gradient_accumulator.py: fp32_grad.add_(half_param.grad)
        return "separate", "gradients added by kernels of their own (the framework's accumulator)"
    if is_internevo(
        config
    ):  # autograd adds to .grad; hybrid_zero_optim.py reduces it after the last micro-batch
        return "separate", "gradients added by kernels of their own (PyTorch's accumulation)"
    early = config.year is not None and config.year < ACCUMULATION_FUSION_YEAR
    if early and "Megatron-LM" in config.framework:
        return "separate", "gradients added by kernels of their own (frameworks before 2022)"
    return None


def pp_overlap(config: RunConfig) -> Finding:
    """Megatron's 1F1B sends and receives between two passes; interleaved schedules overlap transfers since 2024.

    NeMo's since 2023: overlap_p2p_comm in its submission to MLPerf Training v3.0.
    Source: Megatron-LM, pipeline_parallel/schedules.py (overlap_p2p_comm: interleaved only) and p2p_communication.py;
    DeepSpeed, runtime/pipe/p2p.py. Zero-bubble schedules bring their own transfers.
    """
    if (config.pp or 1) == 1 or not (is_megatron(config) or is_deepspeed(config)):
        return None
    if SPLIT_SCHEDULE.search(f"{config.framework} {config.notes}"):
        return None
    since = ASYNCHRONOUS_TRANSFER_YEAR - is_nemo(config)
    if interleaves(config) and (config.year is None or config.year >= since):
        return None
    return False, "pipeline transfers hold sender and receiver (the framework's way)"


_OF_A_SERVER = re.compile(r"\b(?:(\d+) ?x ?)?(\d+) ?Gb(?:ps|it/s|/s)?\b[^;,]*\bper node\b")


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
