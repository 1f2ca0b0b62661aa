"""Groups whose ranks on a node do one thing and their nodes another: rings within rings, heads within rings."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.kernels.gemm import BF16_BYTES
from hdpsim.cost_models.layer.attention.ulysses_and_gather import AttentionHeads, ContextExchange
from hdpsim.cost_models.layer.micro_batches import Groups
from hdpsim.cost_models.layer.overlapped_sends import SentTimes
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.fabric import FabricModel

EULER_GAMMA = 0.5772156649


class Nest(NamedTuple):
    """Groups, [n] each: *inner* ranks side by side, *outer* such sets."""

    inner: Floats
    outer: Floats

    @classmethod
    def by_node(cls, group_size: Floats, tier: Ints, per_node: int) -> Nest:
        """The ranks of a group on a node, of which one holds *per_node*, and its nodes."""
        across = np.asarray(tier) > 0
        inner = np.where(across, np.minimum(per_node, np.ceil(group_size / 2.0)), group_size)
        return cls(inner, np.ceil(group_size / inner))

    @classmethod
    def by_heads(cls, group_size: Floats, tier: Ints, per_node: int, heads: int) -> Nest:
        """Cut the ranks into those that can share the heads of a GPU evenly, and the rest."""
        sizes = cls.by_node(group_size, tier, per_node).inner
        inner = np.array([math.gcd(int(size), heads) for size in np.ravel(sizes)], dtype=np.float64)
        inner = inner.reshape(np.shape(sizes))
        return cls(inner, group_size / inner)


class RingStepWork(NamedTuple):
    """What a rank does in one step of a ring: it attends, adds up a partial output; launches take so long at least."""

    step_s: Floats
    merge_s: Floats
    host_s: float


class NestedTimes(NamedTuple):
    """Of the hops of a layer's forward or backward, [n] each."""

    wait: Floats
    """Seconds that nothing hides, of all hops."""
    merges: Floats
    """Partial outputs that are added to others."""
    sent: SentTimes
    """What goes between sets, if they are on several nodes."""


def exposed_s(hop_s: Floats, work_s: Floats, kept: float, launch_s: float = 0.0) -> Floats:
    """Of a transfer that keeps so much of its rate beside work, and of launches, which keep all of theirs."""
    return np.maximum(np.maximum(0.0, hop_s - kept * work_s), launch_s - work_s)


class NestedRings:
    """Hops of groups of one kind of context parallelism (double-ring, hybrid).

    All GPUs of a node send between sets at once, each to one of the next set: those that share a NIC have a part of it.
    """

    def __init__(
        self,
        layout: Layout,
        fabric: FabricModel,
        cal: Calibration,
        heads: AttentionHeads,
        exchange: ContextExchange | None,
    ) -> None:
        """*exchange*: of heads within a set; None: rings alone."""
        self._fabric, self._cal, self._heads, self._exchange = fabric, cal, heads, exchange
        self._per_node = max(1, fabric.cluster.node.gpus // layout.parallel.rank_stride)

    def times(self, step_work: RingStepWork, groups: Groups, *, passes: float) -> NestedTimes:
        """Of groups that do so much *step_work*; *passes*: how often keys and values go round (gradients with them)."""
        volume = passes * BF16_BYTES * self._heads.kv_width * np.asarray(groups.tokens)
        sizes, tiers = np.broadcast_arrays(groups.size, groups.tier)
        of = self._double_ring if self._exchange is None else self._heads_in_rings
        return of(step_work, groups._replace(size=sizes, tier=tiers), volume)

    def _double_ring(self, step_work: RingStepWork, groups: Groups, volume: Floats) -> NestedTimes:
        """A ring of rings: keys and values of the ranks of a node go round in it, meanwhile to the next node.

            outer x (inner - 1) hops within a node      each beside one step
            outer - 1 hops between nodes                each beside a round of inner steps

        Source: LoongTrain (arXiv 2406.18485, section 4.4), BurstEngine (arXiv 2509.19836, section 3.1).
        """
        nest = Nest.by_node(groups.size, groups.tier, self._per_node)
        inner_s = self._hop_s(volume, nest.inner, np.zeros_like(groups.tier))
        outer_s = self._hop_s(volume, nest.outer, groups.tier)
        work_s, kept, hops = step_work.step_s + step_work.merge_s, self._cal.ring_overlap, nest.outer - 1.0
        waiting_s = exposed_s(inner_s, work_s, kept, step_work.host_s)
        round_s = nest.inner * (work_s + waiting_s)
        within_s = nest.outer * (nest.inner - 1.0) * waiting_s
        wait_s = within_s + hops * exposed_s(outer_s, round_s, kept)
        sent = self._sent(hops, outer_s, round_s, volume, groups.tier)
        return NestedTimes(wait_s, groups.size - 1.0, sent)

    def _heads_in_rings(self, step_work: RingStepWork, groups: Groups, volume: Floats) -> NestedTimes:
        """All-to-alls give every rank of a set all its tokens of some heads; keys and values go round between sets.

            wait = all-to-alls of the set + (outer - 1) x what a step of the ring does not hide

        Counted: key-value heads fewer than the ranks of a set go to several of them, and round so.
        Source: USP (arXiv 2405.07719, section 3), LoongTrain (arXiv 2406.18485, section 4.2: head-first placement).
        """
        assert self._exchange is not None
        nest = Nest.by_heads(groups.size, groups.tier, self._per_node, max(1, int(self._heads.heads)))
        volume = volume * np.maximum(1.0, nest.inner / self._heads.kv_heads)
        hop_s = self._hop_s(volume, nest.outer, groups.tier)
        work_s, hops = groups.size * step_work.step_s / nest.outer + step_work.merge_s, nest.outer - 1.0
        spread_s = self._exchange.spread_s(groups.tokens, nest.inner)
        wait_s = spread_s + hops * exposed_s(hop_s, work_s, self._cal.ring_overlap, step_work.host_s)
        sent = self._sent(hops, hop_s, work_s, volume, groups.tier, step_work.host_s)
        return NestedTimes(wait_s, hops, sent)

    def _hop_s(self, volume_bytes: Floats, members: Floats, tier: Ints) -> Floats:
        """One hop of all ranks to the next set; the slowest of *members* is waited for (AttentionCost.hop_s)."""
        slowest = (
            np.where(tier > 0, np.log(np.maximum(members, 1.0)) + EULER_GAMMA, 0.0) * self._cal.ring_delay_s
        )
        wire_s = volume_bytes / self._fabric.bytes_per_s(tier)
        return np.asarray(self._fabric.latency_s(tier) + slowest + wire_s)

    def _sent(
        self, hops: Floats, hop_s: Floats, work_s: Floats, volume: Floats, tier: Ints, launch_s: float = 0.0
    ) -> SentTimes:
        hops, rate = np.where(tier > 0, hops, 0.0), self._fabric.bytes_per_s(tier)
        kept = self._cal.ring_overlap
        return SentTimes.of_hops(hops, hop_s, work_s, volume, rate, kept=kept, launch_s=launch_s)
