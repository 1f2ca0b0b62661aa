"""Tests of a shell script that its own variables decide: `if [ "$FP8" = true ]`, with all its branches."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal

Truth = bool | None
"""None: only a run of the script knows."""
Joined = Literal["", "&&", "||"]

_LONGEST_NUMBER = 18
_NUMBERS = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt,
    "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip
_BRACKETS = {"[": "]", "[[": "]]"}


def negated(value: Truth) -> Truth:
    """What is not so."""
    return None if value is None else not value


def both(*values: Truth) -> Truth:
    """Whether all hold; known to be false where one of them is."""
    if any(value is False for value in values):
        return False
    return None if any(value is None for value in values) else True


def either(*values: Truth) -> Truth:
    """Whether any holds."""
    return negated(both(*map(negated, values)))


def holds(words: Sequence[str]) -> Truth:
    """Whether a test holds, whose words have their values; None for a test that is not understood.

    >>> holds(["[", "8", "-gt", "1", "]"]), holds(["!", "[[", "a", "==", "b", "]]"]), holds(["[", "-f", "x", "]"])
    (True, True, None)
    """
    if not words:
        return None
    if words[0] == "!":
        return negated(holds(words[1:]))
    if words[0] in ("true", "false"):
        return words[0] == "true" if len(words) == 1 else None
    inner = list(words[1:])
    if words[0] in _BRACKETS:
        if not inner or inner.pop() != _BRACKETS[words[0]]:
            return None
    elif words[0] != "test":
        return None
    return _inner(inner)


def _inner(words: list[str]) -> Truth:
    match words:
        case ["!", *rest]:
            return negated(_inner(rest))
        case [value]:
            return bool(value)
        case ["-n", value]:
            return bool(value)
        case ["-z", value]:
            return not value
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, sign, right] if sign in _NUMBERS and all(map(_is_number, (left, right))):
            return bool(_NUMBERS[sign](int(left), int(right)))
        case _:
            return None


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST_NUMBER


class Branches:
    """The branches of an `if`, one after the other; of any other block the only one."""

    def __init__(self, only: Truth = None) -> None:
        """*only*: whether the block runs at all, where it is no `if`."""
        self.asks = False
        self._condition: Truth = only
        self._earlier: Truth = False

    @property
    def taken(self) -> Truth:
        """Whether what is read now runs."""
        return None if self.asks else both(self._condition, negated(self._earlier))

    def test(self, value: Truth, *, again: bool) -> None:
        """A condition begins: the first one, or that of an `elif`."""
        if again:
            self._earlier = either(self._earlier, self._condition)
        self._condition, self.asks = value, True

    def joins(self, value: Truth, joined: Joined) -> None:
        """It has another part."""
        join = {"&&": both, "||": either}.get(joined)
        self._condition = None if join is None else join(self._condition, value)

    def begins(self) -> None:
        """Its branch begins."""
        self.asks = False

    def otherwise(self) -> None:
        """The last branch begins: what is left of all others."""
        self._earlier, self._condition = either(self._earlier, self._condition), True
