"""What stands before a bad row is read, whatever the format and wherever the row: hours of work may hang on it."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpsim.errors import TraceError
from hdpsim.traces.files import iter_lengths

ARRAYS = ("npy", "npz", "parquet")
TEXTS = ("txt", "csv", "csv without header", "uneven csv", "tsv", "jsonl", "ndjson", "csv.gz", "txt.gz")


def write(path: Path, form: str, lengths: list[int], bad: int) -> Path:
    """A file of that format whose row number *bad* (from 0) is none."""
    values = [*lengths]
    values[bad] = 0
    name, _, kind = form.rpartition(" ")
    path = path / ("a.csv" if "csv" in form and "gz" not in form else f"a.{kind or name}")
    if form == "npy":
        np.save(path, np.array(values))
    elif form == "npz":
        np.savez(path, lengths=np.array(values))
    elif form == "parquet":
        pq.write_table(pa.table({"tokens": values}), path)
    else:
        if "json" in form:
            rows = [f'{{"text": "a, b", "tokens": {value}}}' for value in values]
        elif form == "tsv":
            rows = ["word\ttokens", *(f"x\t{value}" for value in values)]
        elif form.startswith(("csv without", "txt")):
            rows = [str(value) for value in values]
        else:
            rows = ["word,tokens", *(f"x,{value}" for value in values)]
            if form == "uneven csv":
                rows[bad + 1] = "x"
        text = "".join(f"{row}\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if form.endswith("gz") else text)
    return path


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    form=st.sampled_from(ARRAYS + TEXTS),
    lengths=st.lists(st.integers(1, 2**31), min_size=1, max_size=60),
    place=st.integers(0, 59),
    block_bytes=st.sampled_from([16, 100, 2**22]),
    chunk_rows=st.sampled_from([1, 7, 2**20]),
)
def test_everything_before_the_first_bad_row_is_given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    lengths: list[int],
    place: int,
    block_bytes: int,
    chunk_rows: int,
) -> None:
    if "csv" in form and block_bytes < 100:
        block_bytes = 100  # Arrow wants a whole row in the first block
    monkeypatch.setattr("hdpsim.traces.text_formats._BLOCK_BYTES", block_bytes)
    bad = place % len(lengths)
    path = write(tmp_path, form, lengths, bad)
    seen: list[int] = []
    with pytest.raises(TraceError) as raised:
        for chunk in iter_lengths(path, chunk_rows=chunk_rows):
            seen += chunk.tolist()
    assert seen == lengths[:bad]
    assert raised.value.row == bad + 1
