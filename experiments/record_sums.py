"""What a record says of sums and transfers: gradients over micro-batches and ranks, activations between stages."""

from __future__ import annotations

import re

from experiments.records import RunConfig

__all__ = [
    "SPLIT_SCHEDULE",
    "dp_overlap",
    "gradient_accumulation",
    "gradient_bytes",
    "nic_gbps",
    "pp_overlap",
    "prefetch_gather",
]

Finding = tuple[object, str] | None

SPLIT_SCHEDULE = re.compile(r"\b(ZB-?\w+|DualPipe\w*)\b")
"""Names of schedules with weight gradients of their own, as frameworks and notes have them."""

GRADIENT_OVERLAP_YEAR = 2024  # Megatron-LM: overlap_grad_reduce, in releases of this year
ASYNCHRONOUS_TRANSFER_YEAR = 2024  # Megatron-Core: interleaved schedules send and receive beside compute
ACCUMULATION_FUSION_YEAR = 2022  # Megatron-LM: weight-gradient products add to the sum
_GPUS_OF_A_SERVER = 8


def _deepspeed(config: RunConfig) -> bool:
    """GPT-NeoX runs on DeepSpeed's engine."""
    return "DeepSpeed" in config.framework or "GPT-NeoX" in config.framework


def _megatron(config: RunConfig) -> bool:
    """NeMo's pipelines are Megatron's."""
    return "Megatron" in config.framework or "NeMo" in config.framework


def dp_overlap(config: RunConfig) -> Finding:
    """Megatron-LM overlaps gradient sync with the backward since 2024; its forks of before cannot unless named so.

    DeepSpeed's overlap_comm is off by default but for ZeRO-3, where it came in 2022; its pipeline engine reduces after
    the last backward. Source: DeepSpeed, configuration documentation and runtime/pipe/engine.py.
    """
    if re.search(r"grad overlap OFF", config.notes):
        return False, ""
    year = config.year
    if _deepspeed(config):
        whole = config.zero_stage != "zero3"
        if whole or (year is not None and year < 2022):
            return False, "gradients are summed after the last backward (the framework's default)"
        return None
    early = year is not None and year < GRADIENT_OVERLAP_YEAR
    if early and re.search(r"Megatron-L\w+", config.framework) and "Overlapped" not in config.framework:
        return False, "gradients are summed after the last backward (frameworks before 2024)"
    return None


def prefetch_gather(config: RunConfig) -> Finding:
    """Megatron's optimizer leaves the gather of parameters to the next forward, whose first one waits for it.

    Source: Megatron-Core, DistributedDataParallelConfig (overlap_param_gather: a bucket is gathered while the one
    before computes; --overlap-param-gather-with-optimizer-step hides the first one, with few layouts); NeMo,
    megatron_gpt_model.py (param_sync_func: the next chunk's parameters while a chunk computes).
    """
    if config.zero_stage not in ("zero1", "zero2") or not _megatron(config) or _deepspeed(config):
        return None
    return False, ""


def gradient_bytes(config: RunConfig) -> Finding:
    """Gradients are kept and reduced in 16 bits where stated, by NVIDIA's recipes, fms-fsdp, and in fp16 training.

    Source: NeMo's launcher (grad_sync_dtype: bf16), Megatron-Bridge's performance recipes (grad_reduce_in_fp32=False);
    fms-fsdp (policies/mixed_precision.py: reduce_dtype bfloat16); Megatron-LM (accumulate_allreduce_grads_in_fp32 is
    forced by bf16, off with fp16); DeepSpeed reduces gradients as they are, but sums those of bf16 in fp32
    (bf16_optimizer.py).
    """
    if re.search(r"mixed_precision=PURE\b", config.notes):
        return 2, ""
    if "fms-fsdp" in config.framework:
        return 2, "gradients in 16 bits (the framework's policy)"
    if "NeMo" in config.framework or "Megatron-Bridge" in config.framework:
        return 2, "gradients in 16 bits (the framework's performance recipes)"
    if config.precision == "fp16" and (_deepspeed(config) or _megatron(config)):
        return 2, "gradients in 16 bits (fp16 training)"
    return None


def gradient_accumulation(config: RunConfig) -> Finding:
    """DeepSpeed's engine adds gradients apart from the products, those of bf16 after a copy to fp32; nanotron adds too.

    Megatron-LM's products add since 2022 (gradient_accumulation_fusion). Of ZeRO-3 only shards are summed.
    """
    if _deepspeed(config):
        if config.zero_stage == "zero3":
            return None
        if config.precision == "fp16":
            return "separate", "gradients added by kernels of their own (the framework's engine)"
        return "cast", "gradients copied to fp32 and added (the framework's engine)"
    if (
        "nanotron" in config.framework
    ):  # nanotron, optim/gradient_accumulator.py: fp32_grad.add_(half_param.grad)
        return "separate", "gradients added by kernels of their own (the framework's accumulator)"
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
    if (config.pp or 1) == 1 or not (_megatron(config) or _deepspeed(config)):
        return None
    if SPLIT_SCHEDULE.search(f"{config.framework} {config.notes}"):
        return None
    interleaved = (config.vpp or 1) > 1 or "1F1B-I" in config.framework
    since = ASYNCHRONOUS_TRANSFER_YEAR - ("NeMo" in config.framework)
    if interleaved and (config.year is None or config.year >= since):
        return None
    return False, "pipeline transfers hold sender and receiver (the framework's way)"


def nic_gbps(config: RunConfig) -> float | None:
    """Network of a GPU in Gbit/s: the column, or what the notes say of a server."""
    if config.nic_gbps_per_gpu is not None:
        return config.nic_gbps_per_gpu
    stated = re.search(r"\b(?:(\d+) ?x ?)?(\d+) ?Gb(?:ps|it/s|/s)?\b[^;,]*\bper node\b", config.notes)
    if stated is None:
        return None
    return int(stated[1] or 1) * int(stated[2]) / (config.gpus_per_node or _GPUS_OF_A_SERVER)
