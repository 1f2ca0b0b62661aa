"""What a page shows: the text of a document, its figures and its tables, apart from where they came from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hdpsim import __version__
from hdpsim.errors import UserInputError
from hdpsim.experiments.output.document import Document, Table
from hdpsim.reading import open_regular

Rows = Sequence[Mapping[str, object]]

STORED = "page.json"
"""Of a run directory: the text of its page."""

MARKER = ".hdpsim-run.json"
"""The file that makes a directory one of ours; it lists the files hdpsim wrote, with their hashes."""

CHARTED = frozenset({"accounts", "candidates", "passes", "ranks"})
"""Tables of which a page draws charts of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    """A paragraph, or a table of texts with the lines below it.

    Attributes:
        text: the paragraph; empty where it is a table.
        title: of the table.
        columns: heads of the table; empty texts: it has none.
        rows: of the table.
        left: columns whose texts are aligned left.
        notes: lines below the table.
    """

    text: str = ""
    title: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure as SVG, and what it shows in words."""

    name: str
    words: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything a page shows.

    Attributes:
        title: what the result is about.
        kind: the verb that found it.
        command: what made it.
        version: of the hdpsim that made it.
        blocks: tables and paragraphs, in reading order.
        notes: what a reader of the figures must know.
        partial: ended before what was asked for.
        pictures: figures.
        tables: rows by the name of their table, from which charts are drawn.
    """

    title: str
    kind: str
    command: str
    version: str = __version__
    blocks: tuple[TextBlock, ...] = ()
    notes: tuple[str, ...] = ()
    partial: bool = False
    pictures: tuple[Picture, ...] = ()
    tables: Mapping[str, Rows] = field(default_factory=dict)


def view_of(document: Document, command: str) -> View:
    """What a page shows of a document whose figures and tables are made now."""
    from hdpsim.experiments.output.plots.style import svg_of

    pictures: list[Picture] = []
    tables: dict[str, Rows] = {}
    figures = document.figures()
    for file in document.files:
        name = PurePosixPath(file.name)
        if file.is_figure:
            svg = svg_of(figures[file.name]())
            pictures.append(Picture(name=file.name, words=file.description, svg=svg))
        elif name.suffix == ".csv" and name.stem in CHARTED:
            tables[name.stem] = _rows(file.content())
    return View(
        title=document.title or document.head or document.kind,
        kind=document.kind,
        command=command,
        blocks=tuple(_blocks(document)),
        notes=document.notes,
        partial=document.partial,
        pictures=tuple(pictures),
        tables=tables,
    )


def stored(document: Document, command: str) -> dict[str, Any]:
    """What a run directory keeps of a view beside its own files: `loaded` makes the view again."""
    return {
        "kind": document.kind,
        "title": document.title or document.head or document.kind,
        "command": command,
        "hdpsim_version": __version__,
        "partial": document.partial,
        "blocks": [asdict(block) for block in _blocks(document)],
        "notes": list(document.notes),
        "pictures": {file.name: file.description for file in document.files if file.is_figure},
    }


def loaded(folder: Path) -> View:
    """The view of a run directory.

    Raises:
        UserInputError: it is none, or one of an older hdpsim.
    """
    if not (folder / MARKER).is_file():
        raise UserInputError(f"{folder}: is not a run directory of hdpsim (--out DIR makes one)")
    if not (folder / STORED).is_file():
        raise UserInputError(
            f"{folder}: has no {STORED}: made by an older hdpsim, or without a document; run its command again"
        )
    with _explained(folder / STORED):
        data = json.loads(_read(folder, STORED))
        blocks = tuple(
            TextBlock(
                text=str(block["text"]),
                title=str(block["title"]),
                columns=tuple(map(str, block["columns"])),
                notes=tuple(map(str, block["notes"])),
                rows=tuple(tuple(map(str, row)) for row in block["rows"]),
                left=tuple(map(int, block["left"])),
            )
            for block in data["blocks"]
        )
        pictures = tuple(
            Picture(name=str(name), words=str(words), svg=_read(folder, f"{name}.svg"))
            for name, words in data["pictures"].items()
        )
        tables = {
            name: list(csv.DictReader(io.StringIO(_read(folder, f"{name}.csv"))))
            for name in sorted(CHARTED)
            if (folder / f"{name}.csv").is_file()
        }
        return View(
            title=str(data["title"]),
            kind=str(data["kind"]),
            command=str(data["command"]),
            version=str(data["hdpsim_version"]),
            blocks=blocks,
            notes=tuple(map(str, data["notes"])),
            partial=bool(data["partial"]),
            pictures=pictures,
            tables=tables,
        )


def _read(folder: Path, name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name} is not a file of the directory")
    with open_regular(folder / name) as file:
        return file.read().decode("utf-8")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserInputError(f"{path}: cannot be read as what hdpsim wrote ({error})") from error


def _blocks(document: Document) -> Iterator[TextBlock]:
    if document.head and document.title and document.head != document.title:
        yield TextBlock(text=document.head)
    for block in document.blocks:
        if isinstance(block, str):
            yield TextBlock(text=block)
        else:
            drawn = asdict(block.drawn())
            yield TextBlock(**{**drawn, "left": tuple(sorted(drawn["left"]))}, notes=block.notes)


def _rows(content: Any) -> Rows:
    if isinstance(content, Table):
        return content.records()
    if isinstance(content, Sequence):
        return content
    rows: Rows = content.to_dict("records")
    return rows
