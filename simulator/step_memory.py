"""Memory of a step: how many tokens a rank may hold, what a plan needs, and what a full memory costs in time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hdpsim.arrays import Bools
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout_checks import rank_kinds
from hdpsim.cost_models.memory.activations import rotary_table_bytes, usual_activation_bytes
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.memory.peak import memory_report, rank_capacity_tokens, refill_s
from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.memory.shared_sequences import grows_with_groups
from hdpsim.cost_models.memory.states import state_bytes
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.layers import attention_layers
from hdpsim.cost_models.transformer.parameters import stage_contents
from hdpsim.cost_models.transformer.stages import in_flight_passes
from hdpsim.errors import OutOfMemoryError
from hdpsim.simulator.communicators import ring_groups
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.execution import Execution
from hdpsim.simulator.setup import Setup

FAR_APART = 0.2
"""So much may kept bytes that are said differ from those that follow from the layout: shares are a mean of products."""


def capacity_tokens(setup: Setup) -> int:
    """Rank capacity C: fixed by the layout, or what memory allows, at most the context.

    Raises:
        OutOfMemoryError: C is not fixed, and even the smallest one does not fit.
    """
    layout = setup.layout
    if layout.context.rank_capacity_tokens is not None:
        return layout.context.rank_capacity_tokens
    allowed = _allowed_tokens(setup, _ranks_of_the_context(setup) if _groups_grow(setup) else None)
    return min(allowed, -(-setup.context_tokens // layout.parallel.tp) * layout.parallel.tp)


def tokens_with_headroom(setup: Setup, headroom: float) -> int:
    """The rank capacity that memory allows if it has to suffice for a share *headroom* more than is predicted.

    Raises:
        OutOfMemoryError: even the smallest one does not fit.
    """
    overheads, hbm_bytes = setup.memory.overheads, setup.cluster.gpu.hbm_bytes
    kept_free = overheads.cuda_context_bytes + hbm_bytes * headroom / (1.0 + headroom)
    return capacity_tokens(
        replace(
            setup,
            layout=setup.layout.changed(rank_capacity_tokens=None),
            memory=replace(setup.memory, overheads=replace(overheads, cuda_context_bytes=kept_free)),
        )
    )


def _allowed_tokens(setup: Setup, group_ranks: int | None) -> int:
    """What memory allows on a rank of a group of so many ranks (None: whose tokens take the same in all groups)."""
    return rank_capacity_tokens(
        setup.model,
        _layout(setup),
        setup.cluster,
        setup.ranks,
        offload_ratio=_offload_ratio(setup),
        overheads=_overheads(setup),
        group_ranks=group_ranks,
    )


def _groups_grow(setup: Setup) -> bool:
    """Whether tokens take more memory in larger groups, and which groups there are follows from the sequences.

    Of a static mesh no longer where the plan has settled its degree.
    """
    seen = _layout(setup)
    return seen.parallel.cp is None and grows_with_groups(seen, setup.memory.overheads)


def _ranks_of_the_context(setup: Setup) -> int:
    """Ranks of the smallest group that can hold a sequence as long as the context; all where none can.

    A larger group holds more: each of its ranks a smaller share of the same keys and values.
    """

    def holds(ranks: int) -> bool:
        try:
            return ranks * _allowed_tokens(setup, ranks) >= setup.context_tokens
        except OutOfMemoryError:
            return False

    return 1 + bisect_left(range(1, setup.ranks), True, key=holds)


def _rotary_tables(setup: Setup) -> float:
    """Bytes of the rotary tables of a full stage."""
    layers = -(-attention_layers(setup.model) // setup.layout.parallel.pp)
    return rotary_table_bytes(setup.model, setup.memory.overheads.rotary_tables, layers, setup.context_tokens)


def _overheads(setup: Setup) -> MemoryOverheads:
    """What the stack keeps whatever the tokens of a rank, rotary tables of the context among it."""
    kept = setup.memory.overheads
    return replace(kept, library_bytes=kept.library_bytes + _rotary_tables(setup))


def memory_of(
    setup: Setup,
    tokens_per_rank: int,
    *,
    micro_batches: int | None = None,
    sequence_tokens: int | None = None,
    stage: int | None = None,
    group_ranks: int | None = None,
) -> MemoryReport:
    """What a stage (None: the fullest) needs with so many tokens per rank and micro-batch.

    Args:
        setup: what is simulated.
        tokens_per_rank: tokens of a micro-batch on one rank.
        micro_batches: of a step on one rank; None: enough to fill the pipeline.
        sequence_tokens: the longest piece of a sequence on one rank; None: one fills the rank.
        stage: the pipeline stage.
        group_ranks: ranks that share a sequence; None: the layout's cp, or nobody where it states none.
    """
    report = memory_report(
        setup.model,
        _layout(setup),
        setup.cluster,
        setup.ranks,
        tokens_per_rank,
        stage=stage,
        offload_ratio=_offload_ratio(setup),
        micro_batches=micro_batches,
        overheads=_overheads(setup),
        sequence_tokens=sequence_tokens,
        group_ranks=group_ranks,
    )
    tables = _rotary_tables(setup)  # tensors, though no token of a rank adds to them
    return replace(report, context=report.context - tables, working_set=report.working_set + tables)


def held_tokens(setup: Setup, capacity: int, degree: int | None = None) -> int:
    """Tokens of a micro-batch that a rank has at most: C, or its share of the context where a static mesh needs less.

    Packs of a mesh are as long as the context at most, however much its ranks could hold.

    Args:
        setup: what is simulated.
        capacity: C.
        degree: ranks that share a pack; None: the layout's cp, or one rank where it states none.
    """
    if not setup.strategy.has_one_mesh:
        return capacity
    return min(capacity, -(-setup.context_tokens // (degree or setup.layout.parallel.cp or 1)))


def hosted_tokens(setup: Setup, cost: MicroBatchCost, capacity: int) -> float:
    """Tokens of a sequence that a rank can hold while its host has room for what it offloads.

        C + room of a GPU on its host / (bytes a token and layer x layers in flight)

    A rank that holds t tokens keeps C of them on its GPUs and sends what the others keep in all layers to the host.
    Counted: optimizer states on the host; as many micro-batches in flight as fill the pipeline.
    Ignored: batches loaded ahead and copies of checkpoints (`simulate --steps` has them).
    """
    if setup.strategy.name == "static" or not setup.memory.must_fit:
        return np.inf
    layout, node = setup.layout, setup.cluster.node
    in_flight = max(
        sum(count * part.layers for count, part in zip(in_flight_passes(layout, stage), content, strict=True))
        for stage, content in enumerate(stage_contents(setup.model, layout))
    )
    room = max(0.0, node.host_memory_bytes / node.gpus - states_on_host(setup))
    return capacity + room / (cost.offloading.activation_bytes_per_token * in_flight)


def states_on_host(setup: Setup) -> float:
    """Bytes of optimizer states in host memory for each GPU of the stage that has most."""
    layout, overheads = setup.layout, setup.memory.overheads
    stages = range(layout.parallel.pp)
    return max(state_bytes(setup.model, layout, setup.ranks, stage, overheads).on_host for stage in stages)


def plan_memory(setup: Setup, plan: Plan, stage: int | None = None) -> MemoryReport:
    """What a stage (None: the fullest) needs to run *plan*: tokens its ranks may have, micro-batches, longest sequence.

    With nodes of several kinds: of the kind with the least share of its memory left.
    """
    return max(kind_memory(setup, plan, stage), key=_filled)


def _filled(report: MemoryReport) -> float:
    """Memory needed over what there is, of GPU or host, whichever is fuller."""
    on_host = report.host_bytes / report.host_capacity_bytes if report.host_bytes else 0.0
    return max(report.total_bytes / report.capacity_bytes, on_host)


def kind_memory(setup: Setup, plan: Plan, stage: int | None = None) -> tuple[MemoryReport, ...]:
    """Memory that a plan needs on every kind of node."""
    if not isinstance(setup.cluster, MixedCluster):
        most = int(np.diff(plan.order_offsets).max())
        tokens = held_tokens(setup, plan.capacity_tokens, int(plan.group_size.max()))
        return (_kind_memory(setup, plan, tokens, most, stage),)
    of_rank, slots = rank_kinds(setup.cluster, setup.layout.parallel), np.diff(plan.order_offsets)
    capacity = plan.rank_capacity_tokens
    reports = []
    for number, kind in enumerate(setup.kinds):
        ranks = of_rank == number
        tokens = plan.capacity_tokens if capacity is None else int(capacity[ranks].max())
        tokens = held_tokens(setup, tokens, int(plan.group_size.max()))
        reports.append(_kind_memory(kind, plan, tokens, max(1, int(slots[ranks].max())), stage, ranks))
    return tuple(reports)


def kind_notes(setup: Setup, plan: Plan) -> tuple[str, ...]:
    """A word about the memory of every kind of node, where there are several."""
    if not isinstance(setup.cluster, MixedCluster):
        return ()
    reports = zip(setup.cluster.node_kinds, kind_memory(setup, plan), strict=True)
    parts = [
        f"{report.total_bytes / 2**30:.1f} of {report.capacity_bytes / 2**30:.1f} GiB on {node.name} "
        f"({report.tokens_per_rank} tokens per rank)"
        for node, report in reports
    ]
    return ("memory by kind of node: " + ", ".join(parts),)


def _kind_memory(
    setup: Setup,
    plan: Plan,
    capacity: int,
    micro_batches: int,
    stage: int | None,
    own_ranks: Bools | None = None,
) -> MemoryReport:
    """Memory of ranks that are of one kind: all, or those that are *own_ranks*."""
    longest: int | None = None
    if setup.layout.kernels.attention == "unfused":  # the only kernel that keeps scores
        ranks = np.repeat(plan.group_size, np.diff(plan.segment_offsets))
        longest = int((-(-plan.segment_tokens // ranks)).max())
    settled = replace(setup, layout=settled_layout(setup, plan))
    asked: list[tuple[int, int | None]] = [(capacity, None)]
    if _groups_grow(settled):
        asked = [(capacity, 1), *_most_tokens(plan, capacity, own_ranks)]
    of = partial(memory_of, micro_batches=micro_batches, sequence_tokens=longest, stage=stage)
    reports = [of(settled, tokens, group_ranks=ranks) for tokens, ranks in asked]
    return _with_communicators(setup, plan, max(reports, key=_filled))


def _most_tokens(plan: Plan, capacity: int, own_ranks: Bools | None) -> Iterator[tuple[int, int]]:
    """For every size of group with *own_ranks*: tokens on a rank of its largest micro-batch, ranks that share it.

    Where a rank has more than C, and sends the rest to the host, as many ranks with C as hold the micro-batch: what
    they keep of each other is as much.
    """
    sizes, tokens = plan.group_size, plan.tokens
    if own_ranks is not None:
        meets = np.logical_or.reduceat(own_ranks[plan.member_ranks], plan.member_offsets[:-1])
        sizes, tokens = sizes[meets], tokens[meets]
    for size in np.unique(sizes[sizes > 1]):
        most = int(tokens[sizes == size].max())
        held = min(capacity, -(-most // int(size)))
        yield held, -(-most // held)


def _with_communicators(setup: Setup, plan: Plan, report: MemoryReport) -> MemoryReport:
    """The buffers of a rank's communicators instead of those of one for all rings."""
    groups = ring_groups(setup.strategy, plan)
    if groups is None:
        return report
    more = (groups.most_of_a_rank - 1) * setup.memory.overheads.nccl_bytes_per_group
    return replace(report, communication=max(0.0, report.communication + more))


