"""Host memory of a node, which can run out: of a whole run, and inside a step that offloads.

A step that offloads more than its hosts can hold at once is played event by event. Every forward that offloads asks for
room on the nodes of all its members when it could begin; the backward of its micro-batch gives it back. Requests are
granted in the order in which they came, node by node, all nodes of a request together: nobody holds room on one node
while it waits for another. Forwards keep their order, so waiting does not always help: where everybody waits, the step
cannot run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.reading.units import format_quantity
from hdpsim.errors import OutOfMemoryError
from hdpsim.simulator.many_steps.lanes import Record
from hdpsim.simulator.play.engine import StepPlay
from hdpsim.simulator.play.pipeline.program import Program
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step_memory import states_on_host


class HostMemory:
    """The host of the node that needs most: who finds no room waits for it, first come first served.

    All nodes hold as much of batches and checkpoints; of what a step offloads the fullest node's peak counts, from
    the step's begin to its end.

    Attributes:
        most_bytes: the most that was held at a time, optimizer states apart.
        refused: why somebody never finds room; the run is over then.
    """

    def __init__(self, env: simpy.Environment, room_bytes: float | None, record: Record) -> None:
        """*room_bytes*: what steps, batches and checkpoints may hold together; None: as much as they like."""
        self._env, self._record = env, record
        self._room_bytes = None if room_bytes is None else max(0, math.floor(room_bytes))
        # Whole bytes: sums and differences are exact, so that what was taken can always be given back.
        self._left = simpy.Container(env, init=self._room_bytes) if self._room_bytes else None
        self._held_bytes = 0
        self.most_bytes = 0
        self.refused: OutOfMemoryError | None = None
        self._waiting: dict[str, float] = {}

    def take(self, wanted_bytes: float, what: str) -> simpy.Event:
        """The event fires when there is room."""
        whole_bytes = math.ceil(wanted_bytes)
        room = self._room_bytes
        if room is not None and whole_bytes > room:
            self.refused = OutOfMemoryError(
                f"{what} needs {format_quantity(wanted_bytes, 'bytes')} on the fullest host, which has room for "
                f"{format_quantity(room, 'bytes')}; offload less (strategy.selective_offloading, "
                f"strategy.activation_offload) or use nodes with more host memory",
                wanted_bytes,
                float(room),
            )
            return self._env.event()
        if whole_bytes == 0:
            return self._env.event().succeed()
        if self._left is None:
            self._took(whole_bytes)
            return self._env.event().succeed()
        self._waiting[what] = wanted_bytes
        event = self._left.get(whole_bytes)
        assert event.callbacks is not None
        event.callbacks.append(lambda _: self._took(whole_bytes, what))
        return event

    def give(self, held_bytes: float) -> None:
        """Give back what was taken."""
        whole_bytes = math.ceil(held_bytes)
        if not whole_bytes:
            return
        self._held_bytes -= whole_bytes
        self._record.value("host memory taken (B)", self._env.now, self._held_bytes)
        if self._left is not None:
            self._left.put(whole_bytes)

    def check(self) -> None:
        """Raise if somebody found no room, or still waits for it although nothing happens any more.

        Raises:
            OutOfMemoryError: who waits, and what the others hold.
        """
        if self.refused is not None:
            raise self.refused
        if not self._waiting or self._room_bytes is None:
            return
        what, wanted_bytes = next(iter(self._waiting.items()))
        raise OutOfMemoryError(
            f"{what} waits for {format_quantity(wanted_bytes, 'bytes')} of host memory that nobody gives back: "
            f"{format_quantity(self._held_bytes, 'bytes')} of {format_quantity(self._room_bytes, 'bytes')} are held by "
            "batches that were loaded ahead and copies of checkpoints; lower data.prefetch_steps or offload less",
            wanted_bytes,
            float(self._room_bytes - self._held_bytes),
        )

    def _took(self, whole_bytes: int, what: str = "") -> None:
        self._waiting.pop(what, None)
        self._held_bytes += whole_bytes
        self.most_bytes = max(self.most_bytes, self._held_bytes)
        self._record.value("host memory taken (B)", self._env.now, self._held_bytes)


def host_room_bytes(setup: Setup) -> float | None:
    """What the smallest host has beside optimizer states that live there; None where nothing has to fit."""
    if not setup.memory.must_fit:
        return None
    smallest = min(kind.node.host_memory_bytes for kind in setup.cluster.kinds)
    return smallest - states_on_host(setup) * setup.cluster.node_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedProgram:
    """A step, and what each of its operations holds on hosts.

    Attributes:
        program: the step.
        unit_bytes: [links, units]: what each GPU of a micro-batch's members holds from that link's forward on.
        rank_stride, stage_stride: GPUs from a rank to the next, and from a stage to the next.
        tensor_gpus: GPUs of a process that are on one node.
        node_gpus: GPUs of a node.
        room_bytes: what the step may hold on every node.
    """

    program: Program
    unit_bytes: Floats
    rank_stride: int
    stage_stride: int
    tensor_gpus: int
    node_gpus: int
    room_bytes: float

    def nodes(self, link: int, unit: int) -> tuple[Ints, Floats]:
        """The nodes of an operation's members, and what it holds on each."""
        plan = self.program.plan
        ranks = plan.member_ranks[plan.member_offsets[unit] : plan.member_offsets[unit + 1]]
        stage = int(self.program.stage_of(np.array(link), np.array(unit)))
        first = ranks * self.rank_stride + stage * self.stage_stride
        nodes, members = np.unique(first // self.node_gpus, return_counts=True)
        return nodes, np.asarray(members * (self.tensor_gpus * float(self.unit_bytes[link, unit])))


def operation_bytes(program: Program, moved_bytes: Floats) -> Floats:
    """[links, units]: what a forward takes of *moved_bytes* ([K, micro-batches]); backwards take nothing.

    Without a pipeline a unit is several micro-batches one after the other: the largest counts.
    """
    chain = program.chain
    if program.met is not None:
        moved_bytes = program.met.largest(moved_bytes)
    held = np.zeros((chain.links, program.units))
    if chain.links == 1:
        entries, first = program.entries, program.unit_entries
        of_entry = moved_bytes[program.costs.kind[0, 0], entries.micro_batch]
        held[0, entries.micro_batch[first]] = np.maximum.reduceat(of_entry, first)
        return held
    way = np.zeros(program.units, dtype=np.int64) if program.way is None else program.way
    for link in range(chain.virtual_stages):
        kind = program.costs.kind[chain.stage[way, link], chain.chunk[way, link]]
        held[link] = moved_bytes[kind, np.arange(program.units)]
    return held


class _Request:
    __slots__ = ("amounts", "granted", "nodes")

    def __init__(self, nodes: Sequence[int], amounts: Sequence[float], granted: simpy.Event) -> None:
        self.nodes, self.amounts, self.granted = nodes, amounts, granted


class Hosts:
    """Room on the hosts of all nodes, for one step."""

    def __init__(self, env: simpy.Environment, room_bytes: float) -> None:
        self._env, self._room_bytes = env, room_bytes
        self._left: dict[int, float] = {}
        self._queues: dict[int, deque[_Request]] = {}

    def take(self, nodes: Sequence[int], amounts: Sequence[float]) -> simpy.Event:
        """Return an event that fires when there is room on all of these nodes; the room is then taken."""
        request = _Request(nodes, amounts, self._env.event())
        for node in nodes:
            self._queues.setdefault(node, deque()).append(request)
        self._grant(nodes)
        return request.granted

    def give(self, nodes: Sequence[int], amounts: Sequence[float]) -> None:
        """Give back what was taken."""
        for node, amount in zip(nodes, amounts, strict=True):
            self._left[node] += amount
        self._grant(nodes)

    def waiting(self) -> tuple[int, float] | None:
        """A node and what somebody waits for there, if anybody waits."""
        for node, queue in self._queues.items():
            for request in queue:
                return node, request.amounts[list(request.nodes).index(node)]
        return None

    def _grant(self, nodes: Sequence[int]) -> None:
        """Grant what has come to the head of the queues of all its nodes and fits there."""
        todo = deque(nodes)
        while todo:
            queue = self._queues.get(todo.popleft())
            if not queue:
                continue
            request = queue[0]
            pairs = list(zip(request.nodes, request.amounts, strict=True))
            slack = 1e-9 * self._room_bytes  # sums of what was given back are rounded
            if any(self._queues[node][0] is not request for node, _ in pairs):
                continue
            if any(self._left.setdefault(node, self._room_bytes) + slack < amount for node, amount in pairs):
                continue
            for node, amount in pairs:
                self._left[node] -= amount
                self._queues[node].popleft()
            request.granted.succeed()
            todo.extend(request.nodes)  # who is next there


class HostedStep(StepPlay):
    """One step whose forwards wait for room on their hosts."""

    def __init__(self, hosted: HostedProgram, env: simpy.Environment) -> None:
        super().__init__(hosted.program)
        self._hosted, self._hosts = hosted, Hosts(env, hosted.room_bytes)
        self._links = hosted.program.chain.links

    def check_room(self, number: int) -> None:
        """Raise if operations of step *number* of the run wait for room for ever.

        Raises:
            OutOfMemoryError: on which node.
        """
        waiting = self._hosts.waiting()
        if waiting is None:
            return
        node, wanted_bytes = waiting
        room_bytes = self._hosted.room_bytes
        raise OutOfMemoryError(
            f"step {number} offloads more than hosts can hold: on node {node} a forward waits for "
            f"{format_quantity(wanted_bytes, 'bytes')} beside what is held of {format_quantity(room_bytes, 'bytes')}, "
            "and every backward that would give room back comes after it; offload less "
            "(strategy.selective_offloading, strategy.activation_offload) or use nodes with more host memory",
            wanted_bytes,
            room_bytes,
        )

    def _start(self, operation: Any) -> None:
        """Ask for room when the operation could begin."""
        link, unit = divmod(operation.number, self._units)
        if not self._hosted.unit_bytes[link, unit]:
            super()._start(operation)
            return
        wait_s = self._input_s[operation.number] - self._env.now
        if wait_s > 0:
            later = self._env.timeout(wait_s)
            later.callbacks.append(lambda _: self._ask(operation, link, unit))
        else:
            self._ask(operation, link, unit)

    def _ask(self, operation: Any, link: int, unit: int) -> None:
        nodes, amounts = self._hosted.nodes(link, unit)
        room = self._hosts.take(nodes.tolist(), amounts.tolist())
        room.callbacks.append(lambda _: super(HostedStep, self)._start(operation))

    def _operation_ended(self, operation: Any) -> None:
        """The last use of a forward's activations is over when its backward is."""
        super()._operation_ended(operation)
        link, unit = divmod(operation.number, self._units)
        forward = self._links - 1 - link  # whose activations the operation uses last, if it is its backward
        if forward <= link and self._hosted.unit_bytes[forward, unit]:
            nodes, amounts = self._hosted.nodes(forward, unit)
            self._hosts.give(nodes.tolist(), amounts.tolist())
