"""What a plan costs, as whoever plays it reads it: arrays by stage and micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.step.data_loading import DataPath
from hdpsim.cost_models.step.step_traffic import StepTraffic

MeetsAfter = Literal["step", "loss", "pass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """What follows a stage's last backward, and what precedes its first forward. Arrays over stages."""

    data_s: float
    """Exposed time before the step's first forward: loading, planning, a common pause (all ranks alike)."""
    parameter_gather_s: Floats
    """Exposed part of the parameter all-gather before the first forward of a stage."""
    gradient_sync_s: Floats
    """Exposed part of the gradient reduce-scatter after the last backward of a stage."""
    optimizer_s: Floats
    """Optimizer update (and gradient-norm) after the gradients of the whole model are there."""
    planning_s: float = 0.0
    """Part of data_s: batch metadata, planning and sending the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """What ranks exchange and update once a step, before anything hides it, whatever they computed. Over stages."""

    gather_s: Floats
    """Parameter all-gather, and the part of it before the first layer can start."""
    first_gather_s: Floats
    sync_s: Floats
    """Gradient sums, and the part of them that only the last layer starts."""
    last_sync_s: Floats
    backward_gathers_s: Floats
    """What the last backward's gathers of layers take of the network that these sums need."""
    optimizer_s: Floats
    tied_sync_s: Floats
    """Sum of an embedding's gradients on two stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTimes:
    """Ranks on nodes of several kinds: what each takes of the time of its group, which is the slowest member's.

    Attributes:
        rank_kind: [ranks]: the kind of node of every rank.
        forward: [kinds of node, K, n]: share of forward_terms_s that a member of that kind computes.
        backward: [kinds of node, K, n]: share of backward_terms_s that a member of that kind computes.
    """

    rank_kind: Ints
    forward: Floats
    backward: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of everything a plan executes. S stages, V chunks a stage, n micro-batches, T terms.

    The virtual stage of (chunk v, stage s) is v * S + s, unless the schedule places them otherwise
    (cost_models.pipeline.virtual_stage_table); a forward visits them in that order.
    """

    stages: int
    chunks: int
    terms: tuple[str, ...]
    """Names of the parts of a forward or backward, in the order of the breakdown arrays."""
    forward_terms_s: Floats
    """[T, K, n]: seconds of each term for each *kind* of virtual stage."""
    backward_terms_s: Floats
    """[T, K, n]"""
    kind: Ints
    """[S, V]: which kind (row K) of virtual stage sits on stage s as chunk v."""
    transfer_s: Floats
    """[n]: stage-to-stage transfer of the activations (forward) or their gradients (backward)."""
    epilogue: Epilogue
    alike: bool = False
    """Every micro-batch costs the same: the arrays above are read-only views of one column, repeated."""
    schedule: Schedule = "1f1b"
    """1f1b and interleaved differ in the number of chunks alone."""
    weight_terms_s: Floats | None = None
    """[T, K, n]: the part of backward_terms_s that is the weight gradient. None = nothing of it can run apart."""
    overlapped_term: int | None = None
    """The term (its place in terms) that DualPipe hides behind the computation of the other direction."""
    allocator_s: float = 0.0
    """What the host of a rank waits for memory in every micro-batch."""
    pp_overlap: bool = True
    """Transfers run beside computation. False: they hold the sending and the receiving stage."""
    drains_every: int = 0
    """Micro-batches of a rank after which its pipeline drains and begins anew; 0: it drains once a step."""
    meeting_ranks: int = 1
    """Neighbouring ranks whose micro-batches of one slot begin and end together: they meet in every layer."""
    meets_after: MeetsAfter = "step"
    """When all ranks of a stage wait for each other: at the end of the step alone, also after the forward of every slot
    on the last virtual stage (they average its loss), or after every forward and backward (8-bit maxima)."""
    members: MemberTimes | None = None
    """What members of a group take that are faster than its slowest one; None: all members take the same."""
    data_path: DataPath | None = None
    """What runs beside training to get the next batches ready; None: nothing that could be late."""
    traffic: StepTraffic | None = None
    """What is sent between nodes, for whoever asked; None: nobody did."""

    @property
    def forward_s(self) -> Floats:
        """[K, n]: whole forward of a virtual stage of each kind."""
        return np.asarray(self.forward_terms_s.sum(axis=0))

    @property
    def backward_s(self) -> Floats:
        """[K, n]"""
        return np.asarray(self.backward_terms_s.sum(axis=0))

    @property
    def weight_s(self) -> Floats:
        """[K, n]: the weight gradients in backward_s."""
        if self.weight_terms_s is None:
            return np.zeros(self.backward_terms_s.shape[1:])
        return np.asarray(self.weight_terms_s.sum(axis=0))

    def repeated(self, count: int) -> StepCosts:
        """The costs of *count* micro-batches that are all like the first."""
        return replace(
            self,
            forward_terms_s=_repeated(self.forward_terms_s, count),
            backward_terms_s=_repeated(self.backward_terms_s, count),
            weight_terms_s=None if self.weight_terms_s is None else _repeated(self.weight_terms_s, count),
            transfer_s=_repeated(self.transfer_s, count),
            traffic=None if self.traffic is None else self.traffic.repeated(count),
            alike=True,
        )


def _repeated(once: Floats, count: int) -> Floats:
    """[..., count]: the first entry of the last axis *count* times, read-only, without a copy.

    What np.broadcast_to does, in a sixth of its time.
    """
    once = np.ascontiguousarray(once[..., :1])
    shape, strides = (*once.shape[:-1], count), (*once.strides[:-1], 0)
    every: Floats = np.ndarray(shape, once.dtype, once, strides=strides)
    every.setflags(write=False)
    return every
