"""Traces from files and to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.arrays import Ints
from hdpsim.errors import TraceError
from hdpsim.files import replacing
from hdpsim.ranges import LIMITS
from hdpsim.reading import UnreadableError, regular_file
from hdpsim.traces.array_formats import npy_lengths, npz_lengths, parquet_lengths
from hdpsim.traces.file_formats import file_format, trace_name
from hdpsim.traces.text_formats import csv_lengths, jsonl_lengths, txt_lengths
from hdpsim.traces.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


_CHUNK_ROWS = 2**20
_TEXTS = {"csv": csv_lengths, "jsonl": jsonl_lengths, "txt": txt_lengths}
_ARRAYS = {"parquet": parquet_lengths, "npy": npy_lengths, "npz": npz_lengths}


def iter_lengths(
    path: str | Path, column: str | None = None, chunk_rows: int = _CHUNK_ROWS
) -> Iterator[Ints]:
    """Stream the lengths of a file as checked int64 arrays of at most *chunk_rows*, in bounded memory.

    Bounded for every format but .npz, which is read whole. Arguments and errors are those of `read_trace`; what is
    wrong with a row comes up when the stream gets there.
    """
    path = Path(path)
    try:
        regular_file(path)
    except UnreadableError as error:
        raise TraceError(error.reason, str(path)) from None
    file_format(path)
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    return _stream(path, column, chunk_rows)


def _stream(path: Path, column: str | None, chunk_rows: int) -> Iterator[Ints]:
    rows = 0
    for block in _blocks(path, column, chunk_rows):
        for start in range(0, len(block), chunk_rows):
            yield block[start : start + chunk_rows]
        rows += len(block)
    if rows == 0:
        raise TraceError("holds no lengths", str(path))


def _blocks(path: Path, column: str | None, chunk_rows: int) -> Iterator[Ints]:
    form = file_format(path)
    if form.kind in _ARRAYS:
        return _ARRAYS[form.kind](path, column, chunk_rows)
    return _TEXTS[form.kind](path, form.gzipped, column)


def read_trace(path: str | Path, column: str | None = None, name: str | None = None) -> Trace:
    """Read the sequence lengths of a file.

    Args:
        path: .csv, .tsv, .txt (one length a line, `#` starts a comment), .jsonl or .ndjson, each also with .gz
            appended; .parquet, .npy or .npz.
        column: the column (JSON key, array of an .npz) with the lengths. By default the first of tokens, length,
            lengths, length_tokens, num_tokens, seq_len, n_tokens, else the only column of integers.
        name: name of the trace; by default the file's name without its endings.

    Raises:
        TraceError: the file cannot be read or holds no lengths, or a value is not a whole number from 1 to 2**31. The
            row counts data rows from 1 (no header, comments or empty lines); for text files the message also gives
            the line where the two differ.
    """
    path = Path(path)
    most, why = LIMITS["trace_sequences"]
    chunks, rows = [], 0
    for chunk in iter_lengths(path, column):
        rows += len(chunk)
        if rows > most:
            raise TraceError(f"holds more than {most:,} lengths: {why}", str(path))
        chunks.append(chunk)
    origin = f"read from {path.name}" + (f", column {column}" if column else "")
    return Trace(np.concatenate(chunks), name or trace_name(path), origin)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write the lengths of *trace* in the format of the file's ending; the file appears whole or not at all.

    Tables get one column `tokens`, an .npz one array `lengths`. The same trace gives the same bytes.
    """
    path = Path(path)
    form = file_format(path)
    try:
        with replacing(path) as file:
            if form.gzipped:
                import gzip

                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as compressed:
                    _write(trace.lengths, form.kind, compressed)
            else:
                _write(trace.lengths, form.kind, file)
    except OSError as error:
        raise TraceError(f"cannot be written ({error.strerror or error})", str(path)) from None


def _write(lengths: NDArray[Any], kind: str, file: BinaryIO | Any) -> None:
    if kind == "npy":
        np.save(file, lengths)
    elif kind == "npz":
        np.savez_compressed(file, lengths=lengths)
    elif kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"tokens": lengths}), file)
    else:
        if kind == "csv":
            file.write(b"tokens\n")
        before, after = ('{"tokens": ', "}\n") if kind == "jsonl" else ("", "\n")
        for start in range(0, len(lengths), _CHUNK_ROWS):
            texts = map(str, lengths[start : start + _CHUNK_ROWS].tolist())
            file.write((before + (after + before).join(texts) + after).encode())
