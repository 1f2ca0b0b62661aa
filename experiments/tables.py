"""Tables for people: one value, drawn as plain text or with rich on a terminal."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Table", "plain_text", "print_rich"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts below column heads; the first column is aligned left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})
    """Columns aligned left."""


def plain_text(table: Table) -> str:
    """The table as lines of text, columns two spaces apart.

    >>> print(plain_text(Table(title="", columns=("strategy", "s"), rows=(("static", "12.5"),))))
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


def print_rich(table: Table) -> None:
    """Print the table on the terminal with rich."""
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(title=table.title or None, title_justify="left", show_header=any(table.columns))
    for i, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if i in table.left else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    Console(markup=False).print(drawn)
