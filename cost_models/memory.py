"""Memory of a GPU: states, activations, buffers; what fits, and how many tokens a rank can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.activations import (
    activation_bytes_per_token_layer,
    head_activation_bytes_per_token,
    layer_activations,
    ring_bytes_per_token,
    working_set_bytes_per_token,
)
from cost_models.hardware import Cluster
from cost_models.layout import Layout
from cost_models.model import Model
from cost_models.parameters import LayerKind, check_layout, parameters_per_gpu, stage_contents
from cost_models.units import format_quantity
from hdpsim.errors import InfeasibleError, OutOfMemoryError

__all__ = [
    "MemoryOverheads",
    "MemoryReport",
    "StateBytes",
    "activation_bytes_per_token_layer",
    "in_flight_chunks",
    "kept_share",
    "layer_activations",
    "memory_report",
    "rank_capacity_tokens",
    "state_bytes",
]

GIB = 2.0**30
WEIGHT_BYTES = 2.0  # bf16 weights: Megatron-Core distributed optimizer, 18 B per parameter in all
OPTIMIZER_BYTES = 12.0  # fp32 master weights 4, Adam moments 4 + 4: the same
FP8_WEIGHT_BYTES = 2.0  # row- and column-wise 8-bit copies: Transformer Engine on Hopper
CAPACITY_STEP_TOKENS = 128  # a capacity is a multiple of this per GPU: the tile of attention kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverheads:
    """What a training process needs beside its tensors."""

    cuda_context_bytes: float = 0.5 * GIB  # 0.47 GiB measured on A100 with lazy loading (0.92 eager)
    library_bytes: float = 0.25 * GIB  # cuBLAS and attention workspaces (32 MiB a stream), autograd; estimate
    nccl_bytes_per_group: float = 0.3 * GIB  # 16 channels x 2 directions x 9.2 MiB (NCCL 2.30 buffer sizes)
    fragmentation_share: float = 0.05  # of activations and buffers: 3-10 % reported with PyTorch
    activation_factor: float = 1.0  # kept over derived: 1 with fused kernels, more in eager frameworks
    logit_bytes: float = 6.0  # bf16 output of the projection 2, fp32 softmax and then its gradient 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Weights, gradients and optimizer states of one GPU."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Whole weights and gradients of the layers at work when they are sharded (ZeRO-2 and -3)."""
    on_host: float = 0.0
    """Optimizer states kept in host memory instead."""

    @property
    def total(self) -> float:
        """All states on the GPU."""
        return self.weights + self.gradients + self.optimizer + self.gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Peak memory of each GPU of one pipeline stage, by part (bytes).

    Attributes:
        stage: the pipeline stage.
        tokens_per_rank: tokens of a micro-batch on one rank (its whole TP group).
        weights, gradients, optimizer, gathered: the states (see StateBytes).
        activations: kept by all micro-batches in flight, without what is offloaded.
        head: final norm, logits and loss (last stage).
        working_set: gradients and gathered inputs of the layer at work and ring buffers, as far as they exceed the
            head's buffers (which are free again before the layers run backward).
        communication: NCCL buffers.
        context: CUDA context and libraries.
        fragmentation: allocator loss.
        host_bytes: offloaded activations and optimizer states in host memory, of this GPU.
        capacity_bytes: what the GPU has.
        host_capacity_bytes: this GPU's share of the host memory.
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

    @property
    def parts(self) -> dict[str, float]:
        """The parts of GPU memory by name; they sum to total_bytes."""
        names = ("weights", "gradients", "optimizer", "gathered", "activations", "head", "working_set")
        return {name: getattr(self, name) for name in (*names, "communication", "context", "fragmentation")}

    @property
    def total_bytes(self) -> float:
        """Peak GPU memory."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether GPU and host memory suffice."""
        return self.total_bytes <= self.capacity_bytes and self.host_bytes <= self.host_capacity_bytes


