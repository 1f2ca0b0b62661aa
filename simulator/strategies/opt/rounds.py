"""Rounds: sequences of like length run at the same time, on groups of the sizes that end each round earliest."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace

import numpy as np

from hdpsim.arrays import Floats, Ints, ranges
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.packing import Pieces, assemble
from hdpsim.simulator.strategies.static.static_mesh import divisors
from hdpsim.simulator.strategies.static.wlb_llm import fitting_packs

CUTS = 32
"""Places between rounds that are looked at: so many by number of sequences (closer among the longest), and by work."""
MOST_ROUNDS = 16
"""Where there are more, other plans are balanced."""
LEVELS, SHORTEST = 40, 1 / 64
"""Ends of a round that are looked at, down to this share of the longest."""
MOST_MIXED = 256
"""Sequences of a round up to which groups of several sizes are filled."""
HALVINGS = 7
CLOSE = 0.01
"""How closely the end of such a round is searched."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of every size, and what each sequence takes on them, longest first.

        a pack = max(start, sum of attention) + linear work of its tokens

    A ring's transfers (start) hide behind its kernels or these behind them, so many short sequences share one start.

    Attributes:
        sizes: ranks.
        start_s: [sizes].
        tokens: [sequences].
        work_s: [sizes, sequences]: attention and linear work.
    """

    problem: PlanningProblem
    sizes: Ints
    start_s: Floats
    tokens: Ints
    work_s: Floats

    @classmethod
    def of(cls, problem: PlanningProblem, tokens: Ints) -> Groups:
        """Price sequences of *tokens*."""
        sizes = np.array(divisors(problem.ranks, 1, problem.most_ranks))
        size, tier = sizes[:, None].astype(np.float64), problem.compact_tier(sizes)[:, None]
        start_s = problem.cost.sequence_s(np.ones_like(size), size, tier)
        every = np.broadcast_to(tokens.astype(np.float64), (len(sizes), len(tokens)))
        on_tier = np.broadcast_to(tier, every.shape)
        kernels_s = problem.cost.sequence_s(every, size, on_tier, waits=False)
        work_s = np.maximum(kernels_s, problem.cost.sequence_s(every, size, on_tier) - start_s)
        work_s = work_s + problem.token_s * every / size
        if problem.error is not None:
            work_s = work_s * problem.error.factors(tokens)
        return cls(problem, sizes, start_s[:, 0], tokens, np.asarray(work_s))

    def part(self, part: slice | Ints) -> Groups:
        """Of some of the sequences."""
        return replace(self, tokens=self.tokens[part], work_s=self.work_s[:, part])

    def room(self, until_s: float) -> Floats:
        """[sizes]: tokens of a pack that ends by then, and that memory holds."""
        in_time = (until_s - self.start_s) / self.problem.token_s
        return np.asarray(np.minimum(in_time, self.problem.capacity_tokens) * self.sizes)

    def ranks(self, until_s: float) -> Floats:
        """[sizes, sequences]: ranks that each takes of groups that end by then, infinite where it does not fit."""
        room = self.room(until_s)[:, None]
        with np.errstate(divide="ignore"):
            share = np.maximum(self.work_s / until_s, self.tokens / np.maximum(room, 0.0))
        return np.where(share <= 1.0, share * self.sizes[:, None], np.inf)

    def alone_s(self) -> Floats:
        """[sizes, sequences]: what each takes as a pack of its own, whatever memory holds."""
        linear_s = self.problem.token_s * self.tokens / self.sizes[:, None]
        return np.maximum(self.work_s, self.start_s[:, None] + linear_s)

    def equal(self) -> tuple[Ints, Ints, float]:
        """Packs of equal work on groups of one size: of every sequence, their sizes and when the last ends.

        Of packs that memory makes too many a group has several.
        """
        held = int(self.tokens.sum())
        groups_of_size = self.problem.ranks // self.sizes
        end_s = np.maximum(self.alone_s()[:, 0], self.work_s.sum(axis=1) / groups_of_size)
        end_s = np.maximum(end_s, self.start_s + self.problem.token_s * held / self.problem.ranks)
        fits = self.tokens[0] <= self.sizes * self.problem.capacity_tokens
        row = int(np.where(fits, end_s, np.inf).argmin())
        size, groups = int(self.sizes[row]), int(groups_of_size[row])
        pack = fitting_packs(
            self.tokens, self.work_s[row], groups, groups, size * self.problem.capacity_tokens
        )
        packs = int(pack.max()) + 1
        linear_s = self.problem.token_s * np.bincount(pack, weights=self.tokens) / size
        busy_s = np.maximum(np.bincount(pack, weights=self.work_s[row]), self.start_s[row] + linear_s)
        return pack, np.full(packs, size), float(busy_s.max()) * -(-packs // groups)

    def first_fit(self, until_s: float, own: int) -> tuple[Ints, Ints] | None:
        """Longest first, each into the first group where it ends by then, else into a new one of the least ranks.

        Returns:
            The pack of every sequence, -1 where one after the first *own* finds no place, and packs' sizes, the largest
            first; None where one of these finds none.
        """
        ranks, room = self.ranks(until_s), self.room(until_s).tolist()
        chosen, least = ranks.argmin(axis=0).tolist(), ranks.min(axis=0).tolist()
        size, tokens = self.sizes.tolist(), self.tokens.tolist()
        shorter = (-self.tokens).tolist()
        work_s = dict[int, list[float]]()
        # Of every size the least work so far, negated: where a group first has time for it.
        lighter_s = dict[int, list[float]]()
        free, rows, left_s, left = self.problem.ranks, list[int](), list[float](), list[float]()
        pack = [-1] * len(tokens)
        # Groups with room for a sequence of now, in the order made; the others, by the sequence that they wait for.
        having = list[int]()
        later: list[list[int]] = [[] for _ in range(len(tokens) + 1)]
        for number, length in enumerate(tokens):
            for group in later[number]:
                insort(having, group)
            for group in having:
                if work_s[rows[group]][number] <= left_s[group]:  # work need not fall with length
                    break
            else:
                row = chosen[number]
                if least[number] == np.inf or size[row] > free:
                    if number < own:
                        return None
                    continue
                if row not in work_s:
                    work_s[row] = self.work_s[row].tolist()
                    lighter_s[row] = (-np.minimum.accumulate(self.work_s[row])).tolist()
                group, free = len(rows), free - size[row]
                rows.append(row)
                left_s.append(until_s)
                left.append(room[row])
                having.append(group)
            row = rows[group]
            left_s[group] -= work_s[row][number]
            left[group] -= length
            pack[number] = group
            fits = max(bisect_left(shorter, -left[group]), bisect_left(lighter_s[row], -left_s[group]))
            if fits > number + 1:
                having.remove(group)
                later[fits].append(group)
        row_of, pack_of = np.array(rows, dtype=np.int64), np.array(pack)
        by_size = np.argsort(-row_of, kind="stable")
        pack_of[pack_of >= 0] = np.argsort(by_size)[pack_of[pack_of >= 0]]
        return pack_of, self.sizes[row_of[by_size]]

    def packed(self, own: int) -> tuple[Ints, Ints, float]:
        """A round of the first *own* sequences and of others that find place: packs as of first_fit, and its end.

        On groups of one size where several end no earlier.
        """
        first = self.part(slice(own))
        pack, size, high_s = first.equal()
        best = np.concatenate((pack, np.full(len(self.tokens) - own, -1))), size, high_s
        if own > MOST_MIXED:
            return best
        fits = first.tokens <= self.sizes[:, None] * self.problem.capacity_tokens
        of_all_s = (
            np.where(fits, first.work_s * self.sizes[:, None], np.inf).min(axis=0).sum() / self.problem.ranks
        )
        low_s = max(float(of_all_s), float(np.where(fits, first.alone_s(), np.inf).min(axis=0).max()))
        until_s = low_s * (1.0 + CLOSE)
        for _ in range(HALVINGS):
            if until_s >= high_s:
                break
            if first.first_fit(until_s, own) is None:
                low_s = until_s
            else:
                high_s = until_s
            if high_s <= low_s * (1.0 + CLOSE):
                break
            until_s = (low_s + high_s) / 2.0
        fit = self.part(slice(own + MOST_MIXED)).first_fit(high_s, own)
        if fit is not None:
            best = np.concatenate((fit[0], best[0][len(fit[0]) :])), fit[1], high_s
        return best


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a round takes that holds the sequences between two cuts, longest first, as one pack for every group.

        busy rank  = the least T with  sum over sequences of the least ranks that each takes of groups that end by T
                     <= ranks
        time       = what a rank takes whose one sequence is so much work

    Counted: memory, what of a micro-batch's launches, gathers and reductions is not hidden.
    Ignored: what whole sequences leave over on a group, until a round is planned.

    Attributes:
        order: sequences, longest first.
        cuts: places in it.
        groups: what they take.
        busy_s: [cuts, cuts], busy rank of a round from one to the other, infinite where it has no room.
        time_s: [cuts, cuts].
    """

    problem: PlanningProblem
    order: Ints
    cuts: Ints
    groups: Groups
    busy_s: Floats
    time_s: Floats

    @classmethod
    def of(cls, problem: PlanningProblem) -> Rounds:
        """Price every round."""
        order = np.argsort(-problem.lengths, kind="stable")
        groups, count = Groups.of(problem, problem.lengths[order]), len(order)
        done_s = np.cumsum(groups.work_s[0])
        by_work = np.searchsorted(done_s, done_s[-1] * np.arange(1, CUTS) / CUTS)
        cuts = np.unique(np.concatenate(([0, count], by_work, np.geomspace(1, count, CUTS).astype(np.int64))))
        busy_s = _busy_s(groups, cuts)
        return cls(problem, order, cuts, groups, busy_s, _time_s(problem, busy_s))

    def ways(self) -> list[tuple[float, list[tuple[int, int]]]]:
        """Of every number of rounds those that take least together: when they end and their cuts; the shortest first.

        A pipeline idles w times the longest round besides: the first, as a rule.
        """
        timed, weight = [], self.problem.bubble_weight
        until_s, came_from = self.time_s[0] * (1.0 + weight), list[Ints]()
        for _ in range(MOST_ROUNDS):
            if np.isfinite(until_s[-1]):
                cuts = [len(self.cuts) - 1]
                for before in reversed(came_from):
                    cuts.append(int(before[cuts[-1]]))
                rounds = list(zip([0, *cuts[:0:-1]], cuts[::-1], strict=True))
                times_s = [float(self.time_s[one]) for one in rounds]
                timed.append((sum(times_s) + weight * max(times_s), rounds))
            then_s = until_s[:, None] + self.time_s
            came_from.append(then_s.argmin(axis=0))
            until_s = then_s.min(axis=0)
        return sorted(timed)

    def plan(self, rounds: list[tuple[int, int]]) -> Plan:
        """The plan: in every round packs that end together; one that memory makes too many comes after the others."""
        problem, micro_batch = self.problem, np.empty(len(self.order), dtype=np.int64)
        sizes, first_ranks, slots, made, slot = list[Ints](), list[Ints](), list[Ints](), 0, 0
        ends_s, waiting = list[float](), np.arange(len(self.order))
        for _, end in rounds:
            own = int(np.searchsorted(waiting, self.cuts[end]))
            if not own:  # all found place before
                continue
            pack, size, busy_s = self.groups.part(waiting).packed(own)
            ends_s.append(busy_s)
            micro_batch[self.order[waiting[pack >= 0]]] = made + pack[pack >= 0]
            waiting = waiting[pack < 0]
            before = np.cumsum(size) - size
            sizes.append(size)
            first_ranks.append(before % problem.ranks)
            slots.append(slot + before // problem.ranks)
            made, slot = made + len(size), int(slots[-1][-1]) + 1
        size = np.concatenate(sizes)
        return assemble(
            problem,
            Pieces.of_whole(problem.lengths, micro_batch),
            group_size=size,
            member_ranks=ranges(np.concatenate(first_ranks), size),
            slot=np.concatenate(slots),
            offload_ratio=np.zeros(made),
            keep_holes=problem.in_slots,
            makespan_s=float(_time_s(problem, np.array(ends_s)).sum()),
            notes=(
                f"{len(sizes)} rounds of groups of "
                + ", then ".join(_words(one) for one in sizes)
                + " ranks",
            ),
        )


def _busy_s(groups: Groups, cuts: Ints) -> Floats:
    """[cuts, cuts]: when the busiest rank of a round from one to the other ends; of so many ends the least."""
    ranks, later = groups.problem.ranks, cuts[None, :] > cuts[:, None]
    busy_s = np.full(later.shape, np.inf)
    first = np.flatnonzero(np.diff(groups.tokens, prepend=0))  # of every length
    count, starting = np.diff(first, append=len(groups.tokens)), groups.part(first)
    alone_s, place = starting.alone_s(), np.arange(len(first))
    fits = starting.tokens <= starting.sizes[:, None] * starting.problem.capacity_tokens
    if not fits[-1].all():
        return busy_s
    cost_s = np.where(fits, alone_s * starting.sizes[:, None], np.inf)
    high_s = cost_s.min(axis=0) @ count / ranks + alone_s[cost_s.argmin(axis=0), place].max()
    for until_s in np.geomspace(high_s * SHORTEST, high_s, LEVELS).tolist():
        taken = starting.ranks(until_s)
        row = taken.argmin(axis=0)
        # What does not fit takes more than all ranks.
        shares = np.repeat(np.minimum(taken[row, place] / ranks, 2.0), count)
        held = np.concatenate(([0.0], np.cumsum(shares)))[cuts]
        used = held[None, :] - held[:, None]
        longest_s = np.zeros_like(busy_s)
        every_s = np.maximum.reduceat(np.repeat(alone_s[row, place], count), cuts[:-1])
        longest_s[:, 1:] = np.maximum.accumulate(np.where(later[:, 1:], every_s, 0.0), axis=1)
        took_s = np.where(later & (used <= 1.0), np.maximum(longest_s, until_s * used), np.inf)
        np.minimum(busy_s, took_s, out=busy_s)
    return busy_s


def _time_s(problem: PlanningProblem, busy_s: Floats) -> Floats:
    """What micro-batches take whose ranks have so much work: as a rank with one sequence of that much."""
    tokens = np.unique(np.geomspace(1, problem.most_tokens, 24).astype(np.int64))
    work_s, took_s = problem.true_piece_s(tokens), problem.cost.busy_s(MicroBatches.single(tokens))
    # Beyond the longest, as much more.
    more_s = np.where(np.isfinite(busy_s), np.maximum(busy_s - work_s[-1], 0.0), np.inf)
    return np.asarray(np.interp(busy_s, work_s, took_s) + more_s)


def _words(sizes: Ints) -> str:
    """Sizes and how many groups have each."""
    return "/".join(f"{size}" for size in np.unique(sizes).tolist())
