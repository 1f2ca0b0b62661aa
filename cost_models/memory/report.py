"""Memory of a GPU: states, activations, buffers; what fits, and how many tokens a rank can hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.recomputation import repeated_share
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.activations import (
    activation_bytes_per_token_layer,
    head_activation_bytes_per_token,
    layer_activations,
    layer_input_bytes,
    ring_bytes_per_token,
    score_bytes_per_token,
    tensor_parallel_transients,
    working_set_bytes_per_token,
)
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.reading.units import format_quantity
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageContents, stage_contents
from hdpsim.cost_models.transformer.stages import in_flight_passes
from hdpsim.errors import InfeasibleError, OutOfMemoryError

CAPACITY_STEP_TOKENS = 128  # a capacity is a multiple of this per GPU: the tile of attention kernels
WARM_UP_LAG = 2  # micro-batches a pipeline's host does not run ahead by: the one at work and the next


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
        update: staging of the optimizer step as far as it exceeds what activations and buffers took before.
        fragmentation: allocator loss.
        host_bytes: offloaded activations and optimizer states in host memory, of this GPU.
        capacity_bytes: what the GPU has.
        host_capacity_bytes: this GPU's share of the host memory.
        run_ahead: tensors that wait for a communication stream while the host runs ahead. They are no part of the
            total: an allocator short of memory waits for them and reuses their blocks.
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

    @property
    def parts(self) -> dict[str, float]:
        """The parts of GPU memory by name; they sum to total_bytes."""
        names = ("weights", "gradients", "optimizer", "gathered", "activations", "head", "working_set")
        found = {name: getattr(self, name) for name in (*names, "communication", "context", "fragmentation")}
        return {**found, "update": self.update} if self.update else found

    @property
    def total_bytes(self) -> float:
        """Peak GPU memory."""
        return sum(self.parts.values())

    @property
    def allocated_bytes(self) -> float:
        """Peak of the framework's tensors (PyTorch: max_memory_allocated)."""
        return self.total_bytes - self.communication - self.context - self.fragmentation

    @property
    def reserved_bytes(self) -> float:
        """Peak of what the framework's allocator takes from the GPU (PyTorch: max_memory_reserved)."""
        outside = self.communication + self.context
        most = max(self.capacity_bytes, self.total_bytes) - outside
        return min(self.total_bytes - outside + self.run_ahead, most)

    @property
    def fits(self) -> bool:
        """Whether GPU and host memory suffice."""
        return self.total_bytes <= self.capacity_bytes and self.host_bytes <= self.host_capacity_bytes


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
    sequence_tokens: int | None = None,
) -> MemoryReport:
    """Peak memory on each GPU of a stage (None = of the fullest stage) with that many tokens per micro-batch.

    *sequence_tokens* matters where attention keeps its scores: the length of a sequence (None = one fills the rank).
    Counted: states, activations of all micro-batches in flight, the last stage's logits, the backward's working
    set, ring and NCCL buffers, context, fragmentation, and what *overheads* say of the stack.  Ignored: staging
    buffers of the offload, data loading, CUDA graphs.  Source: the functions it adds up.
    """
    if not 0.0 <= offload_ratio <= 1.0:
        raise InfeasibleError(f"offload_ratio must be between 0 and 1, got {offload_ratio}")
    if stage is not None and not 0 <= stage < layout.pp:
        raise InfeasibleError(f"stage must be between 0 and {layout.pp - 1}, got {stage}")
    stages: Sequence[int] = range(layout.pp) if stage is None else (stage,)
    reports = [
        _stage_report(
            model,
            layout,
            cluster,
            ranks,
            tokens_per_rank,
            s,
            offload_ratio,
            micro_batches,
            overheads,
            sequence_tokens,
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

    Memory is a fixed part plus a part proportional to tokens, so two reports per stage suffice (more where attention
    keeps its scores, one sequence filling the rank). The capacity a
    layout fixes (layout.rank_capacity_tokens) is not looked at: this is what memory allows. Where a host runs ahead,
    what it queues has room as well (but for the one multiple that fits at least): waiting for memory costs far more
    time than smaller micro-batches do (allocator.refill_s).

    Raises:
        OutOfMemoryError: not even one multiple fits; the message says which stage and which parts.
    """
    step = CAPACITY_STEP_TOKENS * layout.tp

    def report(tokens: int, stage: int) -> MemoryReport:
        return _stage_report(
            model, layout, cluster, ranks, tokens, stage, offload_ratio, micro_batches, overheads
        )

    best: int | None = None
    for stage in range(layout.pp):
        empty, one = report(0, stage), report(step, stage)
        if not one.fits:
            raise _out_of_memory(model, layout, one)
        fixed = empty.total_bytes - empty.update
        steps = int((one.capacity_bytes - fixed) / (one.total_bytes + one.run_ahead - one.update - fixed))
        if one.host_bytes > empty.host_bytes:
            spare = one.host_capacity_bytes - empty.host_bytes
            steps = min(steps, int(spare / (one.host_bytes - empty.host_bytes)))
        if layout.attention_kernel == "unfused":  # scores grow with the square of tokens: the line is a bound
            steps = bisect_left(range(2, steps + 1), True, key=lambda n: not report(n * step, stage).fits) + 1
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
    sequence_tokens: int | None = None,
) -> MemoryReport:
    extra = overheads or MemoryOverheads()
    states = state_bytes(model, layout, ranks, stage, extra)
    chunks = stage_contents(model, layout)[stage]
    in_flight = in_flight_passes(layout, stage, micro_batches)
    unfused = extra.unfused_copies or not layout.fused_kernels
    usual = bool(model.experts)
    per_layer = {
        moe: activation_bytes_per_token_layer(
            model,
            layout,
            moe=moe,
            unfused=unfused,
            selective_share=extra.selective_share,
            selective_keeps=extra.selective_keeps,
        )
        for moe in {False, usual}
    }
    scores = score_bytes_per_token(model, layout, tokens if sequence_tokens is None else sequence_tokens)
    scores_again = repeated_share(layout, "attention")
    scores_kept = {moe: amount + (1.0 - scores_again) * scores for moe, amount in per_layer.items()}
    held = 0.0
    for part, count in zip(chunks, in_flight, strict=True):
        held += count * sum(layers * scores_kept[moe] for moe, layers in part.by_kind)
        held += count * part.mtp_layers * scores_kept[usual]
    held *= tokens * extra.activation_factor
    share = kept_share(sum(part.layers for part in chunks), offload_ratio)
    head = chunks[-1].head
    head_bytes = head_activation_bytes_per_token(model, layout, extra.logit_bytes) * tokens if head else 0.0
    working = max(
        (
            working_set_bytes_per_token(model, layout, moe=moe)
            + _again(model, layout, per_layer[moe], moe=moe)
            for part in chunks
            for moe, _ in part.by_kind
        ),
        default=0.0,
    )
    working += (1.0 + scores_again) * scores  # their gradient, and recomputed themselves
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
        update=max(0.0, states.update - moving),
        run_ahead=_run_ahead_layers(layout, chunks, in_flight)
        * tokens
        * tensor_parallel_transients(model, layout)
        if extra.host_run_ahead
        else 0.0,
    )


def _again(model: Model, layout: Layout, kept: float, *, moe: bool) -> float:
    """What is not kept is there again while one layer runs backward, per token of a rank.

    With full recomputation the layer's input too: what it kept is not what its forward reads again.
    """
    match layout.recompute:
        case "none":
            return 0.0
        case "selective":
            return max(0.0, activation_bytes_per_token_layer(model, layout, "none", moe=moe) - kept)
        case "full":
            return max(
                0.0, layer_activations(model, layout, moe=moe).total + layer_input_bytes(model, layout) - kept
            )
        case _:
            assert_never(layout.recompute)


def _run_ahead_layers(layout: Layout, chunks: Sequence[StageContents], in_flight: Sequence[int]) -> int:
    """Layers whose short-lived tensors are queued before the GPU has freed any.

    Without a pipeline the host queues the forward of one micro-batch, in a pipeline the warm-up's forwards but the
    one at work and the next; it meets the GPU again when it must wait for a gradient.  Source: measured peaks of
    reserved memory by pipeline depth (1, 2, 4, 8, 16 stages: all, none, 1/2, 3/4, 7/8 of those in flight).
    """
    if layout.pp == 1:
        return sum(part.layers for part in chunks)
    lead = max(0, sum(in_flight) - WARM_UP_LAG) / max(1, sum(in_flight))
    return round(lead * sum(part.layers * count for part, count in zip(chunks, in_flight, strict=True)))


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
