"""FlexSP: chunks of similar lengths as micro-batches, dealt to groups of different sizes by an integer programme."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.step.layer_prices import TERM_ROWS
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.plan_builder import PlanBuilder
from hdpsim.simulator.strategies.problem import PlanningProblem

from .buckets import bucket_sizes, equal_chunks
from .integer_programme import least

MICRO_BATCHES_TRIED = 5
"""Numbers of micro-batches that are planned, from the fewest that memory allows."""
BUCKETS = 16
STEPS_UP = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0, 3.0, 5.0)
"""Makespans over that of the relaxed programme at which whole groups and sequences are looked for."""
NODES = 200
"""Nodes of a branch-and-bound tree; a limit of time would make plans depend on the machine."""
HALVINGS = 20
NEAR = 1.03
"""A makespan so close to that of the relaxed programme is good enough."""


def plan_flexsp(problem: PlanningProblem) -> Plan:
    """Deal every chunk of the batch to groups of ranks whose sizes suit its sequences (`flexsp`).

        chunks   = sequences by falling length, cut into M parts whose largest has the fewest tokens
        buckets  = at most 16 lengths of a chunk, rounded up with the least error in all
        groups   = n_d groups of d ranks (powers of two up to what heads allow), sum of d n_d <= ranks
        the least makespan T at which whole sequences x_qd of every bucket fit:
            sum over q of x_qd t_qd <= n_d (T - fixed),  sum over q of x_qd s_q <= n_d d C
        M        = of five, from the fewest that memory allows, the one with the least sum of makespans; where no
                   M of these fits, parts that do not are halved

    Groups of equal size are one constraint here, where the paper has one for each: the programme stays small for any
    number of ranks. Sequences go to the groups of a size longest first, to the one with the least work that has room.
    A time is fixed + work that is linear in sequences, as the cost model of the problem has it; what gathers and
    reductions of sharded parameters add is fixed.
    Ignored: the paper's own fitted cost model; pooled communicators.
    Source: FlexSP, arXiv 2412.01523, sections 4 and 5; PKU-DAIR/Hetu-Galvatron, branch flexsp.

    Raises:
        InfeasibleError: a sequence that fits no group.
    """
    sizes = [1 << power for power in range(problem.most_ranks.bit_length())]
    room = sizes[-1] * problem.capacity_tokens
    longest = int(problem.lengths.max())
    if longest > room:
        raise problem.too_long(longest, sizes[-1])
    times = _Times.of(problem, sizes)
    order = np.argsort(-problem.lengths, kind="stable")
    fewest = -(-int(problem.lengths.sum()) // (problem.ranks * problem.capacity_tokens))
    best: tuple[float, list[_Chunk]] | None = None
    for chunks in _chunkings(problem.lengths[order], fewest):
        planned = _planned(times, [order[chunk] for chunk in chunks], best[0] if best else np.inf)
        if planned is not None and (best is None or planned[0] < best[0]):
            best = planned
    if best is None:
        best = _halved(times, [order[chunk] for chunk in chunks])
    builder = PlanBuilder(problem)
    for slot, chunk in enumerate(best[1]):
        first = 0
        for group in chunk.groups:
            builder.add(group.sequences, range(first, first + group.size), slot=slot)
            first += group.size
    used = ", ".join(_words(chunk) for chunk in best[1][:3]) + (", ..." if len(best[1]) > 3 else "")
    return builder.build(notes=(f"{len(best[1])} micro-batches on groups of {used} ranks",))


def _chunkings(lengths: Ints, fewest: int) -> Iterator[list[Ints]]:
    """Lengths cut into *fewest* parts and more, each way once, until as many ways as are tried or none is finer."""
    longest, ways, cuts = int(lengths.max()), 0, 0
    for parts in range(fewest, len(lengths) + 1):
        chunks = equal_chunks(lengths, parts)
        if len(chunks) > cuts:
            cuts, ways = len(chunks), ways + 1
            yield chunks
        if ways == MICRO_BATCHES_TRIED or max(int(lengths[chunk].sum()) for chunk in chunks) == longest:
            return


def _words(chunk: _Chunk) -> str:
    sizes, counts = np.unique([group.size for group in chunk.groups], return_counts=True)
    pairs = list(zip(sizes.tolist(), counts.tolist(), strict=True))[::-1]
    return "<" + ", ".join(f"{size}" if count == 1 else f"{size} x {count}" for size, count in pairs) + ">"


@dataclass(frozen=True, slots=True)
class _Times:
    """What sequences take on groups of every size: fixed + sum of theirs."""

    problem: PlanningProblem
    sizes: list[int]
    fixed_s: Floats
    """[sizes]: of a micro-batch, however little is in it."""
    token_s: float
    """Per token of a rank."""

    @classmethod
    def of(cls, problem: PlanningProblem, sizes: list[int]) -> _Times:
        half, full = problem.micro_batch_s(np.zeros(2), np.array([0.5, 1.0]) * problem.capacity_tokens)
        slope_s = float(full - half) / (0.5 * problem.capacity_tokens)
        start_s = float(full) - slope_s * problem.capacity_tokens
        latency_s = _attention_s(problem, np.ones(1), sizes)[0]
        return cls(problem, sizes, start_s + latency_s + _shards_s(problem), slope_s)

    def work_s(self, lengths: Ints) -> Floats:
        """[lengths, sizes]: what each adds to a micro-batch."""
        alone_s = _attention_s(self.problem, np.ones(1), self.sizes)
        linear_s = self.token_s * lengths[:, None] / np.array(self.sizes)
        work_s = np.maximum(_attention_s(self.problem, lengths, self.sizes) - alone_s, 0.0) + linear_s
        error = self.problem.error
        return np.asarray(work_s if error is None else work_s * error.factors(lengths)[:, None])


def _shards_s(problem: PlanningProblem) -> float:
    """What gathers and reductions of sharded parameters add to a full micro-batch."""
    full = MicroBatches.single(np.array([problem.capacity_tokens]))
    rows = [TERM_ROWS["layer_gather"], TERM_ROWS["layer_reduce"]]
    by_kind = sum(side[rows].sum(axis=0) for side in problem.cost.both_terms_s(full))
    return float(problem.cost.by_stage(np.asarray(by_kind)).max())


def _attention_s(problem: PlanningProblem, lengths: Ints | Floats, sizes: list[int]) -> Floats:
    """[lengths, sizes]: attention of a sequence with its transfers."""
    tokens, ranks = np.meshgrid(lengths.astype(np.float64), np.array(sizes, dtype=np.float64), indexing="ij")
    tiers = np.broadcast_to(problem.compact_tier(np.array(sizes)), tokens.shape)
    return problem.cost.sequence_s(tokens.ravel(), ranks.ravel(), tiers.ravel()).reshape(tokens.shape)


@dataclass(slots=True)
class _Group:
    size: int
    sequences: list[int]
    work_s: float
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A micro-batch of all ranks: its groups, the largest first, and when the last of them ends."""

    groups: list[_Group]
    makespan_s: float


