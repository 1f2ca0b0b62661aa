"""What a page shows: the text of a document, its figures and its tables, apart from where they came from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
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
class View:
    """Everything a page shows.

    Attributes:
        text: see `stored`.
        svgs: the figures by name.
        tables: rows by the name of their table, from which charts are drawn.
    """

    text: Mapping[str, Any]
    svgs: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Rows] = field(default_factory=dict)


def view_of(document: Document, command: str) -> View:
    """What a page shows of a document whose figures and tables are made now."""
    from hdpsim.experiments.output.plots.style import svg_of

    charted = {f"{name}.csv": name for name in CHARTED}
    return View(
        text=stored(document, command),
        svgs={name: svg_of(draw()) for name, draw in document.figures().items()},
        tables={charted[file.name]: _rows(file.content()) for file in document.files if file.name in charted},
    )


def stored(document: Document, command: str) -> dict[str, Any]:
    """What a run directory keeps of a view beside its own files: `loaded` makes the view again.

    Blocks are paragraphs (text) and tables of texts, in reading order; pictures are what each figure shows, in words.
    """
    return {
        "kind": document.kind,
        "title": document.title or document.head or document.kind,
        "command": command,
        "hdpsim_version": __version__,
        "partial": document.partial,
        "blocks": list(_blocks(document)),
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
    path = folder / STORED
    if not path.is_file():
        raise UserInputError(
            f"{folder}: has no {STORED}: made by an older hdpsim, or without a document; run its command again"
        )
    try:
        text = _checked(json.loads(_read(folder, STORED)))
        return View(
            text=text,
            svgs={name: _read(folder, f"{name}.svg") for name in text["pictures"]},
            tables={
                name: list(csv.DictReader(io.StringIO(_read(folder, f"{name}.csv"))))
                for name in sorted(CHARTED)
                if (folder / f"{name}.csv").is_file()
            },
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserInputError(f"{path}: cannot be read as what hdpsim wrote ({error})") from error


def _checked(data: Any) -> dict[str, Any]:
    """What was stored, of the types that it had: somebody may have changed the file."""
    blocks = [
        {
            "text": str(block["text"]),
            "title": str(block["title"]),
            "columns": [str(head) for head in block["columns"]],
            "rows": [[str(cell) for cell in row] for row in block["rows"]],
            "left": [int(place) for place in block["left"]],
            "notes": [str(note) for note in block["notes"]],
        }
        for block in data["blocks"]
    ]
    return {
        **{name: str(data[name]) for name in ("kind", "title", "command", "hdpsim_version")},
        "partial": bool(data["partial"]),
        "blocks": blocks,
        "notes": [str(note) for note in data["notes"]],
        "pictures": {str(name): str(words) for name, words in data["pictures"].items()},
    }


def _read(folder: Path, name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name} is not a file of the directory")
    with open_regular(folder / name) as file:
        return file.read().decode("utf-8")


_BLOCK = {"text": "", "title": "", "columns": (), "rows": (), "left": (), "notes": ()}


def _blocks(document: Document) -> Iterator[dict[str, Any]]:
    if document.head and document.title and document.head != document.title:
        yield {**_BLOCK, "text": document.head}
    for block in document.blocks:
        if isinstance(block, str):
            yield {**_BLOCK, "text": block}
        else:
            drawn = asdict(block.drawn())
            yield {**_BLOCK, **drawn, "left": tuple(sorted(drawn["left"])), "notes": block.notes}


def _rows(content: Any) -> Rows:
    if isinstance(content, Table):
        return content.records()
    if isinstance(content, Sequence):
        return content
    rows: Rows = content.to_dict("records")
    return rows