def check_fits(setup: Setup, report: MemoryReport) -> None:
    """Refuse a step that does not fit, unless the setup says that it must not.

    Raises:
        OutOfMemoryError: memory does not suffice.
    """
    if report.fits or not setup.memory.must_fit:
        return
    needed, available, where = report.total_bytes, report.capacity_bytes, f"each GPU of stage {report.stage}"
    filled, remedy = f" ({report.largest_parts(3)})", "lower layout.rank_capacity or raise tp or pp"
    if needed <= available:
        needed, available, filled = report.host_bytes, report.host_capacity_bytes, ""
        where = f"the host for each GPU of stage {report.stage}"
        if _offload_ratio(setup):
            remedy = "lower strategy.activation_offload or layout.rank_capacity, or raise tp or pp"
    elif report.state_bytes > available:
        experts = ", layout.ep" if setup.model.experts else ""
        remedy = f"fewer tokens do not help: spread the parameters (tp, pp{experts}, layout.sharding, gpus)"
    raise OutOfMemoryError(
        f"{report.tokens_per_rank} tokens per rank need {needed / 2**30:.1f} GiB on {where}, "
        f"which has {available / 2**30:.1f} GiB{filled}; {remedy}",
        needed,
        available,
    )


def fit_notes(report: MemoryReport) -> tuple[str, ...]:
    """A word about a step that is simulated although memory does not suffice for it."""
    if report.fits:
        return ()
    needed, available = report.total_bytes / 2**30, report.capacity_bytes / 2**30
    on_host = ""
    if report.host_bytes > report.host_capacity_bytes:
        host, has = report.host_bytes / 2**30, report.host_capacity_bytes / 2**30
        on_host = f", {host:.1f} of {has:.1f} GiB of the host"
    return (
        f"does not fit: {needed:.1f} of {available:.1f} GiB on each GPU of stage {report.stage}{on_host} "
        f"(memory.must_fit is off)",
    )


