"""One self-contained page of a result: no file beside it, no network, no script that is needed to read it."""

from __future__ import annotations

import base64
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from hdpsim.errors import UserInputError
from hdpsim.experiments.output.page.charts import account_bars, candidate_dots, rank_strips
from hdpsim.experiments.output.page.lanes import pass_lanes
from hdpsim.files import made_parents, replacing, try_out

if TYPE_CHECKING:
    from jinja2 import Template

    from hdpsim.experiments.output.page.view import View

_DRAWN_BY_CHARTS = {
    "time_breakdown": "Where the time goes",
    "rank_step_time": "Rank by rank",
    "passes": "Pass by pass",
}
"""Figures that say what a chart of the page says."""

_HERE = "hdpsim.experiments.output.page"


def page(view: View) -> str:
    """The page: the answer first, then charts, figures, and what a reader of the figures must know."""
    from markupsafe import Markup

    rows = {name: list(table) for name, table in view.tables.items()}
    charts = (
        ("Where the time goes", account_bars(rows.get("accounts", ()))),
        ("Rank by rank", rank_strips(rows.get("ranks", ()))),
        ("Pass by pass", pass_lanes(rows.get("passes", ()))),
        ("Candidates", candidate_dots(rows.get("candidates", ()))),
    )
    drawn = {title for title, svg in charts if svg}
    pictures = [
        {"name": name.replace("_", " "), "words": words, "data": _data(view.svgs[name])}
        for name, words in view.text["pictures"].items()
        if _DRAWN_BY_CHARTS.get(name) not in drawn
    ]
    said = next(
        (block for block in view.text["blocks"] if block["text"]), None
    )  # before the tables that show it
    blocks = [*([said] if said else []), *(block for block in view.text["blocks"] if block is not said)]
    return _template().render(
        view=view.text,
        blocks=blocks,
        style=Markup(_text("page.css")),
        script=Markup(_text("page.js")),
        charts=[(title, Markup(svg)) for title, svg in charts if svg],
        pictures=pictures,
    )


def check_page(path: str) -> None:
    """Refuse a place where no page can be written.

    Raises:
        UserInputError: its name does not end with .html, it is a folder, or nothing can be made there.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise UserInputError(f"{path}: a page is a file whose name ends with .html")
    if target.is_dir():
        raise UserInputError(f"{path}: is a directory")
    try:
        try_out(next(place for place in target.resolve().parents if place.exists()) / target.name)
    except OSError as error:
        raise UserInputError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_page(path: str, view: View) -> str:
    """Write the page of a view; returns a line that says so."""
    text = page(view)
    try:
        with made_parents(Path(path).resolve()), replacing(Path(path), "page") as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise UserInputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return f"wrote {path}"


def _data(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _text(name: str) -> str:
    return files(_HERE).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(_text("page.html.j2"))
