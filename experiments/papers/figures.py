"""All figures of a paper value by value: what it published, what is predicted, and why some cannot be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.errors import UserInputError
from hdpsim.experiments.output.document import Table, files_of
from hdpsim.experiments.output.plots.style import GRID, INK, PALETTE, figure_and_axes
from hdpsim.experiments.papers.folder import AboutFigure
from hdpsim.experiments.papers.report import FigureRow, Part, column
from hdpsim.experiments.validation.order import error_of, error_summary, grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "figures"
FAR_OFF = 0.2
"""A figure with a value that is off by more is explained."""


def compared(
    figure: int, what: str, unit: str, paper: float | None, predicted: float | None, reason: str = ""
) -> FigureRow:
    """One value of a figure. *reason*: why its error says nothing, or why one of both is missing."""
    return {
        "figure": figure,
        "what": what,
        "unit": unit,
        "paper": paper,
        "predicted": predicted,
        "error": None if reason else error_of(paper, predicted),
        "reason": reason,
    }


def asked_figures(known: Collection[int], asked: Sequence[int], paper: str) -> frozenset[int]:
    """The figures that are asked for; all figures if none is named.

    Raises:
        UserInputError: one that is not reproduced.
    """
    missing = [number for number in asked if number not in known]
    if missing:
        raise UserInputError(
            f"{paper}: figure {missing[0]} is not reproduced; "
            + (f"there are {', '.join(map(str, sorted(known)))}" if known else "it has none by number")
        )
    return frozenset(asked or known)


def figures_part(figures: Mapping[int, AboutFigure], rows: Sequence[FigureRow]) -> Part:
    """The values of all figures: a line a figure for people, every value as data, their errors as a picture.

    Below the lines: why figures are far off, and what is not compared.
    """
    rows = sorted(rows, key=lambda row: row["figure"])
    by_figure = grouped((row for row in rows if row["figure"] in figures), lambda row: int(row["figure"]))
    summary: list[dict[str, Any]] = [
        {
            "figure": number,
            "title": figures[number].shows,
            "basis": figures[number].basis,
            "values": len(own),
            **error_summary(row["error"] for row in own),
            "reasons": list(dict.fromkeys(row["reason"] for row in own if row["reason"])),
        }
        for number, own in by_figure.items()
    ]
    columns = (
        column("figure"),
        column("title", heading="shows", left=True),
        column("basis", heading="rests on", left=True),
        column("values"),
        column("count", heading="compared"),
        column("median_abs_error", heading="median error", format="{:.1%}"),
        column("max_abs_error", heading="largest", format="{:.1%}"),
    )
    notes = [
        f"Figure {number} is off by up to {row['max_abs_error']:.0%}: {figures[number].why_off}."
        for row in summary
        for number in [row["figure"]]
        if figures[number].why_off and (row["max_abs_error"] or 0.0) > FAR_OFF
    ]
    notes += [
        f"Figure {row['figure']}, not compared: {reason}." for row in summary for reason in row["reasons"]
    ]
    title = "All figures: paper and prediction"
    contents = {"figures.csv": lambda: list(rows), "figures": lambda: _picture(by_figure)}
    return Part(
        value={"summary": summary, "records": list(rows)},
        tables=(Table(title=title, columns=columns, rows=summary, notes=tuple(notes)),),
        files=files_of("reproduce", contents),
    )


def _picture(by_figure: Mapping[int, Sequence[FigureRow]]) -> Figure:
    """Prediction over paper of every value, one line a figure."""
    shown = {
        number: [row["error"] for row in rows if row["error"] is not None]
        for number, rows in by_figure.items()
    }
    shown = {number: errors for number, errors in shown.items() if errors}
    with figure_and_axes(7.6, 1.3 + 0.42 * max(1, len(shown))) as (figure, (axes,)):
        for place, errors in enumerate(shown.values()):
            ratios = np.maximum(1.0 + np.array(errors), 1e-3)
            axes.plot(ratios, np.full(len(ratios), place), "|", markersize=11, color=PALETTE[0])
            axes.plot([np.median(ratios)], [place], "o", markersize=6, color=INK)
        axes.axvline(1.0, color=INK, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(shown)), [f"Figure {number}" for number in shown])
        axes.invert_yaxis()
        axes.set_xlabel("prediction over paper (dot: median)")
        axes.grid(axis="x", color=GRID, linewidth=0.7)
    return figure
