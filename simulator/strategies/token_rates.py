"""The best rate that any micro-batch of up to so many tokens reaches in its linear work, for ideal plans."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.simulator.strategies.problem import linear_table


class TokenRates:
    """Least linear seconds per token of micro-batches up to each size.

    Of the way through all stages or of the stage that takes longest with one full sequence. Time grows with tokens, so
    between two sizes of the table the smaller one's time over the larger one's tokens is below any size between.
    """

    def __init__(self, cost: MicroBatchCost, capacity: int, most: int, *, all_stages: bool) -> None:
        sizes, linear = linear_table(cost, most)
        self._sizes = sizes.astype(np.float64)  # as what is searched for
        layers = cost.attention_layers_by_stage / max(1, cost.busiest_attention_layers)
        self.layers = float(layers.sum())
        """Layers with attention over the busiest stage's."""
        self.whole = not (all_stages and cost.layout.pipeline.schedule in SPLIT_SCHEDULES)
        """Weight gradients included; those that a schedule runs apart hold up no other stage."""
        if not self.whole:
            chosen = cost.by_stage(cost.linear_by_kind_s(sizes, weight_gradients=False)).sum(axis=0)
        elif all_stages:
            chosen = linear.sum(axis=0)
        else:
            full = cost.linear_s([capacity])[:, 0] + layers * float(cost.sequence_s(capacity, 1, 0))
            stage = int(full.argmax())
            self.layers = float(layers[stage])
            chosen = linear[stage]
        self._rate_s = np.minimum.accumulate(chosen / np.append(sizes[1:], sizes[-1] + 1))

    def linear_s(self, tokens: Floats) -> Floats:
        """Seconds of micro-batches of so many tokens at their best rates."""
        place = np.maximum(np.searchsorted(self._sizes, tokens, side="right") - 1, 0)
        return np.asarray(tokens * self._rate_s[place])


@lru_cache(maxsize=64)
def token_rates(cost: MicroBatchCost, capacity: int, most: int, *, all_stages: bool) -> TokenRates:
    """The rates of a cost model (kept for the next batch)."""
    return TokenRates(cost, capacity, most, all_stages=all_stages)
