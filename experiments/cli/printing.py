"""How a command shows what it found: text or one JSON document on stdout, and files where they were asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hdpsim import interrupts
from hdpsim.quoting import printable

if TYPE_CHECKING:
    from hdpsim.experiments.output.document import Document, Table
    from hdpsim.experiments.verbs.result import Result


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines on stdout (or stderr), whatever is in them: names of others' files may hold what a terminal obeys."""
    click.echo(printable(text), err=err, nl=nl)


def emit_json(data: object) -> None:
    """Print the one JSON document on stdout."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def show_table(table: Table[Any]) -> None:
    """Print a table: with lines and bold heads on a terminal, plain text otherwise; and the lines below it."""
    from hdpsim.experiments.output.tables import plain_text, print_rich

    drawn = table.drawn()
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        print_rich(drawn)
    else:
        say(plain_text(drawn))
    for line in table.notes:
        say(line)


def end_interrupted(what: str) -> NoReturn:
    """End a command that Ctrl-C stopped early; *what* is left of its result."""
    say(f"{interrupts.message()}: {what}", err=True)
    raise click.exceptions.Exit(interrupts.exit_code())


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a result goes: to stdout as text or JSON, and into a run directory or a page when one was asked for."""

    as_json: bool
    out: str | None = None
    report: str | None = None

    def present(self, document: Document, lines: Sequence[str] = ()) -> None:
        """Show what a verb found; *lines* close the text."""
        data = document.data()  # first of all: it refuses figures that are nan or infinite
        if self.out is not None:
            from hdpsim.experiments.output.files.run_directory import write_document

            lines = (*lines, write_document(self.out, document))
        if self.report is not None:
            from hdpsim.experiments.output.document import command_line
            from hdpsim.experiments.output.page.html import write_page
            from hdpsim.experiments.output.page.view import view_of

            lines = (*lines, write_page(self.report, view_of(document, command_line())))
        if self.as_json:
            emit_json(data)
            return
        for number, part in enumerate(document.parts()):
            if number:
                say()
            if isinstance(part, str):
                say(part)
            else:
                show_table(part)
        for line in lines:
            say(line)

    def show(self, result: Result) -> None:
        """Show what a verb returned; what is wrong with it ends the command, and so does what was interrupted."""
        self.present(result.document, result.lines)
        if result.error is not None:
            raise result.error
        if result.interrupted:
            end_interrupted("the result is partial")
