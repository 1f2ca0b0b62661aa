"""Who waits for whom in a recorded job: its operations as a graph, and the transfer times of its communication.

What is taken from the recording is the order of the operations of each worker, never the moments at which they ran:

* What a worker does one after the other (computation; sends and receives that block; everything after the last
  backward) is a chain in recorded order. Operations of the chain that overlap were launched together: both wait for
  what came before, and what comes next waits for both.
* Communication beside the computation (it overlaps it in the recording) waits for the last computation that ended
  before it started, and for the one before it of its kind. A send also waits for the computation that makes its
  data; a computation waits for its receive; the first forward of a model chunk for its parameters; what comes after
  the last backward for the gradients that were there when it began.
* Send and receive meet. All-gather, reduce-scatter and all-reduce of gradients meet over the data-parallel ranks of
  a stage, the embedding all-reduce over the first and the last stage of a rank, the clipping of gradients (it needs
  the norm) over all workers.
* The recorded duration of an operation that meets others includes the wait for them. Its transfer time is what is
  left: from the latest start in the group to its own end. A send and its receive end together; the earlier of the
  two ends counts, since either may have been recorded at the end of a batch with other transfers.

Ignored: what the host does between operations (loading data, launching kernels, collecting garbage), unless delays are
asked for (`host_gaps`); differences between the clocks of the workers.

Source: Lin et al., OSDI 2025 (arXiv 2505.05713), section 3 (dependencies; transfer duration). There, sends never block
and the operations after the last backward have a fixed order; here both follow the recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints, offsets_of, ranges
from hdpsim.errors import UserInputError
from hdpsim.simulator.recorded.operation_graph import OperationGraph, Replay
from hdpsim.simulator.recorded.operations import (
    COMPUTE,
    DATA_PARALLEL,
    KINDS,
    PEER_TO_PEER,
    RecordedJob,
    code,
    is_kind,
)

_OVERLAPPING_SHARE = 0.05
"""A kind of communication runs beside the computation if more than this share of its operations does so."""

_OVERLAP_S = 2e-4
"""Less overlap with a computation than this is the imprecision of the clock."""

_CLOCK_S = 5e-5
"""Starts and ends closer than this are the same moment: recorded times of neighbours differ by up to 2e-5 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGraph:
    """A recorded job that can be played.

    Attributes:
        job: the recording.
        row: the recorded operation of every operation of the graph (sends and receives that never ran are left out).
        replay: the graph, ready to play.
        work_s: duration of computations, transfer time of communication.
        blocking: do sends and receives block the computation?
    """

    job: RecordedJob
    row: Ints
    replay: Replay
    work_s: Floats
    blocking: bool

    def step_s(self, end_s: Floats) -> Floats:
        """[variants, steps]: the end of each step, from [variants, operations] ends as `Replay.ends` gives them."""
        step = self.job.step[self.row]
        by_step = np.argsort(step, kind="stable")
        first = np.searchsorted(step[by_step], np.arange(len(self.job.steps)))
        return np.maximum.reduceat(np.atleast_2d(end_s)[:, by_step], first, axis=1)


def link_operations(job: RecordedJob) -> RecordedGraph:
    """Return the graph of *job*.

    Raises:
        UserInputError: operations that have to meet are missing.
        DeadlockError: the recorded orders of the workers contradict each other.
    """
    order = np.lexsort((job.sequence, job.end_s, job.start_s, job.lane))
    owner = attach(job, order)
    ran = ~is_kind(job.kind, *PEER_TO_PEER) | (owner >= 0)
    order = order[ran[order]]
    beside = _beside_computation(job, order)
    sends, receives = pair(job, order, owner)
    edges = [*_chain_edges(job, order[~beside[order]]), *_beside_edges(job, order, beside, owner)]
    group, meets = _groups(job, order, sends, receives)

    number = np.full(len(job), -1, dtype=np.int64)
    number[order] = np.arange(len(order))
    graph = OperationGraph(
        operations=len(order),
        source=number[np.concatenate([source for source, _ in edges])],
        target=number[np.concatenate([target for _, target in edges])],
        group=np.unique(group[order], return_inverse=True)[1].astype(np.int64),
        name=lambda operation: job.describe(int(order[operation])),
    )
    return RecordedGraph(
        job=job,
        row=order,
        replay=Replay(graph),
        work_s=_transfer_s(job, order, graph.group, meets),
        blocking=not np.any(beside[is_kind(job.kind, *PEER_TO_PEER)]),
    )


