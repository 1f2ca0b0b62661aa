"""What a step sends between nodes and to hosts, and what hides it: for whoever lets transfers share links.

Prices of a step (StepCosts) hold what every transfer takes at a rate that is assumed for it. Traffic says how many
bytes that are at which rate, so that the same transfer can be priced at another one.

Counted: everything that crosses nodes: rings and other exchanges of context parallelism, tensor parallelism, experts'
all-to-alls, parameters gathered layer by layer, transfers between stages, gradient sums and parameter gathers; and
activations that go to host memory and come back.
Ignored: transfers inside a node (its switch does not block, and a GPU's port is many times its share of the NICs);
tokens that experts cut over several GPUs gather; sums of tied embeddings; metadata and checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.layer.overlapped_sends import SentTimes

TrafficKind = Literal["ring", "exchange", "spread", "tensor", "experts", "shards", "offload", "fetch"]
"""ring: hop by hop; exchange: a collective over the same ranks; spread: all-to-all over them (Ulysses); offload, fetch:
activations to the host's memory and back."""
HOST_KINDS: frozenset[TrafficKind] = frozenset({"offload", "fetch"})
"""Between GPUs and the memory of their hosts, beside all that an operation does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Transfers of one kind in a forward or backward of every micro-batch.

    seconds = times x max(hidden, fixed + bytes / rate)

    Attributes:
        kind: who sends to whom.
        backward: in which pass.
        term: place in StepCosts.terms of what shows of it.
        times: [K, n]: how often a virtual stage of each kind does it.
        sent: [n] each; its `times` are counted in times already.
    """

    kind: TrafficKind
    backward: bool
    term: int
    times: Floats
    sent: SentTimes

    def seconds(self, bytes_per_s: Floats) -> Floats:
        """[K, n] at a rate for every [K, n]."""
        wire_s = self.sent.fixed_s + self.sent.sent_bytes / bytes_per_s
        return np.asarray(self.times * np.maximum(self.sent.hidden_s, wire_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTraffic:
    """Collectives over neighbours among a stage's GPUs, once a step.

    Attributes:
        members: GPUs of a group.
        stride: GPUs of the stage from a member to the next one.
        ranks_per_node: members on a node.
        sent_bytes: [S]: by every GPU to other nodes.
        bytes_per_s: the rate that the price assumes.
    """

    members: int
    stride: int
    ranks_per_node: int
    sent_bytes: Floats
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraffic:
    """What a step sends between nodes.

    Attributes:
        passes: what forwards and backwards send.
        transfer_bytes: [n]: bytes that every GPU of a rank sends from stage to stage.
        transfer_fixed_s: [n]: seconds of a transfer, whatever its rate.
        node_bytes_per_s: rate of a transfer inside a node.
        gathers: gathers of parameters before a step's first forward.
        gather_s: [S]: how long the gathers take, hidden or not.
        sums: reductions of gradients.
        sync_s: [S]: how long the reductions take, hidden or not.
        shard_ranks: members of a group that shares parameters (zero3).
        expert_ranks: members of an expert-parallel group, and GPUs from one to the next.
    """

    passes: tuple[Traffic, ...]
    transfer_bytes: Floats
    transfer_fixed_s: Floats
    node_bytes_per_s: float
    gathers: tuple[SumTraffic, ...]
    gather_s: Floats
    sums: tuple[SumTraffic, ...]
    sync_s: Floats
    shard_ranks: int = 1
    expert_ranks: tuple[int, int] = (1, 1)

    def repeated(self, count: int) -> StepTraffic:
        """The traffic of *count* micro-batches that are all like the first."""

        def times(once: Floats) -> Floats:
            return np.broadcast_to(once[..., :1], (*once.shape[:-1], count))

        passes = tuple(
            replace(one, times=times(one.times), sent=SentTimes(*(times(column) for column in one.sent)))
            for one in self.passes
        )
        return replace(
            self,
            passes=passes,
            transfer_bytes=times(self.transfer_bytes),
            transfer_fixed_s=times(self.transfer_fixed_s),
        )
