"""What a strategy is asked: one batch of lengths, the ranks, their capacity and what work costs there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cost_models.micro_batch_cost import MicroBatchCost
from simulator.setup import StrategyOptions

__all__ = ["PlanningProblem"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """A batch to be planned. Lengths are at most the context; work is in seconds of the busiest stage."""

    lengths: Ints
    ranks: int
    capacity_tokens: int
    context_tokens: int
    cost: MicroBatchCost
    options: StrategyOptions

    @property
    def stages(self) -> int:
        """Pipeline stages of a rank."""
        return self.cost.layout.pp

    @property
    def bubble_weight(self) -> float:
        """Micro-batch times a pipeline idles while it fills and drains: (p - 1) / v (Narayanan et al., SC'21)."""
        return (self.cost.layout.pp - 1) / self.cost.layout.vpp

    @property
    def ranks_per_node(self) -> int:
        """Ranks whose GPUs (of one stage) share a node; 1 when a rank is a node or more."""
        return max(1, self.cost.cluster.node.gpus // self.cost.layout.tp)

    @cached_property
    def token_s(self) -> float:
        """Linear work per token of a rank."""
        return self.cost.token_s(float(self.capacity_tokens))

    @cached_property
    def floor_s(self) -> float:
        """Least time of a micro-batch, however few tokens it holds."""
        return self.cost.floor_s

    @cached_property
    def fixed_s(self) -> float:
        """Host work of one micro-batch."""
        return self.cost.cal.micro_batch_fixed_s

    def compact_tier(self, group_size: ArrayLike) -> Ints:
        """Tier of a group of neighbouring ranks: the best its ring can get."""
        sizes = np.asarray(group_size, dtype=np.int64)
        return self.cost.fabric.span_tier(np.zeros_like(sizes), (sizes - 1) * self.cost.layout.tp)

    def sequence_s(self, lengths: ArrayLike, group_size: ArrayLike) -> Floats:
        """Time of a micro-batch that holds one sequence on a group of neighbouring ranks."""
        tokens, sizes = np.asarray(lengths, dtype=np.float64), np.asarray(group_size, dtype=np.float64)
        attention = self.cost.sequence_s(tokens, sizes, self.compact_tier(group_size))
        return np.asarray(np.maximum(attention + self.token_s * tokens / sizes, self.floor_s) + self.fixed_s)

    def piece_s(self, lengths: ArrayLike) -> Floats:
        """Work a sequence adds to a micro-batch of one rank (no floor, no fixed part)."""
        tokens = np.asarray(lengths, dtype=np.float64)
        ones = np.ones_like(tokens)
        return np.asarray(
            self.cost.sequence_s(tokens, ones, ones.astype(np.int64) * 0) + self.token_s * tokens
        )
