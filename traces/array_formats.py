"""Lengths from binary files: parquet, npy, npz."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.arrays import Ints
from hdpsim.errors import TraceError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import LIMITS
from hdpsim.reading import open_regular
from hdpsim.traces.file_formats import choose_column
from hdpsim.traces.lengths import BadValueError, good_ones, lengths_from_array, lengths_from_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from zipfile import ZipFile


_WIDEST_BYTES = 16  # of a number; a text of more is no length


def _unreadable(path: Path, kind: str, error: Exception) -> TraceError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return TraceError(f"cannot be read as {kind} ({shortened(reason, LONGEST_NAME)})", str(path))


def parquet_lengths(path: Path, column: str | None, chunk_rows: int) -> Iterator[Ints]:
    """Yield the lengths of one column of a parquet file, *chunk_rows* at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    try:
        # neither mapped nor read ahead: either would end with the whole column in memory
        with pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            schema = file.schema_arrow
            columns = {field.name: pa.types.is_integer(field.type) for field in schema}
            chosen = choose_column(path, columns, column)
            for batch in file.iter_batches(chunk_rows, columns=[chosen]):
                for lengths in good_ones(lengths_from_arrow, batch.column(0)):
                    yield lengths
                    rows += len(lengths)
    except BadValueError as error:
        raise TraceError(error.message, str(path), rows + 1) from None
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise _unreadable(path, "parquet", error) from None


def npy_lengths(path: Path, column: str | None, chunk_rows: int) -> Iterator[Ints]:
    """Yield the lengths of a .npy file, *chunk_rows* at a time.

    Each piece is mapped on its own: pages of one mapping would stay resident until the whole file is in memory.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy evaluates the header: a damaged one may raise anything
        raise _unreadable(path, "npy", error) from None
    if column is not None:
        raise TraceError(f"there is no column {quoted(column)}: a .npy file holds one array", str(path))
    if array.ndim != 1 or array.dtype.hasobject:
        yield from _array_lengths(path, array, "the array", chunk_rows)
        return
    for start in range(0, len(array), chunk_rows):
        rows = min(chunk_rows, len(array) - start)
        piece = np.memmap(path, array.dtype, "r", array.offset + start * array.dtype.itemsize, (rows,))
        try:
            yield from good_ones(lengths_from_array, piece)
        except BadValueError as error:
            raise TraceError(error.message, str(path), start + error.index + 1) from None


def npz_lengths(path: Path, column: str | None, chunk_rows: int) -> Iterator[Ints]:
    """Yield the lengths of one array of a .npz file."""
    import zipfile

    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            heads = {array: _npz_head(archive, member) for array, member in members.items()}
            columns = {name: len(shape) == 1 and dtype.kind in "iu" for name, (shape, dtype) in heads.items()}
            chosen = choose_column(path, columns, column)
            shape, dtype = heads[chosen]
            most, why = LIMITS["trace_sequences"]
            if math.prod(shape) > most or dtype.itemsize > _WIDEST_BYTES:
                raise TraceError(f"array {quoted(chosen)} holds more than {most:,} lengths: {why}", str(path))
            with archive.open(members[chosen]) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
    except (TraceError, MemoryError):
        raise
    except zipfile.BadZipFile as error:
        raise TraceError(f"is not an .npz archive, or a damaged one ({error})", str(path)) from None
    except Exception as error:  # a damaged archive or header may raise anything
        raise _unreadable(path, "npz", error) from None
    yield from _array_lengths(path, array, f"array {quoted(chosen)}", chunk_rows)


def _npz_head(archive: ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array of an archive, without unpacking the array."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        forms = np.lib.format
        read = forms.read_array_header_1_0 if version == (1, 0) else forms.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


def _array_lengths(path: Path, array: NDArray[Any], what: str, chunk_rows: int) -> Iterator[Ints]:
    if array.ndim != 1:
        wrong = f"{what} has {array.ndim} dimensions; expected one length after the other"
        raise TraceError(wrong, str(path))
    for start in range(0, len(array), chunk_rows):
        try:
            yield from good_ones(lengths_from_array, np.asarray(array[start : start + chunk_rows]))
        except BadValueError as error:
            raise TraceError(error.message, str(path), start + error.index + 1) from None
