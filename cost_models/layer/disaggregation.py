"""Which rank attends to what when attention alone is dealt to the ranks of a group, as DistCA's planner does it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints

TOLERANCE = 0.1
"""Ranks may attend so much less than the mean (hao-ai-lab/distca, d2/planner/planner.py: tolerance_factor)."""
KEPT = 4096
"""Halves of micro-batches whose dealing is remembered: forward and backward ask for the same."""


class Widths(NamedTuple):
    """Elements of a token on one GPU."""

    queries: float
    keys_values: float
    outputs: float


class Dealt(NamedTuple):
    """Attention of half a micro-batch on the ranks of its group.

    Attributes:
        busiest_pairs: pairs of queries and keys of the rank that has most.
        mean_pairs: of all ranks.
        arriving: elements that the rank sends or receives which moves most of them before attention.
        leaving: the same of outputs, after it.
    """

    busiest_pairs: float
    mean_pairs: float
    arriving: float
    leaving: float


class Disaggregated(NamedTuple):
    """Micro-batches, [n] each.

    Attributes:
        imbalance: attention of the busiest ranks over the mean.
        first_share: of that attention in the first half.
        second_tokens: share of the tokens that the second half has.
        arriving: [2, n] elements that the busiest rank moves before the attention of either half.
        leaving: [2, n] after it.
    """

    imbalance: Floats
    first_share: Floats
    second_tokens: Floats
    arriving: Floats
    leaving: Floats


def disaggregated(tokens: Ints, offsets: Ints, group_size: Floats, widths: Widths) -> Disaggregated:
    """Deal the attention of the halves of every micro-batch.

    The first half ends with the document after which it is nearest to half of the tokens; it may be all of them.
    Source: DistCA, section 4 (ping-pong); hao-ai-lab/distca, tests/test_e2e_combined.py (either half is planned alone).
    """
    count = len(group_size)
    imbalance, first_share, second_tokens = np.ones(count), np.ones(count), np.zeros(count)
    arriving, leaving = np.zeros((2, count)), np.zeros((2, count))
    for number in np.flatnonzero(group_size > 1.0).tolist():
        own = tokens[offsets[number] : offsets[number + 1]].astype(np.int64)
        if not len(own):
            continue
        until = np.cumsum(own)
        cut = int(np.abs(2 * until - until[-1]).argmin()) + 1
        halves = [_dealt(half.tobytes(), int(group_size[number]), widths) for half in (own[:cut], own[cut:])]
        busiest = sum(half.busiest_pairs for half in halves)
        imbalance[number] = busiest / sum(half.mean_pairs for half in halves)
        first_share[number] = halves[0].busiest_pairs / busiest
        second_tokens[number] = 1.0 - until[cut - 1] / until[-1]
        arriving[:, number] = [half.arriving for half in halves]
        leaving[:, number] = [half.leaving for half in halves]
    return Disaggregated(imbalance, first_share, second_tokens, arriving, leaving)


@lru_cache(maxsize=KEPT)
def _dealt(lengths: bytes, ranks: int, widths: Widths) -> Dealt:
    documents = np.frombuffer(lengths, dtype=np.int64)
    if not len(documents):
        return Dealt(0.0, 0.0, 0.0, 0.0)
    pieces = _Pieces(documents, ranks)
    pieces.balance(widths)
    pairs = np.bincount(pieces.rank, weights=pieces.pairs, minlength=ranks)
    queries, keys = pieces.moved()
    before = queries * widths.queries + keys * widths.keys_values
    return Dealt(
        float(pairs.max()), float(pairs.mean()), float(before.max()), float(queries.max() * widths.outputs)
    )


class _Pieces:
    """Pieces of documents: rows from either end of a document, or all of it, on the rank that attends with them.

    A piece of q rows from the head and as many from the tail has q (s + 1) pairs, whichever rows they are.
    """

    def __init__(self, lengths: Ints, ranks: int) -> None:
        """Documents in order, each rank filled before the next; of what is cut half the rows are of either end.

        Source: hao-ai-lab/distca, d2/planner/planner.py, batch_to_items_general.
        """
        self._ranks = ranks
        ends = np.cumsum(lengths)
        room = -(-int(ends[-1]) // ranks)
        first = (ends - lengths) // room
        parts = (ends - 1) // room - first + 1
        self.document = np.repeat(np.arange(len(lengths)), parts)
        of_document = np.arange(len(self.document)) - np.repeat(np.cumsum(parts) - parts, parts)
        self.rank = first[self.document] + of_document
        self.home = self.rank.copy()
        begin = np.maximum(self.rank * room, (ends - lengths)[self.document])
        rows = np.minimum((self.rank + 1) * room, ends[self.document]) - begin
        self.length = lengths[self.document].astype(np.float64)
        self.rows = rows / 2.0
        """From the head, and as many from the tail."""
        self.before = (begin - (ends - lengths)[self.document]) / 2.0
        """Rows of the head before them, and of the tail behind."""
        self.whole = parts[self.document] == 1
        self.lengths = lengths.astype(np.float64)

    @property
    def pairs(self) -> Floats:
        """Of queries and keys, per piece."""
        return np.asarray(self.rows * (self.length + 1.0))

    def balance(self, widths: Widths) -> None:
        """Move pieces, or parts of them, from ranks above the mean to those below it.

        Ranks are served by what they lack, most first, until they lack no more than TOLERANCE of the mean. Of all
        pieces on ranks above the mean the one is taken whose move sends least for a pair: its queries, and keys and
        values of the whole document. It gives what the target lacks, what its rank has too much, or all it has.
        Source: hao-ai-lab/distca, d2/planner/planner.py, plan_items_greedy.
        """
        pairs = self.pairs
        surplus = np.bincount(self.rank, weights=pairs, minlength=self._ranks)
        mean = surplus.mean()
        surplus -= mean
        targets = np.flatnonzero(surplus < -TOLERANCE * mean)
        for target in targets[np.argsort(surplus[targets], kind="stable")].tolist():
            while -surplus[target] > TOLERANCE * mean:
                movable = np.minimum(np.minimum(surplus[self.rank], -surplus[target]), pairs)
                movable[(movable < self.length + 1.0) & (movable < pairs)] = (
                    0.0  # less than a row from either end
                )
                if not movable.any():
                    break
                wide = self.length + 1.0
                with np.errstate(divide="ignore"):
                    price = (movable / wide * widths.queries + wide * widths.keys_values) / movable
                piece = int(price.argmin())
                amount = float(movable[piece])
                surplus[self.rank[piece]] -= amount
                surplus[target] += amount
                pairs = self._move(piece, target, amount, pairs)

    def _move(self, piece: int, target: int, amount: float, pairs: Floats) -> Floats:
        """Give *amount* pairs of a piece to *target*: the rows next to the middle of the document."""
        if amount >= pairs[piece]:
            self.rank[piece] = target
            return pairs
        rows = amount / (self.length[piece] + 1.0)
        self.rows[piece] -= rows
        self.whole[piece] = False
        for name in ("document", "home", "length", "whole"):
            values = getattr(self, name)
            setattr(self, name, np.append(values, values[piece]))
        self.rank = np.append(self.rank, target)
        self.rows = np.append(self.rows, rows)
        self.before = np.append(self.before, self.before[piece] + self.rows[piece])
        pairs[piece] -= amount
        return np.append(pairs, amount)

    def moved(self) -> tuple[Floats, Floats]:
        """Per rank: rows of queries, and of keys with their values, that it sends or receives, whichever are more.

        The rows of a piece from the head, and those from the tail, each get keys of their own from the beginning of the
        document on, wherever they are at home.
        Source: hao-ai-lab/distca, d2/runtime/compute_metadata.py (a copy for every shard of queries).
        """
        ranks = self._ranks
        away = self.rank != self.home
        queries = 2.0 * self.rows * away
        sent = np.bincount(self.home, weights=queries, minlength=ranks)
        got = np.bincount(self.rank, weights=queries, minlength=ranks)
        keys_sent, keys_got = np.zeros(ranks), np.zeros(ranks)
        travels = np.isin(self.document, np.unique(self.document[away | ~self.whole]))
        for document in np.unique(self.document[travels]).tolist():
            of = self.document == document
            rows, before = self.rows[of], self.before[of]
            whole = self.whole[of]
            begin = np.concatenate((before, np.where(whole, np.inf, self.lengths[document] - before - rows)))
            order = np.argsort(begin, kind="stable")
            order = order[np.isfinite(begin[order])]
            held = np.concatenate((np.where(whole, 2.0 * rows, rows), rows))[order]
            home, rank = np.tile(self.home[of], 2)[order], np.tile(self.rank[of], 2)[order]
            needs = np.tri(len(order)) * (rank[:, None] != home[None, :])  # [queries, keys]
            keys_got += np.bincount(rank, weights=needs @ held, minlength=ranks)
            keys_sent += np.bincount(home, weights=needs.sum(axis=0) * held, minlength=ranks)
        return np.maximum(sent, got), np.maximum(keys_sent, keys_got)
