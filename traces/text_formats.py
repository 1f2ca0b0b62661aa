"""Lengths from text files: csv, one length a line, JSON lines; plain or compressed with gzip."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import zlib
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.errors import TraceError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import LIMITS
from hdpsim.reading import UnreadableError, open_trace, unique_keys
from hdpsim.traces.file_formats import choose_column
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


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in our words what is wrong with the file itself."""
    try:
        yield
    except UnreadableError as error:
        raise TraceError(error.reason, str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the gzip compression is damaged ({error})", str(path)) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", str(path)) from None


def _line_blocks(path: Path, gzipped: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the file in blocks of whole lines, each with the number of lines before it."""
    lines_before = 0
    with _readable(path), open_trace(path, gzipped) as file:
        while block := file.read(_BLOCK_BYTES):
            rest = file.readline(_LONGEST_LINE_BYTES)
            block += rest
            endless = b"\n" not in block and len(block) > _LONGEST_LINE_BYTES
            if endless or len(rest) == _LONGEST_LINE_BYTES:
                longest = f"{_LONGEST_LINE_BYTES >> 20} MiB"
                raise TraceError(f"a line is longer than {longest}: {_WHY_NO_LONGER}", str(path))
            yield lines_before, block.removeprefix(_BYTE_ORDER_MARK) if lines_before == 0 else block
            lines_before += block.count(b"\n")


def _refuse(path: Path, message: str, row: int, line: int) -> NoReturn:
    raise TraceError(message if line == row else f"{message} (line {line} of the file)", str(path), row)


def txt_lengths(path: Path, gzipped: bool, column: str | None = None) -> Iterator[Ints]:
    """Yield the lengths of a file with one length a line; `#` starts a comment, empty lines do not count."""
    if column is not None:
        missing = f"there is no column {quoted(column)}"
        raise TraceError(f"{missing}: a text file holds one length a line", str(path))
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
            missing = f"there is no column {quoted(column)}"
            raise TraceError(f"{missing}: the lines are not JSON objects", str(path))
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
        read = pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        schema = pa.schema([(column, pa.int64())])
        parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        table = pa_json.read_json(pa.BufferReader(block), read, parse)
        lengths = lengths_from_arrow(table.column(column).combine_chunks())
    except (pa.ArrowException, BadValueError, UnicodeEncodeError):
        return None
    return lengths if len(lengths) == block.count(b"\n") + (not block.endswith(b"\n")) else None


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

    table = _Csv.of(path, gzipped)
    unnamed = int(table.header is None)  # names stand in a record of their own
    # No invalid_row_handler: Arrow hands it the row as text and complains on stderr when the row is not UTF-8.
    parse = pa_csv.ParseOptions(delimiter=table.delimiter, newlines_in_values=True)
    read = pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=table.header)
    rows, place = 0, -1
    try:
        with _readable(path):
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
        _refuse(path, error.message, row, table.line_of(row + unnamed))
    except pa.ArrowException as error:
        uneven = _UNEVEN_ROW.search(str(error))
        if uneven is None:
            reason = f"cannot be read as csv ({shortened(str(error), LONGEST_NAME)})"
            raise TraceError("holds no lengths" if "Empty CSV" in str(error) else reason, str(path)) from None
        record, expected, actual = map(int, uneven.groups())
        with contextlib.suppress(TraceError):
            if place < 0:  # already in the block that tells the types of the columns
                place = table.place(column)
            yield from table.lengths(place, range(rows + unnamed, record - 1))
        message = f"the row has {actual} columns where the first row has {expected}"
        _refuse(path, message, record - unnamed, table.line_of(record))
    except UnicodeDecodeError:
        raise TraceError("the names of the columns are not UTF-8 text", str(path)) from None


class _Csv(NamedTuple):
    """A csv file, to be looked at record by record."""

    path: Path
    gzipped: bool
    delimiter: str
    header: list[str] | None
    """Made-up names of the columns, when the first row holds numbers instead of names."""

    @classmethod
    def of(cls, path: Path, gzipped: bool) -> _Csv:
        """Find out how the file is written."""
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
            return cls(path, gzipped, delimiter, None)
        return cls(path, gzipped, delimiter, [f"column_{number}" for number in range(1, len(fields) + 1)])

    @contextlib.contextmanager
    def _records(self) -> Iterator[Any]:
        """A reader of the records, empty lines among them; they end at the first that is too long for one."""
        import csv
        import io

        with _readable(self.path), open_trace(self.path, self.gzipped) as file:
            text = io.TextIOWrapper(file, "utf-8", "replace", newline="")
            reader = csv.reader(text, delimiter=self.delimiter)
            with contextlib.suppress(csv.Error):
                yield reader

    def place(self, column: str | None) -> int:
        """Which column has the lengths, as far as the first two records tell."""
        with self._records() as reader:
            records = filter(None, reader)
            names = self.header or next(records)
            first: list[str] = next(records, [])
        columns = {name: text.strip().isdecimal() for name, text in zip(names, first, strict=False)}
        return names.index(choose_column(self.path, columns, column))

    def lengths(self, place: int, wanted: range) -> Iterator[Ints]:
        """Yield the lengths of some records (from 0, header included), parsed one by one; none if one is bad."""
        with self._records() as reader, contextlib.suppress(BadValueError, IndexError):
            rows = islice(filter(None, reader), wanted.start, wanted.stop)
            yield lengths_from_texts(fields[place].encode() for fields in rows)

    def line_of(self, record: int) -> int:
        """The line on which that record (from 1, header included) ends, or where an overlong field before it starts."""
        with self._records() as reader:
            next(islice(filter(None, reader), record - 1, None), None)
        return int(reader.line_num)
