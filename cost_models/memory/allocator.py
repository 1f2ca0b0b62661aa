"""What a caching allocator costs when the host queues more work than the GPU's memory holds."""

from __future__ import annotations

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.tracing import priced


@priced("host")
def refill_s(report: MemoryReport, cal: Calibration) -> float:
    """Time that allocations of one micro-batch add where the host runs ahead of the GPU into a full memory.

        t = max(0, memory in use + tensors of queued work - capacity) / rate

    Counted: blocks given back to the driver and asked for again; the host waits for the GPU before it gives them back.
    Ignored: that a host which waits no longer runs ahead; fragments that fit by chance.
    Limits: nothing where all of it fits, or where the host does not run ahead (MemoryOverheads.host_run_ahead).
    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (release_cached_blocks after a failed cudaMalloc).
    """
    beyond = report.total_bytes + report.run_ahead - report.capacity_bytes
    return max(0.0, min(beyond, report.run_ahead)) / cal.allocator_bytes_per_s