def _beside_computation(job: RecordedJob, order: Ints) -> Bools:
    """Which operations run beside the computation of their worker: all of a kind, or none; p2p is one kind."""
    computed = order[is_kind(job.kind[order], *COMPUTE)]
    start_s, end_s = job.on_one_axis(job.start_s), job.on_one_axis(job.end_s)
    starts, ends = start_s[computed], end_s[computed]
    beside = np.zeros(len(job), dtype=np.bool_)
    for kinds in (PEER_TO_PEER, *((kind,) for kind in DATA_PARALLEL)):
        rows = order[is_kind(job.kind[order], *kinds)]
        if not len(rows) or not len(computed):
            continue
        start = start_s[rows]
        following = np.minimum(np.searchsorted(ends, start + _OVERLAP_S), len(ends) - 1)
        stop = start + job.duration_s[rows]
        overlap = np.minimum(stop, ends[following]) - np.maximum(start, starts[following])
        if np.mean(overlap > _OVERLAP_S) > _OVERLAPPING_SHARE:
            beside[rows] = True
    return beside


def _chain_edges(job: RecordedJob, chain: Ints) -> list[tuple[Ints, Ints]]:
    """Dependencies of the *chain* (rows by lane and start): layers of operations that overlap, one after the other."""
    lane = job.lane[chain]
    start, end = job.on_one_axis(job.start_s)[chain], job.on_one_axis(job.end_s)[chain]
    latest = np.maximum.accumulate(end)
    opens = np.ones(len(chain), dtype=np.bool_)
    opens[1:] = (lane[1:] != lane[:-1]) | (start[1:] >= latest[:-1] - _CLOCK_S)
    first = np.flatnonzero(opens)
    size = np.diff(np.append(first, len(chain)))
    layer = np.cumsum(opens) - 1
    follows = np.zeros(len(first), dtype=np.bool_)
    follows[1:] = lane[first[1:]] == lane[first[:-1]]
    waiting = np.flatnonzero(follows[layer])
    before = layer[waiting] - 1
    return [(chain[ranges(first[before], size[before])], np.repeat(chain[waiting], size[before]))]


