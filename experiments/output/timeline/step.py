"""A step as a Chrome trace: open it at ui.perfetto.dev or in chrome://tracing.

A process (pid) is a rank, a thread (tid) is one of its pipeline stages. Slices of one thread never overlap: an
operation that runs beside another of the same stage gets a lane of its own; inside a pass lies what it spends its time
on. Only whole ranks are left out, never parts of one, and the file says how many. Where transfers are flows, links are
lanes of one more process, with a counter of each one's load. The file is written in one pass and appears under its name
when complete.

Format: "Trace Event Format" (Google), JSON object form: X (slice), M (name) and C (counter) events; times in
microseconds, here with nanosecond digits.
"""

from __future__ import annotations

import gzip
import heapq
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.errors import UserInputError
from hdpsim.experiments.output.files.out_file import replacing
from hdpsim.simulator.play.accounts import EPILOGUE
from hdpsim.simulator.play.execution import WAITS, Spans

from .passes import NAMES, Passes, telling_ranks

DEFAULT_MAX_SLICES = 1_000_000
"""About 140 MB of JSON (4 MB with gzip); viewers in a browser stay usable up to roughly this size."""

_COUNTER_POINTS = 1_000
# measured on 1M slices: 4 is 20 % faster and 70 % larger, 9 is 45 % slower and 20 % smaller
_COMPRESS_LEVEL = 6
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSummary:
    """What a timeline file holds.

    Attributes:
        slices: slices written.
        ranks: ranks written, in the order they were chosen.
        note: which ranks did not fit under the cap; empty when nothing was left out.
    """

    slices: int
    ranks: tuple[int, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLane:
    """A link of the network, and who used it.

    Attributes:
        name: of the link.
        transfers: what was sent, in the order of starts.
        start_s: of each.
        end_s: of each.
        edges_s: [periods + 1].
        load: [periods]: share of its rate that it carried between two edges.
    """

    name: str
    transfers: Sequence[str]
    start_s: Floats
    end_s: Floats
    edges_s: Floats
    load: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slices:
    """The spans sorted by rank, times in whole nanoseconds; rank i of *ranks* owns offsets[i]:offsets[i + 1]."""

    ranks: Ints
    offsets: Ints
    stage: Ints
    chunk: Ints
    op: Ints
    micro_batch: Ints
    start_ns: Ints
    end_ns: Ints


def write_timeline(
    path: str | Path,
    spans: Spans,
    *,
    title: str = "hdpsim",
    max_slices: int = DEFAULT_MAX_SLICES,
    links: Sequence[LinkLane] = (),
    passes: Passes | None = None,
) -> TimelineSummary:
    """Write *spans* to *path* (gzip if the name ends in .gz) and say what was left out.

    Args:
        path: the file to write; it is replaced only when the new one is complete.
        spans: the operations of a step.
        title: what the viewer shows as the name of the trace.
        max_slices: stop before the first rank that would exceed this (the slowest, the fastest and the median one come
            first, then all others); one rank is always written.
        links: lanes below the ranks; of each so many of the first transfers as there may be slices.
        passes: what forwards and backwards hold and spend their time on: shown with them and as slices inside them,
            which do not count as slices.

    Raises:
        UserInputError: an unwritable path, or no operations.
    """
    target = Path(path)
    slices = _sorted_slices(spans)
    chosen = _chosen_ranks(slices, max_slices)
    written = int(np.diff(slices.offsets)[chosen].sum())
    left_out, total = len(slices.ranks) - len(chosen), len(slices.op)
    note = ""
    if left_out:
        note = (
            f"{len(chosen):,} of {len(slices.ranks):,} ranks are shown ({written:,} of {total:,} slices); "
            f"{left_out:,} ranks were left out (cap: {max_slices:,} slices)"
        )
    other = {
        "title": title,
        "ranks": len(slices.ranks),
        "slices": written,
        "ranks_left_out": left_out,
        "slices_left_out": total - written,
        "note": note,
    }
    with text_file(target) as out:
        out.write(f'{{"displayTimeUnit":"ms","otherData":{_ENCODE(other)},"traceEvents":[\n')
        out.write(",\n".join(_counter_events(slices)))
        for position, index in enumerate(chosen.tolist()):
            out.write(",\n")
            out.write(",\n".join(_rank_events(slices, index, position, passes)))
        if links:
            pid = int(slices.ranks[-1]) + 2
            out.write(",\n")
            out.write(",\n".join(_link_events(links, pid, len(chosen) + 1, max_slices)))
        out.write("\n]}\n")
    return TimelineSummary(slices=written, ranks=tuple(slices.ranks[chosen].tolist()), note=note)


def _sorted_slices(spans: Spans) -> _Slices:
    order = np.lexsort((spans.end_s, spans.start_s, spans.stage, spans.rank))
    ranks, first = np.unique(spans.rank[order], return_index=True)
    if not len(ranks):
        raise UserInputError("there is nothing to draw: the step recorded no operations")
    return _Slices(
        ranks=ranks.astype(np.int64),
        offsets=np.append(first, len(order)).astype(np.int64),
        stage=spans.stage[order],
        chunk=spans.chunk[order],
        op=spans.op[order],
        micro_batch=spans.micro_batch[order],
        start_ns=np.rint(spans.start_s[order] * 1e9).astype(np.int64),
        end_ns=np.rint(spans.end_s[order] * 1e9).astype(np.int64),
    )


def _chosen_ranks(slices: _Slices, max_slices: int) -> Ints:
    """Positions in slices.ranks, the telling ones first, within the cap."""
    work_ns = np.where(slices.op != EPILOGUE, slices.end_ns - slices.start_ns, 0)
    telling = telling_ranks(np.add.reduceat(work_ns, slices.offsets[:-1]).astype(np.float64))
    order = np.array(list(dict.fromkeys([*telling, *range(len(slices.ranks))])), dtype=np.int64)
    fits = int(np.searchsorted(np.cumsum(np.diff(slices.offsets)[order]), max_slices, side="right"))
    return order[: max(fits, 1)]


def _rank_events(slices: _Slices, index: int, position: int, passes: Passes | None) -> Iterator[str]:
    """Yield the events of one rank: names of its process and lanes, then its slices lane by lane."""
    of_rank = slice(int(slices.offsets[index]), int(slices.offsets[index + 1]))
    rank = int(slices.ranks[index])
    yield meta_event(rank, 0, "process_name", {"name": f"rank {rank}"})
    yield meta_event(rank, 0, "process_sort_index", {"sort_index": position + 1})
    stage, start_ns, end_ns = slices.stage[of_rank], slices.start_ns[of_rank], slices.end_ns[of_rank]
    extra = free_lanes(stage, start_ns, end_ns)
    stages = int(slices.stage.max()) + 1
    tids = stage + stages * extra
    for tid in np.unique(tids).tolist():
        beside, own_stage = divmod(tid, stages)
        name = f"stage {own_stage}" + (f", at the same time {beside}" if beside else "")
        yield meta_event(rank, tid, "thread_name", {"name": name})
        yield meta_event(rank, tid, "thread_sort_index", {"sort_index": own_stage * 100 + beside})
    for tid, own_stage, op, number, chunk, start, end in zip(
        tids.tolist(),
        stage.tolist(),
        slices.op[of_rank].tolist(),
        slices.micro_batch[of_rank].tolist(),
        slices.chunk[of_rank].tolist(),
        start_ns.tolist(),
        end_ns.tolist(),
        strict=True,
    ):
        if op != EPILOGUE:
            what = f'"name":"{NAMES[op]} {number}","cat":"{NAMES[op]}"'
            more = "" if passes is None else f",{passes.arguments[number]}"
            arguments = f'{{"micro_batch":{number},"chunk":{chunk}{more}}}'
        else:
            what, arguments = f'"name":"{WAITS[number]}","cat":"step"', "{}"
        yield _slice(rank, tid, what, start, end, arguments)
        if passes is not None and op != EPILOGUE:
            for part, begin, until in passes.parts(op, own_stage, chunk, number, start, end):
                yield _slice(rank, tid, f'"name":"{part}","cat":"part"', begin, until, "{}")


def _slice(pid: int, tid: int, what: str, start_ns: int, end_ns: int, arguments: str) -> str:
    length = end_ns - start_ns
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},{what},"ts":{start_ns // 1000}.{start_ns % 1000:03d},'
        f'"dur":{length // 1000}.{length % 1000:03d},"args":{arguments}}}'
    )