def state_bytes(model: Model, layout: Layout, ranks: int, stage: int) -> StateBytes:
    """Weights, gradients and optimizer states on each GPU of a stage.

        bytes per parameter: weights 2, gradients 4 (or 2), optimizer 12; d = ranks that share a copy
        none 18 | zero1 2 + 4 + 12/d | zero2 2 + 16/d (+ one whole layer's gradients)
        zero3 18/d (+ two whole layers' weights and one's gradients while they are at work)

    With zero3 d is at most shard_ranks. With optimizer_offload the optimizer's part is on the host.
    Expert parameters have fewer copies: d = ranks x tp / max(tp, ep). fp8 keeps two 8-bit copies of the matrices.
    Source: arXiv 1910.02054; Megatron-Core's distributed optimizer (6 + 12/d); PyTorch FSDP prefetching one layer.
    """
    check_layout(model, layout, ranks)
    shard = parameters_per_gpu(model, layout, stage)
    copies: float = ranks
    expert_copies = ranks * layout.tp / max(layout.tp, layout.ep)
    if layout.sharding == "zero3" and layout.shard_ranks is not None:
        copies, expert_copies = min(copies, layout.shard_ranks), min(expert_copies, layout.shard_ranks)
    order = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}[layout.sharding]

    def spread(level: int) -> float:
        """Parameters whose state of that ZeRO level is on this GPU."""
        return shard.dense / copies + shard.experts / expert_copies if order >= level else float(shard.total)

    whole = min(shard.largest_unit, shard.total) * (1.0 - 1.0 / copies)
    two = min(2 * shard.largest_unit, shard.total) * (1.0 - 1.0 / copies)
    gathered = (layout.gradient_bytes * whole if order >= 2 else 0.0) + (
        WEIGHT_BYTES * two if order >= 3 else 0.0
    )
    eight_bit = FP8_WEIGHT_BYTES * shard.matrices if layout.precision == "fp8" and order < 3 else 0.0
    return StateBytes(
        weights=WEIGHT_BYTES * spread(3) + eight_bit,
        gradients=layout.gradient_bytes * spread(2),
        optimizer=0.0 if layout.optimizer_offload else OPTIMIZER_BYTES * spread(1),
        gathered=gathered,
        on_host=OPTIMIZER_BYTES * spread(1) if layout.optimizer_offload else 0.0,
    )


