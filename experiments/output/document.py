"""A result as data, before anybody decides how it is shown: rows with columns, sentences, a JSON payload, files.

A verb makes one `Document`. Everything below it is generic: text for people, records for CSV files, JSON, Markdown.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from hdpsim import __version__
from hdpsim.experiments.output.json_data import plain
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.output.statistics import Estimate, with_interval
from hdpsim.experiments.output.tables import TextTable, markdown, plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION = 1
"""Version of the JSON documents and tables; raised when a reader of the old ones would be misled."""

Row = TypeVar("Row")
Other = TypeVar("Other")

_NEGATIVE_ZERO = re.compile(r"^-(0(?:\.0*)?%?)$")
"""What rounding leaves of sums that cancel."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One figure of every row: what it is called, where it comes from, and how it reads.

    Attributes:
        name: key in JSON and head in CSV files, with the unit in it (`step_s`); empty: for people only.
        value: the figure of a row, None where it has none; default: its attribute or key of that name.
        heading: head for people; default: the name in words.
        unit: follows the heading (`step` and `s`).
        format: how a figure reads: a format specification such as `.3f`, or a function.
        missing: how None reads.
        left: texts are aligned left, numbers right; the first column of a table is always left.
        ci95: the figures are estimates, and data get half of the 95 % interval, too, as NAME_ci95.
        shown: to people; else it is for data only.
        optional: not shown where no row has anything to say.
    """

    name: str
    value: Callable[[Row], object] | None = None
    _: KW_ONLY
    heading: str | None = None
    unit: str = ""
    format: str | Callable[[Any], str] = ""
    missing: str = "-"
    left: bool = False
    ci95: bool = False
    shown: bool = True
    optional: bool = False

    @property
    def head(self) -> str:
        """The heading with its unit."""
        heading = self.name.replace("_", " ") if self.heading is None else self.heading
        return f"{heading} {self.unit}".strip()

    def of(self, row: Row) -> Any:
        """The figure of that row."""
        if self.value is not None:
            return self.value(row)
        return row[self.name] if isinstance(row, Mapping) else getattr(row, self.name)

    def text(self, row: Row) -> str:
        """The figure as people read it."""
        value = self.of(row)
        if value is None:
            return self.missing
        if callable(self.format):
            return self.format(value)
        if isinstance(value, str):
            return value
        return _NEGATIVE_ZERO.sub(r"\1", format(value, self.format))

    def below(self, part: Callable[[Other], Row]) -> Column[Other]:
        """This column for rows that have such a row as their *part*."""
        return replace(cast("Column[Any]", self), value=lambda row: self.of(part(row)))

    def data(self, row: Row) -> dict[str, Any]:
        """The figure by its name; of an estimate its mean."""
        value = self.of(row)
        mean, half_width = (value.mean, value.half_width) if isinstance(value, Estimate) else (value, None)
        return {self.name: mean} | ({f"{self.name}_ci95": half_width} if self.ci95 else {})


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of single figures for CSV files: lists become text, mappings are left to the JSON."""
    return [
        {
            name: "; ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in row.items()
            if not isinstance(value, Mapping)
        }
        for row in rows
    ]


def only_where(condition: Callable[[Row], object], columns: Sequence[Column[Row]]) -> tuple[Column[Row], ...]:
    """The columns, whose figures only some rows have."""

    def limited(column: Column[Row]) -> Column[Row]:
        return replace(column, value=lambda row: column.of(row) if condition(row) else None)

    return tuple(limited(column) for column in columns)


