"""Files of others: regular ones, up to a limit, whatever they are called and whatever is inside."""

from __future__ import annotations

import gzip
import os
import pickle
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.ranges import LIMITS
from hdpsim.reading import (
    UnreadableError,
    loads_json,
    open_regular,
    open_trace,
    read_bytes,
    read_text,
    regular_file,
    too_deep,
)

READERS = (regular_file, open_regular, read_bytes, read_text)


@pytest.mark.parametrize("read", READERS)
def test_only_regular_files_are_opened_and_nobody_waits(read: object, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero"), tmp_path / "none", Path("a\0b")):
        began = time.monotonic()
        with pytest.raises(UnreadableError) as caught:
            read(path)  # type: ignore[operator]
        assert time.monotonic() - began < 1.0
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_pipe_with_a_writer_is_refused_too(tmp_path: Path) -> None:
    pipe = tmp_path / "fifo"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: os.close(os.open(pipe, os.O_RDWR)))
    writer.start()
    with pytest.raises(UnreadableError, match="pipe"):
        read_bytes(pipe)
    writer.join()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("configuration_bytes", "table_bytes", "trace_bytes"):
        monkeypatch.setitem(LIMITS, name, (2**16, "a test"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_limits")
def test_nothing_larger_than_the_limit_is_kept(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.csv", tmp_path / "packed.csv.gz"
    plain.write_bytes(b"x" * (2**16 + 1))
    with pytest.raises(UnreadableError, match="larger than 64 KiB: a test"):
        read_bytes(plain)
    packed.write_bytes(gzip.compress(b"x" * 2**20))
    with pytest.raises(UnreadableError, match="larger than 64 KiB when it is unpacked"):
        read_bytes(packed, unpack=True)
    with (
        pytest.raises(UnreadableError, match="unpacks to more than 64 KiB"),
        open_trace(packed, True) as file,
    ):
        file.read()
    packed.write_bytes(gzip.compress(b"y" * 2**16))
    assert read_bytes(packed, unpack=True) == b"y" * 2**16
    with open_trace(packed, True) as file:
        assert file.read() == b"y" * 2**16


def test_damaged_compression_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"1,2,3")[:-5])
    with pytest.raises(UnreadableError, match="damaged"):
        read_bytes(path, unpack=True)


BAD_JSON = ["{", "NaN", "[1e400]", "[" * 10_000, '["\\ud800"]', "[" + "9" * 5000 + "]", '{"a": -Infinity}']
BAD_JSON += ["[" * 60 + "]" * 60, '{"a": 1, "b": 2, "a": 1}', '[{"a": {"b": 1, "b": 2}}]']


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_json_without_surprises(text: str) -> None:
    with pytest.raises(UnreadableError, match=r"file\.json"):
        loads_json(text, "file.json")


VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3)),
    lambda below: st.one_of(
        st.lists(below, max_size=3), st.dictionaries(st.text(max_size=3), below, max_size=3)
    ),
    max_leaves=20,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(0, 6))
def test_depth_is_counted_in_levels(value: object, levels: int) -> None:
    assert too_deep(value, levels) == (depth(value) > levels)
