"""Dynamic context parallelism for pipelines, planned a batch ahead: Megatron-Core's `balanced_with_pp`."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.flop import forward_flop
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.plan_micro_batches import plain_costs
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.strategies.plan_builder import PlanBuilder
from hdpsim.simulator.strategies.problem import PlanningProblem

MULTIPLES = 6
"""Micro-batches of a rank that are tried: so many times the stages at most."""
BIG = 1.3
"""A sequence of so many times the mean work of a slot is big: it is shared."""
ROOM = 1.05
LINEAR_BACKWARD, ATTENTION_BACKWARD = 2.7, 2.77
"""Backward over forward FLOP, as the solver has them."""


def balanced_with_pp(problem: PlanningProblem) -> Plan:
    """As many micro-batches on every rank, of equal FLOP: big sequences shared, small ones packed (`balanced_with_pp`).

        for m = 1 .. 6:       m x stages slots on each of R ranks;  T = FLOP of the batch / slots
            big (FLOP > 1.3 T), longest first: on about FLOP / T ranks, a power of two, an aligned block of those with
                most free slots; filled up to that many T with the largest small ones
            small, largest first: to the slot with the least FLOP that has room for the mean tokens of a slot;
                what finds none, longest first: to the slot that it exceeds least
        the m whose 1F1B step is shortest, in FLOP and without transfers

    A shared slot of FLOP F on d ranks counts F / d on each. Where a rank would hold more than it can, that m is left
    out (Megatron-Core simulates its memory).
    Counted: layout.cp as the most ranks of a group, where it is stated.
    Ignored: virtual stages, as in the source; planning runs beside training.
    Source: Megatron-LM, pull request 2959 (data_schedule.py, balanced_with_pp).

    Raises:
        InfeasibleError: fewer sequences than slots, or none of the m fits.
    """
    best: tuple[float, Plan] | None = None
    for multiple in range(1, MULTIPLES + 1):
        slots = multiple * problem.stages
        if slots * problem.ranks > len(problem.lengths):
            break
        draft = _Draft.of(problem, slots)
        if draft is None:
            continue
        plan = draft.plan()
        step = run_replay(plan, draft.costs(plan)).step_s
        if best is None or step < best[0]:
            best = step, plan
    if best is None:
        raise InfeasibleError(
            f"balanced_with_pp needs a sequence for each of {problem.stages} slots on {problem.ranks} ranks, and room "
            f"for them: the batch has {len(problem.lengths)} sequences; take a larger data.batch or a larger "
            "layout.rank_capacity"
        )
    return best[1]


@dataclass(slots=True)
class _Slot:
    """A slot: one micro-batch on the ranks that share it."""

    ranks: range
    flop: float = 0.0
    tokens: float = 0.0
    """Tokens on each of its ranks."""
    sequences: list[int] = field(default_factory=list)


class _Draft:
    """The slots of all ranks for one number of slots."""

    def __init__(self, problem: PlanningProblem, slots: int) -> None:
        self.problem, self._slots = problem, slots
        self._forward = layer_flop(problem, backward=False)
        self._flop: list[float] = self._forward.tolist()
        self._lengths: list[int] = problem.lengths.tolist()
        self._target = float(self._forward.sum()) / (problem.ranks * slots)
        self._free = np.full(problem.ranks, slots)
        self._big: list[_Slot] = []
        self._small: list[_Slot] = []

    @classmethod
    def of(cls, problem: PlanningProblem, slots: int) -> _Draft | None:
        """The draft with so many slots on every rank; None: it holds more than ranks can."""
        draft = cls(problem, slots)
        order = np.argsort(-draft._forward, kind="stable")
        bigger = draft._forward[order] > BIG * draft._target
        big, rest = order[bigger].tolist(), order[~bigger].tolist()
        return draft if draft._share(big, rest) and draft._pack(rest) else None

    def _share(self, big: list[int], rest: list[int]) -> bool:
        """Give the big sequences their ranks, and fill their slots with the largest of the rest."""
        problem = self.problem
        stated = problem.cost.layout.parallel.cp
        most = min(problem.most_ranks if stated is None else stated, problem.most_ranks)
        for place, sequence in enumerate(big):
            left = int(self._free.sum()) - (len(big) - place - 1)
            size = min(_nearest_power(self._forward[sequence] / self._target), most, max(1, left))
            size = 1 << (size.bit_length() - 1)
            while size * problem.capacity_tokens < self._lengths[sequence] and 2 * size <= most:
                size *= 2
            blocks = self._free[: problem.ranks // size * size].reshape(-1, size).min(axis=1)
            first = int(blocks.argmax()) * size
            if blocks.max() == 0:
                return False
            slot = _Slot(range(first, first + size))
            self._add(slot, sequence, size)
            self._fill(slot, size, rest)
            if slot.tokens > problem.capacity_tokens:
                return False
            self._free[first : first + size] -= 1
            self._big.append(slot)
        return True

    def _fill(self, slot: _Slot, size: int, rest: list[int]) -> None:
        """Add the largest of *rest* that there is room for, again and again; what is smaller fits where that does."""

        def fits(sequence: int) -> bool:
            held = slot.tokens + self._lengths[sequence] / size <= self.problem.capacity_tokens
            return held and self._flop[sequence] / size < ROOM * (self._target - slot.flop)

        at = bisect_left(rest, True, key=fits)
        while at < len(rest):
            self._add(slot, rest.pop(at), size)
            at = bisect_left(rest, True, at, key=fits)

    def _add(self, slot: _Slot, sequence: int, size: int) -> None:
        slot.sequences.append(sequence)
        slot.flop += self._flop[sequence] / size
        slot.tokens += self._lengths[sequence] / size

    def _pack(self, rest: list[int]) -> bool:
        """Deal the small ones to what is left, and the slots to ranks; False: one stays empty or holds too much."""
        count = int(self._free.sum())
        if not count:
            return not rest
        mean_tokens = sum(self._lengths[sequence] for sequence in rest) / count
        flop, tokens = [0.0] * count, [0.0] * count
        sequences: list[list[int]] = [[] for _ in range(count)]
        postponed: list[int] = []
        # Slots with room, the least FLOP first, and those without, the fewest tokens first: what follows is shorter.
        having = [(0.0, at) for at in range(count)]
        full: list[tuple[float, int]] = []

        def add(sequence: int, at: int) -> None:
            sequences[at].append(sequence)
            flop[at] += self._flop[sequence]
            tokens[at] += self._lengths[sequence]

        for sequence in rest:
            length = self._lengths[sequence]
            while full and full[0][0] + length <= mean_tokens:
                _, at = heapq.heappop(full)
                heapq.heappush(having, (flop[at], at))
            while having and tokens[having[0][1]] + length > mean_tokens:
                _, at = heapq.heappop(having)
                heapq.heappush(full, (tokens[at], at))
            if having:
                at = having[0][1]
                add(sequence, at)
                heapq.heapreplace(having, (flop[at], at))
            else:
                postponed.append(sequence)
        held = np.array(tokens)
        for sequence in sorted(postponed, key=lambda one: -self._lengths[one]):
            at = int(np.square(held + self._lengths[sequence] - mean_tokens).argmin())
            add(sequence, at)
            held[at] = tokens[at]
        if not all(sequences) or max(tokens) > self.problem.capacity_tokens:
            return False
        load = np.zeros(self.problem.ranks)
        for slot in self._big:
            load[slot.ranks.start : slot.ranks.stop] += slot.flop
        free = self._free.tolist()
        least = [(busy, rank) for rank, busy in enumerate(load.tolist()) if free[rank]]
        heapq.heapify(least)
        for at in sorted(range(count), key=flop.__getitem__):
            busy, rank = heapq.heappop(least)
            free[rank] -= 1
            if free[rank]:
                heapq.heappush(least, (busy + flop[at], rank))
            self._small.append(_Slot(range(rank, rank + 1), flop[at], tokens[at], sequences[at]))
        return True

    def plan(self) -> Plan:
        """Shared slots first, at one slot on all their ranks; then what each rank has alone."""
        builder = PlanBuilder(self.problem)
        taken: list[set[int]] = [set() for _ in range(self.problem.ranks)]
        for slot in self._big:
            builder.add(slot.sequences, slot.ranks)
            for rank in slot.ranks:
                taken[rank].add(int(builder.next_slot[rank]) - 1)
        for slot in self._small:
            rank = slot.ranks.start
            at = next(number for number in range(len(taken[rank]) + 1) if number not in taken[rank])
            taken[rank].add(at)
            builder.add(slot.sequences, rank, slot=at)
        sizes = {len(slot.ranks) for slot in self._big}
        shared = f", {len(self._big)} on groups of up to {max(sizes)} ranks" if sizes else ""
        return builder.build(notes=(f"{self._slots} micro-batches on every rank{shared}",))

    def costs(self, plan: Plan) -> StepCosts:
        """FLOP in place of seconds, the same on all stages."""
        size = plan.group_size.astype(np.float64)
        forward, backward = (
            np.add.reduceat(flop[plan.segment_sequence], plan.segment_offsets[:-1]) / size
            for flop in (self._forward, layer_flop(self.problem, backward=True))
        )
        return plain_costs(self.problem.stages, forward, backward)


def layer_flop(problem: PlanningProblem, *, backward: bool) -> Floats:
    """FLOP of every sequence in all layers without the head: attention by half, full recomputation repeats all."""
    token = forward_flop(problem.cost.model)
    tokens = problem.lengths.astype(np.float64)
    linear, attention = token.linear * tokens, token.attention * 0.5 * tokens**2
    if not backward:
        return linear + attention
    repeated = linear + attention if problem.cost.layout.recompute.kind == "full" else 0.0
    return np.asarray(LINEAR_BACKWARD * linear + ATTENTION_BACKWARD * attention + repeated)


def _nearest_power(number: float) -> int:
    """The power of two nearest to *number*, the larger of two that are as near."""
    upper = 1 << max(0, int(np.ceil(number)) - 1).bit_length()
    return upper // 2 if upper > 1 and number - upper / 2 < upper - number else upper
