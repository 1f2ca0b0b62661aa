"""Storage that several read and write at the same time: bandwidth shared max-min fair, job by job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import simpy

from hdpsim.cost_models.hardware.parts import LinkKind
from hdpsim.cost_models.network.links import Links, Pattern
from hdpsim.simulator.many_steps.lanes import Record
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork

_DONE = 1e-12
"""Share of a transfer's bytes that may be left when it ends: rounding."""


Direction = Literal["read", "write"]
_NICS: dict[Direction, LinkKind] = {"read": "nic-in", "write": "nic-out"}


class SharedStorage(Protocol):
    """What loaders and checkpoints share.

    Attributes:
        moved_bytes: bytes of all transfers so far.
    """

    moved_bytes: float

    def transfer(self, volume_bytes: float, fastest_bytes_per_s: float, direction: Direction) -> simpy.Event:
        """Move so many bytes, at most at that rate; the event fires when they are there."""


class _Transfer:
    __slots__ = ("ended", "fastest_bytes_per_s", "left_bytes", "rate_bytes_per_s", "volume_bytes")

    def __init__(self, volume_bytes: float, fastest_bytes_per_s: float, ended: simpy.Event) -> None:
        self.volume_bytes = self.left_bytes = volume_bytes
        self.fastest_bytes_per_s, self.rate_bytes_per_s, self.ended = fastest_bytes_per_s, 0.0, ended


class Storage:
    """One rate for all transfers together, and a fastest rate for each.

        rates: max-min fair; who is slower than a fair share leaves the rest to the others

    Counted: rates change when a transfer begins or ends.
    Ignored: metadata servers, stripes, that reading and writing cost differently.

    Attributes:
        moved_bytes: bytes of all transfers up to the last change.
    """

    def __init__(self, env: simpy.Environment, bytes_per_s: float, record: Record) -> None:
        self._env, self._bytes_per_s, self._record = env, bytes_per_s, record
        self._transfers: list[_Transfer] = []
        self._changed_s = 0.0
        self._plan = 0
        self.moved_bytes = 0.0

    def transfer(
        self, volume_bytes: float, fastest_bytes_per_s: float, direction: Direction = "read"
    ) -> simpy.Event:
        """Move so many bytes, at most at that rate; the event fires when they are there."""
        ended = self._env.event()
        if volume_bytes <= 0.0:
            return ended.succeed()
        self._advance()
        self._transfers.append(_Transfer(volume_bytes, fastest_bytes_per_s, ended))
        self._share()
        return ended

    def _advance(self) -> None:
        """Count what was moved since the last change."""
        passed_s = self._env.now - self._changed_s
        self._changed_s = self._env.now
        for transfer in self._transfers:
            transfer.left_bytes -= transfer.rate_bytes_per_s * passed_s
            self.moved_bytes += transfer.rate_bytes_per_s * passed_s

    def _share(self) -> None:
        """Give every transfer its rate, and wake up when the next one ends."""
        left_bytes_per_s, sharers = self._bytes_per_s, len(self._transfers)
        for transfer in sorted(self._transfers, key=lambda each: each.fastest_bytes_per_s):
            transfer.rate_bytes_per_s = min(transfer.fastest_bytes_per_s, left_bytes_per_s / sharers)
            left_bytes_per_s -= transfer.rate_bytes_per_s
            sharers -= 1
        total = sum(transfer.rate_bytes_per_s for transfer in self._transfers)
        self._record.value("storage (B/s)", self._env.now, total)
        self._plan += 1
        if self._transfers:
            first_s = min(transfer.left_bytes / transfer.rate_bytes_per_s for transfer in self._transfers)
            wake: simpy.Event = self._env.timeout(max(first_s, 0.0), value=self._plan)
            assert wake.callbacks is not None
            wake.callbacks.append(self._end)

    def _end(self, wake: simpy.Event) -> None:
        if wake.value != self._plan:  # rates have changed since
            return
        self._advance()
        # What ends with the next moment of the clock has ended: it could not pass for a shorter time.
        moment_s = 1e-15 * self._env.now
        before, self._transfers = self._transfers, []
        for transfer in before:
            if transfer.left_bytes <= _DONE * transfer.volume_bytes + moment_s * transfer.rate_bytes_per_s:
                transfer.ended.succeed()
            else:
                self._transfers.append(transfer)
        self._share()


@dataclass(slots=True)
class StorageOnNics:
    """Storage that is reached over the NICs of training: every NIC has a flow, and all of them share the storage.

    Counted: NICs and the storage, max-min fair with the flows of training.
    Ignored: switches between nodes and storage; which NIC is nearer.
    """

    network: FlowNetwork
    moved_bytes: float = 0.0

    def transfer(self, volume_bytes: float, fastest_bytes_per_s: float, direction: Direction) -> simpy.Event:
        """Move bytes between the job and the storage; the event fires when all of them have arrived."""
        links = self.network.links
        nics = np.arange(links.count[_NICS[direction]]) + links.first[_NICS[direction]]
        if volume_bytes <= 0.0 or not len(nics):
            return self.network.env.timeout(volume_bytes / fastest_bytes_per_s if volume_bytes > 0.0 else 0.0)
        shared = np.append(nics, links.first["storage"])
        pattern = Pattern(links=shared, flows=np.append(np.ones(len(nics)), float(len(nics))))
        each_bytes, least_s = volume_bytes / len(nics), volume_bytes / fastest_bytes_per_s
        ended = self.network.start(Activity.of(links, pattern, each_bytes, hidden_s=least_s, label="storage"))
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _: self._moved(volume_bytes))
        return ended

    def _moved(self, volume_bytes: float) -> None:
        self.moved_bytes += volume_bytes


def with_storage(links: Links, bytes_per_s: float) -> Links:
    """These links with another rate of the storage."""
    capacity = links.capacity_bytes_per_s.copy()
    capacity[links.first["storage"]] = bytes_per_s
    return replace(links, capacity_bytes_per_s=capacity)