def recompute_notes(setup: Setup) -> tuple[str, ...]:
    """A word where memory is told to keep much more or less than what time does not compute again."""
    layout, kept = setup.layout, setup.memory.overheads
    told_nothing = kept.selective_share is None and kept.selective_keeps is None
    if layout.recompute.kind != "selective" or told_nothing:
        return ()
    key = "selective_share" if kept.selective_keeps is None else "selective_keeps"
    by_layout = replace(kept, selective_share=None, selective_keeps=None)
    told, implied = (usual_activation_bytes(setup.model, layout, one) for one in (kept, by_layout))
    if abs(told - implied) <= FAR_APART * implied:
        return ()
    return (
        f"memory.{key} keeps {told / 2**10:.1f} KiB of a token in a layer; what the layout's shares of recomputation "
        f"do not repeat is {implied / 2**10:.1f} KiB: memory follows the first, time the second",
    )


def allocator_s(setup: Setup, plan: Plan, cal: Calibration) -> float:
    """Return what every micro-batch waits for memory that a host which runs ahead has used up (refill_s)."""
    if not setup.memory.overheads.host_run_ahead:
        return 0.0
    return refill_s(plan_memory(setup, plan), cal)


def with_allocator_waits(plan: Plan, wait_s: float, execution: Execution) -> Execution:
    """*execution* with the host's wait for memory in every micro-batch; ranks with fewer wait for the others.

    A host that launches kernels for half of the step or more never gets so far ahead.
    """
    host = execution.accounts.index("host")
    if not wait_s or execution.account_s[host].mean() >= execution.step_s / 2.0:
        return execution
    waits_s = wait_s * np.bincount(plan.entries.rank, minlength=plan.ranks)
    account_s = execution.account_s.copy()
    account_s[host] += waits_s[:, None]
    account_s[execution.accounts.index("wait_gradients")] += (waits_s.max() - waits_s)[:, None]
    longest_s = float(waits_s.max())
    step_s = execution.step_s + longest_s
    return replace(execution, step_s=step_s, account_s=account_s, allocator_wait_s=longest_s)


