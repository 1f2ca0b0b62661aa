"""Lengths from text files: csv, one length a line, JSON lines; plain or compressed with gzip."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import zlib
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.errors import TraceError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import LIMITS
from hdpsim.reading import UnreadableError, open_trace, unique_keys
from hdpsim.traces.formats import choose_column
from hdpsim.traces.lengths import (
    BadValueError,
    good_ones,
    length_from_text,
    length_from_value,
    lengths_from_arrow,
    lengths_from_texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


_BLOCK_BYTES = 2**22  # a reader holds about thirty times this
_LONGEST_LINE_BYTES, _WHY_NO_LONGER = LIMITS["line_bytes"]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def _line_blocks(path: Path, gzipped: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the file in blocks of whole lines, each with the number of lines before it."""
    lines_before = 0
    try:
        with open_trace(path, gzipped) as file:
            while block := file.read(_BLOCK_BYTES):
                rest = file.readline(_LONGEST_LINE_BYTES)
                block += rest
                if len(rest) == _LONGEST_LINE_BYTES or (
                    b"\n" not in block and len(block) > _LONGEST_LINE_BYTES
                ):
                    raise TraceError(
                        f"a line is longer than {_LONGEST_LINE_BYTES >> 20} MiB: {_WHY_NO_LONGER}", str(path)
                    )
                yield lines_before, block.removeprefix(_BYTE_ORDER_MARK) if lines_before == 0 else block
                lines_before += block.count(b"\n")
    except UnreadableError as error:
        raise TraceError(error.reason, str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the gzip compression is damaged ({error})", str(path)) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", str(path)) from None


def _refuse(path: Path, message: str, row: int, line: int) -> NoReturn:
    raise TraceError(message if line == row else f"{message} (line {line} of the file)", str(path), row)


def txt_lengths(path: Path, gzipped: bool) -> Iterator[Ints]:
    """Yield the lengths of a file with one length a line; `#` starts a comment, empty lines do not count."""
    import pyarrow as pa

    rows = 0
    for lines_before, block in _line_blocks(path, gzipped):
        lines = block.splitlines()
        try:
            blocks = iter([lengths_from_arrow(pa.array(lines, pa.binary()))])
        except BadValueError:
            blocks = _commented_lengths(path, lines, rows, lines_before)
        for lengths in blocks:
            yield lengths
            rows += len(lengths)


def _commented_lengths(path: Path, lines: list[bytes], rows: int, lines_before: int) -> Iterator[Ints]:
    """Parse line by line, skipping comments and empty lines; before the first bad line comes what is good."""
    lengths: list[int] = []
    for number, line in enumerate(lines, start=lines_before + 1):
        text = line.partition(b"#")[0].strip()
        if not text:
            continue
        try:
            lengths.append(length_from_text(text.decode("utf-8", "replace")))
        except ValueError as error:
            yield np.array(lengths, dtype=np.int64)
            _refuse(path, str(error), rows + len(lengths) + 1, number)
    yield np.array(lengths, dtype=np.int64)


def jsonl_lengths(path: Path, gzipped: bool, column: str | None) -> Iterator[Ints]:
    """Yield the lengths of a JSON-lines file: one object (with a key per column) or one bare number a line."""
    first = _first_json(path, gzipped)
    if not isinstance(first, dict):
        if column is not None:
            raise TraceError(
                f"there is no column {quoted(column)}: the lines are not JSON objects", str(path)
            )
        yield from txt_lengths(path, gzipped)
        return
    integers = {key: isinstance(value, int) and not isinstance(value, bool) for key, value in first.items()}
    column = choose_column(path, integers, column)
    rows = 0
    for lines_before, block in _line_blocks(path, gzipped):
        fast = _fast_jsonl(block, column)
        blocks = _careful_jsonl(path, block, column, rows, lines_before) if fast is None else iter([fast])
        for lengths in blocks:
            yield lengths
            rows += len(lengths)


def _first_json(path: Path, gzipped: bool) -> object:
    for lines_before, block in _line_blocks(path, gzipped):
        for number, line in enumerate(block.splitlines(), start=lines_before + 1):
            if line.strip():
                return _parse_json(path, line, 1, number)
    raise TraceError("holds no lengths", str(path))


def _parse_json(path: Path, line: bytes, row: int, number: int) -> object:
    try:
        return json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        if "given twice" in str(error):
            _refuse(path, str(error), row, number)
        shown = line.strip()[:40].decode("utf-8", "replace")
        _refuse(path, f"{quoted(shown)} is not JSON", row, number)


def _fast_jsonl(block: bytes, column: str) -> Ints | None:
    """Parse a block with Arrow; None when anything in it needs a closer look."""
    import pyarrow as pa
    import pyarrow.json as pa_json

    try:
        table = pa_json.read_json(
            pa.BufferReader(block),
            pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pa_json.ParseOptions(
                explicit_schema=pa.schema([(column, pa.int64())]), unexpected_field_behavior="ignore"
            ),
        )
        lengths = lengths_from_arrow(table.column(column).combine_chunks())
    except (pa.ArrowException, BadValueError, UnicodeEncodeError):
        return None
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    return lengths if len(lengths) == lines else None


def _careful_jsonl(path: Path, block: bytes, column: str, rows: int, lines_before: int) -> Iterator[Ints]:
    """Parse line by line, skipping empty lines; before the first bad one, reported with its number, what is good."""
    lengths: list[int] = []
    for number, line in enumerate(block.splitlines(), start=lines_before + 1):
        if not line.strip():
            continue
        row = rows + len(lengths) + 1
        try:
            record = _parse_json(path, line, row, number)
            if not isinstance(record, dict):
                _refuse(path, f"the line holds no JSON object with the key {quoted(column)}", row, number)
            try:
                lengths.append(length_from_value(record.get(column)))
            except ValueError as error:
                _refuse(path, str(error), row, number)
        except TraceError:
            yield np.array(lengths, dtype=np.int64)
            raise
    yield np.array(lengths, dtype=np.int64)


