"""NCCL's wire protocols and their latencies."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LL", "LL128", "PROTOCOLS", "SIMPLE", "Protocol"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One NCCL wire protocol. Source of all numbers: NVIDIA/nccl 2.30, src/graph/tuning.cc."""

    name: str
    ring_base_s: float
    tree_base_s: float
    ring_nvlink_step_s: float
    tree_nvlink_step_s: float
    ring_network_step_s: float
    tree_network_step_s: float
    overhead_factor: float
    """Times the 1 us a network proxy adds to every step of a multi-node ring."""
    wire_trips: int
    """Times a network step pays the hardware latency: Simple flushes and pays twice."""


LL = Protocol(
    name="LL", ring_base_s=6.6e-6, tree_base_s=6.8e-6, ring_nvlink_step_s=0.6e-6, tree_nvlink_step_s=0.6e-6,
    ring_network_step_s=2.7e-6, tree_network_step_s=5.0e-6, overhead_factor=1.0, wire_trips=1,
)  # fmt: skip
LL128 = Protocol(
    name="LL128", ring_base_s=14e-6, tree_base_s=14e-6, ring_nvlink_step_s=1.9e-6, tree_nvlink_step_s=1.25e-6,
    ring_network_step_s=4.0e-6, tree_network_step_s=8.5e-6, overhead_factor=1.0, wire_trips=1,
)  # fmt: skip
SIMPLE = Protocol(
    name="Simple", ring_base_s=8.4e-6, tree_base_s=8.4e-6, ring_nvlink_step_s=3.4e-6, tree_nvlink_step_s=4.0e-6,
    ring_network_step_s=14e-6, tree_network_step_s=14e-6, overhead_factor=3.0, wire_trips=2,
)  # fmt: skip
PROTOCOLS = (LL, LL128, SIMPLE)