def interval(digits: int = 0) -> Callable[[Estimate], str]:
    """The format of a column of estimates: `1.23 ± 0.04`."""
    return lambda value: with_interval(value, digits=digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
    """Rows of one kind and the columns that are shown of them."""

    title: str = ""
    columns: tuple[Column[Row], ...]
    rows: Sequence[Row]
    notes: tuple[str, ...] = ()
    """Lines right below it."""

    def records(self) -> list[dict[str, Any]]:
        """The rows as data: one value for every column with a name."""
        named = [column for column in self.columns if column.name]
        return [{k: v for column in named for k, v in column.data(row).items()} for row in self.rows]

    def drawn(self) -> TextTable:
        """The rows as people read them: one text for every column that is shown."""
        texts = [(column, [column.text(row) for row in self.rows]) for column in self.columns if column.shown]
        texts = [(column, cells) for column, cells in texts if any(cells) or not column.optional]
        return TextTable(
            title=self.title,
            columns=tuple(column.head for column, _ in texts),
            rows=tuple(zip(*(cells for _, cells in texts), strict=True)),
            left=frozenset(place for place, (column, _) in enumerate(texts) if column.left or place == 0),
        )

    def markdown(self) -> str:
        """The table in Markdown, below its title."""
        return "\n".join([markdown(self.drawn()), *(("", *self.notes) if self.notes else ())])


def facts(title: str, pairs: Sequence[tuple[str, str]]) -> Table[tuple[str, str]]:
    """A table without heads: what each figure is, and the figure in words."""
    what: Column[tuple[str, str]] = Column("", lambda pair: pair[0])
    words: Column[tuple[str, str]] = Column("", lambda pair: pair[1], left=True)
    return Table(title=title, columns=(what, words), rows=pairs)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of a run directory.

    Attributes:
        name: its ending says what it is: .csv or .parquet (a `Table`, a data frame, or rows with equal keys), .json (an
            object); without an ending a figure; else a text.
        content: makes it, when somebody wants the file.
        description: for the README of the directory.
        columns: of rows that may be none: a table without rows has its columns all the same.
    """

    name: str
    content: Callable[[], Any]
    description: str
    columns: tuple[str, ...] = ()

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure, whose name has no ending."""
        return PurePosixPath(self.name).suffix == ""


def files_of(
    group: str, contents: Mapping[str, Callable[[], Any]], *, of: str = "", **columns: tuple[str, ...]
) -> tuple[OutputFile, ...]:
    """Files by their names; what each holds is said in experiments/data/files.yaml, in that group.

    Args:
        group: of the descriptions.
        contents: what each file holds.
        of: what these are about, which ends their names: a strategy, say.
        **columns: of tables that may have no rows, by their names without the ending.
    """
    words = meanings(group, "files")
    return tuple(
        OutputFile(
            f"{name}_{of}" if of else name, content, words[name], columns.get(name.partition(".")[0], ())
        )
        for name, content in contents.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a verb found.

    Attributes:
        kind: the verb; empty: JSON has no envelope.
        payload: what JSON says, below the envelope and the notes.
        head: one line: what this is about.
        blocks: tables and paragraphs, in reading order.
        notes: what a reader of the figures must know; they close the text.
        readme: what opens the README of the run directory; default: the notes, below the head where the title is
            another.
        band: how far off such predictions are, in few words; figures carry it.
        partial: ended before what was asked for.
        title: of the run directory; default: the head.
        files: of the run directory, besides the JSON document.
    """

    kind: str
    payload: Mapping[str, object]
    head: str = ""
    blocks: tuple[Table[Any] | str, ...] = ()
    notes: tuple[str, ...] = ()
    title: str = ""
    files: tuple[OutputFile, ...] = ()
    readme: tuple[str, ...] = ()
    band: str = ""
    partial: bool = False

    def data(self) -> dict[str, Any]:
        """The JSON document.

        Raises:
            NotFiniteError: a number is nan or infinite.
        """
        about = {**envelope(self.kind), "notes": self.notes} if self.kind else {}
        data: dict[str, Any] = plain({**about, **self.payload})
        return data

    def parts(self) -> Iterator[Table[Any] | str]:
        """Everything in reading order; a blank line belongs between two of them."""
        yield from (self.head,) if self.head else ()
        yield from self.blocks
        yield from ("\n".join(self.notes),) if self.notes else ()

    def figures(self) -> dict[str, Callable[[], Figure]]:
        """The figures by name; each says what it is about, who predicted it, and how far off it may be."""
        from hdpsim.experiments.output.plots.style import captioned

        made_by = "; ".join(
            filter(None, (f"hdpsim {__version__}", self.band, "partial" if self.partial else ""))
        )
        lines = (self.head or self.title or self.kind, made_by)
        return {
            file.name: partial(lambda file: captioned(file.content(), lines), file)
            for file in self.files
            if file.is_figure
        }

    def text(self) -> str:
        """For people, in lines."""
        return "\n\n".join(
            part if isinstance(part, str) else "\n".join((plain_text(part.drawn()), *part.notes))
            for part in self.parts()
        )

    def markdown(self) -> str:
        """For people, as Markdown."""
        parts = [part if isinstance(part, str) else part.markdown() for part in (self.head, *self.blocks)]
        return "\n\n".join(part for part in (*parts, "\n".join(f"- {note}" for note in self.notes)) if part)


def envelope(kind: str) -> dict[str, Any]:
    """What every JSON document begins with."""
    return {"schema_version": SCHEMA_VERSION, "kind": kind, "hdpsim_version": __version__}


def command_line() -> str:
    """The command that is running, as a shell takes it."""
    return shlex.join(["hdpsim", *sys.argv[1:]])
