"""Which send belongs to which receive, and both to which computation.

A trace numbers sends and receives in their order, and names the virtual stage only of computations. What the profiler
wrote is not always what ran: with interleaved stages it may list sends and receives at the two ends of the model,
where there is no neighbour, at the start and at the end of the step, and may miss the first receive or the last send
there. So each list is aligned with the computations of its worker first (`attach`), and then senders and receivers
are paired: the n-th transfer over a boundary between two virtual stages is the same on both sides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hdpsim.errors import UserInputError
from simulator.recorded import KINDS, RecordedJob, code

__all__ = ["CLOCK_S", "attach", "pair"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CLOCK_S = 5e-5
"""Starts and ends closer than this are the same moment: recorded times of neighbours differ by up to 2e-5 s."""


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
    lanes = len(job.steps) * job.workers
    lane = job.lane
    count = np.bincount(lane[computed], minlength=lanes)
    offset = np.cumsum(count) - count
    needing = computed[needs]
    needed = np.bincount(lane[needing], minlength=lanes)
    needed_offset = np.cumsum(needed) - needed

    # A receive that starts after the last computation, or a send that ends before the first, never ran.
    owner = np.full(len(rows), -1, dtype=np.int64)
    if not len(rows) and not len(needing):
        return owner
    if len(computed) and len(rows):
        edge = offset[lane[rows]] + (count[lane[rows]] - 1 if receives else 0)
        edge = computed[np.clip(edge, 0, len(computed) - 1)]
        if receives:
            ran = job.start_s[rows] <= job.start_s[edge] + CLOCK_S
        else:
            ran = job.end_s[rows] >= job.end_s[edge] - CLOCK_S
    else:
        ran = np.ones(len(rows), dtype=np.bool_)
    kept = rows[ran]
    found = np.bincount(lane[kept], minlength=lanes)
    place = np.arange(len(kept)) - np.repeat(np.cumsum(found) - found, found)

    exact = found == needed
    complete = ~exact & (found == count)
    one_missing = ~exact & ~complete & (found == count - 1) & ~_needs_at_edge(needs, offset, count, receives)
    bad = np.flatnonzero(~(exact | complete | one_missing))
    if len(bad):
        raise _misfit(job, int(bad[0]), computed, found, count, needed, rows)
    at = lane[kept]
    by_need = exact[at]
    served = np.empty(len(kept), dtype=np.int64)
    served[by_need] = needing[(needed_offset[at] + place)[by_need]]
    shift = one_missing[at] if receives else 0
    among_all = (offset[at] + place + shift)[~by_need]
    served[~by_need] = np.where(needs[among_all], computed[among_all], -1)
    owner[ran] = served
    return owner


def _needs_at_edge(needs: Bools, offset: Ints, count: Ints, first: bool) -> Bools:
    """For every lane: does its first (or last) computation have a neighbour to exchange with?"""
    if not len(needs):
        return np.zeros(len(count), dtype=np.bool_)
    return needs[np.clip(offset if first else offset + count - 1, 0, len(needs) - 1)]


def _misfit(
    job: RecordedJob, lane: int, computed: Ints, found: Ints, count: Ints, needed: Ints, rows: Ints
) -> UserInputError:
    step, worker = divmod(lane, job.workers)
    rank, stage = divmod(worker, job.stages)
    kind = KINDS[job.kind[rows[0]]] if len(rows) else "sends or receives"
    compute = KINDS[job.kind[computed[0]]]
    return UserInputError(
        f"step {job.steps[step]}, dp_rank {rank} stage {stage}: {found[lane]} {kind} operations for "
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
            one = send[at[0]] if len(at) else recv[np.flatnonzero(recv_key == alone[0])[0]]
            raise UserInputError(f"{job.describe(int(one))}: the neighbouring stage recorded no counterpart")
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
    first = np.searchsorted(ordered, ordered)
    place[rows[grouped]] = np.arange(len(rows)) - first
    return place
