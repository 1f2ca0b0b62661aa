"""Texts of unknown origin on their way to a terminal: cut to a length that can be read, without control characters.

Names, keys, cells and paths come from files of others. Whatever of them is shown goes through one of these functions.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

LONGEST_QUOTE = 80
"""Characters of a value that a message quotes."""
LONGEST_NAME = 400
"""Characters of the name of a file or of a part of one that a message starts with."""
LONGEST_LINE = 2_000
"""Characters of one line of a message."""
LONGEST_MESSAGE = 8_000
"""Characters of a whole message."""
_LONGEST_KNOWN = 200
"""Characters of any key or name there is; comparing longer ones takes the square of it."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode that a terminal obeys or does not show: controls, marks of direction, halves of pairs."""


def printable(text: str, *, lines: bool = True) -> str:
    r"""The text with every character that a terminal would obey written out as an escape.

    Ends of lines and tabs are kept where *lines* is set; a cell of a table has none.

    >>> printable("a\x1b]0;title\x07")
    'a\\x1b]0;title\\x07'
    """
    kept = "\n\t" if lines else ""
    if text.isprintable():
        return text
    return "".join(c if c in kept or unicodedata.category(c) not in _HIDDEN else ascii(c)[1:-1] for c in text)


def shortened(text: str, limit: int = LONGEST_QUOTE) -> str:
    """The text, or its two ends with three dots between them where it is longer than *limit* characters.

    >>> shortened("abcdefghijklmnopqrstuvwxyz", 13)
    'abcdef...wxyz'
    """
    if len(text) <= limit:
        return text
    tail = (limit - 3) * 2 // 5
    return f"{text[: limit - 3 - tail]}...{text[len(text) - tail :]}"


def quoted(value: object, limit: int = LONGEST_QUOTE) -> str:
    """What `repr` says of a value, cut to *limit* characters; containers are named, not listed.

    >>> quoted("tp")
    "'tp'"
    >>> quoted([1, 2, 3])
    'a list of 3'
    """
    if isinstance(value, str):
        return printable(repr(shortened(value, limit)), lines=False)
    if isinstance(value, list | tuple | set | frozenset | dict):
        kind = "a mapping" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}" if value else f"{kind} with nothing in it"
    try:
        return shortened(printable(repr(value), lines=False), limit)
    except ValueError:  # Python prints no whole number of more than some thousand digits
        return "a number of thousands of digits"


def message(text: str) -> str:
    """A whole message as a terminal may get it: printable, no line and not the whole longer than can be read."""
    cut = "\n".join(
        shortened(line, LONGEST_LINE) for line in shortened(text, 4 * LONGEST_MESSAGE).split("\n")
    )
    return shortened(printable(cut), LONGEST_MESSAGE)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """` (did you mean 'x'?)` when something is known that is as similar as *cutoff* (1: equal), else an empty text."""
    if len(name) > _LONGEST_KNOWN:
        return ""
    by_folded = {option.casefold(): option for option in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=cutoff)
    return f" (did you mean {by_folded[close[0]]!r}?)" if close else ""


def counted(count: int, what: str) -> str:
    """A number of something whose plural has an s: 1 stage, 2 stages."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
