"""Activations on their way to the host and back: who moves how much when, and how much of it a node's host holds.

A forward sends its activations to host memory as it goes; the backward of the same micro-batch, which comes last in
first out, brings them back. Host memory holds them from the begin of the forward to the end of the backward. What the
host link does not hide is part of both (offload_wait), so each stream ends with its operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.simulator.many_steps.host_memory import HostedProgram, operation_bytes
from hdpsim.simulator.play.accounts import Timeline, make_spans
from hdpsim.simulator.play.pipeline.program import Program
from hdpsim.simulator.play.pipeline.schedules import BACKWARD, FORWARD
from hdpsim.simulator.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What a step's offloading asks of hosts. Times count from the begin of the step.

    Attributes:
        peak_bytes: the most that a host holds at a time, on the node that holds most.
        held: (time, bytes) on that node, at every change.
        to_host_s: [n, 2]: begin and end of the transfers to the host of the GPU that moves most.
        from_host_s: [n, 2]: of those back.
    """

    peak_bytes: float
    held: Floats
    to_host_s: Floats
    from_host_s: Floats


def offload_of(setup: Setup, cost: MicroBatchCost, program: Program, timeline: Timeline) -> Offload | None:
    """The host memory and the streams of a step; None where nothing is offloaded.

        bytes of a GPU = r x bytes a token and layer x tokens of the rank x (layers - 2), chunk by chunk

    Ignored: that a host gives back what a layer no longer needs before its backward is over; pinned buffers.
    """
    moved_bytes = _moved_bytes(cost, program)
    if not moved_bytes.any():
        return None
    spans = make_spans(program, timeline)
    order = np.lexsort((spans.micro_batch, spans.chunk, spans.stage, spans.rank))
    forward, backward = (order[spans.op[order] == op] for op in (FORWARD, BACKWARD))
    rank, stage = spans.rank[forward], spans.stage[forward]
    volume = moved_bytes[program.costs.kind[stage, spans.chunk[forward]], spans.micro_batch[forward]]
    moving = volume > 0
    columns = (forward, backward, rank, stage, volume)
    forward, backward, rank, stage, volume = (column[moving] for column in columns)
    parallel, node_gpus = setup.layout.parallel, setup.cluster.node_gpus
    # Of every process the node (its first one, if its GPUs fill several), and how many GPUs of that it has.
    node = (rank * parallel.rank_stride + stage * parallel.stage_stride(program.ranks)) // node_gpus
    begin_s, end_s = spans.start_s[forward], spans.end_s[backward]
    fullest, held = _fullest_node(node, min(parallel.tp, node_gpus) * volume, begin_s, end_s)
    process = stage * program.ranks + rank
    busiest = process == np.bincount(process, volume).argmax()
    took_s = volume[busiest] / cost.offloading.bytes_per_s
    to_host = np.minimum(begin_s[busiest] + took_s, spans.end_s[forward][busiest])
    from_host = np.maximum(end_s[busiest] - took_s, spans.start_s[backward][busiest])
    return Offload(
        peak_bytes=fullest,
        held=held,
        to_host_s=np.stack([begin_s[busiest], to_host], axis=1),
        from_host_s=np.stack([from_host, end_s[busiest]], axis=1),
    )


def hosted_program(setup: Setup, cost: MicroBatchCost, program: Program, room_bytes: float) -> HostedProgram:
    """The step on hosts with so much room for what it offloads."""
    parallel = setup.layout.parallel
    return HostedProgram(
        program=program,
        unit_bytes=operation_bytes(program, _moved_bytes(cost, program)),
        rank_stride=parallel.rank_stride,
        stage_stride=parallel.stage_stride(program.ranks),
        tensor_gpus=min(parallel.tp, setup.cluster.node_gpus),
        node_gpus=setup.cluster.node_gpus,
        room_bytes=room_bytes,
    )


def _moved_bytes(cost: MicroBatchCost, program: Program) -> Floats:
    """[K, n]: what each GPU sends to the host of every micro-batch on every kind of virtual stage."""
    plan = program.plan
    of_layer = plan.offload_ratio * cost.offloading.activation_bytes_per_token * plan.tokens / plan.group_size
    return np.asarray(np.outer(np.array([kind.offloading_layers for kind in cost.kinds]), of_layer))


def _fullest_node(node: Ints, volume: Floats, begin_s: Floats, end_s: Floats) -> tuple[float, Floats]:
    """The most that any node holds at a time, and all (time, bytes) of that node."""
    nodes = np.concatenate([node, node])
    change = np.concatenate([volume, -volume])
    when_s = np.concatenate([begin_s, end_s])
    order = np.lexsort((change, when_s, nodes))  # what ends gives back before what begins at the same time
    nodes, change, when_s = nodes[order], change[order], when_s[order]
    held = np.cumsum(change)
    first = np.flatnonzero(np.diff(nodes, prepend=-1))
    held -= np.repeat(held[first] - change[first], np.diff(first, append=len(nodes)))
    fullest = int(held.argmax())
    own = nodes == nodes[fullest]
    return float(held[fullest]), np.stack([when_s[own], np.maximum(held[own], 0.0)], axis=1)
