from __future__ import annotations

import contextlib
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpsim import traces
from hdpsim.errors import TraceError
from hdpsim.traces.file_formats import COUNT_COLUMNS

ENDINGS = ("csv", "tsv", "txt", "jsonl", "ndjson", "npy", "npz", "parquet", "pq")
GZIPPED = ("csv.gz", "txt.gz", "jsonl.gz")
one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read_text(folder: Path, name: str, content: str | bytes, column: str | None = None) -> list[int]:
    path = folder / name
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    lengths: list[int] = traces.read_trace(path, column).lengths.tolist()
    return lengths


@pytest.mark.parametrize("counts", COUNT_COLUMNS)
@pytest.mark.parametrize("lengths", ["length", "tokens", "size"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_histogram_is_no_list_of_lengths(tmp_path: Path, counts: str, lengths: str, swapped: bool) -> None:
    for value in (3, 0.5):
        table = {lengths: [100, 200], counts.title(): [value, 2 * value]}
        table = dict(reversed(table.items())) if swapped else table
        rows = list(zip(*table.values(), strict=True))
        (tmp_path / "t.csv").write_text("\n".join(",".join(map(str, row)) for row in (tuple(table), *rows)))
        (tmp_path / "t.jsonl").write_text(
            "\n".join(json.dumps(dict(zip(table, row, strict=True))) for row in rows)
        )
        pq.write_table(pa.table(table), tmp_path / "t.parquet")
        for ending in ("csv", "jsonl", "parquet"):
            with pytest.raises(TraceError, match=r"histogram|cannot tell which"):
                traces.read_trace(tmp_path / f"t.{ending}")
            assert traces.read_trace(tmp_path / f"t.{ending}", column=lengths).lengths.tolist() == [100, 200]


def test_a_key_given_twice_in_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the key 'tokens' is given twice"):
        read_text(tmp_path, "a.jsonl", '{"tokens": 1}\n{"tokens": 2, "tokens": 3}\n')


@pytest.mark.parametrize("ending", ENDINGS + GZIPPED)
@settings(one_folder, max_examples=10)
@given(lengths=st.lists(st.integers(1, 2**31), min_size=1, max_size=30))
def test_what_is_written_is_read_again(tmp_path: Path, ending: str, lengths: list[int]) -> None:
    path = tmp_path / f"mine.{ending}"
    traces.write_trace(traces.Trace(np.array(lengths), "mine"), path)
    trace = traces.read_trace(path)
    assert trace.lengths.tolist() == lengths
    assert trace.name == "mine"
    assert path.name in trace.provenance
    assert np.concatenate(list(traces.iter_lengths(path, chunk_rows=7))).tolist() == lengths
    assert list(tmp_path.iterdir()) == [path]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    trace = traces.Trace(np.arange(1, 100), "t")
    for ending in ENDINGS + GZIPPED:
        first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
        traces.write_trace(trace, first)
        traces.write_trace(trace, second)
        assert first.read_bytes() == second.read_bytes()


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken.csv").mkdir()
    trace = traces.Trace(np.array([1]), "t")
    with pytest.raises(TraceError, match=r"taken\.csv: cannot be written"):
        traces.write_trace(trace, tmp_path / "taken.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.csv"]
    with pytest.raises(TraceError, match="cannot be written"):
        traces.write_trace(trace, tmp_path / "no" / "such" / "folder.npy")
    with pytest.raises(TraceError, match=r"unknown kind of trace file \(\.npy\.gz\)"):
        traces.write_trace(trace, tmp_path / "x.npy.gz")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n'),
        ("a.csv", "text,label\na,1\nb,2\n"),
        ("a.csv", ",text\n1,a\n2,b\n"),  # the index of a data frame
        ("a.csv", "ID\n1\n2\n"),
    ],
)
def test_numbers_of_rows_are_no_lengths(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(TraceError, match="is no name of lengths; name one of the columns"):
        traces.load_trace(str(path))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "tokens\n5\n6\n", [5, 6]),
        ("a.csv", b"\xef\xbb\xbftokens\r\n5\r\n6\r\n", [5, 6]),  # byte order mark, Windows line ends
        ("a.csv", "id,Length,text\n1,5,x\n2,6,y\n", [5, 6]),
        ("a.csv", "n_tokens,seq_len\n5,1\n", [1]),  # seq_len comes first in the documented order
        ("a.csv", "n;word\n5;x\n", [5]),  # the only column of integers
        ("a.tsv", "n\tword\n5\tx\n", [5]),
        ("a.csv", 'tokens,text\n5,"a\nb, c"\n\n6,d\n', [5, 6]),
        ("a.csv", "tokens\n3.0\n1e3\n+7\n", [3, 1000, 7]),
        ("a.csv", "5\n6\n7\n", [5, 6, 7]),  # no header: the first length is not lost
        ("a.csv.gz", "tokens\n2147483648\n", [2**31]),
        ("a.txt", "# lengths\n5\n\n6 # six\n 7.0\n", [5, 6, 7]),
        ("a.txt.gz", "5\n6", [5, 6]),
        ("a.jsonl", '{"id": "a", "tokens": 5}\n\n{"tokens": 6, "more": [1, {"tokens": 9}]}\n', [5, 6]),
        ("a.jsonl", '{"text": "a", "n": 5.0}\n{"n": 6, "text": 1}\n', [5, 6]),
        ("a.ndjson", "5\n6\n", [5, 6]),
    ],
)
def test_text_files_as_people_write_them(
    tmp_path: Path, name: str, content: str | bytes, expected: list[int]
) -> None:
    if name == "a.jsonl" and '"n"' in str(content):
        assert read_text(tmp_path, name, content, "n") == expected
    else:
        assert read_text(tmp_path, name, content) == expected


