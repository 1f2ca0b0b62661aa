"""Which rank attends to what when attention alone is dealt to the ranks of a group, as DistCA's planner does it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Floats, Ints

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
        pairs: [ranks] pairs of a query and a key that a rank attends to.
        keys_before: [ranks] keys that a rank's pieces meet beside those of their own rows.
        copied: [ranks] elements that a rank copies into the buffers that are sent, and out of those that are received.
        added: elements of the copies of its keys' and values' gradients that a rank adds up.
        arriving: elements that the rank sends or receives which moves most of them before attention.
        leaving: elements of outputs that the rank sends or receives which moves most of them after attention.
    """

    pairs: Floats
    keys_before: Floats
    copied: Floats
    added: float
    arriving: float
    leaving: float


class Disaggregated(NamedTuple):
    """Micro-batches, [n] each.

    Attributes:
        imbalance: attention of the rank that has most in both halves over the mean.
        backward_imbalance: the same of a backward, keys before its pieces counted, over the mean without any.
        first_share: share of that rank's attention that is in the first half.
        second_tokens: share of the tokens that the second half has.
        arriving: [2, n] elements that the busiest rank moves before the attention of either half.
        leaving: [2, n] elements that the busiest rank moves after the attention of either half.
        copied: elements that the rank copies which copies most, of both halves, in a forward as in a backward.
        added: elements of the gradients that a rank adds up in a backward.
    """

    imbalance: Floats
    backward_imbalance: Floats
    first_share: Floats
    second_tokens: Floats
    arriving: Floats
    leaving: Floats
    copied: Floats
    added: Floats


def disaggregated(
    tokens: Ints, offsets: Ints, group_size: Floats, widths: Widths, tolerance: float, pairs_per_key: float
) -> Disaggregated:
    """Deal the attention of the halves of every micro-batch; *pairs_per_key*: see SegmentAttention.

    The first half ends with the document after which it is nearest to half of the tokens; it may be all of them. From
    the attention of one half to that of the other a rank waits for nobody: queries and keys of the second were sent
    before. So the busiest rank is that of both halves together.
    Source: DistCA, section 4 (ping-pong); hao-ai-lab/distca, tests/test_e2e_combined.py (either half is planned alone),
    d2/runtime/megatron/ping_pong/transformer_layer.py (ticks), csrc/core/fastalltoall.cu (who waits for whom).
    """
    count = len(group_size)
    imbalance, of_backward, first_share, second_tokens = (np.full(count, one) for one in (1.0, 1.0, 1.0, 0.0))
    copied, added = np.zeros(count), np.zeros(count)
    arriving, leaving = np.zeros((2, count)), np.zeros((2, count))
    for number in np.flatnonzero(group_size > 1.0).tolist():
        own = tokens[offsets[number] : offsets[number + 1]].astype(np.int64)
        if not len(own):
            continue
        until = np.cumsum(own)
        cut = int(np.abs(2 * until - until[-1]).argmin()) + 1
        ranks = int(group_size[number])
        halves = [_dealt(half.tobytes(), ranks, widths, tolerance) for half in (own[:cut], own[cut:])]
        pairs = halves[0].pairs + halves[1].pairs
        busiest = int(pairs.argmax())
        imbalance[number] = pairs[busiest] / pairs.mean()
        keys_before = halves[0].keys_before + halves[1].keys_before
        of_backward[number] = (pairs + pairs_per_key * keys_before).max() / pairs.mean()
        first_share[number] = halves[0].pairs[busiest] / pairs[busiest]
        second_tokens[number] = 1.0 - until[cut - 1] / until[-1]
        copied[number] = (halves[0].copied + halves[1].copied).max()
        added[number] = halves[0].added + halves[1].added
        arriving[:, number] = [half.arriving for half in halves]
        leaving[:, number] = [half.leaving for half in halves]
    return Disaggregated(imbalance, of_backward, first_share, second_tokens, arriving, leaving, copied, added)


@lru_cache(maxsize=KEPT)
def _dealt(lengths: bytes, ranks: int, widths: Widths, tolerance: float) -> Dealt:
    documents = np.frombuffer(lengths, dtype=np.int64)
    if not len(documents):
        return Dealt(np.zeros(ranks), np.zeros(ranks), np.zeros(ranks), 0.0, 0.0, 0.0)
    pieces = _DocumentPieces(documents, ranks)
    room = pieces.room
    pieces.balance(widths, tolerance)
    pairs, keys_before = (
        np.bincount(pieces.rank, weights=weights, minlength=ranks).astype(np.float64)
        for weights in (pieces.pairs, pieces.length - pieces.rows * np.where(pieces.whole, 2.0, 1.0))
    )
    moved = pieces.moved()
    before = moved.queries * widths.queries + moved.keys * widths.keys_values
    rows = moved.at_home + moved.attended
    return Dealt(
        pairs=pairs,
        keys_before=keys_before,
        copied=rows * (widths.queries + widths.outputs) + moved.keys_copied * widths.keys_values,
        added=float(pieces.most_copies * room * widths.keys_values),
        arriving=float(before.max()),
        leaving=float(moved.queries.max() * widths.outputs),
    )