def _link_events(links: Sequence[LinkLane], pid: int, place: int, most: int) -> Iterator[str]:
    """Yield the lanes of links: transfers that overlap beside each other, and the load."""
    yield meta_event(pid, 0, "process_name", {"name": "links"})
    yield meta_event(pid, 0, "process_sort_index", {"sort_index": place})
    first = 0
    for link in links:
        start_ns, end_ns = (
            np.rint(times[:most] * 1e9).astype(np.int64) for times in (link.start_s, link.end_s)
        )
        lane = free_lanes(np.zeros(len(start_ns), dtype=np.int64), start_ns, end_ns)
        for number in range(int(lane.max(initial=0)) + 1):
            name = link.name + (f", at the same time {number}" if number else "")
            yield meta_event(pid, first + number, "thread_name", {"name": name})
            yield meta_event(pid, first + number, "thread_sort_index", {"sort_index": first + number})
        for tid, what, start, end in zip(
            (first + lane).tolist(), link.transfers, start_ns.tolist(), end_ns.tolist(), strict=False
        ):
            yield _ENCODE({
                "ph": "X", "pid": pid, "tid": tid, "name": what, "cat": "transfer", "ts": start / 1e3,
                "dur": (end - start) / 1e3, "args": {},
            })  # fmt: skip
        for moment, load in zip(link.edges_s.tolist(), [*link.load.tolist(), 0.0], strict=True):
            yield _ENCODE({
                "ph": "C", "pid": pid, "tid": 0, "name": f"load of {link.name}", "ts": round(moment * 1e6, 3),
                "args": {"percent": round(100 * load, 2)},
            })  # fmt: skip
        first += int(lane.max(initial=0)) + 1


