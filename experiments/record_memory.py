"""Peak memory of a record: which stack it ran on, and what its source calls peak memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from cost_models.memory import MemoryReport, memory_report
from cost_models.memory_overheads import EAGER, MemoryOverheads
from experiments.record_setup import Job, layout_cp
from experiments.records import RunConfig

__all__ = ["Gauge", "MemoryPrediction", "gauge_of", "predict_memory", "stack_of"]

GIGABYTE = 1e9  # peak_mem_gb is decimal: the README of the records

Gauge = Literal["device", "reserved", "allocated"]
"""What is read: all of the GPU's memory in use, what PyTorch's allocator holds, or the tensors in it."""

_NOT_READ: dict[Gauge, frozenset[str]] = {
    "device": frozenset(),
    "reserved": frozenset({"communication", "context"}),
    "allocated": frozenset({"communication", "context", "fragmentation"}),
}
"""Parts of a report that a gauge does not see."""

# Words of a source about its own measurement, and what the logs of frameworks print.
_GAUGES: tuple[tuple[re.Pattern[str], Gauge], ...] = (
    (re.compile(r"peak_mem_gb = (?:max )?reserved"), "reserved"),
    (re.compile(r"peak_mem_gb = (?:max )?allocated"), "allocated"),
    (re.compile(r"nvidia-smi"), "device"),
)
_GAUGE_OF_FRAMEWORK: tuple[tuple[str, Gauge], ...] = (
    ("torchtitan", "reserved"),  # torchtitan/components/metrics.py: max_reserved
    ("zero-bubble", "allocated"),  # arXiv 2401.10241, table 4
    ("Megatron-LM", "allocated"),  # megatron/training/utils.py, report_memory
)
_EAGER = ("nanotron",)
_FIRST_STAGE = ("nanotron",)  # its rank 0 writes the table: helpers.py, log_throughput
_SYNCHRONOUS_PIPELINE = re.compile(r"after_pp_fix=False")  # the host waits for every transfer
_EIGHT_BIT_WEIGHTS = ("NeMo", "Megatron-Bridge")  # their 8-bit recipes: fp8_params, fp8_param_gather = True
_FULL_LOSS = ("torchtitan", "fms-fsdp")  # torch.nn.functional.cross_entropy on fp32 logits
_FUSED_LOSS = ("LLM-Foundry",)  # flash-attn's cross-entropy: logits and their gradient in 16 bits
_HALF_SELECTIVE = ("torchtitan", "fms-fsdp")  # every other matrix product, or every other layer
_REMAT = {  # MaxText's policies by what they keep beside the layer's input
    "save_qkv_proj": ("queries_keys_values",),
    "save_dot_except_mlp": ("queries_keys_values", "attention_output"),
    "save_dot_except_mlpwi": ("queries_keys_values", "attention_output", "linear_inputs"),
}
_REMAT_POLICY = re.compile(r"remat_policy: (\w+)")
_TILED_LOSS = re.compile(r"tiled logits")
_OFFLOAD = re.compile(r"activation-checkpoint offload|activation offload")
_FUSED_LOGIT_BYTES = 4.0
_LOGIT_BYTES = 14.0  # logits in 16 bits 2, in fp32 4, their log-softmax 4, its gradient 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """What a record's configuration needs.

    Attributes:
        peak_gb: what its source would have read, in 1e9 bytes.
        fits: whether every stage fits.
        gauge: what the source reads.
        fullest: the stage that needs most.
        read: the stage that the source reads.
    """

    peak_gb: float
    fits: bool
    gauge: Gauge
    fullest: MemoryReport
    read: MemoryReport

    @property
    def parts_gb(self) -> tuple[tuple[str, float], ...]:
        """What the gauge reads by part, in 1e9 bytes; the parts sum to peak_gb."""
        left_out = _NOT_READ[self.gauge]
        parts = {name: amount / GIGABYTE for name, amount in self.read.parts.items() if name not in left_out}
        run_ahead = self.peak_gb - sum(parts.values())
        if self.gauge == "reserved" and self.read.run_ahead:
            parts["run_ahead"] = run_ahead
        return tuple(parts.items())


def gauge_of(config: RunConfig) -> Gauge:
    """What the record's source calls peak memory; all of the GPU's when nothing tells."""
    for pattern, gauge in _GAUGES:
        if pattern.search(config.notes):
            return gauge
    for name, gauge in _GAUGE_OF_FRAMEWORK:
        if name in config.framework:
            return gauge
    return "device"


def stack_of(config: RunConfig) -> MemoryOverheads:
    """Buffers and copies of the record's framework generation."""
    eager = any(name in config.framework for name in _EAGER)
    stack = EAGER if eager else MemoryOverheads()
    if _SYNCHRONOUS_PIPELINE.search(config.notes) and (config.pp or 1) > 1:
        stack = replace(stack, host_run_ahead=False)

    def runs(names: tuple[str, ...]) -> bool:
        return any(name in config.framework for name in names)

    if runs(_EIGHT_BIT_WEIGHTS):
        stack = replace(stack, eight_bit_copy_bytes=0.0)
    if _TILED_LOSS.search(config.notes):
        stack = replace(stack, logit_bytes=0.0)
    elif runs(_FUSED_LOSS):
        stack = replace(stack, logit_bytes=_FUSED_LOGIT_BYTES)
    elif runs(_FULL_LOSS):
        stack = replace(stack, logit_bytes=_LOGIT_BYTES)
    if runs(_HALF_SELECTIVE):
        stack = replace(stack, selective_share=0.5)
    remat = _REMAT_POLICY.search(config.notes)
    if remat and remat[1] in _REMAT:
        stack = replace(stack, selective_keeps=_REMAT[remat[1]])
    return stack


def predict_memory(config: RunConfig, job: Job) -> MemoryPrediction:
    """Predict what a record needs, and what its source would have read."""
    setup, stack = job.setup, stack_of(config)

    def report(stage: int | None) -> MemoryReport:
        return memory_report(
            setup.model,
            setup.layout,
            setup.cluster,
            setup.ranks,
            setup.context_tokens // layout_cp(setup.layout),
            stage=stage,
            offload_ratio=1.0 if _OFFLOAD.search(config.notes) else 0.0,
            micro_batches=job.micro_batches,
            overheads=stack,
            sequence_tokens=job.seq_len,
        )

    fullest = report(None)
    read = report(0) if any(name in config.framework for name in _FIRST_STAGE) else fullest
    gauge = gauge_of(config)
    peak_bytes = {
        "device": read.total_bytes,
        "reserved": read.reserved_bytes,
        "allocated": read.allocated_bytes,
    }[gauge]
    return MemoryPrediction(
        peak_gb=peak_bytes / GIGABYTE, fits=fullest.fits, gauge=gauge, fullest=fullest, read=read
    )