def _planned(times: _Times, chunks: list[Ints], below_s: float) -> tuple[float, list[_Chunk]] | None:
    """The chunks on their groups and the sum of their makespans; None: they do not fit, or take *below_s* or more."""
    capacity = times.problem.ranks * times.problem.capacity_tokens
    if any(int(times.problem.lengths[chunk].sum()) > capacity for chunk in chunks):
        return None
    programmes = [_Programme.of(times, chunk) for chunk in chunks]
    if sum(programme.least_s for programme in programmes) >= below_s:
        return None
    done: list[_Chunk] = []
    for programme in programmes:
        chunk = programme.solved()
        if chunk is None:
            return None
        done.append(chunk)
    return sum(chunk.makespan_s for chunk in done), done


def _halved(times: _Times, chunks: list[Ints]) -> tuple[float, list[_Chunk]]:
    """The chunks on their groups, and halves of those that fit on none: as buckets, lengths need more."""
    done, waiting = list[_Chunk](), chunks[::-1]
    while waiting:
        sequences = waiting.pop()
        lengths = times.problem.lengths[sequences]
        fits = int(lengths.sum()) <= times.problem.ranks * times.problem.capacity_tokens
        chunk = _Programme.of(times, sequences).solved() if fits else None
        if chunk is not None:
            done.append(chunk)
        elif len(sequences) > 1:
            first, second = equal_chunks(lengths, 2)
            waiting += [sequences[second], sequences[first]]
        else:
            raise InfeasibleError(
                f"flexsp finds no group for a sequence of {lengths[0]} tokens on {times.problem.ranks} ranks of "
                f"{times.problem.capacity_tokens} tokens (layout.rank_capacity)"
            )
    return sum(chunk.makespan_s for chunk in done), done


