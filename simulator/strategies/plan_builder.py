"""Plans without arrays: micro-batches are added one by one, and build() checks and assembles them."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.errors import PlanError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.call_own_strategy import check_plan
from hdpsim.simulator.strategies.hdp.groups import least_offload
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.packing import Pieces, assemble

Piece = tuple[int, int, int]
"""Sequence, first token, tokens: a part of a sequence."""


class PlanBuilder:
    """Collects the micro-batches of a plan.

        builder = hdpsim.PlanBuilder(problem)
        builder.add([0, 3, 4], ranks=[0])          # three sequences in one micro-batch on rank 0
        builder.add(1, ranks=range(4, 8))          # one sequence, shared by four ranks
        plan = builder.build()

    Attributes:
        problem: what is planned.
        tokens_of_rank: tokens that every rank has so far (its share of groups).
        next_slot: first slot of every rank behind all it has so far.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        self.tokens_of_rank = np.zeros(problem.ranks)
        self.next_slot = np.zeros(problem.ranks, dtype=np.int64)
        self._lengths: list[int] = problem.lengths.tolist()
        self._pieces: list[list[Piece]] = []
        self._members: list[Ints] = []
        self._slots: list[int] = []
        self._offload: list[float | None] = []

    def add(
        self,
        sequences: int | Iterable[int | Piece],
        ranks: int | Iterable[int],
        *,
        slot: int | None = None,
        offload: float | None = None,
    ) -> int:
        """Add a micro-batch.

        Args:
            sequences: one or several, by their place in problem.lengths; of parts of sequences a list of
                (sequence, first token, tokens).
            ranks: who computes it together.
            slot: when its ranks run it: they run what they have by ascending slots. With a pipeline, and where ranks
                meet in every layer, all have equal slots, and a slot that a rank leaves out idles. None: as soon as all
                are free.
            offload: share of its activations that goes to host memory; None: as much as it takes to fit.

        Returns:
            The number of the micro-batch.

        Raises:
            PlanError: a sequence or rank that does not exist, a rank that comes twice, a slot below 0.
        """
        number = len(self._members)
        pieces = [self._piece(one, number) for one in _several(sequences)]
        members = _rank_numbers(ranks, number)
        for what, empty in (("sequence", not pieces), ("rank", not len(members))):
            if empty:
                raise PlanError(f"micro-batch {number} has no {what}")
        if len(twice := members[1:][members[1:] == members[:-1]]):
            raise PlanError(f"micro-batch {number} has rank {twice[0]} twice")
        if members[0] < 0 or members[-1] >= self.problem.ranks:
            wrong = f"rank {members[0] if members[0] < 0 else members[-1]} does not exist"
            raise PlanError(f"micro-batch {number}: {wrong}; ranks are 0 .. {self.problem.ranks - 1}")
        if slot is None:
            slot = int(self.next_slot[members].max())
        elif _integer(slot, f"micro-batch {number}: slot") < 0:
            raise PlanError(f"micro-batch {number}: slot {slot} is below 0")
        self._pieces.append(pieces)
        self._members.append(members)
        self._slots.append(int(slot))
        tokens = sum(piece[2] for piece in pieces)
        self._offload.append(None if offload is None else _ratio(number, offload))
        self.tokens_of_rank[members] += tokens / len(members)
        self.next_slot[members] = np.maximum(self.next_slot[members], int(slot) + 1)
        return number

    def build(self, *, notes: Iterable[str] = ()) -> Plan:
        """The plan, checked: every token once, capacity, members, order, no deadlock.

        Raises:
            PlanError: the first promise that is broken, and where.
            DeadlockError: the cycle of ranks that wait for each other.
        """
        if not self._members:
            raise PlanError("the plan has no micro-batch")
        sizes = np.array([len(members) for members in self._members], dtype=np.int64)
        counts = [len(pieces) for pieces in self._pieces]
        flat = np.array([piece for pieces in self._pieces for piece in pieces], dtype=np.int64)
        member_ranks = np.concatenate(self._members)
        slots = np.array(self._slots, dtype=np.int64)
        _check_slots(member_ranks, slots, sizes)
        plan = assemble(
            self.problem,
            Pieces(flat[:, 2], flat[:, 0], flat[:, 1], np.repeat(np.arange(len(sizes)), counts)),
            group_size=sizes,
            member_ranks=member_ranks,
            slot=slots,
            offload_ratio=self._offload_ratios(sizes, flat, counts),
            keep_holes=self.problem.in_slots,
            notes=tuple(notes),
        )
        check_plan(self.problem, plan)
        return plan

    def _piece(self, described: object, number: int) -> Piece:
        parts = described if isinstance(described, tuple) else (described,)
        sequence, *rest = (_integer(part, f"micro-batch {number}: a sequence") for part in parts)
        if len(rest) not in (0, 2):
            raise PlanError(
                f"micro-batch {number}: a part is (sequence, first token, tokens), got {described}"
            )
        if not 0 <= sequence < len(self._lengths):
            wrong = f"sequence {sequence} does not exist"
            raise PlanError(f"micro-batch {number}: {wrong}; sequences are 0 .. {len(self._lengths) - 1}")
        start, tokens = rest or (0, self._lengths[sequence])
        return sequence, start, tokens

    def _offload_ratios(self, sizes: Ints, flat: Ints, counts: list[int]) -> Floats:
        """What was given, else as little as lets a micro-batch fit."""
        number = np.repeat(np.arange(len(sizes)), counts)
        tokens = np.bincount(number, weights=flat[:, 2]).astype(np.int64)
        least = least_offload(self.problem, tokens, sizes)
        least[least > 1.0] = 0.0  # too long for its ranks: the check of the plan says so
        return np.array(
            [ratio if given is None else given for ratio, given in zip(least, self._offload, strict=True)]
        )


def _ratio(number: int, offload: float) -> float:
    try:
        ratio = float(offload)
    except (TypeError, ValueError):
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise PlanError(f"micro-batch {number}: offload must lie in 0 .. 1, got {offload}")
    return ratio


def _rank_numbers(ranks: int | Iterable[int], number: int) -> Ints:
    """The ranks, ascending."""
    if isinstance(ranks, range) and ranks.step == 1:
        return np.arange(ranks.start, ranks.stop, dtype=np.int64)
    if not isinstance(ranks, range | np.ndarray):
        ranks = [_integer(rank, f"micro-batch {number}: a rank") for rank in _several(ranks)]
    members = np.atleast_1d(np.asarray(ranks))
    if members.ndim > 1 or (members.size and members.dtype.kind not in "iu"):
        raise PlanError(f"micro-batch {number}: ranks must be whole numbers in one list, got {ranks!r}")
    return np.sort(members.astype(np.int64))


def _check_slots(ranks: Ints, slots: Ints, sizes: Ints) -> None:
    """Raise unless every rank has at most one micro-batch at a slot; *slots* and *sizes*: of micro-batches."""
    number = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((number, slots[number], ranks))
    ranks, number = ranks[order], number[order]
    slots = slots[number]
    shared = np.flatnonzero((ranks[1:] == ranks[:-1]) & (slots[1:] == slots[:-1]))
    if len(shared):
        at = int(shared[0])
        both = f"micro-batches {number[at]} and {number[at + 1]} both have slot"
        error = PlanError(f"{both} {slots[at]} on rank {ranks[at]}")
        error.promise = "order"
        raise error


def _several(values: object) -> list[object]:
    return list(values) if isinstance(values, Iterable) else [values]


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise PlanError(f"{what} must be a whole number, got {value!r}")
    return int(value)
