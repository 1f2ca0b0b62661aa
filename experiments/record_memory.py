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
_LORA_SHARE = 0.01  # adapters of rank 16 on a hidden size of thousands: below 1 % of the parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """What a record's configuration needs.

    Attributes:
        peak_gb: what its source would have read, in 1e9 bytes.
        fits: whether every stage fits.
        gauge: what the source reads.
        fullest: the stage that needs most.
    """

    peak_gb: float
    fits: bool
    gauge: Gauge
    fullest: MemoryReport

    @property
    def parts_gb(self) -> tuple[tuple[str, float], ...]:
        """Memory of the fullest stage by part, in 1e9 bytes."""
        return tuple((name, amount / GIGABYTE) for name, amount in self.fullest.parts.items())


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
    if config.task == "lora":
        stack = replace(stack, trained_share=_LORA_SHARE)
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
            micro_batches=job.micro_batches,
            overheads=stack,
        )

    fullest = report(None)
    read = report(0) if any(name in config.framework for name in _FIRST_STAGE) else fullest
    gauge = gauge_of(config)
    peak_bytes = {
        "device": read.total_bytes,
        "reserved": read.reserved_bytes,
        "allocated": read.allocated_bytes,
    }[gauge]
    return MemoryPrediction(peak_gb=peak_bytes / GIGABYTE, fits=fullest.fits, gauge=gauge, fullest=fullest)
