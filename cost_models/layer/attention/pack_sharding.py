"""Packs that are cut as a whole: on which ranks a document lies, and which rank of a group has most to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints, ranges


class Cut(NamedTuple):
    """How documents are cut: tokens, ranks of their groups, those of these that hold a part, and parts."""

    tokens: Floats
    group_size: Floats
    ranks: Floats
    slices: Floats

    @property
    def share(self) -> Floats:
        """Share of its group's ranks that hold each document."""
        return self.ranks / self.group_size

    def where(self, chosen: Bools, other: Cut) -> Cut:
        """The *other* cut of some documents, this one of the rest."""
        ranks, slices = (np.where(chosen, new, own) for own, new in zip(self[2:], other[2:], strict=True))
        return self._replace(ranks=ranks, slices=slices)

    @classmethod
    def by_document(cls, tokens: Ints, offsets: Ints, group_size: Floats) -> Cut:
        """Two slices of every document on every rank of its group, one from either end (zig-zag)."""
        sizes = np.repeat(group_size, offsets[1:] - offsets[:-1])
        return cls(tokens.astype(np.float64), sizes, sizes, np.where(sizes > 1.0, 2.0 * sizes, 1.0))


@dataclass(frozen=True, slots=True)
class PackPieces:
    """The pieces into which a cut of every pack divides its documents.

        rank i of d holds slices i and 2 d - 1 - i of the 2 d equal ones of the pack (zig-zag)

    Ignored: padding behind the last document.
    Source: WLB-LLM, arXiv 2503.17924, section 5 (per-sequence sharding).

    Attributes:
        tokens: [documents] length of every document.
        document: [pieces] number of the document that a piece is of.
        rank: [pieces] rank that holds the piece; ranks are numbered through all packs.
        begin: [pieces] first token of the piece in its document.
        end: [pieces] first token behind it.
        first_rank: [packs + 1] first rank of every pack; last, the number of all ranks.
    """

    tokens: Floats
    document: Ints
    rank: Ints
    begin: Floats
    end: Floats
    first_rank: Ints

    @classmethod
    def of(cls, tokens: Ints, offsets: Ints, group_size: Ints) -> PackPieces:
        """Cut micro-batches in CSR form, none of them empty.

        Counted in whole numbers through all packs: one of T tokens on d ranks has 2 d T units, each of its slices T.
        """
        packs, slices = np.arange(len(group_size)), 2 * group_size
        held = np.add.reduceat(tokens, offsets[:-1])
        pack_end = np.cumsum(held * slices)
        pack_start = pack_end - held * slices
        of_document, of_cut = np.repeat(packs, np.diff(offsets)), np.repeat(packs, slices - 1)
        before = np.cumsum(tokens) - tokens
        inside = (before - before[offsets[:-1]][of_document]) * slices[of_document]
        start = pack_start[of_document] + inside
        cut = pack_start[of_cut] + ranges(np.ones(len(packs), dtype=np.int64), slices - 1) * held[of_cut]
        # A piece begins where a document does, or a slice; where both do, that is one beginning, the document's.
        begin = np.concatenate((start, cut))
        order = np.argsort(begin, kind="stable")
        kept = np.append(True, np.diff(begin[order]) != 0)
        document = (np.cumsum(order < len(tokens)) - 1)[kept]
        begin = begin[order][kept]
        end = np.append(begin[1:], pack_end[-1])
        pack = of_document[document]
        number = (begin - pack_start[pack]) // held[pack]
        first_rank = np.concatenate(([0], np.cumsum(group_size)))
        units = slices[pack].astype(np.float64)
        return cls(
            tokens.astype(np.float64),
            document,
            first_rank[pack] + np.minimum(number, slices[pack] - 1 - number),
            (begin - start[document]) / units,
            (end - start[document]) / units,
            first_rank,
        )

    @property
    def cut(self) -> Cut:
        """What every document is cut into.

        ranks = pieces, or where slices go on from the last rank back: d - the lower of the ranks at both ends
        """
        pieces = np.bincount(self.document)
        behind = np.cumsum(pieces)
        first, last = self.rank[behind - pieces], self.rank[behind - 1]
        pack = np.searchsorted(self.first_rank, first, side="right") - 1
        group_size = np.diff(self.first_rank)[pack]
        turns = np.abs(last - first) + 1 != pieces
        ranks = np.where(turns, self.first_rank[pack] + group_size - np.minimum(first, last), pieces)
        return Cut(
            self.tokens,
            group_size.astype(np.float64),
            ranks.astype(np.float64),
            np.where(ranks > 1, pieces, 1).astype(np.float64),
        )

    def busiest(self, cost: Floats, work: Callable[[Floats, Ints], Floats]) -> Floats:
        """Per pack: what its busiest rank has to do of documents that *cost* each of d ranks so much on average.

        *work* of the first tokens of given documents says how the cost of a document is spread over its tokens.
        """
        done = work(self.end, self.document) - work(self.begin, self.document)
        document_work = work(self.tokens, np.arange(len(self.tokens)))
        share = done / document_work[self.document]
        of_rank = np.bincount(
            self.rank, weights=cost[self.document] * share, minlength=int(self.first_rank[-1])
        )
        return np.asarray(np.diff(self.first_rank) * np.maximum.reduceat(of_rank, self.first_rank[:-1]))
