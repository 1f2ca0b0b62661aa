"""A run of many steps as a Chrome trace: a lane for everybody who did something, a counter for what was shared.

Format: see timeline.py. Everything is one process; its threads are the lanes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from hdpsim.simulator.many_steps.lanes import LaneSpan, Record

from .step import DEFAULT_MAX_SLICES, meta_event, text_file

_LANES = ("planner", "loaders", "to host", "from host", "checkpoint")
"""In this order, then the stages."""

_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def write_run_timeline(path: str | Path, record: Record, *, title: str) -> str:
    """Write what happened in a run (gzip if the name ends in .gz); returns a line that says so.

    Of too many spans the first ones are written, and the line says so.

    Raises:
        UserInputError: an unwritable path.
    """
    kept = record.spans[:DEFAULT_MAX_SLICES]
    lanes = sorted({span.lane for span in kept}, key=_place)
    with text_file(Path(path)) as out:
        out.write(f'{{"displayTimeUnit":"ms","otherData":{_ENCODE({"title": title})},"traceEvents":[\n')
        out.write(",\n".join([*_names(lanes), *_spans(kept, lanes), *_counters(record)]))
        out.write("\n]}\n")
    left_out = len(record.spans) - len(kept)
    cut = f" (the first; {left_out:,} were left out)" if left_out else ""
    return f"wrote {path}: {len(kept):,} slices in {len(lanes)} lanes{cut}"


def _place(lane: str) -> tuple[int, int, str]:
    known, _, number = lane.partition("stage ")
    if number.isdecimal() and not known:
        return len(_LANES), int(number), lane
    return (_LANES.index(lane) if lane in _LANES else len(_LANES) + 1), 0, lane


def _names(lanes: list[str]) -> Iterator[str]:
    yield meta_event(0, 0, "process_name", {"name": "run"})
    for thread, lane in enumerate(lanes):
        yield meta_event(0, thread, "thread_name", {"name": lane})
        yield meta_event(0, thread, "thread_sort_index", {"sort_index": thread})


def _spans(spans: list[LaneSpan], lanes: list[str]) -> Iterator[str]:
    thread = {lane: number for number, lane in enumerate(lanes)}
    for span in spans:
        when = {"ts": round(span.start_s * 1e6, 3), "dur": round((span.end_s - span.start_s) * 1e6, 3)}
        what = {"name": f"{span.name} {span.step}", "cat": span.name, **when, "args": {"step": span.step}}
        yield _ENCODE({"ph": "X", "pid": 0, "tid": thread[span.lane], **what})


def _counters(record: Record) -> Iterator[str]:
    for name, values in record.counters.items():
        for time_s, value in values:
            point = {"ph": "C", "pid": 0, "tid": 0, "name": name, "ts": round(time_s * 1e6, 3)}
            yield _ENCODE({**point, "args": {"value": value}})