def _beside_edges(job: RecordedJob, order: Ints, beside: Bools, owner: Ints) -> list[tuple[Ints, Ints]]:
    """Dependencies of communication beside the computation."""
    rows = order[beside[order]]
    if not len(rows):
        return []
    lane, kind = job.lane, job.kind
    edges: list[tuple[Ints, Ints]] = []
    start_s, end_s = job.on_one_axis(job.start_s), job.on_one_axis(job.end_s)

    # In order with its own kind.
    by_kind = rows[np.lexsort((job.sequence[rows], kind[rows], lane[rows]))]
    same = (lane[by_kind[1:]] == lane[by_kind[:-1]]) & (kind[by_kind[1:]] == kind[by_kind[:-1]])
    edges.append((by_kind[:-1][same], by_kind[1:][same]))

    # After the last computation that ended before it started; sends after the computation that makes their data.
    computed = order[is_kind(kind[order], *COMPUTE)]
    before = np.searchsorted(end_s[computed], start_s[rows] + _CLOCK_S, side="right") - 1
    known = before >= 0
    known[known] = lane[computed[before[known]]] == lane[rows[known]]
    edges.append((computed[before[known]], rows[known]))
    send = rows[is_kind(kind[rows], "forward-send", "backward-send")]
    edges.append((owner[send], send))
    receive = rows[is_kind(kind[rows], "forward-recv", "backward-recv")]
    edges.append((receive, owner[receive]))

    # The first forward of a chunk waits for the chunk's parameters.
    gathers = rows[(kind[rows] == code("params-all-gather")) & (job.chunk[rows] >= 0)]
    forwards = computed[kind[computed] == code("forward-compute")]
    keys, first = np.unique(lane[forwards] * job.chunks + job.chunk[forwards], return_index=True)
    gather_key = lane[gathers] * job.chunks + job.chunk[gathers]
    at = np.minimum(np.searchsorted(keys, gather_key), len(keys) - 1)
    fits = keys[at] == gather_key
    edges.append((gathers[fits], forwards[first[at[fits]]]))

    # After the last backward, the first operation that began when the gradients were there waits for them.
    summed = rows[is_kind(kind[rows], "grads-reduce-scatter", "separate-grads-all-reduce")]
    chain = order[~beside[order]]
    last_end = np.zeros(len(job.steps) * job.workers)
    np.maximum.at(last_end, lane[computed], job.end_s[computed])
    tail = chain[job.start_s[chain] >= last_end[lane[chain]] - _CLOCK_S]
    tail = tail[~is_kind(kind[tail], *COMPUTE)]
    if len(tail):
        at = np.searchsorted(start_s[tail], end_s[summed] - _CLOCK_S)
        inside = at < len(tail)
        inside[inside] = lane[tail[at[inside]]] == lane[summed[inside]]
        edges.append((summed[inside], tail[at[inside]]))
    return edges


def _groups(job: RecordedJob, order: Ints, sends: Ints, receives: Ints) -> tuple[Ints, Bools]:
    """Return a group number for every row (numbers may have gaps), and which rows meet somebody."""
    group = np.arange(len(job), dtype=np.int64)
    group[receives] = sends
    meets = np.zeros(len(job), dtype=np.bool_)
    meets[sends] = meets[receives] = True
    ranks, stages = job.data_parallel, job.stages
    most = int(job.sequence.max()) + 1

    def meet(kind: str, order: Ints, place: Ints, members: int, member: str) -> None:
        """Make groups of the operations of *kind* at the same *place* and number; complete ones only."""
        rows = order[job.kind[order] == code(kind)]
        key = place[rows] * most + job.sequence[rows]
        _, first, inverse, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        bad = np.flatnonzero(count != members)
        if len(bad):
            incomplete = f"{job.describe(int(rows[first[bad[0]]]))}: {count[bad[0]]} operations meet here"
            raise UserInputError(f"{incomplete}; expected {members}, one per {member}")
        group[rows] = rows[first[inverse]]
        meets[rows] = True

    for kind in DATA_PARALLEL:
        meet(kind, order, job.step * stages + job.stage, ranks, "dp_rank")
    by_rank = job.step * ranks + job.data_parallel_rank
    ends = order[(job.stage[order] == 0) | (job.stage[order] == stages - 1)]
    meet("embedding-grads-all-reduce", ends, by_rank, min(stages, 2), "end of the model")
    meet("optimizer-clip-main-grad", order, job.step, job.workers, "worker")
    return group, meets


def _transfer_s(job: RecordedJob, order: Ints, group: Ints, meets: Bools) -> Floats:
    """Duration of each operation without the wait for its group, never negative.

    transfer = own end - latest start of the group; for a send and its receive: earlier end - later start.
    """
    groups = int(group.max()) + 1
    latest = np.full(groups, -np.inf)
    np.maximum.at(latest, group, job.start_s[order])
    earliest = np.full(groups, np.inf)
    np.minimum.at(earliest, group, job.end_s[order])
    end_s = np.where(is_kind(job.kind[order], *PEER_TO_PEER), earliest[group], job.end_s[order])
    return np.where(meets[order], np.maximum(end_s - latest[group], 0.0), job.duration_s[order])


