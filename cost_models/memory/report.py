"""What a GPU's peak memory is made of, and what frameworks and the driver say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PARTS = (
    "weights", "gradients", "optimizer", "gathered", "activations", "head", "working_set", "communication",
    "context", "fragmentation",
)  # fmt: skip
_GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Peak memory of each GPU of one pipeline stage, by part (bytes).

    Attributes:
        stage: the pipeline stage.
        tokens_per_rank: tokens of a micro-batch on one rank (its whole TP group).
        weights, gradients, optimizer, gathered: the states (see StateBytes), with gathered ones the buffers of buckets
            (MemoryOverheads.bucket_buffer_bytes); gradients that grow while activations go
            (MemoryOverheads.gradients_freed) as far as they exceed activations and head.
        activations: kept by all micro-batches in flight, without what is offloaded.
        head: final norm, logits and loss (last stage).
        working_set: gradients and gathered inputs of the layer at work and ring buffers, as far as they exceed the
            head's buffers (which are free again before the layers run backward); or the steps of a ring, where its
            forward keeps them all and needs more; rotary tables of layers of their own.
        communication: NCCL buffers.
        context: CUDA context and libraries.
        update: staging of the optimizer step as far as it exceeds what activations and buffers took before.
        fragmentation: allocator loss; of logits whose blocks are large enough to be given back it is cached.
        host_bytes: offloaded activations and optimizer states in host memory, of this GPU.
        capacity_bytes: what the GPU has.
        host_capacity_bytes: this GPU's share of the host memory.
        run_ahead: tensors that wait for a communication stream while the host runs ahead. They are no part of the
            total: an allocator short of memory waits for them and reuses their blocks.
        cached: blocks that nobody uses at the peak and that nothing else fits into. They are no part of the total
            either: an allocator short of memory gives them back to the driver.
    """

    stage: int
    tokens_per_rank: int
    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    head: float
    working_set: float
    communication: float
    context: float
    fragmentation: float
    host_bytes: float
    capacity_bytes: float
    host_capacity_bytes: float
    update: float = 0.0
    run_ahead: float = 0.0
    cached: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """The parts of GPU memory by name; they sum to total_bytes."""
        by_name = {name: getattr(self, name) for name in _PARTS}
        return {**by_name, "update": self.update} if self.update else by_name

    def largest_parts(self, most: int = 4) -> str:
        """The largest parts in GiB: `activations 41.9, optimizer 6.2, weights 4.1`."""
        return largest_parts(self.parts, most)

    @property
    def state_bytes(self) -> float:
        """What a GPU keeps however few tokens it gets: weights, gradients, optimizer states, gathered weights."""
        return self.weights + self.gradients + self.optimizer + self.gathered

    @property
    def total_bytes(self) -> float:
        """Peak GPU memory: all parts."""
        return sum(self.parts.values())

    @property
    def allocated_bytes(self) -> float:
        """Peak of the framework's tensors (PyTorch: max_memory_allocated)."""
        return self.total_bytes - self.communication - self.context - self.fragmentation

    @property
    def reserved_bytes(self) -> float:
        """Peak of what the framework's allocator takes from the GPU (PyTorch: max_memory_reserved)."""
        return self.device_bytes - self.communication - self.context

    @property
    def device_bytes(self) -> float:
        """Peak of everything on the GPU (nvidia-smi): the allocator's blocks, CUDA context, NCCL's buffers."""
        held = self.total_bytes + self.run_ahead + self.cached
        return min(held, max(self.capacity_bytes, self.total_bytes))

    @property
    def fits(self) -> bool:
        """Whether GPU and host memory suffice."""
        return self.total_bytes <= self.capacity_bytes and self.host_bytes <= self.host_capacity_bytes

    def is_tight(self, headroom: float) -> bool:
        """Whether the GPU's memory would not suffice for what is predicted and a share *headroom* of it."""
        return self.total_bytes * (1.0 + headroom) > self.capacity_bytes


def largest_parts(parts: Mapping[str, float], most: int = 4) -> str:
    """The largest parts of a memory in GiB, such as `activations 41.9, optimizer 6.2, weights 4.1`."""
    largest = [(size / _GIB, name.replace("_", " ")) for name, size in parts.items()]
    largest.sort(key=lambda part: -part[0])
    return ", ".join(f"{name} {size:.1f}" for size, name in largest[:most] if size >= 0.05)
