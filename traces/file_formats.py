"""Which file formats a trace may have, told by the end of the file's name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hdpsim.errors import TraceError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy",
    ".npz": "npz", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
"""Format of each file ending; the text forms (csv, txt, jsonl) may also end in .gz."""

DEFAULT_COLUMNS = ("tokens", "length", "lengths", "length_tokens", "num_tokens", "seq_len", "n_tokens")
"""Names tried, in this order, when a file has several columns and none was asked for."""

COUNT_COLUMNS = (
    "count", "counts", "weight", "weights", "frequency", "frequencies", "freq", "occurrences", "repeats",
)  # fmt: skip
"""Names of columns that say how often a length counts: such a table is a histogram, not a list of lengths."""

NO_LENGTHS = (
    "", "id", "ids", "idx", "index", "row", "doc_id", "document_id", "sample_id", "line", "label", "labels", "score",
    "year", "date", "timestamp", "time", "offset", "page", "unnamed: 0", "__index_level_0__",
)  # fmt: skip
"""Names of columns that hold whole numbers, but no lengths: as the only column of integers such a one is not taken."""

_GZIPPED = ("csv", "txt", "jsonl")


class FileFormat(NamedTuple):
    """The kind of a file ("csv", "npy", ...) and whether it is compressed with gzip."""

    kind: str
    gzipped: bool


def file_format(path: Path) -> FileFormat:
    """Return the format that the ending of *path* stands for; TraceError lists the endings when it is none."""
    gzipped = path.suffix.lower() == ".gz"
    kind = FORMATS.get(Path(path.stem).suffix.lower() if gzipped else path.suffix.lower())
    if kind is None or (gzipped and kind not in _GZIPPED):
        endings = ", ".join(FORMATS)
        text_endings = ", ".join(f"{ending}.gz" for ending, kind in FORMATS.items() if kind in _GZIPPED)
        ending = "".join(path.suffixes[-2:] if gzipped else path.suffixes[-1:]) or "no ending"
        unknown = f"unknown kind of trace file ({shortened(ending)})"
        raise TraceError(f"{unknown}; known are {endings}, {text_endings}", str(path))
    return FileFormat(kind, gzipped)


def trace_name(path: Path) -> str:
    """Return the file's name without its endings."""
    stem = path.name
    for ending in (".gz", *FORMATS):
        if stem.lower().endswith(ending):
            stem = stem[: -len(ending)]
    return stem or path.name


def choose_column(path: Path, columns: dict[str, bool], wanted: str | None) -> str:
    """Return the column that holds the lengths.

    The wanted one; else the first of `DEFAULT_COLUMNS`, in any case; else the only column of integers. Without a
    wanted one a histogram is refused: a column beside the lengths that is named as in `COUNT_COLUMNS`.

    Args:
        path: the file, for the error.
        columns: name of each column, and whether it holds integers.
        wanted: name the user asked for.
    """
    listed = shortened(", ".join(columns), LONGEST_NAME) if columns else "none"
    if wanted is not None:
        if wanted not in columns:
            raise TraceError(f"there is no column {quoted(wanted)}; the columns are: {listed}", str(path))
        return wanted
    chosen = _likely_column(path, columns, listed)
    counts = [name for name in columns if name != chosen and name.strip().lower() in COUNT_COLUMNS]
    if counts:
        raise TraceError(
            f"looks like a histogram: beside {quoted(chosen)} there is a column {quoted(counts[0])}, and one row is "
            f"one length here. Write every length as often as it occurs, or name the column "
            f"({shortened(chosen)}) to read every row once",
            str(path),
        )
    return chosen


def _likely_column(path: Path, columns: dict[str, bool], listed: str) -> str:
    """The column of lengths when none was named; TraceError when it cannot be told."""
    by_lower = {name.lower(): name for name in reversed(columns)}
    for default in DEFAULT_COLUMNS:
        if default in by_lower:
            return by_lower[default]
    integers = [name for name, holds_integers in columns.items() if holds_integers]
    only = integers[0] if len(integers) == 1 else None
    numbers_rows = only is not None and only.strip().lower() in NO_LENGTHS
    if only is not None and not numbers_rows:
        return only
    if len(columns) == 1 and only is None:
        return next(iter(columns))  # its first bad row is the better message
    holding = "none holds" if not integers else f"{len(integers)} hold"
    others = f"{quoted(only)} is no name of lengths" if numbers_rows else f"{holding} integers only"
    raise TraceError(
        f"cannot tell which column holds the lengths: none is named {', '.join(DEFAULT_COLUMNS)}, and {others}; "
        f"name one of the columns: {listed}",
        str(path),
    )
