"""Small files that ask for much: refused before it is allocated, with the limit in the message."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hdpsim import traces
from hdpsim.errors import InfeasibleError, TraceError
from hdpsim.ranges import LIMITS


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "trace_sequences", (1000, "a test"))  # type: ignore[arg-type]
    monkeypatch.setitem(LIMITS, "batch_pieces", (1000, "a test"))  # type: ignore[arg-type]


def write(path: Path, lengths: np.ndarray) -> None:  # type: ignore[type-arg]
    if path.suffix == ".npy":
        np.save(path, lengths)
    elif path.suffix == ".npz":
        np.savez_compressed(path, lengths=lengths)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"tokens": lengths}), path)
    else:
        path.write_bytes(gzip.compress(b"tokens\n" + b"1\n" * len(lengths)))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.parquet", "a.csv.gz"])
def test_more_lengths_than_the_limit_are_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, np.ones(1000, dtype=np.int64))
    assert len(traces.read_trace(tmp_path / name)) == 1000
    write(tmp_path / name, np.ones(1001, dtype=np.int64))
    with pytest.raises(TraceError, match="more than 1,000 lengths: a test"):
        traces.read_trace(tmp_path / name)


@pytest.mark.parametrize("content", [b"0" * 2**23, b"tokens\n" + b"7" * 2**23], ids=["no line", "long line"])
def test_a_line_without_end_is_not_kept(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "long.csv.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(TraceError, match="longer than 1 MiB"):
        traces.read_trace(path)


@pytest.mark.parametrize("name", ["a.csv", "a.npy", "a.npz", "a.parquet", "a.yaml", "a.jsonl.gz"])
def test_what_is_called_like_a_file_and_is_none(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(TraceError, match="is a pipe, not a file"):
        traces.load_trace(tmp_path / name)
    os.remove(tmp_path / name)
    os.mkdir(tmp_path / name)
    with pytest.raises(TraceError, match="is a directory, not a file"):
        traces.load_trace(tmp_path / name)


@pytest.mark.usefixtures("small")
def test_a_batch_of_endless_pieces_is_refused() -> None:
    one = traces.Trace(np.array([2_000_000]), "one")
    with pytest.raises(InfeasibleError, match=r"falls into 2,000,000 pieces .* at most 1,000: a test"):
        next(traces.global_batches(one, context_tokens=1, budget_tokens=10))
    many = traces.Trace(np.full(2000, 7), "many")
    with pytest.raises(InfeasibleError, match="more than 1,000 sequences or pieces"):
        next(traces.global_batches(many, context_tokens=8, sequences=1500))
    assert next(traces.global_batches(many, context_tokens=8, sequences=1000)).tokens == 7000


def test_blocks_are_cut_where_pieces_are_many() -> None:
    """However a block falls apart, the batches are the same."""
    lengths = np.random.default_rng(3).integers(1, 3_000_000, 40)
    fine = [b.lengths for b in traces.global_batches((lengths,), context_tokens=16, budget_tokens=5_000_000)]
    whole = np.concatenate(fine)
    assert whole.sum() == lengths.sum()
    assert whole.max() <= 16
