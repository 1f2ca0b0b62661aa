"""What an import found: a commented scenario, and lists of what was understood and what was not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hdpsim import __version__
from hdpsim.experiments.other_tools.importer import Imported
from hdpsim.experiments.other_tools.scenario_text import scenario_text
from hdpsim.experiments.output.document import Document
from hdpsim.experiments.output.meanings import meanings

_HEADS = meanings("lists_of_imports")


def _lists(imported: Imported) -> dict[str, tuple[str, ...]]:
    missing = tuple(f"{key}: {words}" for key, words in imported.missing.items())
    return {"missing": missing} | {name: getattr(imported, name) for name in _HEADS if name != "missing"}


def imported_text(imported: Imported) -> str:
    """The scenario file."""
    foot: list[str] = []
    for name, rows in _lists(imported).items():
        if rows:
            foot += ["", _HEADS[name], *_rows(name, rows)]
    head = [f"Imported from {imported.source} ({imported.title}) by hdpsim {__version__}."]
    if imported.missing:
        head.append("It does not run yet: see the end of the file.")
    return scenario_text(imported.document, imported.origins, head, foot[1:])


def _rows(name: str, rows: Sequence[str]) -> Iterable[str]:
    return [f"  {', '.join(rows)}"] if name == "without_effect" else [f"  {row}" for row in rows]


def import_document(imported: Imported, written: str | None) -> Document:
    """What `hdpsim import` shows: the file itself, or a word about each list where it was written."""
    said = {key: option for key, option in imported.origins.items() if not key.startswith("run.")}
    payload = {
        "format": imported.format,
        "file": imported.source,
        "scenario": imported.document,
        "origins": said,
        **{name: getattr(imported, name) for name in _HEADS},
        "notes": list(imported.scenario.notes) if imported.scenario else [],
        "output": written,
    }
    if written is None:
        return Document(kind="import", payload=payload, blocks=(imported_text(imported).rstrip("\n"),))
    said_of_lists = (
        "\n".join([_HEADS[name], *_rows(name, rows)]) for name, rows in _lists(imported).items() if rows
    )
    wrote = f"wrote {written}: a scenario of {imported.source} ({imported.title})"
    return Document(kind="import", payload=payload, blocks=(wrote, *said_of_lists))
