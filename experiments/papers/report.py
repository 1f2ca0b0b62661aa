"""How what a paper's cells and sections say is shown: tables, CSV files, figures, by the captions in its setup.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdpsim.experiments.output.document import Column, OutputFile, Table, files_of, flat_rows
from hdpsim.experiments.output.plots import runs as plots
from hdpsim.experiments.output.plots.style import format_count, format_tokens
from hdpsim.experiments.papers.folder import PaperFolder, PublishedFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FigureRow = Mapping[str, Any]

_QUANTITIES = {"tokens_per_s": "throughput (tokens/s)", "step_s": "iteration (s)", "percent": "share (%)"}
_AXES = {"gpus": "GPUs", "context_tokens": "context length (tokens)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a section adds to the document.

    Attributes:
        value: JSON data.
        tables: for people.
        lines: sentences for people.
        files: of the run directory.
        compared: its values one by one, for the table of all figures (see figures.compared).
    """

    value: Any
    tables: Sequence[Table[Any]] = ()
    lines: Sequence[str] = ()
    files: Sequence[OutputFile] = ()
    compared: Sequence[FigureRow] = ()


def rows_part(
    folder: PaperFolder,
    name: str,
    rows: Sequence[FigureRow],
    *,
    derived: Mapping[str, Callable[[FigureRow], Any]] | None = None,
    lines: Sequence[str] = (),
    figure: Callable[[], Figure] | None = None,
    compared: Sequence[FigureRow] = (),
) -> Part:
    """A section that is a table of rows, a CSV file and perhaps a figure.

    Args:
        folder: its setup.yaml has the captions of the section: `title` and `columns` of the table, `file`, `figure`.
        name: of the section and its files.
        rows: with equal keys.
        derived: columns for people that no row has.
        lines: sentences for people.
        figure: draws the rows; default: what the captions say, bars of steps or lines.
        compared: the values of a figure that the rows show.
    """
    caption = folder.setup["sections"][name]
    if not rows:
        return Part(value=rows)
    columns = [
        column(key, value=(derived or {}).get(key), **look) for key, look in caption["columns"].items()
    ]
    files = [OutputFile(f"{name}.csv", lambda: flat_rows(rows), caption["file"])]
    if "figure" in caption:
        draw = figure or (lambda: _figure(caption["figure"], rows))
        files.append(OutputFile(name, draw, caption["figure"]["what"]))
    table = Table(title=caption["title"], columns=tuple(columns), rows=rows)
    return Part(value=rows, tables=(table,), lines=lines, files=files, compared=compared)


def column(
    name: str,
    *,
    value: Callable[[FigureRow], Any] | None = None,
    heading: str | None = None,
    format: str = "",
    missing: str = "–",
    left: bool = False,
) -> Column[FigureRow]:
    """A column of words, whole numbers or figures; *format*: a template, `count` (1.2M), or three digits."""
    text = format_count if format == "count" else format.format if format else readable
    head = "GPUs" if name == "gpus" else heading
    return Column(name, value, heading=head, format=text, missing=missing, left=left)


def readable(value: str | float) -> str:
    """Words and whole numbers as they are; three digits of a small number, all whole digits of a large one."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def records_table(folder: PaperFolder, records: Sequence[FigureRow]) -> Table[FigureRow]:
    """One row per cell."""
    columns = (
        *(column(name, left=not isinstance(kind, str)) for name, kind in folder.columns.items()),
        column("measured", heading="paper"),
        column("predicted", missing="cannot run"),
        column("error", format="{:+.1%}"),
    )
    return Table(title=folder.setup["cells"]["title"], columns=columns, rows=records)


def record_files(
    folder: PaperFolder, cells: Sequence[PublishedFigure], records: Sequence[FigureRow]
) -> list[OutputFile]:
    """The records as a table, all of them as a scatter plot, and against their x axis."""
    words, figure = folder.setup["cells"], folder.setup["figure"]
    contents: dict[str, Callable[[], object]] = {"records.csv": lambda: flat_rows(records)}
    pairs = zip(cells, records, strict=True)
    ran = [r for cell, r in pairs if cell.unit == figure["unit"] and r["predicted"] is not None]
    by_series = {
        name: [r for r in ran if r[figure["series"]] == name] for name in folder.columns[figure["series"]]
    }
    points = {
        name: ([r["measured"] for r in rows], [r["predicted"] for r in rows])
        for name, known in by_series.items()
        if (rows := [r for r in known if r["error"] is not None])
    }
    if points:
        title = f"{folder.setup['title']}, {words['place']}"
        contents["paper_against_prediction"] = lambda: plots.plot_paper_against_prediction(
            points, quantity=_QUANTITIES[figure["unit"]], title=title
        )
    by_figure: dict[str, list[FigureRow]] = {}
    for record in ran:
        by_figure.setdefault(figure["name"].format(**record), []).append(record)
    lines = (_lines_file(folder, name, rows) for name, rows in by_figure.items())
    return [*files_of("reproduce", contents), *lines]


def _lines_file(folder: PaperFolder, name: str, records: Sequence[FigureRow]) -> OutputFile:
    """Predictions as lines and measurements as markers against the figure's x column."""
    figure = folder.setup["figure"]
    x, series, title = figure["x"], figure["series"], figure["title"].format(**records[0])
    panels: dict[str, dict[str, list[tuple[Any, Any, Any]]]] = {}
    for record in sorted(
        records, key=lambda record: (folder.columns[series].index(record[series]), record[x])
    ):
        panel = panels.setdefault(figure["panel"].format(**record), {})
        panel.setdefault(record[series], []).append((record[x], record["predicted"], record["measured"]))
    return OutputFile(
        name,
        lambda: plots.plot_beside_paper(
            panels,
            x=_AXES.get(x, x),
            y=_QUANTITIES[figure["unit"]],
            x_text=format_tokens if x == "context_tokens" else "{:,}".format,
            title=title,
        ),
        f"{title}: prediction and paper.",
    )


def _figure(caption: Mapping[str, Any], rows: Sequence[FigureRow]) -> Figure:
    """Bars of the steps of an ablation, or lines: what is predicted and, where there is a second key, published."""
    title, y = caption["title"], caption["y"]
    if "bars" in caption:
        predicted, published = ([row[key] for row in rows] for key in caption["bars"])
        steps = [row["step"] for row in rows]
        return plots.plot_ablation(
            steps,
            predicted,
            published,
            quantity=y,
            text=caption["format"],
            gain=caption.get("gain"),
            title=title,
        )
    x = caption["x"]
    lines = {
        name: [(row[x], *(row[key] for key in keys), *(None for _ in range(2 - len(keys)))) for row in rows]
        for name, keys in caption["lines"].items()
    }
    return plots.plot_beside_paper(
        {"": lines}, x=_AXES.get(x, x), y=y, title=title, log=caption.get("log", True)
    )
