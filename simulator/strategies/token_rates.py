"""The best rate that any micro-batch of up to so many tokens reaches in its linear work, for lower bounds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.micro_batch_cost import MicroBatchCost
from simulator.strategies.problem import linear_table, table_sizes

__all__ = ["TokenRates", "token_rates"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEW = 8
"""Numbers of tokens up to which searching for the best rate of each is quicker than tabulating all."""
BLOCK = 16
"""Neighbouring sizes that a search leaves out together: their rates differ by BLOCK / 1024."""


class TokenRates:
    """Least linear seconds per token of micro-batches up to each size.

    Of all stages together or of the stage that takes longest with one full sequence. Time grows with tokens, so
    between two sizes of the table the smaller one's time over the larger one's tokens is below any size between.

    *searched*: instead of pricing the whole table, which costs more than a static mesh's whole step, only sizes are
    priced that may be the best: the time of the first of a block over the tokens of its last is below the block's.
    """

    def __init__(
        self, cost: MicroBatchCost, capacity: int, most: int, *, all_stages: bool, searched: bool
    ) -> None:
        self._cost, self._most, self._searched = cost, most, searched
        self._sizes = table_sizes(most)
        self._numbers = self._sizes.astype(np.float64)  # as what is searched for
        self._following = np.append(self._sizes[1:], self._sizes[-1] + 1)
        layers = cost.layers_by_stage / cost.busiest_layers
        self._stage: int | None = None
        self.layers = float(layers.sum())
        """Layers over the busiest stage's."""
        if not all_stages:
            full = cost.linear_s([capacity])[:, 0] + layers * float(cost.sequence_s(capacity, 1, 0))
            self._stage = int(full.argmax())
            self.layers = float(layers[self._stage])
        self._table: Floats | None = None
        self._found: dict[int, float] = {}

    def linear_s(self, tokens: Floats) -> Floats:
        """Seconds of micro-batches of so many tokens at their best rates."""
        return np.asarray(tokens * self.least_s(tokens))

    def least_s(self, tokens: Floats) -> Floats:
        """Seconds per token, for micro-batches of up to each of *tokens*."""
        place = np.maximum(np.searchsorted(self._numbers, tokens, side="right") - 1, 0)
        if self._searched and self._table is None:
            distinct, back = np.unique(place, return_inverse=True)
            if len(distinct) <= FEW:
                found = np.array([self._best_of_first(last) for last in distinct.tolist()])
                return np.asarray(found[back].reshape(place.shape))
        if self._table is None:
            _, linear = linear_table(self._cost, self._most)
            self._table = np.minimum.accumulate(self._chosen(linear) / self._following)
        return np.asarray(self._table[place])

    def _chosen(self, linear: Floats) -> Floats:
        return np.asarray(linear.sum(axis=0) if self._stage is None else linear[self._stage])

    def _best_of_first(self, last: int) -> float:
        """The least rate among the first sizes of the table, up to number *last*."""
        if last not in self._found:
            self._found[last] = self._search(last)
        return self._found[last]

    def _search(self, last: int) -> float:
        priced = _priced_sizes(self._cost, self._most)
        starts = np.arange(0, last + 1, BLOCK)
        first_s = self._chosen(priced.linear_s(starts))
        best = float((first_s / self._following[starts]).min())
        open_blocks = starts[first_s / self._following[np.minimum(starts + BLOCK - 1, last)] < best]
        inside = (open_blocks[:, None] + np.arange(1, BLOCK)).ravel()
        inside = inside[inside <= last]
        if not len(inside):
            return best
        return min(best, float((self._chosen(priced.linear_s(inside)) / self._following[inside]).min()))


@lru_cache(maxsize=64)
def token_rates(
    cost: MicroBatchCost, capacity: int, most: int, *, all_stages: bool, searched: bool
) -> TokenRates:
    """The rates of a cost model (kept for the next batch)."""
    return TokenRates(cost, capacity, most, all_stages=all_stages, searched=searched)


class _PricedSizes:
    """Linear work at those sizes of the table that were asked for."""

    def __init__(self, cost: MicroBatchCost, most: int) -> None:
        self._cost, self._sizes = cost, table_sizes(most)
        self._linear_s = np.full((cost.layout.pp, len(self._sizes)), np.nan)

    def linear_s(self, places: Ints) -> Floats:
        """[stages, places]"""
        missing = places[np.isnan(self._linear_s[0, places])]
        if len(missing):
            self._linear_s[:, missing] = self._cost.linear_s(self._sizes[missing])
        return np.asarray(self._linear_s[:, places])


@lru_cache(maxsize=16)
def _priced_sizes(cost: MicroBatchCost, most: int) -> _PricedSizes:
    """Of a cost model: its busiest stage and all its stages look at much the same sizes."""
    return _PricedSizes(cost, most)
