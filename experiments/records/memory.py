"""Peak memory of a record, and what its source calls peak memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.errors import HdpSimError
from hdpsim.experiments.records.setup import Gauge, PreparedRun, layout_cp, prepare
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.simulator.step_memory import memory_of

GIGABYTE = 1e9  # peak_mem_gb is decimal: the README of the records

_NOT_READ: dict[Gauge, frozenset[str]] = {
    "device": frozenset(),
    "reserved": frozenset({"communication", "context"}),
    "allocated": frozenset({"communication", "context", "fragmentation"}),
}
"""Parts of a report that a gauge does not see."""


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
        held = 0.0 if self.gauge == "allocated" else self.peak_gb - sum(parts.values())
        for name in ("run_ahead", "cached"):
            part = min(held, getattr(self.read, name) / GIGABYTE)
            held -= part
            parts |= {name: part} if part > 0.0 else {}
        return tuple(parts.items())


def fits(config: RunConfig) -> bool | None:
    """Whether a record fits into memory; None: nothing can be said."""
    try:
        return predict_memory(prepare(config)).fits
    except HdpSimError:
        return None


def predict_memory(prepared: PreparedRun) -> MemoryPrediction:
    """Predict what a record needs, and what its source would have read."""
    setup = prepared.setup
    report = partial(
        memory_of,
        setup,
        setup.context_tokens // layout_cp(setup.layout),
        micro_batches=prepared.micro_batches,
        sequence_tokens=-(-max(prepared.round_tokens) // layout_cp(setup.layout)),
    )
    fullest = report()
    read = report(stage=0) if prepared.first_stage_read else fullest
    peak_bytes = {
        "device": read.device_bytes,
        "reserved": read.reserved_bytes,
        "allocated": read.allocated_bytes,
    }[prepared.gauge]
    return MemoryPrediction(
        peak_gb=peak_bytes / GIGABYTE, fits=fullest.fits, gauge=prepared.gauge, fullest=fullest, read=read
    )
