"""Host memory of a node as something that can run out."""

from __future__ import annotations

import math

import simpy

from hdpsim.cost_models.reading.units import format_quantity
from hdpsim.errors import OutOfMemoryError
from hdpsim.simulator.many_steps.record import Record
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
        whole = math.ceil(wanted_bytes)
        room = self._room_bytes
        if room is not None and whole > room:
            self.refused = OutOfMemoryError(
                f"{what} needs {format_quantity(wanted_bytes, 'bytes')} on the fullest host, which has room for "
                f"{format_quantity(room, 'bytes')}; offload less (strategy.selective_offloading, "
                f"strategy.activation_offload) or use nodes with more host memory",
                wanted_bytes,
                float(room),
            )
            return self._env.event()
        if whole == 0:
            return self._env.event().succeed()
        if self._left is None:
            self._took(whole)
            return self._env.event().succeed()
        self._waiting[what] = wanted_bytes
        event = self._left.get(whole)
        assert event.callbacks is not None
        event.callbacks.append(lambda _: self._took(whole, what))
        return event

    def give(self, held_bytes: float) -> None:
        """Give back what was taken."""
        whole = math.ceil(held_bytes)
        if not whole:
            return
        self._held_bytes -= whole
        self._record.value("host memory taken (B)", self._env.now, self._held_bytes)
        if self._left is not None:
            self._left.put(whole)

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

    def _took(self, whole: int, what: str = "") -> None:
        self._waiting.pop(what, None)
        self._held_bytes += whole
        self.most_bytes = max(self.most_bytes, self._held_bytes)
        self._record.value("host memory taken (B)", self._env.now, self._held_bytes)


def host_room_bytes(setup: Setup) -> float | None:
    """What the smallest host has beside optimizer states that live there; None where nothing has to fit."""
    if not setup.memory.must_fit:
        return None
    smallest = min(kind.node.host_memory_bytes for kind in setup.cluster.kinds)
    return smallest - states_on_host(setup) * setup.cluster.node_gpus