def allocator_notes(wait_s: float, report: MemoryReport, execution: Execution) -> tuple[str, ...]:
    """A word about a host that queues more than the memory holds: what it waits for, or that it is too slow to."""
    if not wait_s:
        return ()
    beyond = (report.total_bytes + report.run_ahead - report.capacity_bytes) / 2**30
    if not execution.allocator_wait_s:
        return (
            f"the work that a host can queue needs {beyond:.1f} GiB more than the memory has; no wait is counted, "
            f"since launches take half of the step or more (it would be {wait_s:.3g} s a micro-batch)",
        )
    return (
        f"{execution.allocator_wait_s:.3g} s of the host's time are waits for memory: the work that it queues needs "
        f"{beyond:.1f} GiB more than there is, and the allocator gives blocks back and gets them again "
        f"({wait_s:.3g} s a micro-batch); lower layout.rank_capacity or set it to auto",
    )


def settled_layout(setup: Setup, plan: Plan) -> Layout:
    """The layout with the degree of its static mesh, which the plan settles where none is stated."""
    if not setup.strategy.has_one_mesh:
        return setup.layout
    return setup.layout.changed(cp=int(plan.group_size.max()))


def _layout(setup: Setup) -> Layout:
    """The layout as memory sees it: groups as sequences need them have no degree, whatever the mesh would have."""
    if setup.strategy.has_one_mesh or setup.layout.parallel.cp is None:
        return setup.layout
    return setup.layout.changed(cp=None)


def _offload_ratio(setup: Setup) -> float:
    return setup.strategy.activation_offload if setup.strategy.name == "static" else 0.0
