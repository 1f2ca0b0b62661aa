"""What a plan takes on nodes of several kinds: every micro-batch at its slowest member, what all share at the slowest.

    micro-batch          max over the kinds among its members of its time on such a node, forward and backward
    gather, sync         max over all kinds, as if every node were of it
    optimizer            max over all kinds

Counted: GPU, memory, NVLink, NICs, processors and calibration of every kind.
Ignored: groups with a slow GPU in one member and a slow NIC in another, which take longer than either alone.
Limits: kinds that are equal, the cluster of one kind.
Source: a synchronous collective ends for all when its slowest member does (NCCL rings pass all members).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.step.data_parallel import ComputeWindows
from hdpsim.cost_models.step.deferred_head import deferred_head_s
from hdpsim.cost_models.step.epilogue import exposed_epilogue, step_sums
from hdpsim.cost_models.step.layer_prices import TERMS
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.step_costs import Epilogue, MemberTimes, StepCosts, StepSums
from hdpsim.cost_models.transformer.stages import chunks_per_stage


@dataclass(frozen=True, slots=True, eq=False)
class MixedCost:
    """Costs on nodes of several kinds.

    Attributes:
        kinds: the cost model of every kind of node, each as if all nodes were of it.
        rank_kind: [ranks]: the kind of every rank's nodes.
    """

    kinds: tuple[MicroBatchCost, ...]
    rank_kind: Ints

    @property
    def ranks(self) -> int:
        """All ranks."""
        return len(self.rank_kind)

    @property
    def ranks_of_kind(self) -> Ints:
        """[kinds]: how many ranks there are of each."""
        return np.bincount(self.rank_kind, minlength=len(self.kinds))

    def sums(self) -> StepSums:
        """What is exchanged and updated once a step, at the slowest."""
        every = [step_sums(cost, self.ranks) for cost in self.kinds]
        names = [item.name for item in fields(StepSums)]
        return StepSums(**{name: np.max([getattr(sums, name) for sums in every], axis=0) for name in names})

    def epilogue(self, *, data_s: float, windows: ComputeWindows | None) -> Epilogue:
        """Price what surrounds the micro-batches of a step: exchanges last as long as on their slowest nodes."""
        slowdown = max(cost.cal.overlap_slowdown for cost in self.kinds)
        return exposed_epilogue(self.kinds[0].layout, self.sums(), slowdown, data_s, windows)

    def step_costs(
        self, batches: MicroBatches, member_ranks: Ints, member_offsets: Ints, *, data_s: float
    ) -> StepCosts:
        """Everything an executor needs to play a plan with these micro-batches on those ranks."""
        first = self.kinds[0]
        layout = first.layout
        of_member = np.repeat(np.arange(batches.count), np.diff(member_offsets))
        present = np.zeros((len(self.kinds), batches.count), dtype=np.bool_)
        present[self.rank_kind[member_ranks], of_member] = True
        both = [cost.both_terms_s(batches) for cost in self.kinds]
        by_kind = [np.stack([terms[side] for terms in both]) for side in (0, 1)]
        (forward, forward_share), (backward, backward_share) = (_slowest(terms, present) for terms in by_kind)
        transfer = np.stack([cost.transfer_s(batches, self.ranks) for cost in self.kinds])
        micro_batches = float(batches.group_size.sum()) / self.ranks
        windows = [
            (
                self._mean_s(forward, terms[0], of_kind, batches.group_size),
                self._mean_s(backward, terms[1], of_kind, batches.group_size),
            )
            for terms, of_kind in zip(both, present, strict=True)
        ]
        slack_s = self._slack_s((forward + backward).sum(axis=0), member_ranks, of_member)
        by_kind_s = [ComputeWindows.of(layout, *means_s, micro_batches) for means_s in windows]
        epilogue = self.epilogue(data_s=data_s, windows=self._windows(by_kind_s, slack_s))
        if layout.defers_head_gradient:
            epilogue.optimizer_s[-1] += max(
                deferred_head_s(cost, batches, micro_batches, of_kind)
                for cost, (_, of_kind) in zip(self.kinds, windows, strict=True)
            )
        return StepCosts(
            stages=layout.parallel.pp,
            chunks=chunks_per_stage(layout.pipeline.schedule, layout.pipeline.vpp),
            terms=TERMS,
            forward_terms_s=forward,
            backward_terms_s=backward,
            kind=first.kind,
            transfer_s=np.where(present, transfer, 0.0).max(axis=0),
            epilogue=epilogue,
            schedule=layout.pipeline.schedule,
            pp_overlap=layout.pipeline.overlap or layout.parallel.pp == 1,
            drains_every=layout.pipeline.call or 0,
            meets_after=first.meets_after,
            members=MemberTimes(rank_kind=self.rank_kind, forward=forward_share, backward=backward_share)
            if bool((forward_share < 1.0).any() or (backward_share < 1.0).any())
            else None,
        )

    def _mean_s(self, played: Floats, own: Floats, present: Bools, ranks: Ints) -> Floats:
        """[stages]: mean over the *ranks* of micro-batches of a pass on nodes of one kind, from terms [T, K, n].

        Those of its ranks as they are *played* (with slower members), others as they would be there.
        """
        passes_s = np.where(present, played.sum(axis=0), own.sum(axis=0))
        seconds = np.average(passes_s, axis=-1, weights=ranks)
        return np.asarray(seconds[self.kinds[0].visited].sum(axis=1))

    def _windows(self, windows: list[ComputeWindows], slack_s: Floats) -> ComputeWindows:
        """What every kind has of compute to hide traffic behind: its own window, and what it ends earlier by."""
        forward_s, backward_s = (
            np.min([getattr(one, side) + slack for one, slack in zip(windows, slack_s, strict=True)], axis=0)
            for side in ("forward_s", "backward_s")
        )
        return ComputeWindows(forward_s=forward_s, backward_s=backward_s)

    def _slack_s(self, busy_s: Floats, member_ranks: Ints, of_member: Ints) -> Floats:
        """[kinds of node, stages]: how much less work the busiest rank of a kind has than the busiest of all.

        What ends earlier leaves its gradients more compute of others to be summed behind.
        """
        by_stage = self.kinds[0].by_stage(busy_s)
        busiest = np.zeros((len(self.kinds), len(by_stage)))
        for stage, seconds in enumerate(by_stage):
            load_s = np.bincount(member_ranks, weights=seconds[of_member], minlength=self.ranks)
            np.maximum.at(busiest[:, stage], self.rank_kind, load_s)
        return np.asarray(busiest.max(axis=0) - busiest)


def _slowest(terms_s: Floats, present: Bools) -> tuple[Floats, Floats]:
    """[T, K, n]: terms of the slowest kind *present* in every micro-batch; [kinds, K, n]: the others' share of it.

    *terms_s*: [kinds, T, K, n]. Kinds that are not present have a share of 1.
    """
    total_s = np.where(present[:, None, :], terms_s.sum(axis=1), -1.0)
    slowest = total_s.argmax(axis=0)
    chosen = np.take_along_axis(terms_s, slowest[None, None], axis=0)[0]
    longest_s = total_s.max(axis=0)
    share = np.divide(total_s, longest_s, out=np.ones_like(total_s), where=(longest_s > 0) & (total_s >= 0))
    return chosen, share
