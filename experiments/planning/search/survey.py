"""A look at every corner of a space before any part of it is searched closely."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .race import Entry

SHARE = 0.25
"""Of the budget, at most, that goes into the survey."""


class Survey:
    """Layouts corner by corner: of each corner one after the other until one has candidates that fit.

    What a layout is roughly expected to take knows nothing of memory. Where one degree decides whether anything fits at
    all, the order by these estimates would spend the budget in the corner that they take for the best.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        """*entries*: layouts, the most promising first."""
        corners: dict[object, deque[Entry]] = {}
        for entry in entries:
            corners.setdefault(entry.corner, deque()).append(entry)
        self._corners = deque(corners.values())
        self._asked: dict[int, deque[Entry]] = {}
        self._done: list[deque[Entry]] = []

    def take(self) -> Entry | None:
        """The next layout to look at; None where every corner has shown one, or is being looked at."""
        if not self._corners:
            return None
        corner = self._corners.popleft()
        entry = corner.popleft()
        self._asked[id(entry)] = corner
        return entry

    @property
    def waits(self) -> bool:
        """Whether corners may have more to look at, once it is known whether what is being looked at fits."""
        return bool(self._asked)

    def glanced(self, entry: Entry, *, fits: bool) -> None:
        """Take over whether any candidate of a layout fits."""
        corner = self._asked.pop(id(entry), None)
        if corner is None:
            return
        if fits or not corner:
            self._done.append(corner)
        else:
            self._corners.appendleft(corner)

    def rest(self) -> Iterator[Entry]:
        """End the survey and return what it has not looked at."""
        for corner in (*self._corners, *self._done, *self._asked.values()):
            yield from corner
        self._corners.clear()
        self._done.clear()
        self._asked.clear()