def host_gaps(graph: RecordedGraph) -> Floats:
    """Return how long each operation usually starts after what it waited for, in seconds.

        gap = start - latest end of the predecessors
        usual gap = median over the steps of the smallest gap among the data-parallel ranks

    per stage, kind of operation and kind of the last predecessor, never negative.

    Counted: host time that every rank spends in every step: launching, loading data, logging.
    Ignored: jitter, and what only some ranks do. The smallest gap, since a longer one may be a wait for another rank
    in a collective that was not recorded; medians, since the gap of each operation would copy the recording.
    """
    job, dependencies = graph.job, graph.replay.graph
    start_s, end_s = job.start_s[graph.row], job.end_s[graph.row]
    kind = job.kind[graph.row]
    before_s = np.zeros(len(graph.row))
    np.maximum.at(before_s, dependencies.target, end_s[dependencies.source])
    before_kind = np.full(len(graph.row), len(KINDS), dtype=np.int64)
    last = end_s[dependencies.source] >= before_s[dependencies.target]
    before_kind[dependencies.target[last]] = kind[dependencies.source[last]]
    key = (kind * (len(KINDS) + 1) + before_kind) * job.stages + job.stage[graph.row]
    classes, member = np.unique(key, return_inverse=True)
    by_step = np.full((len(job.steps), len(classes)), np.inf)
    np.minimum.at(by_step, (job.step[graph.row], member), start_s - before_s)
    by_step[np.isinf(by_step)] = np.nan
    usual_s: Floats = np.maximum(np.nanmedian(by_step, axis=0), 0.0)
    return usual_s[member]


def attach(job: RecordedJob, order: Ints) -> Ints:
    """Return the computation each send serves or each receive feeds; -1 for all else, and for what never ran.

    Args:
        job: the recorded operations.
        order: all operations by lane and start. Transfers are taken in the order of their sequence numbers, the order
            in which the host launched them: two that were posted together may have either start first.

    Raises:
        UserInputError: the numbers of transfers and computations do not fit.
    """
    owner = np.full(len(job), -1, dtype=np.int64)
    kinds = job.kind[order]
    last = job.stages * job.chunks - 1
    for direction, source, sink in (("forward", 0, last), ("backward", last, 0)):
        computed = order[kinds == code(f"{direction}-compute")]
        virtual = job.virtual_stage[computed]
        for end, edge in (("recv", source), ("send", sink)):
            rows = np.flatnonzero(job.kind == code(f"{direction}-{end}"))
            rows = rows[np.lexsort((job.sequence[rows], job.lane[rows]))]
            owner[rows] = _align(job, computed, virtual != edge, rows, receives=end == "recv")
    return owner