_UNEVEN_ROW = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
"""How Arrow reports a row with too few or too many columns."""


def csv_lengths(path: Path, gzipped: bool, column: str | None) -> Iterator[Ints]:
    """Yield the lengths of one column of a csv file (separated by comma, semicolon or tab; header optional)."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    delimiter, header = _csv_dialect(path, gzipped)
    # No invalid_row_handler: Arrow hands it the row as text and complains on stderr when the row is not UTF-8.
    parse = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=header)
    rows, place = 0, -1
    try:
        with open_trace(path, gzipped) as file, pa_csv.open_csv(file, read, parse) as probe:
            columns = {field.name: pa.types.is_integer(field.type) for field in probe.schema}
            repeated = len(columns) < len(probe.schema)
        chosen = choose_column(path, columns, column)
        if repeated and probe.schema.get_field_index(chosen) < 0:
            raise TraceError(f"there are several columns {quoted(chosen)}", str(path))
        place = probe.schema.get_field_index(chosen)
        convert = pa_csv.ConvertOptions(column_types={chosen: pa.binary()}, include_columns=[chosen])
        with open_trace(path, gzipped) as file, pa_csv.open_csv(file, read, parse, convert) as batches:
            for batch in batches:
                for lengths in good_ones(lengths_from_arrow, batch.column(0)):
                    yield lengths
                    rows += len(lengths)
    except BadValueError as error:
        row = rows + 1
        _refuse(path, error.message, row, _csv_line(path, gzipped, delimiter, row + (header is None)))
    except pa.ArrowException as error:
        uneven = _UNEVEN_ROW.search(str(error))
        if uneven is None:
            reason = (
                "holds no lengths"
                if "Empty CSV" in str(error)
                else f"cannot be read as csv ({shortened(str(error), LONGEST_NAME)})"
            )
            raise TraceError(reason, str(path)) from None
        record, expected, actual = map(int, uneven.groups())
        message = f"the row has {actual} columns where the first row has {expected}"
        row = record - (header is None)
        before = range(rows + (header is None), record - 1)
        with contextlib.suppress(TraceError):
            if place < 0:  # already in the block that tells the types of the columns
                place = _csv_place(path, gzipped, delimiter, header, column)
            yield from _csv_rows(path, gzipped, delimiter, place, before)
        _refuse(path, message, row, _csv_line(path, gzipped, delimiter, record))
    except UnicodeDecodeError:
        raise TraceError("the names of the columns are not UTF-8 text", str(path)) from None
    except UnreadableError as error:
        raise TraceError(error.reason, str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the gzip compression is damaged ({error})", str(path)) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", str(path)) from None


def _csv_dialect(path: Path, gzipped: bool) -> tuple[str, list[str] | None]:
    """Return the delimiter, and made-up column names when the first row holds numbers instead of names."""
    import csv

    first = ""
    for _, block in _line_blocks(path, gzipped):
        if b"\0" in block:
            raise TraceError("is not UTF-8 text: it holds zero bytes", str(path))
        lines = (line.decode("utf-8", "replace") for line in block.splitlines())
        first = next((line for line in lines if line.strip()), "")
        break
    if not first:
        raise TraceError("holds no lengths", str(path))
    delimiter = max(",;\t", key=first.count)
    try:
        fields = next(csv.reader([first], delimiter=delimiter))
    except csv.Error as error:
        raise TraceError(f"the first row cannot be read as csv ({error})", str(path)) from None
    try:
        for field in fields:
            float(field)
    except ValueError:
        return delimiter, None
    return delimiter, [f"column_{number}" for number in range(1, len(fields) + 1)]


def _csv_place(
    path: Path, gzipped: bool, delimiter: str, header: list[str] | None, column: str | None
) -> int:
    """Which column has the lengths, as far as the first two records tell."""
    with _csv_records(path, gzipped, delimiter) as records:
        names = header or next(records)
        first = next(records, [])
    columns = {name: text.strip().isdecimal() for name, text in zip(names, first, strict=False)}
    return names.index(choose_column(path, columns, column))


def _csv_rows(path: Path, gzipped: bool, delimiter: str, place: int, wanted: range) -> Iterator[Ints]:
    """Yield the lengths of some records (counted from 0, header included), parsed one by one; none if one is bad."""
    with _csv_records(path, gzipped, delimiter) as records, contextlib.suppress(BadValueError, IndexError):
        yield lengths_from_texts(
            fields[place].encode() for fields in islice(records, wanted.start, wanted.stop)
        )


@contextlib.contextmanager
def _csv_records(path: Path, gzipped: bool, delimiter: str) -> Iterator[Iterator[list[str]]]:
    """The records of a csv file, empty lines left out; they end at the first one that is too long for a record."""
    import csv
    import io

    with open_trace(path, gzipped) as file, contextlib.suppress(csv.Error):
        yield filter(
            None, csv.reader(io.TextIOWrapper(file, "utf-8", "replace", newline=""), delimiter=delimiter)
        )


def _csv_line(path: Path, gzipped: bool, delimiter: str, record: int) -> int:
    """Return the line on which the *record*-th record (header included, empty lines not) ends."""
    import csv
    import io

    with open_trace(path, gzipped) as file:
        reader = csv.reader(io.TextIOWrapper(file, "utf-8", "replace", newline=""), delimiter=delimiter)
        seen = 0
        with contextlib.suppress(csv.Error):  # an overlong field: the line where it starts is close enough
            for fields in reader:
                seen += bool(fields)
                if seen == record:
                    break
        return reader.line_num
