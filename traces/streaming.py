"""A trace too large for memory, as a stream that knows about how long it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.errors import TraceError
from hdpsim.reading import open_regular
from hdpsim.traces.file_formats import file_format
from hdpsim.traces.files import iter_lengths

_CHUNK_ROWS = 2**18
_SAMPLE_BYTES = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStream:
    """The lengths of a file, read in pieces of bounded size every time it is iterated over.

    Attributes:
        rows: how many there are: exact for npy and parquet, estimated from the first lines for plain text, None for
            compressed files.
        exact: whether `rows` is exact.
    """

    path: Path
    column: str | None
    rows: int | None
    exact: bool

    def __iter__(self) -> Iterator[Ints]:
        return iter_lengths(self.path, self.column, _CHUNK_ROWS)


def open_stream(path: str | Path, column: str | None = None) -> LengthStream:
    """Check that a trace file can be streamed and find out how long it is, without reading it.

    Raises:
        TraceError: there is no such file, or its ending is that of no format; bad rows come up in the stream.
    """
    path = Path(path)
    iter_lengths(path, column)  # checks the path and the ending
    kind, gzipped = file_format(path)
    rows: int | None = None
    if kind == "npy":
        rows = _npy_rows(path)
    elif kind == "parquet":
        rows = _parquet_rows(path)
    elif kind != "npz" and not gzipped:
        rows = _text_rows(path)
    exact = kind in ("npy", "parquet") and rows is not None
    return LengthStream(path=path, column=column, rows=rows, exact=exact)


def _npy_rows(path: Path) -> int | None:
    try:
        return len(np.lib.format.open_memmap(path, mode="r"))
    except Exception:  # damaged: the reader says so, with its own message
        return None


def _parquet_rows(path: Path) -> int | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        return None


def _text_rows(path: Path) -> int | None:
    """Size of the file over the mean length of its first lines."""
    try:
        with open_regular(path) as file:
            sample = file.read(_SAMPLE_BYTES)
        lines = sample.count(b"\n")
        return round(os.path.getsize(path) * lines / (sample.rindex(b"\n") + 1)) if lines else None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", str(path)) from None
