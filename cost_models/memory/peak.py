"""Peak memory of a GPU: states, activations, buffers; what fits, and how many tokens a rank can hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from operator import ge
from typing import NamedTuple, assert_never

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.recomputation import layout_of_kind, repeated_share, repeats
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Parallel, Recompute
from hdpsim.cost_models.layout_checks import check_layout
from hdpsim.cost_models.memory.activations import (
    activation_bytes_per_token_layer,
    head_activation_bytes_per_token,
    kept_keys_values_bytes,
    layer_input_bytes,
    logits_per_token,
    score_bytes_per_token,
    tensor_parallel_transients,
    wide_stream_bytes,
    working_set_bytes_per_token,
)
from hdpsim.cost_models.memory.overheads import LEAN, MemoryOverheads
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.memory.shared_sequences import (
    bytes_at_attention,
    gathered_bytes_per_token,
    ring_bytes_per_token,
    ring_step_bytes_per_token,
)
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.reading.units import format_quantity
from hdpsim.cost_models.tracing import priced
from hdpsim.cost_models.transformer.layers import LayerKind, as_layer, kinds_of
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import StageContents, stage_contents
from hdpsim.cost_models.transformer.stages import in_flight_passes
from hdpsim.errors import InfeasibleError, OutOfMemoryError

CAPACITY_STEP_TOKENS = 128  # a capacity is a multiple of this per GPU: the tile of attention kernels
WARM_UP_LAG = 2  # micro-batches a pipeline's host does not run ahead by: the one at work and the next


def kept_share(layers: int, offload_ratio: float) -> float:
    """Share of a stage's activations that stay on the GPU: first and last layer always do.

        (2 + (1 - r) (l - 2)) / l

    Source: ByteScale, arXiv 2502.21231, equation 3.
    """
    return 1.0 - offload_ratio * max(0, layers - 2) / layers if layers else 1.0


class _Job(NamedTuple):
    """What the memory of a stage depends on beside the tokens of a micro-batch."""

    model: Model
    layout: Layout
    cluster: Cluster
    ranks: int
    offload_ratio: float
    micro_batches: int | None
    overheads: MemoryOverheads
    group_ranks: int
    """Ranks that share a sequence; 1 where nobody says."""


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
    group_ranks: int | None = None,
) -> MemoryReport:
    """Peak memory on each GPU of a stage (None = of the fullest stage) with that many tokens per micro-batch.

    *sequence_tokens* matters where attention keeps its scores: the length of a sequence (None = one fills the rank).
    *group_ranks*, where a token takes more the more ranks share its sequence (None = the layout's cp).
    Counted: states, activations of all micro-batches in flight, the last stage's logits, the backward's working
    set, ring and NCCL buffers, context, fragmentation, and what *overheads* say of the stack.  Ignored: staging
    buffers of the offload, data loading, CUDA graphs.  Source: the functions it adds up.
    """
    if not 0.0 <= offload_ratio <= 1.0:
        raise InfeasibleError(f"offload_ratio must be between 0 and 1, got {offload_ratio}")
    if stage is not None and not 0 <= stage < layout.parallel.pp:
        raise InfeasibleError(f"stage must be between 0 and {layout.parallel.pp - 1}, got {stage}")
    shared_by = group_ranks or layout.parallel.cp or 1
    job = _Job(model, layout, cluster, ranks, offload_ratio, micro_batches, overheads or LEAN, shared_by)
    check_layout(model, layout, ranks)
    if stage is None:
        stages = _telling_stages(model, layout.of_stages, micro_batches)
    else:
        stages = [_filled_stage(model, layout.of_stages, micro_batches, stage)]
    load = _load(job, tokens_per_rank, sequence_tokens)
    return max((_stage_report(job, one, load) for one in stages), key=lambda report: report.total_bytes)


def rank_capacity_tokens(
    model: Model,
    layout: Layout,
    cluster: Cluster,
    ranks: int,
    *,
    offload_ratio: float = 0.0,
    micro_batches: int | None = None,
    overheads: MemoryOverheads | None = None,
    group_ranks: int | None = None,
) -> int:
    """Most tokens per rank and micro-batch that fit on every stage: a multiple of 128 tp.

    Memory is a fixed part plus a part proportional to tokens, so two reports per stage suffice (more where attention
    keeps its scores, one sequence filling the rank). *group_ranks* as in memory_report. The capacity a
    layout fixes (layout.rank_capacity_tokens) is not looked at: this is what memory allows. Where a host runs ahead,
    what it queues has room as well (but for the one multiple that fits at least): waiting for memory costs far more
    time than smaller micro-batches do (refill_s).

    Raises:
        OutOfMemoryError: not even one multiple fits; the message says which stage and which parts.
    """
    check_layout(model, layout, ranks)
    shared_by = group_ranks or layout.parallel.cp or 1
    job = _Job(model, layout, cluster, ranks, offload_ratio, micro_batches, overheads or LEAN, shared_by)
    empty, one_step = _load(job, 0), _load(job, CAPACITY_STEP_TOKENS * layout.parallel.tp)
    stages = _telling_stages(model, layout.of_stages, micro_batches)
    steps = min(_most_steps(job, stage, empty, one_step) for stage in stages)
    return steps * CAPACITY_STEP_TOKENS * layout.parallel.tp


def _most_steps(job: _Job, stage: _FilledStage, no_step: _Load, one_step: _Load) -> int:
    """Multiples of the capacity's step that fit on a stage."""
    empty, first = _stage_report(job, stage, no_step), _stage_report(job, stage, one_step)
    if not first.fits:
        raise _out_of_memory(job.model, job.layout, first)
    fixed, with_one = (_growing_with_tokens(job, report) for report in (empty, first))
    steps = int((first.capacity_bytes - fixed) / (with_one + first.run_ahead - fixed))
    if first.host_bytes > empty.host_bytes:
        spare = first.host_capacity_bytes - empty.host_bytes
        steps = min(steps, int(spare / (first.host_bytes - empty.host_bytes)))
    # Scores grow with the square of tokens: the line is a bound
    if job.layout.kernels.attention == "unfused":

        def is_full(times: int) -> bool:
            return not _stage_report(job, stage, _load(job, times * one_step.tokens)).fits

        steps = bisect_left(range(2, steps + 1), True, key=is_full) + 1
    return max(1, steps)


def _growing_with_tokens(job: _Job, report: MemoryReport) -> float:
    """Total without what more tokens would make smaller: it is a line of the tokens."""
    shrinking = report.update + (report.gradients if _gradients_grow(job) else 0.0)
    return report.total_bytes - shrinking


class _TokenBytes(NamedTuple):
    """Bytes per token of a rank on each GPU; of layers by kind."""

    kept: dict[LayerKind, float]
    """From a layer's forward to its backward, scores apart."""
    working: dict[LayerKind, float]
    """While a layer runs backward."""
    at_attention: dict[LayerKind, float]
    """While its attention runs forward, beyond what is kept."""
    gathered: float
    """Kept of every other rank of a group."""
    ring: float
    ring_step: float
    """Kept of every step of a ring that keeps them all."""
    head: float


@lru_cache(maxsize=1024)
def _token_bytes(
    model: Model, layout: Layout, recompute: Recompute, overheads: MemoryOverheads
) -> _TokenBytes:
    """*layout*: what layers see of it (of_layers), so that all pipelines and kinds of sharding share this."""
    layout = layout.with_groups(recompute=recompute)
    keeps_steps = overheads.ring_steps_kept and layout.context.kind == "ring"
    kept: dict[LayerKind, float] = {}
    working: dict[LayerKind, float] = {}
    at_attention: dict[LayerKind, float] = {}
    for kind in kinds_of(model):
        (of_kind, moe), seen = as_layer(model, kind), layout_of_kind(layout, kind)
        kept[kind] = activation_bytes_per_token_layer(of_kind, seen, moe=moe, overheads=overheads)
        working[kind] = _working_bytes(of_kind, seen, kept[kind], moe=moe, overheads=overheads)
        if kind.attends:
            at_attention[kind] = bytes_at_attention(of_kind, seen, kept[kind], moe=moe)
        kept[kind] += kept_keys_values_bytes(of_kind, seen, overheads)
    return _TokenBytes(
        kept=kept,
        working=working,
        at_attention=at_attention,
        gathered=gathered_bytes_per_token(model, layout),
        ring=ring_bytes_per_token(model, layout),
        ring_step=ring_step_bytes_per_token(model, layout) if keeps_steps else 0.0,
        head=head_activation_bytes_per_token(model, layout, overheads.logit_bytes),
    )


class _FilledStage(NamedTuple):
    """A stage of a pipeline that is as full as it gets."""

    number: int
    chunks: tuple[StageContents, ...]
    in_flight: tuple[int, ...]
    """Micro-batches of each chunk whose activations are kept."""

    @property
    def passes(self) -> Iterable[tuple[StageContents, int]]:
        """Chunks with their micro-batches in flight."""
        return zip(self.chunks, self.in_flight, strict=True)


def _filled_stage(model: Model, layout: Layout, micro_batches: int | None, number: int) -> _FilledStage:
    in_flight = in_flight_passes(layout, number, micro_batches)
    return _FilledStage(number, stage_contents(model, layout)[number], in_flight)


@lru_cache(maxsize=4096)
def _telling_stages(model: Model, layout: Layout, micro_batches: int | None) -> list[_FilledStage]:
    """Stages of which none needs less than an earlier one that holds the same layers: the fullest is among them."""
    seen: dict[tuple[StageContents, ...], list[tuple[int, ...]]] = {}
    telling = []
    for number in range(layout.parallel.pp):
        stage = _filled_stage(model, layout, micro_batches, number)
        earlier = seen.setdefault(stage.chunks, [])
        if not any(all(map(ge, more, stage.in_flight)) for more in earlier):
            earlier.append(stage.in_flight)
            telling.append(stage)
    return telling


class _Load(NamedTuple):
    """Micro-batches of so many tokens of a rank, whatever the stage."""

    tokens: int
    per_token: _TokenBytes
    """In groups of so many ranks: scores are part of what is kept, what no group shares is nothing."""
    working_scores: float
    """Beside what a layer works with, per token."""
    groups: int
    """Groups of ranks with NCCL buffers of their own."""


def _load(job: _Job, tokens: int, sequence_tokens: int | None = None) -> _Load:
    model, layout, ranks, parallel = job.model, job.layout, job.ranks, job.layout.parallel
    per_token = _token_bytes(model, layout.of_layers, layout.recompute, job.overheads)
    scores = score_bytes_per_token(model, layout, tokens if sequence_tokens is None else sequence_tokens)
    scores_again = repeated_share(layout, "attention")
    context_parallel = ranks > 1 and parallel.cp != 1
    keeps_steps = job.group_ranks > 1 and per_token.ring_step > 0.0
    kept = {
        kind: amount + (1.0 - scores_again * repeats(layout, kind)) * scores * kind.attends
        for kind, amount in per_token.kept.items()
    }
    in_groups = per_token._replace(
        kept=kept,
        at_attention=per_token.at_attention if keeps_steps else {},
        gathered=(job.group_ranks - 1) * per_token.gathered,
        ring=per_token.ring if context_parallel else 0.0,
        ring_step=job.group_ranks * per_token.ring_step if keeps_steps else 0.0,
    )
    working_scores = (1.0 + scores_again) * scores  # their gradient, and recomputed themselves
    groups = sum((parallel.tp > 1, parallel.pp > 1, ranks > 1, parallel.ep > 1, context_parallel))
    return _Load(tokens, in_groups, working_scores, groups)


def _stage_report(job: _Job, stage: _FilledStage, load: _Load) -> MemoryReport:
    model, layout, tokens, extra = job.model, job.layout, load.tokens, job.overheads
    per_token = load.per_token
    of_states = layout.of_states
    if job.micro_batches == 1 and of_states.sharding.whole_gradients:  # nothing to add up
        of_states = of_states.changed(whole_gradients=False)
    states = state_bytes(model, of_states, job.ranks, stage.number, extra)
    chunks, held, others = stage.chunks, 0.0, 0.0
    for part, count in stage.passes:
        layers = part.with_prediction(model)
        others += count * sum(number for kind, number in layers if kind.attends) * per_token.gathered
        held += count * sum(number * per_token.kept[kind] for kind, number in layers)
    held, others = held * tokens * extra.activation_factor, others * tokens
    share = kept_share(sum(part.layers for part in chunks), job.offload_ratio)
    head = per_token.head * chunks[-1].head * tokens
    kinds = {kind for part in chunks for kind, _ in part.by_kind}
    working = max((per_token.working[kind] for kind in kinds), default=0.0)
    working += load.working_scores + per_token.ring
    at_attention = per_token.at_attention
    forward = (per_token.ring_step + at_attention[kind] for kind in kinds if kind in at_attention)
    working_set = max(0.0, max(working, *forward, 0.0) * tokens - head)
    on_gpu = share * held + others
    moving = on_gpu + head + working_set
    gradients = states.gradients
    if _gradients_grow(job):
        gradients = max(0.0, gradients - on_gpu - head)
    # In the optimizer's step no activation is there, and no gathered weight
    buffers = extra.bucket_buffer_bytes if job.ranks > 1 else 0.0
    gathered = states.gathered + (buffers if layout.parallel.pp == 1 else 0.0)
    update = max(0.0, states.step_gradients + states.update - gradients - gathered - moving)
    cached = extra.cached_logit_bytes * logits_per_token(model, layout) * chunks[-1].head * tokens
    given_back = extra.fragmentation_share * head if cached else 0.0
    cached += given_back
    cached += buffers if layout.parallel.pp > 1 else 0.0
    if extra.update_in_one_piece:
        cached += max(0.0, states.update - update)
    run_ahead = 0.0
    if extra.host_run_ahead:
        queued = _run_ahead_layers(layout.parallel, stage)
        run_ahead = queued * tokens * tensor_parallel_transients(model, layout)
    return MemoryReport(
        stage=stage.number,
        tokens_per_rank=tokens,
        weights=states.weights,
        gradients=gradients,
        optimizer=states.optimizer,
        gathered=gathered,
        activations=on_gpu,
        head=head,
        working_set=working_set,
        communication=load.groups * extra.nccl_bytes_per_group,
        context=extra.cuda_context_bytes + extra.library_bytes,
        fragmentation=extra.fragmentation_share * moving - given_back,
        host_bytes=(1.0 - share) * held + states.on_host,
        capacity_bytes=job.cluster.gpu.hbm_bytes,
        host_capacity_bytes=job.cluster.node.host_memory_bytes / job.cluster.node.gpus,
        update=update,
        run_ahead=run_ahead,
        cached=cached,
    )


def _gradients_grow(job: _Job) -> bool:
    """Whether all gradients of a step are made while the activations of its one micro-batch go.

    Both change evenly from layer to layer, so the sum is greatest where the backward begins or where it ends.
    """
    return job.overheads.gradients_freed and job.micro_batches == 1 and job.layout.parallel.pp == 1


def _working_bytes(
    model: Model, layout: Layout, kept: float, *, moe: bool, overheads: MemoryOverheads
) -> float:
    """While a layer of which that much was *kept* runs backward: its working set, and what is computed again.

    With full recomputation the layer's input too: what it kept is not what its forward reads again.
    """
    working = working_set_bytes_per_token(model, layout, moe=moe)
    match layout.recompute.kind:
        case "none":
            return working
        case "selective":
            needed = activation_bytes_per_token_layer(model, layout, "none", moe=moe, overheads=overheads)
        case "full":
            needed = activation_bytes_per_token_layer(model, layout, "none", moe=moe, overheads=overheads)
            needed += layer_input_bytes(model, layout) + wide_stream_bytes(model, layout, overheads)
        case _:
            assert_never(layout.recompute.kind)
    return working + max(0.0, needed - kept)


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


def _run_ahead_layers(parallel: Parallel, stage: _FilledStage) -> int:
    """Layers whose short-lived tensors are queued before the GPU has freed any.

    Without a pipeline the host queues the forward of one micro-batch, in a pipeline the warm-up's forwards but the
    one at work and the next; it meets the GPU again when it must wait for a gradient.  Source: measured peaks of
    reserved memory by pipeline depth (1, 2, 4, 8, 16 stages: all, none, 1/2, 3/4, 7/8 of those in flight).
    """
    if parallel.pp == 1:
        return sum(part.layers for part in stage.chunks)
    kept = sum(stage.in_flight)
    lead = max(0, kept - WARM_UP_LAG) / max(1, kept)
    return round(lead * sum(part.layers * count for part, count in stage.passes))


def _out_of_memory(model: Model, layout: Layout, report: MemoryReport) -> OutOfMemoryError:
    needed, available = report.total_bytes, report.capacity_bytes
    where = "GPU memory"
    if needed <= available:
        needed, available, where = report.host_bytes, report.host_capacity_bytes, "host memory"
    degrees = f"tp {layout.parallel.tp}, pp {layout.parallel.pp}"
    return OutOfMemoryError(
        f"{model.name} with {degrees}, {layout.sharding.kind}: stage {report.stage} needs "
        f"{format_quantity(needed, 'bytes')} of {where} for {report.tokens_per_rank} tokens per rank "
        f"and has {format_quantity(available, 'bytes')} (largest parts in GiB: {report.largest_parts(3)})",
        needed_bytes=needed,
        available_bytes=available,
    )
