"""`hdpsim report`: one page of a run directory, to forward."""

from __future__ import annotations

from pathlib import Path

import click

from hdpsim.experiments.cli.options import checked_with, file_option
from hdpsim.experiments.cli.shown import say


@click.command("report")
@click.argument("folder", metavar="RUN_DIR", type=click.Path())
@file_option(
    "-o",
    "--output",
    metavar="FILE.html",
    callback=checked_with("output.page.html:check_page"),
    help="Where to write; default: RUN_DIR.html beside the directory.",
)
def command(folder: str, output: str | None) -> None:
    """Make one page of a run directory, to forward: answer, charts, figures, assumptions.

    The page is a single file that needs no network. Verbs make the same at once with --report FILE.html.
    """
    from hdpsim.experiments.output.page.html import check_page, write_page
    from hdpsim.experiments.output.page.view import loaded

    target = output or f"{Path(folder).resolve()}.html"
    check_page(target)
    say(write_page(target, loaded(Path(folder))))