class _Moved(NamedTuple):
    """Tokens of every rank.

    Attributes:
        queries: queries that it sends or receives, whichever are more.
        keys: keys, with their values, that it sends or receives, whichever are more.
        at_home: queries that lie there.
        attended: queries that attend there.
        keys_copied: keys with their values that it copies to send them, its own pieces included, or once received.
    """

    queries: Floats
    keys: Floats
    at_home: Floats
    attended: Floats
    keys_copied: Floats


class _DocumentPieces:
    """Pieces of documents: rows from either end of a document, or all of it, on the rank that attends with them.

    A piece of q rows from the head and as many from the tail has q (s + 1) pairs, whichever rows they are.
    """

    def __init__(self, lengths: Ints, ranks: int) -> None:
        """Documents in order, each rank filled before the next; of what is cut half the rows are of either end.

        Source: hao-ai-lab/distca, d2/planner/planner.py, batch_to_items_general.
        """
        self._ranks = ranks
        ends = np.cumsum(lengths)
        self.room = room = -(-int(ends[-1]) // ranks)
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
        """Pairs of queries and keys of each piece."""
        return np.asarray(self.rows * (self.length + 1.0))

    def balance(self, widths: Widths, tolerance: float) -> None:
        """Move pieces, or parts of them, from ranks above the mean to those below it.

        Ranks are served by what they lack, most first, until they lack no more than *tolerance* of the mean. Of all
        pieces on ranks above the mean the one is taken whose move sends least for a pair: its queries, and keys and
        values of the whole document. It gives what the target lacks, what its rank has too much, or all it has.
        Source: hao-ai-lab/distca, d2/planner/planner.py, plan_items_greedy.
        """
        pairs = self.pairs
        surplus = np.bincount(self.rank, weights=pairs, minlength=self._ranks)
        mean = surplus.mean()
        surplus -= mean
        targets = np.flatnonzero(surplus < -tolerance * mean)
        for target in targets[np.argsort(surplus[targets], kind="stable")].tolist():
            while -surplus[target] > tolerance * mean:
                movable = np.minimum(np.minimum(surplus[self.rank], -surplus[target]), pairs)
                # Less than a row from either end
                movable[(movable < self.length + 1.0) & (movable < pairs)] = 0.0
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

    @property
    def most_copies(self) -> int:
        """Of the keys of one token: as many as its document has pieces, those from head and tail apart, at most."""
        return int(np.bincount(self.document, weights=np.where(self.whole, 1, 2)).max())

    def moved(self) -> _Moved:
        """What every rank sends, receives and copies.

        The rows of a piece from the head, and those from the tail, each get keys of their own from the beginning of the
        document on, wherever they are at home.
        Source: hao-ai-lab/distca, d2/runtime/compute_metadata.py (a copy for every shard of queries).
        """
        ranks = self._ranks
        away = self.rank != self.home
        rows = 2.0 * self.rows

        def of(rank: Ints, weights: Floats) -> Floats:
            return np.bincount(rank, weights=weights, minlength=ranks).astype(np.float64)

        keys_sent, keys_got = np.zeros(ranks), np.zeros(ranks)
        travels = np.isin(self.document, np.unique(self.document[away | ~self.whole]))
        copied = 2.0 * of(self.home, rows * ~travels)
        for document in np.unique(self.document[travels]).tolist():
            of_document = self.document == document
            half, before = self.rows[of_document], self.before[of_document]
            uncut = self.whole[of_document]
            begin = np.concatenate((before, np.where(uncut, np.inf, self.lengths[document] - before - half)))
            order = np.argsort(begin, kind="stable")
            order = order[np.isfinite(begin[order])]
            held = np.concatenate((np.where(uncut, 2.0 * half, half), half))[order]
            home, rank = np.tile(self.home[of_document], 2)[order], np.tile(self.rank[of_document], 2)[order]
            seen = np.tri(len(order))  # [queries, keys]
            needs = seen * (rank[:, None] != home[None, :])
            keys_got += of(rank, needs @ held)
            keys_sent += of(home, needs.sum(axis=0) * held)
            copied += of(rank, seen @ held) + of(home, seen.sum(axis=0) * held)
        return _Moved(
            queries=np.maximum(of(self.home, rows * away), of(self.rank, rows * away)),
            keys=np.maximum(keys_sent, keys_got),
            at_home=of(self.home, rows),
            attended=of(self.rank, rows),
            keys_copied=copied,
        )
