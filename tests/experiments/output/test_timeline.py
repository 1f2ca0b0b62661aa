"""The timeline file: well-formed, never overlapping, honest about what it leaves out."""

from __future__ import annotations

import dataclasses
import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.errors import UserInputError
from hdpsim.experiments.output.timeline.step import write_timeline
from hdpsim.simulator.play.execution import WAITS, Spans

Problems = Callable[[Path], tuple[str, ...]]
Row = tuple[int, int, int, int, int, float, float]

# rank, stage, chunk, op, micro-batch (or the place in WAITS), start, end
TWO_RANKS: list[Row] = [
    (0, 0, 0, 0, 0, 0.0, 1.0),
    (0, 0, 0, 1, 0, 1.0, 3.0),
    (0, 0, 0, 2, WAITS.index("optimizer"), 4.0, 4.5),
    (1, 0, 0, 0, 1, 0.0, 1.5),
    (1, 0, 0, 1, 1, 1.5, 4.0),
    (1, 0, 0, 2, WAITS.index("optimizer"), 4.0, 4.5),
]


def spans_of(rows: list[Row]) -> Spans:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 7
    whole = [np.array(column, dtype=np.int64) for column in columns[:5]]
    real = [np.array(column, dtype=np.float64) for column in columns[5:]]
    return Spans(
        rank=whole[0],
        stage=whole[1],
        chunk=whole[2],
        op=whole[3],
        micro_batch=whole[4],
        start_s=real[0],
        end_s=real[1],
    )


def many_ranks(ranks: int) -> Spans:
    """Return two slices per rank; rank r works r + 1 seconds."""
    return spans_of(
        [(r, 0, 0, op, r, op * (r + 1) / 2, (op + 1) * (r + 1) / 2) for r in range(ranks) for op in (0, 1)]
    )


def events(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return list(document["traceEvents"])


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_slices_names_and_times(tmp_path: Path, name: str, timeline_problems: Problems) -> None:
    path = tmp_path / name
    summary = write_timeline(path, spans_of(TWO_RANKS))
    assert (summary.slices, summary.note) == (6, "")
    slices = [e for e in events(path) if e["ph"] == "X"]
    (backward,) = [e for e in slices if e["name"] == "backward 1"]
    # 1.5 s to 4.0 s in microseconds
    assert (backward["pid"], backward["tid"], backward["ts"], backward["dur"]) == (1, 0, 1.5e6, 2.5e6)
    assert backward["args"] == {"micro_batch": 1, "chunk": 0}
    assert sum(e["name"] == "optimizer" for e in slices) == 2
    names = {(e["pid"], e["name"]): e["args"] for e in events(path) if e["ph"] == "M"}
    assert names[1, "process_name"] == {"name": "rank 1"}
    assert timeline_problems(path) == ()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_nanoseconds_survive(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_timeline(path, spans_of([(0, 0, 0, 0, 0, 1.000000001, 1.000001002)]))
    (piece,) = [e for e in events(path) if e["ph"] == "X"]
    assert (piece["ts"], piece["dur"]) == (1_000_000.001, 1.001)


def test_the_counter_counts_forwards_and_backwards(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_timeline(path, spans_of(TWO_RANKS))
    counts = [(e["ts"], e["args"]["stages"]) for e in events(path) if e["ph"] == "C"]
    assert {count for ts, count in counts if ts < 3e6} == {2}
    assert {count for ts, count in counts if 3e6 < ts < 4e6} == {1}
    assert {count for ts, count in counts if ts > 4e6} == {0}


def test_what_overlaps_gets_its_own_lane(tmp_path: Path, timeline_problems: Problems) -> None:
    path = tmp_path / "t.json"
    rows: list[Row] = [
        (0, 1, 0, 0, 0, 0.0, 2.0),
        (0, 1, 0, 0, 1, 1.0, 3.0),  # beside the first
        (0, 1, 0, 0, 2, 2.0, 4.0),  # the first lane is free again
        (0, 0, 0, 0, 3, 0.0, 1.0),
    ]
    write_timeline(path, spans_of(rows))
    lanes = {e["args"]["micro_batch"]: e["tid"] for e in events(path) if e["ph"] == "X"}
    assert lanes == {
        0: 1,
        1: 3,
        2: 1,
        3: 0,
    }  # two stages: lanes 0, 1, and 2, 3 for what runs at the same time
    assert timeline_problems(path) == ()


def test_the_cap_leaves_out_whole_ranks_and_keeps_the_telling_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    summary = write_timeline(path, many_ranks(9), max_slices=7)
    # 2 slices a rank: three ranks fit. Rank 8 works longest, 0 shortest, 4 is the median.
    assert summary.ranks == (8, 0, 4)
    assert summary.slices == 6
    assert "3 of 9 ranks are shown (6 of 18 slices); 6 ranks were left out (cap: 7 slices)" in summary.note
    other = json.loads(path.read_text())["otherData"]
    assert other["note"] == summary.note
    assert (other["slices_left_out"], other["ranks_left_out"]) == (12, 6)


def test_one_rank_is_always_written(tmp_path: Path) -> None:
    assert write_timeline(tmp_path / "t.json", many_ranks(3), max_slices=0).ranks == (2,)


def test_the_file_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_timeline(tmp_path / name, spans_of(TWO_RANKS))
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_an_unwritable_path_is_a_users_problem(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="cannot write the timeline: No such file or directory"):
        write_timeline(tmp_path / "missing" / "t.json", spans_of(TWO_RANKS))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UserInputError, match="cannot write the timeline"):
        write_timeline(tmp_path / "folder.json", spans_of(TWO_RANKS))
    assert [p.name for p in tmp_path.iterdir()] == ["folder.json"]


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_timeline(path, spans_of(TWO_RANKS), title=object())  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_step_without_operations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="recorded no operations"):
        write_timeline(tmp_path / "t.json", spans_of([]))


def test_the_checker_notices(tmp_path: Path, timeline_problems: Problems) -> None:
    path = tmp_path / "bad.json"
    lane = {"ph": "X", "pid": 0, "tid": 0, "name": "x"}
    bad = [
        {**lane, "ts": 0, "dur": 2},
        {**lane, "ts": 1, "dur": 0.5},
        {**lane, "ts": 9, "dur": -1},
        {"ph": "B", "pid": 0},
    ]
    path.write_text(json.dumps({"traceEvents": bad}))
    problems = " | ".join(timeline_problems(path))
    assert "starts at 1000 ns, before the last ends at 2000 ns" in problems
    assert "dur -1" in problems
    assert "has no name" in problems
    assert "'B'" in problems


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 2),
            st.just(0),
            st.integers(0, 2),
            st.integers(0, len(WAITS) - 1),
            st.floats(0, 100),
            st.floats(0, 10),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_any_spans_make_a_timeline_without_overlaps_and_without_loss(
    timeline_problems: Problems, rows: list[Row]
) -> None:
    spans = spans_of(rows)
    spans = dataclasses.replace(spans, end_s=spans.start_s + spans.end_s)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        assert write_timeline(path, spans).slices == len(rows)
        assert timeline_problems(path) == ()
        slices = [e for e in events(path) if e["ph"] == "X"]
    assert len(slices) == len(rows)
    total_s = float((spans.end_s - spans.start_s).sum())
    assert sum(e["dur"] for e in slices) == pytest.approx(total_s * 1e6, abs=1e-3 * len(rows))