@dataclass(frozen=True, slots=True)
class _Programme:
    """Which sizes of groups take how many sequences of every bucket, so that the last group ends as early as it can.

    Attributes:
        sequences: of the chunk, longest first.
        bucket: of each.
        lengths: [buckets]: what their sequences count as.
        work_s: [buckets, sizes].
        fits: [buckets, sizes]: one sequence on one group.
        least_s: no makespan of whole groups is shorter.
    """

    times: _Times
    sequences: Ints
    bucket: Ints
    lengths: Ints
    work_s: Floats
    fits: Bools
    least_s: float

    @classmethod
    def of(cls, times: _Times, sequences: Ints) -> _Programme:
        """The programme of a chunk."""
        lengths, bucket = bucket_sizes(times.problem.lengths[sequences], BUCKETS)
        fits = lengths[:, None] <= np.array(times.sizes) * times.problem.capacity_tokens
        programme = cls(times, sequences, bucket, lengths, times.work_s(lengths), fits, 0.0)
        low_s = float((times.fixed_s + np.where(fits, programme.work_s, np.inf)).min(axis=1).max())
        return cls(times, sequences, bucket, lengths, programme.work_s, fits, programme._relaxed_s(low_s))

    def _relaxed_s(self, low_s: float) -> float:
        """The least makespan if groups and sequences could be cut, at least *low_s*: by bisection."""
        counts, sizes = np.bincount(self.bucket, minlength=len(self.lengths)), np.array(self.times.sizes)
        most = self.times.problem.ranks

        def ranks(makespan_s: float) -> float:
            with np.errstate(divide="ignore", invalid="ignore"):
                of_time = self.work_s / np.maximum(makespan_s - self.times.fixed_s, 0.0)
            inside = self.fits & (of_time <= 1.0)
            of_memory = self.lengths[:, None] / (sizes * self.times.problem.capacity_tokens)
            share = np.where(inside, np.maximum(of_time, of_memory), np.inf)
            return float(counts @ (share * self.times.sizes).min(axis=1))

        high_s = low_s
        while ranks(high_s) > most and high_s < 1e6 * low_s:
            high_s *= 2.0
        if high_s == low_s:
            return low_s
        low_s = high_s / 2.0
        for _ in range(HALVINGS):
            middle_s = 0.5 * (low_s + high_s)
            low_s, high_s = (low_s, middle_s) if ranks(middle_s) <= most else (middle_s, high_s)
        return low_s

    def solved(self) -> _Chunk | None:
        """The chunk on whole groups; None: none found."""
        best: _Chunk | None = None
        for step in STEPS_UP:
            makespan_s = self.least_s * step
            if best is not None and best.makespan_s <= max(makespan_s, NEAR * self.least_s):
                break
            solution = self._solved(makespan_s)
            chunk = None if solution is None else self._dealt(*solution)
            if chunk is not None and (best is None or chunk.makespan_s < best.makespan_s):
                best = chunk
        return best

    def _solved(self, makespan_s: float) -> tuple[Ints, Ints] | None:
        """Groups of every size and [buckets, sizes] sequences that end by then, on as few ranks as that takes."""
        buckets, sizes = self.work_s.shape
        size = np.array(self.times.sizes, dtype=np.float64)
        counts = np.bincount(self.bucket, minlength=buckets).astype(np.float64)
        left_s = makespan_s - self.times.fixed_s
        usable = self.fits & (self.work_s <= left_s)
        if not usable.any(axis=1).all():
            return None
        # Columns: x by bucket and size, then n by size.
        placed = np.hstack([np.kron(np.eye(buckets), np.ones((1, sizes))), np.zeros((buckets, sizes))])
        by_size = np.tile(np.eye(sizes), (1, buckets))
        time = np.hstack([by_size * (self.work_s.ravel() / left_s.max()), -np.diag(left_s / left_s.max())])
        room = size * self.times.problem.capacity_tokens
        memory = np.hstack([by_size * np.repeat(self.lengths / room[-1], sizes), -np.diag(room / room[-1])])
        usable_of = np.where(usable, counts[:, None], 0.0)
        most = np.concatenate([usable_of.ravel(), self.times.problem.ranks // size])
        answer = least(
            np.concatenate([np.zeros(buckets * sizes), size]),
            np.ones(len(most), dtype=np.bool_),
            most,
            [(placed, counts, counts), (np.vstack([time, memory]), -np.inf, 0.0)],
            node_limit=NODES,
            mip_rel_gap=0.02,
        )
        if answer is None:
            return None
        rounded = np.round(answer).astype(np.int64)
        groups = rounded[-sizes:]
        if groups @ np.array(self.times.sizes) > self.times.problem.ranks:
            return None
        return groups, rounded[:-sizes].reshape(buckets, sizes)

    def _dealt(self, groups: Ints, taken: Ints) -> _Chunk | None:
        """Every sequence in a group: of its bucket the longest go to the largest groups. None: one finds no room."""
        times, problem = self.times, self.times.problem
        made = [
            [_Group(size, [], float(times.fixed_s[row])) for _ in range(int(groups[row]))]
            for row, size in enumerate(times.sizes)
        ]
        self._spare_ranks(made)
        work_s = times.work_s(problem.lengths[self.sequences])
        left = taken[:, ::-1].copy()
        for place, sequence in enumerate(self.sequences.tolist()):
            waiting = left[self.bucket[place]]
            column = int(np.flatnonzero(waiting)[0])
            waiting[column] -= 1
            row = len(times.sizes) - 1 - column
            length = int(problem.lengths[sequence])
            group = _with_room(made[row], length, problem.capacity_tokens)
            if group is None:
                every = [one for groups_of in made for one in groups_of]
                group = _with_room(every, length, problem.capacity_tokens)
            if group is None:
                return None
            row = times.sizes.index(group.size)
            group.sequences.append(sequence)
            group.tokens += length
            group.work_s += float(work_s[place, row])
        used = [group for groups_of in reversed(made) for group in groups_of if group.sequences]
        return _Chunk(used, max(group.work_s for group in used))

    def _spare_ranks(self, made: list[list[_Group]]) -> None:
        """Groups more where ranks are left: of the largest sizes in use that fit, one of each in turn."""
        left = self.times.problem.ranks - sum(group.size for groups in made for group in groups)
        for row in reversed(range(len(made))):
            size = self.times.sizes[row]
            while made[row] and size <= left:
                made[row].append(_Group(size, [], float(self.times.fixed_s[row])))
                left -= size


def _with_room(groups: list[_Group], length: int, capacity_tokens: int) -> _Group | None:
    """The group with the least work among those that have room for so many tokens."""
    return min(
        (group for group in groups if group.tokens + length <= group.size * capacity_tokens),
        key=lambda group: group.work_s,
        default=None,
    )
