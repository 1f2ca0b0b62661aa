"""What a strategy is asked: one batch of lengths, the ranks, their capacity and what work costs there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.step.mixed_nodes import MixedCost
from hdpsim.cost_models.transformer.stages import bubble_weight
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.setup import StrategyOptions
from hdpsim.simulator.strategies.estimate_errors import EstimateError

EVERY_SIZE_UP_TO = 1024
"""Tokens up to which the table of linear work has every size; beyond, sizes grow by 1 / EVERY_SIZE_UP_TO."""
AT_ONCE = 2**14
"""So many sequences on groups are priced at once: their arrays stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class PlanningProblem:
    """A batch to be planned. Lengths are at most the context; work is in seconds of the busiest stage."""

    lengths: Ints
    ranks: int
    capacity_tokens: int
    context_tokens: int
    cost: MicroBatchCost
    options: StrategyOptions
    pack_tokens: int | None = None
    """Tokens that packs are filled up to; longer sequences are micro-batches of their own, which may be shared though
    they fit one rank. None = the capacity."""

    hosted_tokens: float = np.inf
    """Tokens of a sequence that a rank can hold while its host has room for the activations that are offloaded."""

    quick: bool = False
    """Fewer drafts of a balanced plan, none of packs of other sizes: for a search that plans its survivors in full."""

    error: EstimateError | None = None
    """How far off the planner's estimates are; None: they are the truth."""

    mixed: MixedCost | None = None
    """Nodes of several kinds: what work costs on each. `cost` is that of the slowest then, the capacity the least."""

    kinds: tuple[PlanningProblem, ...] = ()
    """With nodes of several kinds, the same batch on every kind of node as if all nodes were of it."""

    @property
    def target_tokens(self) -> int:
        """Tokens of a full pack."""
        return self.capacity_tokens if self.pack_tokens is None else self.pack_tokens

    @property
    def mesh_offload_ratio(self) -> float:
        """Share of kept activations that micro-batches of a mesh send to host memory; HDP's stay on the GPU."""
        return self.options.activation_offload if self.options.name == "static" else 0.0

    @property
    def stages(self) -> int:
        """Pipeline stages of a rank."""
        return self.cost.layout.parallel.pp

    @property
    def meets(self) -> bool:
        """Whether ranks meet in every layer (zero3, experts across ranks): a slot takes what its slowest one does."""
        return self.cost.layout.meeting_ranks(self.ranks) > 1

    @property
    def in_slots(self) -> bool:
        """Whether a micro-batch needs the same slot on all its ranks: in a pipeline, and where ranks meet."""
        return self.stages > 1 or self.meets

    @property
    def bubble_weight(self) -> float:
        """Micro-batch times a pipeline idles while it fills and drains, of the layout's schedule."""
        return bubble_weight(self.cost.layout)

    @property
    def ranks_per_node(self) -> int:
        """Ranks whose GPUs (of one stage) share a node; 1 when a rank is a node or more."""
        return max(1, self.cost.cluster.node.gpus // self.cost.layout.parallel.rank_stride)

    @cached_property
    def most_ranks(self) -> int:
        """Ranks of the largest group that can share a sequence: all, or what the kind of context parallelism allows."""
        most = self.cost.attention.most_ranks
        return self.ranks if most is None else min(self.ranks, most)

    @property
    def work_grows_with_groups(self) -> bool:
        """Whether more ranks never take fewer rank-seconds for a sequence: not where each has whole heads (ulysses).

        Of 8 heads one of 7 ranks has two, as of 4 ranks all have.
        """
        return self.cost.layout.context.kind != "ulysses"

    @property
    def spread_reason(self) -> str:
        """Why no group has more than most_ranks; empty where all ranks may share a sequence."""
        if self.most_ranks == self.ranks:
            return ""
        layout = self.cost.layout
        what = f"layout.cp_kind = {layout.context.kind} spreads"
        if self.cost.model.mamba is not None and layout.context.kind != "ulysses":
            what = "scans of Mamba-2 layers are spread by"
        return f"{what} whole heads, of which a GPU has {self.most_ranks} (layout.tp = {layout.parallel.tp})"

    def too_long(self, tokens: int, ranks: int, however: str = "") -> InfeasibleError:
        """The error that a sequence does not fit on so many ranks, *however* that is tried."""
        reason = f"; {self.spread_reason}" if self.spread_reason else ""
        return InfeasibleError(
            f"a sequence of {tokens} tokens does not fit on {ranks} ranks of {self.capacity_tokens} tokens{however} "
            f"(layout.rank_capacity){reason}"
        )

    @property
    def shape_tokens(self) -> int:
        """Tokens that a micro-batch has on a rank at least, padding included; 0: no more than its sequences."""
        return self.capacity_tokens if self.options.fixed_shape and self.options.of_bytescale else 0

    def padding_tokens(self, tokens: Ints, group_size: Ints) -> Ints | None:
        """What fills micro-batches of so many tokens up to their shape; None where they have none."""
        if not self.shape_tokens:
            return None
        return np.asarray(np.maximum(0, self.shape_tokens * group_size - tokens), dtype=np.int64)

    @cached_property
    def token_s(self) -> float:
        """Linear work per token of a rank, in full packs."""
        return _token_s(self.cost, self.target_tokens)

    @cached_property
    def floor_s(self) -> float:
        """Least time of a micro-batch, however few tokens it holds."""
        return self.cost.floor_s

    @cached_property
    def fixed_s(self) -> float:
        """Host work of one micro-batch on a stage: a pass forward and one backward of every chunk."""
        return 2.0 * self.cost.layout.pipeline.vpp * self.cost.pass_s

    def compact_tier(self, group_size: ArrayLike) -> Ints:
        """Tier of a group of neighbouring ranks: the best its ring can get."""
        return np.asarray(_compact_tiers(self.cost, self.ranks)[np.asarray(group_size, dtype=np.int64)])

    def sequence_s(self, lengths: ArrayLike, group_size: ArrayLike, least_tier: int = 0) -> Floats:
        """Time of a micro-batch that holds one sequence on a group of neighbouring ranks.

        With a *least_tier* of 1 the group is spread over nodes even where it would fit one.
        """
        tokens, sizes = np.asarray(lengths, dtype=np.float64), np.asarray(group_size, dtype=np.float64)
        if sizes.ndim == 2 and sizes.size > AT_ONCE and len(tokens) == len(sizes):
            rows = max(1, AT_ONCE // sizes.shape[1])
            parts = [slice(first, first + rows) for first in range(0, len(sizes), rows)]
            return np.concatenate([self.sequence_s(tokens[part], sizes[part], least_tier) for part in parts])
        tier = np.maximum(self.compact_tier(group_size), least_tier)
        seconds = self.micro_batch_s(self.cost.sequence_s(tokens, sizes, tier), tokens / sizes)
        return seconds if self.error is None else seconds * self.error.factors(lengths)

    def micro_batch_s(self, attention_s: ArrayLike, tokens: ArrayLike) -> Floats:
        """Time of micro-batches with so much attention and so many tokens on every rank, padding not among them."""
        table_tokens, linear_s = linear_table(self.cost, self.most_tokens)
        held = np.maximum(np.asarray(tokens, dtype=np.float64), self.shape_tokens)
        work_s = np.asarray(attention_s) + np.interp(held, table_tokens, linear_s.max(axis=0))
        return np.asarray(np.maximum(work_s, self.floor_s) + self.fixed_s)

    @property
    def most_tokens(self) -> int:
        """Tokens a rank can hold of one sequence: C, or what fits with all layers but two offloaded."""
        return int(self.capacity_tokens * max(1.0, self.cost.busiest_layers / 2.0)) + 1

    def piece_s(self, lengths: ArrayLike) -> Floats:
        """Work a sequence adds to a micro-batch of one rank (no floor, no fixed part)."""
        work_s = self.true_piece_s(lengths)
        return work_s if self.error is None else work_s * self.error.factors(lengths)

    def true_piece_s(self, lengths: ArrayLike) -> Floats:
        """Seconds that a sequence adds to a micro-batch, without the error of estimates."""
        tokens = np.asarray(lengths, dtype=np.float64)
        nowhere = np.zeros(tokens.shape, dtype=np.int64)
        return np.asarray(self.cost.sequence_s(tokens, np.ones_like(tokens), nowhere) + self.token_s * tokens)


@lru_cache(maxsize=64)
def _token_s(cost: MicroBatchCost, pack_tokens: int) -> float:
    """A step is planned in as little time as some of these take: kept for the next batch."""
    return cost.token_s(float(pack_tokens))


@lru_cache(maxsize=64)
def _compact_tiers(cost: MicroBatchCost, ranks: int) -> Ints:
    """compact_tier of groups of no rank, of one, and so on up to all *ranks*."""
    last = (np.arange(ranks + 1) - 1) * cost.layout.parallel.rank_stride
    return cost.fabric.tier(np.zeros_like(last), last)


@lru_cache(maxsize=64)
def linear_table(cost: MicroBatchCost, most_tokens: int) -> tuple[Ints, Floats]:
    """Numbers of tokens up to *most_tokens*, and the linear work of a rank with so many, [stages, numbers]."""
    tokens = table_sizes(most_tokens)
    return tokens, cost.linear_s(tokens)


@lru_cache(maxsize=64)
def table_sizes(most_tokens: int) -> Ints:
    """Every number of tokens of linear_table, ascending (read-only)."""
    finest = EVERY_SIZE_UP_TO
    steps = np.arange(int(np.log(max(1.0, most_tokens / finest)) * finest) + 1)
    spread = np.minimum(finest * np.exp(steps / finest), most_tokens)
    tokens = np.concatenate((np.arange(1, finest), spread, [most_tokens])).astype(np.int64)
    tokens = np.unique(np.minimum(tokens, most_tokens))
    tokens.setflags(write=False)
    return tokens
