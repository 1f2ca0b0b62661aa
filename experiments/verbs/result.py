"""What a verb returns in Python: tables as data frames, figures, files, and the document behind all of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hdpsim.errors import HdpSimError, UserInputError
from hdpsim.experiments.output.document import Document, OutputFile, Table
from hdpsim.experiments.output.files.run_directory import write_document
from hdpsim.quoting import did_you_mean, quoted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from hdpsim.experiments.scenario.scenario import Scenario

_TABLES = (".csv", ".parquet")
"""How names of a run directory's tables end."""

_MOST_BARS = 20


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """What a verb found. In a notebook it shows itself as tables; `print(result)` shows what the command prints.

    Attributes:
        document: tables, sentences, data and files, from which everything here is made.
        scenario: the scenario it speaks of; of `plan`, `recommend` and `check` the one they advise. None where there is
            none.
        found: the values behind the document (such as a Comparison with its StepResults). They may change between
            releases.
        lines: what was written besides, in words.
        error: why the command would not end with 0, although there is a result: a strategy that breaks a promise, a
            sweep of which no cell can run.
        interrupted: Ctrl-C ended it early; what was finished is there.
    """

    document: Document
    scenario: Scenario | None = None
    found: object = None
    lines: tuple[str, ...] = ()
    error: HdpSimError | None = None
    interrupted: bool = False

    @property
    def kind(self) -> str:
        """The verb."""
        return self.document.kind

    @property
    def tables(self) -> tuple[str, ...]:
        """The names that `to_frame` takes; the first is its default."""
        return tuple(self._tables())

    @property
    def figures(self) -> tuple[str, ...]:
        """The names that `plot` takes; the first is its default. Empty: it draws bars of the first table."""
        return tuple(self.document.figures())

    def to_frame(self, name: str | None = None) -> pd.DataFrame:
        """A table as a data frame: one row a thing, columns with their units in their names (`step_s`, `hbm_bytes`).

        *name*: one of `tables`; default: the first, which answers the question.
        """
        import pandas as pd

        content, columns = _chosen("table", name, self._tables())()
        if isinstance(content, Table):
            content = content.records()
        if isinstance(content, list) and not content:
            return pd.DataFrame(columns=list(columns))
        return pd.DataFrame(content)

    def plot(self, name: str | None = None) -> Figure:
        """A figure of matplotlib, to show, change or save.

        *name*: one of `figures`; default: the first, which answers the question.
        """
        figures = self.document.figures()
        figure: Figure = _chosen("figure", name, figures)() if figures or name else self._bars()
        # Notebooks know figures of matplotlib only once pyplot is imported.
        vars(figure)["_repr_png_"] = partial(_png, figure)
        return figure

    def save(self, folder: str | Path) -> Path:
        """Write a run directory: tables (CSV), plots, JSON, and a README that explains every file; its path."""
        write_document(str(folder), self.document, command="hdpsim in Python")
        return Path(folder)

    def report(self, path: str | Path) -> Path:
        """Write one page to forward (.html): answer, charts, figures and assumptions, without a network; its path."""
        from hdpsim.experiments.output.page.html import check_page, write_page
        from hdpsim.experiments.output.page.view import view_of

        check_page(str(path))
        write_page(str(path), view_of(self.document, "hdpsim in Python"))
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return self.document.data()

    def __repr__(self) -> str:
        return "\n\n".join(filter(None, (self.document.text(), "\n".join(self.lines))))

    def _repr_html_(self) -> str:
        """For notebooks: the tables and sentences of the command's text."""
        parts = [
            _table_html(part) if isinstance(part, Table) else _lines_html(part) for part in self._parts()
        ]
        return "\n".join(parts)

    def _parts(self) -> Iterator[Table[Any] | str]:
        if self.error is not None:
            yield str(self.error)
        yield from self.document.parts()
        yield from self.lines

    def _tables(self) -> dict[str, Callable[[], Any]]:
        tables: dict[str, Callable[[], Any]] = {}
        for file in self.document.files:
            path = PurePosixPath(file.name)
            if path.suffix in _TABLES:
                tables.setdefault(str(path.with_suffix("")), partial(_with_columns, file))
        if not tables:
            named = [
                block
                for block in self.document.blocks
                if isinstance(block, Table) and any(column.name for column in block.columns)
            ]
            tables = {f"table_{number}": partial(tuple, (table, ())) for number, table in enumerate(named, 1)}
        return tables

    def _bars(self) -> Figure:
        """The first column of fractions of the first table, or else of whole numbers, a bar for each row."""
        from hdpsim.experiments.output.plots.campaign import plot_bars

        frame = self.to_frame()
        numbers = [name for kind in "fi" for name in frame.columns[1:] if frame[name].dtype.kind == kind]
        if not numbers or not len(frame):
            raise UserInputError(
                f"{self.kind or 'this'}: there is nothing to draw; its tables: {_listed(self.tables)}"
            )
        named = frame[[frame.columns[0], numbers[0]]].dropna()[:_MOST_BARS]
        bars = {str(label): (float(value), None) for label, value in named.itertuples(index=False)}
        title = self.document.title or self.document.head
        return plot_bars(bars, axis=str(numbers[0]).replace("_", " "), title=title.partition(";")[0])


def _with_columns(file: OutputFile) -> tuple[Any, tuple[str, ...]]:
    return file.content(), file.columns


def _chosen(what: str, name: str | None, known: dict[str, Callable[[], Any]]) -> Callable[[], Any]:
    if name is None and known:
        return next(iter(known.values()))
    if name in known:
        return known[str(name)]
    if not known:
        raise UserInputError(f"this result has no {what}; to_dict() holds all of it")
    raise UserInputError(
        f"no {what} is called {quoted(str(name))}{did_you_mean(str(name), known)}; there are {_listed(tuple(known))}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _lines_html(text: str) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in text.split("\n") if line.strip())


def _table_html(table: Table[Any]) -> str:
    drawn = table.drawn()

    def cell(kind: str, place: int, text: str) -> str:
        return f'<{kind} style="text-align: {"left" if place in drawn.left else "right"}">{escape(text)}</{kind}>'

    head = "".join(cell("th", *pair) for pair in enumerate(drawn.columns)) if any(drawn.columns) else ""
    rows = "".join(f"<tr>{''.join(cell('td', *pair) for pair in enumerate(row))}</tr>" for row in drawn.rows)
    title = f"<caption>{escape(drawn.title)}</caption>" if drawn.title else ""
    notes = _lines_html("\n".join(table.notes))
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"


def _png(figure: Figure) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=100)
    return written.getvalue()