@pytest.mark.parametrize(
    ("name", "content", "row", "words"),
    [
        ("a.csv", "tokens\n1\n2\n0\n", 3, "zero.*line 4"),
        ("a.csv", "tokens,b\n1,x\n-5,y\nabc,z\n", 2, "-5 is negative"),
        ("a.csv", 'tokens,t\n1,"a\nb"\n\nabc,d\n', 2, "'abc' is not an integer.*line 5"),
        ("a.csv", "tokens,b\n1,x\n,y\n", 2, "missing"),
        ("a.csv", "tokens\n1\nnan\n", 2, "NaN"),
        ("a.csv", "tokens\n1\n-inf\n", 2, "infinite"),
        ("a.csv", "tokens\n1\n2.5\n", 2, "2.5 is not an integer"),
        ("a.csv", "tokens\n1\n0x10\n", 2, "'0x10' is not an integer"),
        ("a.csv", "tokens\n1\ntrue\n", 2, "'true' is not an integer"),
        ("a.csv", "tokens\n2147483649\n", 1, "absurdly long"),
        ("a.csv", "tokens\n" + "9" * 5000 + "\n", 1, "not an integer|absurdly|infinite"),
        ("a.csv", "tokens,b\n1,x\n2\n", 2, "1 columns where the first row has 2.*line 3"),
        ("a.csv", "1,4\n2,5\n3\n", 3, "1 columns"),
        ("a.csv.gz", "tokens\n1\n\xff\n", 2, "not an integer"),
        ("a.txt", "# c\n1\n\n0\n", 2, "zero.*line 4"),
        ("a.txt", "1 2\n", 1, "'1 2' is not an integer"),
        ("a.jsonl", '{"tokens": 1}\n\n{"tokens": true}\n', 2, "truth value.*line 3"),
        ("a.jsonl", '{"tokens": 1}\n{"other": 2}\n', 2, "missing"),
        ("a.jsonl", '{"tokens": 1}\n{"tokens": "2"}\n', 2, "'2' is not an integer"),
        ("a.jsonl", '{"tokens": 1}\n{"tokens": 2.5}\n', 2, "2.5 is not an integer"),
        ("a.jsonl", '{"tokens": NaN}\n', 1, "NaN"),
        ("a.jsonl", '{"tokens": 1}\n{"tokens"\n', 2, "is not JSON"),
        ("a.jsonl", '{"tokens": 1}\n7\n', 2, "no JSON object"),
        ("a.jsonl", '{"tokens": 1}{"tokens": 2}\n', 1, "is not JSON"),
        ("a.jsonl", "[" * 100_000, 1, "is not JSON"),
    ],
)
def test_the_first_bad_row_is_named(tmp_path: Path, name: str, content: str, row: int, words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        read_text(tmp_path, name, content)
    assert caught.value.row == row
    assert caught.value.path == str(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}, row {row}: ")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "", "holds no lengths"),
        ("a.csv", "\n\n", "holds no lengths"),
        ("a.csv", "tokens\n", "holds no lengths"),
        ("a.csv", "tokens\n\0\0\0\n5\n", "holds zero bytes"),
        ("a.csv", "tokens,tokens\n1,2\n", "several columns 'tokens'"),
        ("a.csv", "a,b\n1,2\n", "2 hold integers only; name one of the columns: a, b"),
        ("a.csv", "a,b\nx,y\n", "none holds integers only; name one of the columns: a, b"),
        ("a.txt", "# nothing\n", "holds no lengths"),
        ("a.jsonl", "\n", "holds no lengths"),
        ("a.jsonl", '{"a": 1, "b": 2}\n', "name one of the columns: a, b"),
        ("a.npy", "", "cannot be read as npy"),
        ("a.npy", b"\x93NUMPY\x01\x00", "cannot be read as npy"),
        ("a.npz", b"PK\x03\x04", "not an .npz archive"),
        ("a.parquet", b"PAR1", "cannot be read as parquet"),
        ("a.xlsx", b"PK", r"unknown kind of trace file \(.xlsx\); known are .csv"),
        ("lengths", "1", r"\(no ending\)"),
    ],
)
def test_unusable_files(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        read_text(tmp_path, name, content)
    assert caught.value.row is None


def test_damaged_compression(tmp_path: Path) -> None:
    whole = gzip.compress(b"tokens\n" + b"31\n" * 9999)
    for content in (whole[:-12], b"tokens\n1\n", whole[:20] + b"\0" * 40):
        for name in ("a.csv.gz", "a.txt.gz", "a.jsonl.gz"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(TraceError, match="gzip compression is damaged"):
                traces.read_trace(tmp_path / name)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        traces.read_trace(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match="File name too long"):
        traces.read_trace("x" * 5000 + ".csv")
    with pytest.raises(TraceError, match="is a directory"):
        traces.read_trace(tmp_path)


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    for name, content in (("a.csv", "tokens,b\n1,2\n"), ("a.jsonl", '{"tokens": 1, "b": 2}\n')):
        with pytest.raises(TraceError, match=re.escape("no column 'c'; the columns are: tokens, b")):
            read_text(tmp_path, name, content, "c")
    with pytest.raises(TraceError, match="one length a line"):
        read_text(tmp_path, "a.txt", "1\n", "c")
    with pytest.raises(TraceError, match="not JSON objects"):
        read_text(tmp_path, "a.jsonl", "1\n", "c")
    np.save(tmp_path / "a.npy", np.array([1]))
    with pytest.raises(TraceError, match="holds one array"):
        traces.read_trace(tmp_path / "a.npy", "c")


@pytest.mark.parametrize(
    ("array", "words", "row"),
    [
        (np.array([[1, 2]]), "2 dimensions", None),
        (np.array(5), "0 dimensions", None),
        (np.array([], dtype=int), "holds no lengths", None),
        (np.array([1.0, 2.5]), "2.5 is not an integer", 2),
        (np.array([1.0, np.nan]), "NaN", 2),
        (np.array([1.0, np.inf], dtype=np.float16), "infinite", 2),
        (np.array([True]), "truth value", 1),
        (np.array(["5"]), "'5' is not an integer", 1),
        (np.array([1, 2**63], dtype=np.uint64), "absurdly long", 2),
        (np.array([4 + 0j]), "not an integer", 1),
        (np.array([(1, 2)], dtype=[("a", int), ("b", int)]), "not an integer", 1),
    ],
)
def test_arrays_that_are_no_lengths(tmp_path: Path, array: np.ndarray, words: str, row: int | None) -> None:
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", tokens=array)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(TraceError, match=words) as caught:
            traces.read_trace(tmp_path / name)
        assert caught.value.row == row


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, {}], dtype=object), allow_pickle=True)
    with pytest.raises(TraceError, match="cannot be read as npy"):
        traces.read_trace(tmp_path / "a.npy")