def _align(job: RecordedJob, computed: Ints, needs: Bools, rows: Ints, *, receives: bool) -> Ints:
    """Return for each of *rows* (one kind) its computation or -1; *needs*: the computations with a neighbour."""
    lanes, lane, needing = len(job.steps) * job.workers, job.lane, computed[needs]
    count, needed = (np.bincount(lane[some], minlength=lanes) for some in (computed, needing))
    offset, needed_offset = offsets_of(count)[:-1], offsets_of(needed)[:-1]
    owner = np.full(len(rows), -1, dtype=np.int64)
    if not len(rows) and not len(needing):
        return owner

    # A receive that starts after the last computation, or a send that ends before the first, never ran.
    ran = np.ones(len(rows), dtype=np.bool_)
    if len(computed):
        edge = offset[lane[rows]] + (count[lane[rows]] - 1 if receives else 0)
        edge = computed[np.clip(edge, 0, len(computed) - 1)]
        ran = job.start_s[rows] <= job.start_s[edge] + _CLOCK_S
        if not receives:
            ran = job.end_s[rows] >= job.end_s[edge] - _CLOCK_S
    kept = rows[ran]
    computed_count = np.bincount(lane[kept], minlength=lanes)
    place = ranges(np.zeros_like(computed_count), computed_count)

    exact = computed_count == needed
    complete = ~exact & (computed_count == count)
    # Whether the first (or last) computation of a lane has a neighbour to exchange with.
    ends = offset if receives else offset + count - 1
    needs_at_end = needs[np.clip(ends, 0, len(needs) - 1)] if len(needs) else np.zeros(lanes, dtype=np.bool_)
    one_missing = ~exact & ~complete & (computed_count == count - 1) & ~needs_at_end
    bad = np.flatnonzero(~(exact | complete | one_missing))
    if len(bad):
        raise _misfit(job, int(bad[0]), computed, computed_count, count, needed, rows)
    at = lane[kept]
    by_need = exact[at]
    owner_of_kept = np.empty(len(kept), dtype=np.int64)
    owner_of_kept[by_need] = needing[(needed_offset[at] + place)[by_need]]
    among_all = (offset[at] + place + (one_missing[at] if receives else 0))[~by_need]
    owner_of_kept[~by_need] = np.where(needs[among_all], computed[among_all], -1)
    owner[ran] = owner_of_kept
    return owner


def _misfit(
    job: RecordedJob, lane: int, computed: Ints, per_lane: Ints, count: Ints, needed: Ints, rows: Ints
) -> UserInputError:
    step, worker = divmod(lane, job.workers)
    rank, stage = divmod(worker, job.stages)
    kind = KINDS[job.kind[rows[0]]] if len(rows) else "sends or receives"
    compute = KINDS[job.kind[computed[0]]]
    return UserInputError(
        f"step {job.steps[step]}, dp_rank {rank} stage {stage}: {per_lane[lane]} {kind} operations for "
        f"{count[lane]} {compute} ones, of which {needed[lane]} have a neighbour to exchange with"
    )


def pair(job: RecordedJob, order: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """Return the sends and the receives they meet.

    Raises:
        UserInputError: a send without its receive, or the other way round.
    """
    sends, receives = [], []
    for direction, towards in (("forward", 1), ("backward", -1)):
        place = _place_on_virtual_stage(job, order, f"{direction}-compute")
        keys = []
        for end, away in (("send", 0), ("recv", -towards)):
            rows = np.flatnonzero((job.kind == code(f"{direction}-{end}")) & (owner >= 0))
            computation = owner[rows]
            boundary = job.virtual_stage[computation] + away
            lane = job.step[rows] * job.data_parallel + job.data_parallel_rank[rows]
            key = (lane * (job.stages * job.chunks) + boundary) * (len(job) + 1) + place[computation]
            by_key = np.argsort(key, kind="stable")
            keys.append((key[by_key], rows[by_key]))
        (send_key, send), (recv_key, recv) = keys
        alone = np.setxor1d(send_key, recv_key)
        if len(alone):
            at = np.flatnonzero(send_key == alone[0])
            unpaired = send[at[0]] if len(at) else recv[np.flatnonzero(recv_key == alone[0])[0]]
            raise UserInputError(
                f"{job.describe(int(unpaired))}: the neighbouring stage recorded no counterpart"
            )
        sends.append(send)
        receives.append(recv)
    return np.concatenate(sends), np.concatenate(receives)


def _place_on_virtual_stage(job: RecordedJob, order: Ints, kind: str) -> Ints:
    """For every computation of *kind*: how many its worker ran before on the same virtual stage in the step."""
    place = np.zeros(len(job), dtype=np.int64)
    rows = order[job.kind[order] == code(kind)]
    group = job.lane[rows] * (job.stages * job.chunks) + job.virtual_stage[rows]
    grouped = np.argsort(group, kind="stable")
    ordered = group[grouped]
    place[rows[grouped]] = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return place
