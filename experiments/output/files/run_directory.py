"""A run directory: everything one command produced, complete or not there at all, with a README of every file."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hdpsim import __version__, files
from hdpsim.errors import UserInputError
from hdpsim.experiments.output.document import SCHEMA_VERSION, Document, OutputFile, Table, command_line
from hdpsim.experiments.output.json_data import plain
from hdpsim.experiments.output.page.view import MARKER, STORED, stored
from hdpsim.interrupts import held
from hdpsim.quoting import printable, quoted
from hdpsim.reading import open_regular

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


_README = "README.md"

_FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""How a cell starts that a spreadsheet evaluates when it opens the table (OWASP, CSV injection)."""


class RunDirectory:
    """Collects the files of a run in a hidden sibling, and gives it its name when the block ends well.

        with RunDirectory("runs/demo", title="Static mesh against HDP", command="hdpsim compare demo") as run:
            run.write_csv("steps", table, "One row per step and strategy.")

    A failure or an interrupt inside the block leaves nothing behind. An existing directory is replaced only if
    hdpsim made it and nobody has added or changed anything in it.

    Attributes:
        path: the run directory.
    """

    def __init__(
        self, path: str | Path, *, title: str = "An hdpsim run", command: str = "", notes: Sequence[str] = ()
    ) -> None:
        """Check that *path* may be written; *title*, *command* and *notes* open the README."""
        self.path = Path(path).resolve()
        self._title, self._command, self._notes = title, command, tuple(notes)
        self._files: dict[str, str] = {}
        self._work: Path | None = None
        self._making = ExitStack()
        _refuse_unless_ours(self.path)
        _refuse_unwritable(self.path)

    def __enter__(self) -> Self:
        try:
            with _writing(self.path):
                self._making.enter_context(files.made_parents(self.path))
                self._work = self._making.enter_context(files.temporary_folder(self.path))
        except BaseException:
            self._making.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        except BaseException:
            self._making.__exit__(*sys.exc_info())
            raise
        else:
            self._making.__exit__(kind, error, trace)
        finally:
            self._work = None

    def file(self, name: str, description: str) -> Path:
        """Return where to write a file called *name*, and list it in the README as *description*."""
        if self._work is None:
            raise RuntimeError("a run directory is written inside its `with` block")
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.name or name in (MARKER, _README):
            raise ValueError(f"{quoted(name)} is not a file name inside a run directory")
        if name in self._files:
            raise ValueError(f"{quoted(name)} is written twice")
        self._files[name] = " ".join(description.split())
        path = self._work / name
        with _writing(self.path / name):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_text(self, name: str, text: str, description: str) -> Path:
        """Write *text* as it is."""
        path = self.file(name, description)
        with _writing(self.path / name):
            path.write_text(text, encoding="utf-8", newline="\n")
        return path

    def write_json(self, name: str, value: Mapping[str, Any], description: str) -> Path:
        """Write one JSON object, with the version of its schema; see `plain` for what it may hold."""
        document = plain({"schema_version": SCHEMA_VERSION, **value})
        return self.write_text(
            name, json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n", description
        )

    def write_csv(
        self,
        name: str,
        table: pd.DataFrame | Sequence[Mapping[str, object]],
        description: str,
        header: Sequence[str] = (),
    ) -> Path:
        """Write a data frame (without its index), or rows that all have the same keys: *header*, if there may be none.

        A text that a spreadsheet would run as a formula (names come from files of others) gets a ' before it.
        """
        if not isinstance(table, Sequence):
            neutral = table.rename(columns=_neutral).apply(
                lambda column: column.map(_neutral) if column.dtype.kind not in "biufcmM" else column
            )
            return self.write_text(name, neutral.to_csv(index=False, lineterminator="\n"), description)
        columns = list(table[0] if table else header)
        if header and columns != list(header):
            raise ValueError(f"{name}: has columns {columns}, announced were {list(header)}")
        for number, row in enumerate(table, start=1):
            if list(row) != columns:
                raise ValueError(f"{name}: row {number} has columns {list(row)}, the first one {columns}")
        path = self.file(name, description)
        with _writing(self.path / name), path.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow([_neutral(column) for column in columns])
            writer.writerows([_neutral(value) for value in row.values()] for row in table)
        return path

    def write_parquet(self, name: str, rows: Sequence[Mapping[str, object]], description: str) -> Path:
        """Write rows that all have the same keys, with the types their values have.

        A column of different types becomes text.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {key: _one_type([row[key] for row in rows]) for key in (rows[0] if rows else ())}
        path = self.file(name, description)
        with _writing(self.path / path.name):
            pq.write_table(pa.table({key: pa.array(*column) for key, column in columns.items()}), path)
        return path

    def save_figure(self, name: str, figure: Figure, description: str) -> tuple[Path, Path]:
        """Write *figure* as NAME.png and NAME.svg."""
        from hdpsim.experiments.output.plots.style import save_figure

        png = self.file(f"{name}.png", description)
        self.file(f"{name}.svg", f"The same as {PurePosixPath(name).name}.png, as vectors.")
        return save_figure(figure, png.with_suffix(""))

    def _finish(self) -> None:
        assert self._work is not None
        with _writing(self.path):
            missing = [name for name in self._files if not (self._work / name).exists()]
            if missing:
                raise RuntimeError(f"announced but never written: {', '.join(missing)}")
            (self._work / _README).write_text(self._readme(), encoding="utf-8", newline="\n")
            marker = {
                "schema_version": SCHEMA_VERSION,
                "hdpsim": __version__,
                "files": {name: _sha256(self._work / name) for name in (_README, *self._files)},
            }
            (self._work / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
            _refuse_unless_ours(self.path)  # again: it may have changed while the run was computing
            with held():
                self._work.chmod(0o777 & ~files.umask())
                self._take_its_place()

    def _take_its_place(self) -> None:
        """Give the work directory its name; what had it goes, but not before."""
        assert self._work is not None
        if not self.path.exists():
            self._work.rename(self.path)
            return
        with files.temporary_folder(self.path) as bin_:
            self.path.rename(bin_ / "old")
            try:
                self._work.rename(self.path)
            except BaseException:
                (bin_ / "old").rename(self.path)
                raise

    def _readme(self) -> str:
        lines = [f"# {self._title}", ""]
        if self._command:
            lines += ["Made by", "", f"    {self._command}", ""]
        lines += [
            f"with hdpsim {__version__}. Seconds, bytes, FLOP and tokens unless a name says otherwise.",
            "",
        ]
        if self._notes:
            lines += [*(f"- {note}" for note in self._notes), ""]
        lines += ["| File | What it holds |", "|---|---|"]
        lines += [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in self._files.items()]
        return printable("\n".join(lines)) + "\n"  # people look at it with cat


def write_document(out: str, document: Document, command: str | None = None) -> str:
    """Write a run directory with everything a document has; returns a line that says so.

    *command*: what made it; default: the command that is running.
    """
    notes = document.readme or ((document.head,) if document.title and document.head else ()) + document.notes
    title = document.title or document.head
    made_by = command_line() if command is None else command
    data, page, figures = document.data(), stored(document, made_by), document.figures()
    with RunDirectory(out, title=title, command=made_by, notes=notes) as run:
        run.write_json("result.json", data, "The whole result as one JSON document, as printed by --json.")
        run.write_json(STORED, page, "The text of the page that `hdpsim report` makes.")
        for file in document.files:
            _write_file(run, replace(file, content=figures.get(file.name, file.content)))
    return f"wrote {out}" + (" (partial)" if document.partial else "")


def _write_file(run: RunDirectory, file: OutputFile) -> None:
    content = file.content()
    if isinstance(content, Table):
        content = content.records()
    match PurePosixPath(file.name).suffix:
        case ".csv":
            run.write_csv(file.name, content, file.description, file.columns)
        case ".parquet":
            run.write_parquet(file.name, content, file.description)
        case ".json":
            run.write_json(file.name, content, file.description)
        case "":
            run.save_figure(file.name, content, file.description)
        case _:
            run.write_text(file.name, content, file.description)


def _refuse_unless_ours(path: Path) -> None:
    """Raise UserInputError unless *path* may become (or be replaced by) a run directory."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise UserInputError(f"{path}: {nearest} is a file, not a directory")
    if nearest != path:
        return
    if path == Path.cwd() or path in Path.cwd().parents:
        raise UserInputError(f"{path}: is the current directory (or above it); give the name of a new one")
    present = set(_contents(path))
    if not present:
        return
    if MARKER not in present:
        raise UserInputError(
            f"{path}: exists and is not a run directory of hdpsim; give a new name, or remove it first"
        )
    try:
        with open_regular(path / MARKER) as file:
            written = json.load(file)["files"]
        known: dict[str, Any] = dict.fromkeys(written)
        known.update(written if isinstance(written, dict) else {})  # it was a list of names
    except (OSError, UserInputError, ValueError, KeyError, TypeError) as error:
        raise UserInputError(
            f"{path / MARKER}: unreadable, so {path} will not be replaced ({error})"
        ) from error
    foreign = sorted(present - {MARKER, *known})
    if foreign:
        raise UserInputError(
            f"{path}: holds files that hdpsim did not write ({_few(foreign)}); move them, or give a new name"
        )
    changed = sorted(name for name in present & set(known) if known[name] not in (None, _sha256(path / name)))
    if changed:
        raise UserInputError(
            f"{path}: holds files that were changed since hdpsim wrote them ({_few(changed)}); move them, or give "
            "a new name"
        )