def test_choice_of_the_array_of_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([1, 2]), b=np.array([3]), c=np.eye(2))
    assert traces.read_trace(tmp_path / "a.npz", "b").lengths.tolist() == [3]
    with pytest.raises(TraceError, match="name one of the columns: a, b, c"):
        traces.read_trace(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", lengths=np.array([1, 2]), b=np.array([3]))
    assert traces.read_trace(tmp_path / "a.npz").lengths.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "words", "row"),
    [
        (pa.array([1, None, -3]), "missing", 2),
        (pa.array([-1, None, 3]), "-1 is negative", 1),
        (pa.array([1.0, 2.5]), "2.5 is not an integer", 2),
        (pa.array([True]), "truth value", 1),
        (pa.array(["5"]), "holds string values", 1),
        (pa.array([[1]]), "holds list", 1),
        (pa.array([], pa.int32()), "holds no lengths", None),
    ],
)
def test_parquet_columns_that_are_no_lengths(
    tmp_path: Path, values: pa.Array, words: str, row: int | None
) -> None:
    pq.write_table(pa.table({"tokens": values}), tmp_path / "a.parquet")
    with pytest.raises(TraceError, match=words) as caught:
        traces.read_trace(tmp_path / "a.parquet")
    assert caught.value.row == row


def test_parquet_rows_are_counted_over_row_groups(tmp_path: Path) -> None:
    values = np.ones(1000, dtype=np.int64)
    values[777] = 0
    pq.write_table(pa.table({"word": ["x"] * 1000, "n": values}), tmp_path / "a.parquet", row_group_size=100)
    with pytest.raises(TraceError, match=r"row 778: the length is zero"):
        list(traces.iter_lengths(tmp_path / "a.parquet", chunk_rows=64))


