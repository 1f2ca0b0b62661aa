"""The errors hdpsim raises on purpose.

    HdpSimError                 every error a user can meet and understand
    +-- UserInputError          bad input: what, where, what is allowed           exit code 2
    |   +-- TraceError          a trace file with an unusable row (path, row)
    |   +-- ScenarioError       one or more problems in a scenario, each with its dotted key
    |   +-- CatalogError        an unknown or malformed model, GPU, node or cluster
    |   +-- QuantityError       a number whose unit is missing or unknown
    |   +-- StrategyError       a strategy of one's own that cannot be loaded, fails, or returns no Plan
    +-- InfeasibleError         a legal request that cannot run (memory, degrees) exit code 3
    |   +-- OutOfMemoryError    the reason is memory: needed and available bytes
    +-- DeadlockError           a schedule in which operations wait for each other in a cycle
    +-- PlanError               a plan of a strategy that breaks a promise: a bug of it  exit code 1
    |   +-- OwnPlanError        the same of a strategy of one's own                 exit code 3
    +-- NotFiniteError          a result that is nan or infinite: a bug, never shown  exit code 1

Everything else that escapes is a bug and keeps its traceback (exit code 1).
All of them pickle, because sweeps run in process pools.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from hdpsim.quoting import LONGEST_NAME, LONGEST_QUOTE, quoted, shortened

_MOST_PROBLEMS = 50
"""Of one file; whoever has more reads the first ones."""


class HdpSimError(Exception):
    """Base of every error hdpsim raises on purpose."""

    _given: tuple[object, ...]
    _named: dict[str, object]
    exit_code = 2

    def __new__(cls, *given: object, **named: object) -> Self:
        """Keep what it is made of, by which it pickles."""
        error = super().__new__(cls, *given)
        error._given, error._named = given, named
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), **self._named), self._given, vars(self)


class UserInputError(HdpSimError):
    """Input that is wrong; the message says what, where and what is allowed."""


class TraceError(UserInputError):
    """A trace that cannot be used.

    Attributes:
        path: the file (or the name of the trace when it came from memory).
        row: 1-based number of the first bad row, or None when no row is to blame.
    """

    def __init__(self, message: str, path: str, row: int | None = None) -> None:
        shown = shortened(path, LONGEST_NAME)
        where = shown if row is None else f"{shown}, row {row}"
        super().__init__(f"{where}: {message}")
        self.message, self.path, self.row = message, path, row


class ScenarioError(UserInputError):
    """One or more problems of a scenario, all reported at once.

    Attributes:
        problems: (dotted key, what is wrong and what is allowed) pairs.
        source: the file or name the scenario came from.
    """

    def __init__(self, problems: tuple[tuple[str, str], ...], source: str = "scenario") -> None:
        lines = [
            f"{shortened(source, LONGEST_NAME)}: {len(problems)} problem{'s' if len(problems) != 1 else ''}"
        ]
        lines += [
            f"  {shortened(key, 2 * LONGEST_QUOTE)}: {text}" if key else f"  {text}"
            for key, text in problems[:_MOST_PROBLEMS]
        ]
        if len(problems) > _MOST_PROBLEMS:
            lines.append(f"  and {len(problems) - _MOST_PROBLEMS:,} more")
        super().__init__("\n".join(lines))
        self.problems, self.source = problems, source


class CatalogError(UserInputError):
    """A catalog entry that does not exist or is malformed."""


class QuantityError(UserInputError, ValueError):
    """A text that is not a quantity of the wanted dimension."""

    def __init__(self, text: str, dimension: str, known: tuple[str, ...]) -> None:
        super().__init__(f"{quoted(text)} is not a {dimension}; write a number and one of {', '.join(known)}")
        self.text, self.dimension, self.known = text, dimension, known


class StrategyError(UserInputError):
    """A strategy of one's own that cannot be found, imported or called, that fails, or that returns no Plan."""


class InfeasibleError(HdpSimError):
    """A well-formed request that cannot run; the message is the reason."""

    exit_code = 3


class OutOfMemoryError(InfeasibleError):
    """A layout whose GPUs need more memory than they have."""

    def __init__(self, message: str, needed_bytes: float, available_bytes: float) -> None:
        super().__init__(message)
        self.message, self.needed_bytes, self.available_bytes = message, needed_bytes, available_bytes


class DeadlockError(HdpSimError):
    """A schedule that can never finish; the message names the cycle of waits."""

    exit_code = 3


class PlanError(HdpSimError):
    """A plan that breaks a promise of simulator/plan.py: a bug of the strategy that made it, not of its user.

    Attributes:
        promise: a word for the promise that is broken, such as `tokens`; empty where a plan could not even be made.
    """

    exit_code = 1
    promise = ""


class OwnPlanError(PlanError):
    """A plan of a strategy of one's own that breaks a promise; the message names the strategy and what broke."""

    exit_code = 3


class NotFiniteError(HdpSimError):
    """A figure of a result that is no finite number: a bug of hdpsim, which is not shown as an answer."""

    exit_code = 1

    def __init__(self, key: str, value: object) -> None:
        super().__init__(
            f"{key or 'a figure'} of the result is {value}, no finite number: nothing is shown. This is a bug of "
            "hdpsim; please report it with the input"
        )
        self.key, self.value = key, value