def _contents(path: Path) -> Iterator[str]:
    """All files and links below *path*, and the folders in which nothing is (with a slash at the end)."""
    for place, folders, names in os.walk(path):
        folder = Path(place).relative_to(path)
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        yield from ((folder / name).as_posix() for name in (*names, *links))
        if not folders and not names and place != str(path):
            yield f"{folder.as_posix()}/"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _sha256(path: Path) -> str:
    """Hash of a file's content; of a link or anything else something that no content has."""
    if path.is_symlink() or not path.is_file():
        return "not a file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_unwritable(path: Path) -> None:
    """Raise UserInputError now, not after hours of work, when nothing can be made beside *path*."""
    nearest = next(place for place in path.parents if place.exists())
    with _writing(path):
        files.try_out(nearest / path.name)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into a message about *path*."""
    try:
        yield
    except OSError as error:
        raise UserInputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _neutral(value: Any) -> Any:
    """A cell as it is; with a ' before a text that a spreadsheet would take for a formula and run.

    Ends of lines become those that csv.writer knows to quote.
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _one_type(values: list[object]) -> tuple[list[object], str]:
    """The values of a column and its Arrow type."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return values, "int64" if kinds == {int} else "float64"
    if kinds == {bool}:
        return values, "bool"
    return [None if value is None else str(value) for value in values], "string"
