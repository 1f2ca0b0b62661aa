"""Tables for people: one value, drawn as plain text or with rich on a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from hdpsim.quoting import LONGEST_NAME, printable, shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Rows of texts below column heads; the first column is aligned left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})
    """Columns aligned left."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(tuple(map(_cell, row)) for row in self.rows))
        object.__setattr__(self, "columns", tuple(map(_cell, self.columns)))
        object.__setattr__(self, "title", _cell(self.title))


def _cell(text: str) -> str:
    """The text of a cell: names of others' files may hold anything."""
    return shortened(printable(text, lines=False), LONGEST_NAME)


_GAP = 3  # blanks and rule that rich puts around a cell
_NARROWEST = 24  # a text column narrower than this is hard to read


def plain_text(table: TextTable) -> str:
    """The table as lines of text, columns two spaces apart.

    >>> print(plain_text(TextTable(title="", columns=("strategy", "s"), rows=(("static", "12.5"),))))
    strategy     s
    static    12.5
    """
    cells = (table.columns, *table.rows) if any(table.columns) else table.rows
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    lines = [table.title] if table.title else []
    for row in cells:
        parts = [
            cell.ljust(width) if i in table.left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def markdown(table: TextTable) -> str:
    """The table in Markdown, below its title."""
    rule = ["---" if place in table.left else "--:" for place in range(len(table.columns))]
    lines = [f"**{table.title}**", ""] if table.title else []
    lines += [f"| {' | '.join(table.columns)} |", f"|{'|'.join(rule)}|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table.rows]
    return "\n".join(lines)


def print_rich(table: TextTable) -> None:
    """Print the table on the terminal with rich; as plain text where its numbers would not fit.

    The last column may break its lines when it is aligned left; no other column does.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(markup=False, highlight=False)
    last = len(table.columns) - 1
    drawn = RichTable(
        title=table.title or None, title_justify="left", title_style="bold",
        box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(table.columns),
    )  # fmt: skip
    for i, column in enumerate(table.columns):
        breaks = i == last and i in table.left and i > 0
        drawn.add_column(
            column, justify="left" if i in table.left else "right", no_wrap=not breaks, overflow="fold"
        )
    for row in table.rows:
        drawn.add_row(*row)
    widths = [max(len(row[i]) for row in (table.columns, *table.rows)) for i in range(last + 1)]
    if last in table.left and last > 0:
        widths[last] = min(widths[last], _NARROWEST)
    if sum(widths) + _GAP * len(widths) > console.width:
        console.print(plain_text(table), soft_wrap=True)
    else:
        console.print(drawn)
