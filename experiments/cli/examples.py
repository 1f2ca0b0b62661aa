"""What `--help` of a verb ends with: two examples and the page that says more, which stand in examples.txt."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple


class Ending(NamedTuple):
    """What the help of one verb ends with."""

    page: str
    """Of the documentation; empty: that of the group that the verb belongs to."""
    examples: tuple[tuple[str, str], ...]
    """Commands and what they are for."""


@cache
def endings() -> dict[str, Ending]:
    """The ending of every verb, and of every verb of a group under both words."""
    by_verb = {}
    for block in Path(__file__).with_name("examples.txt").read_text(encoding="utf-8").split("\n\n"):
        head, *lines = (line.strip() for line in block.strip().splitlines())
        verb, _, page = head.partition(":")
        by_verb[verb] = Ending(page.strip(), tuple(zip(lines[::2], lines[1::2], strict=True)))
    return by_verb


def epilog(verb: str) -> str:
    """What `--help` of a verb ends with."""
    ending, group = endings().get(verb), endings().get(verb.partition(" ")[0])
    parts = []
    if ending is not None:
        lines = [f"  {command}\n      {what}" for command, what in ending.examples]
        parts.append("\b\nExamples:\n" + "\n".join(lines))
    if group is not None:
        parts.append(
            f"\b\nExit codes: 0 fine, 2 wrong input, 3 it cannot run, 130 interrupted.\nMore: {group.page}"
        )
    return "\n\n".join(parts)