def in_flight_chunks(layout: Layout, stage: int, micro_batches: int | None = None) -> tuple[int, ...]:
    """For each chunk of a stage, how many micro-batches keep activations at the worst moment.

        1F1B:        min(m, p - s)
        interleaved: 2 (p - s - 1) + (v - 1) p + 1 chunk passes, at most m v, in groups of p per chunk;
                     on stage 0 that is the model's layers / p x (1 + (p - 1) / (p v))

    *micro_batches* m per step; None = enough to fill the pipeline.
    Source: arXiv 2104.04473 section 2.2; arXiv 2205.05198 section 4.2.3.
    """
    p, v = layout.pp, layout.vpp
    passes = p - stage if v == 1 else 2 * (p - stage - 1) + (v - 1) * p + 1
    if micro_batches is not None:
        passes = min(passes, micro_batches * v)
    counts = [0] * v
    for number in range(passes):
        counts[number // p % v] += 1
    return tuple(counts)


def kept_share(layers: int, offload_ratio: float) -> float:
    """Share of a stage's activations that stay on the GPU: first and last layer always do.

        (2 + (1 - r) (l - 2)) / l

    Source: ByteScale, arXiv 2502.21231, equation 3.
    """
    moving = max(0, layers - 2)
    return 1.0 - offload_ratio * moving / layers if layers else 1.0


def memory_report(
    model: Model,
    layout: Layout,
    cluster: Cluster,
    ranks: int,
    tokens_per_rank: int,
    *,
    stage: int | None = None,
    offload_ratio: float = 0.0,
    micro_batches: int | None = None,
    overheads: MemoryOverheads | None = None,
) -> MemoryReport:
    """Peak memory on each GPU of a stage (None = of the fullest stage) with that many tokens per micro-batch.

    Counted: states, activations of all micro-batches in flight, the last stage's logits, the backward's working
    set, ring and NCCL buffers, context, fragmentation.  Ignored: the optimizer's own temporaries, staging buffers
    of the offload, data loading, CUDA graphs.  Source: the functions it adds up.
    """
    if not 0.0 <= offload_ratio <= 1.0:
        raise InfeasibleError(f"offload_ratio must be between 0 and 1, got {offload_ratio}")
    if stage is not None and not 0 <= stage < layout.pp:
        raise InfeasibleError(f"stage must be between 0 and {layout.pp - 1}, got {stage}")
    stages: Sequence[int] = range(layout.pp) if stage is None else (stage,)
    reports = [
        _stage_report(
            model, layout, cluster, ranks, tokens_per_rank, s, offload_ratio, micro_batches, overheads
        )
        for s in stages
    ]
    return max(reports, key=lambda report: report.total_bytes)


def rank_capacity_tokens(
    model: Model,
    layout: Layout,
    cluster: Cluster,
    ranks: int,
    *,
    offload_ratio: float = 0.0,
    micro_batches: int | None = None,
    overheads: MemoryOverheads | None = None,
) -> int:
    """Most tokens per rank and micro-batch that fit on every stage: a multiple of 128 tp.

    Memory is a fixed part plus a part proportional to tokens, so two reports per stage suffice. The capacity a
    layout fixes (layout.rank_capacity_tokens) is not looked at: this is what memory allows.

    Raises:
        OutOfMemoryError: not even one multiple fits; the message says which stage and which parts.
    """
    step = CAPACITY_STEP_TOKENS * layout.tp
    best: int | None = None
    for stage in range(layout.pp):
        empty, one = (
            _stage_report(
                model, layout, cluster, ranks, tokens, stage, offload_ratio, micro_batches, overheads
            )
            for tokens in (0, step)
        )
        if not one.fits:
            raise _out_of_memory(model, layout, one)
        steps = int((one.capacity_bytes - empty.total_bytes) / (one.total_bytes - empty.total_bytes))
        if one.host_bytes > empty.host_bytes:
            spare = one.host_capacity_bytes - empty.host_bytes
            steps = min(steps, int(spare / (one.host_bytes - empty.host_bytes)))
        best = max(1, steps) if best is None else min(best, max(1, steps))
    return (best or 1) * step


def _stage_report(
    model: Model,
    layout: Layout,
    cluster: Cluster,
    ranks: int,
    tokens: int,
    stage: int,
    offload_ratio: float,
    micro_batches: int | None,
    overheads: MemoryOverheads | None,
) -> MemoryReport:
    extra = overheads or MemoryOverheads()
    states = state_bytes(model, layout, ranks, stage)
    chunks = stage_contents(model, layout)[stage]
    in_flight = in_flight_chunks(layout, stage, micro_batches)
    per_layer: dict[LayerKind, float] = {
        "dense": activation_bytes_per_token_layer(model, layout, kind="dense")
    }
    if model.experts:
        per_layer["moe"] = activation_bytes_per_token_layer(model, layout, kind="moe")
    held = 0.0
    for part, count in zip(chunks, in_flight, strict=True):
        usual = part.mtp_layers * per_layer["moe" if model.experts else "dense"]
        held += count * (part.dense_layers * per_layer["dense"] + part.moe_layers * per_layer.get("moe", 0.0))
        held += count * usual
    held *= tokens * extra.activation_factor
    share = kept_share(sum(part.layers for part in chunks), offload_ratio)
    head = chunks[-1].head
    head_bytes = head_activation_bytes_per_token(model, layout, extra.logit_bytes) * tokens if head else 0.0
    kinds = [
        kind for kind in per_layer if any(_has(part.dense_layers, part.moe_layers, kind) for part in chunks)
    ]
    working = max(working_set_bytes_per_token(model, layout, kind) for kind in kinds)
    if ranks > 1 and layout.cp != 1:
        working += ring_bytes_per_token(model, layout)
    groups = sum((layout.tp > 1, layout.pp > 1, ranks > 1, layout.ep > 1, ranks > 1 and layout.cp != 1))
    working_bytes = max(0.0, working * tokens - head_bytes)
    moving = share * held + head_bytes + working_bytes
    return MemoryReport(
        stage=stage,
        tokens_per_rank=tokens,
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        gathered=states.gathered,
        activations=share * held,
        head=head_bytes,
        working_set=working_bytes,
        communication=groups * extra.nccl_bytes_per_group,
        context=extra.cuda_context_bytes + extra.library_bytes,
        fragmentation=extra.fragmentation_share * moving,
        host_bytes=(1.0 - share) * held + states.on_host,
        capacity_bytes=cluster.gpu.hbm_bytes,
        host_capacity_bytes=cluster.node.host_memory_bytes / cluster.node.gpus,
    )


def _has(dense_layers: int, moe_layers: int, kind: LayerKind) -> bool:
    return (moe_layers if kind == "moe" else dense_layers) > 0


def _out_of_memory(model: Model, layout: Layout, report: MemoryReport) -> OutOfMemoryError:
    """The error that names the stage and its largest parts."""
    largest = sorted(report.parts.items(), key=lambda part: -part[1])[:3]
    parts = ", ".join(f"{name} {format_quantity(amount, 'bytes')}" for name, amount in largest)
    needed, available = report.total_bytes, report.capacity_bytes
    where = "GPU memory"
    if needed <= available:
        needed, available, where = report.host_bytes, report.host_capacity_bytes, "host memory"
    return OutOfMemoryError(
        f"{model.name} with tp {layout.tp}, pp {layout.pp}, {layout.sharding}: stage {report.stage} needs "
        f"{format_quantity(needed, 'bytes')} of {where} for {report.tokens_per_rank} tokens per rank "
        f"and has {format_quantity(available, 'bytes')} (largest parts: {parts})",
        needed_bytes=needed,
        available_bytes=available,
    )