def free_lanes(stage: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return for every slice (sorted by stage, then start) the first lane of its stage that is free."""
    lane = np.zeros(len(stage), dtype=np.int64)
    if not np.any((stage[1:] == stage[:-1]) & (start_ns[1:] < end_ns[:-1])):
        return lane
    current, busy, free, lanes = -1, list[tuple[int, int]](), list[int](), 0
    for i, (own_stage, start, end) in enumerate(
        zip(stage.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)
    ):
        if own_stage != current:
            current, busy, free, lanes = own_stage, [], [], 0
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, lanes)
            lanes += 1
        lane[i] = heapq.heappop(free)
        heapq.heappush(busy, (end, int(lane[i])))
    return lane


def _counter_events(slices: _Slices) -> Iterator[str]:
    """Yield how many pipeline stages of all ranks compute, at evenly spaced moments."""
    pid = int(slices.ranks[-1]) + 1
    yield meta_event(pid, 0, "process_name", {"name": f"all {len(slices.ranks):,} ranks"})
    yield meta_event(pid, 0, "process_sort_index", {"sort_index": 0})
    work = slices.op != EPILOGUE
    starts, ends = np.sort(slices.start_ns[work]), np.sort(slices.end_ns[work])
    moments = np.unique(np.linspace(0, int(slices.end_ns.max()), _COUNTER_POINTS).astype(np.int64))
    active = np.searchsorted(starts, moments, side="right") - np.searchsorted(ends, moments, side="right")
    for moment, count in zip(moments.tolist(), active.tolist(), strict=True):
        yield (
            f'{{"ph":"C","pid":{pid},"tid":0,"name":"computing pipeline stages","ts":{moment // 1000}.'
            f'{moment % 1000:03d},"args":{{"stages":{count}}}}}'
        )


def meta_event(pid: int, tid: int, name: str, arguments: Mapping[str, object]) -> str:
    """A name or a place of a process or a thread."""
    return _ENCODE({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": arguments})


@contextmanager
def text_file(target: Path) -> Iterator[IO[str]]:
    """Open a new file for text, packed where the name says so."""
    with replacing(target, "timeline") as raw:
        if target.suffix == ".gz":
            packed = gzip.GzipFile(
                filename="", mode="wb", fileobj=raw, compresslevel=_COMPRESS_LEVEL, mtime=0
            )
            with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="") as out:
                yield out
        else:
            with io.TextIOWrapper(raw, encoding="utf-8", newline="") as out:
                yield out
