"""Streams of traces that do not fit into memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hdpsim import traces
from hdpsim.errors import TraceError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("ending", ["npy", "parquet", "csv", "txt", "jsonl", "txt.gz", "npz"])
def test_a_stream_holds_what_the_file_holds_every_time(tmp_path: Path, ending: str) -> None:
    lengths = np.random.default_rng(0).integers(1, 5000, 3000)
    path = tmp_path / f"t.{ending}"
    traces.write_trace(traces.Trace(lengths, "t"), path)
    stream = traces.open_stream(path)
    for _ in range(2):
        assert np.concatenate(list(stream)).tolist() == lengths.tolist()
    if ending in ("npy", "parquet"):
        assert (stream.rows, stream.exact) == (3000, True)
    elif ending in ("csv", "txt", "jsonl"):
        assert stream.rows == pytest.approx(3000, rel=0.01)
        assert not stream.exact
    else:
        assert stream.rows is None


def test_what_cannot_be_streamed_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        traces.open_stream(tmp_path / "nope.npy")
    (tmp_path / "a.doc").touch()
    with pytest.raises(TraceError, match="unknown kind"):
        traces.open_stream(tmp_path / "a.doc")
    (tmp_path / "bad.npy").write_bytes(b"no numpy")
    stream = traces.open_stream(tmp_path / "bad.npy")
    assert stream.rows is None
    with pytest.raises(TraceError, match="cannot be read as npy"):
        list(stream)


_PROBE = """
import re, sys
from hdpsim.traces import global_batches, open_stream
import pyarrow.parquet
def high_water_mib():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
before = high_water_mib()
sequences = 0
for batch in global_batches(open_stream(sys.argv[1]), context_tokens=2**18, budget_tokens=2**25, wrap=False):
    sequences += len(batch.lengths)
print(sequences, high_water_mib() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_twenty_million_sequences_take_no_more_memory_than_a_few_blocks(tmp_path: Path, ending: str) -> None:
    rows = 20_000_000
    path = tmp_path / f"big.{ending}"
    block = np.random.default_rng(0).integers(1, 4000, 1_000_000)
    if ending == "npy":
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(rows,))  # 160 MB
        for start in range(0, rows, len(block)):
            array[start : start + len(block)] = block
        del array
    else:
        table = pa.table({"tokens": np.tile(block, rows // len(block))})
        pq.write_table(table, path, row_group_size=rows, use_dictionary=False)  # one row group
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    match = re.fullmatch(r"(\d+) ([\d.]+)\n", done.stdout)
    assert match is not None
    assert int(match[1]) >= rows
    assert float(match[2]) < 100  # MiB; the lengths alone are 153 MiB