def test_chunks_are_bounded_and_rows_counted_over_them(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, 0, -1) - 3)
    stream = traces.iter_lengths(tmp_path / "a.npy", chunk_rows=3)
    assert [next(stream).tolist() for _ in range(3)] == [[7, 6, 5], [4, 3, 2], [1]]
    with pytest.raises(TraceError, match="row 8: the length is zero"):
        next(stream)
    with pytest.raises(ValueError, match="chunk_rows"):
        traces.iter_lengths(tmp_path / "a.npy", chunk_rows=0)


def check_reading(path: Path) -> None:
    """Read a file that may be damaged: either there are lengths or there is a TraceError that names the file."""
    with contextlib.suppress(TraceError):
        assert traces.read_trace(path).lengths.min() >= 1
        return
    with pytest.raises(TraceError, match=re.escape(str(path))):
        traces.read_trace(path)


text_like = st.text(alphabet="0123456789-+.,;\n\r\t #\"'{}[]:tokensNaTrue\\é\0", max_size=80)


@pytest.mark.parametrize("ending", ENDINGS + GZIPPED)
@settings(one_folder, max_examples=40)
@given(content=st.one_of(st.binary(max_size=80), text_like.map(str.encode)))
def test_whatever_a_file_holds_only_a_trace_error_escapes(
    tmp_path: Path, ending: str, content: bytes
) -> None:
    path = tmp_path / f"fuzz.{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    check_reading(path)


@pytest.mark.parametrize("ending", ["npy", "npz", "parquet", "txt.gz"])
@settings(one_folder, max_examples=60)
@given(data=st.data())
def test_damaged_binary_files_only_raise_trace_errors(
    tmp_path: Path, ending: str, data: st.DataObject
) -> None:
    path = tmp_path / f"fuzz.{ending}"
    traces.write_trace(traces.Trace(np.arange(1, 50), "t"), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    check_reading(path)
