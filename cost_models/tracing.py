"""Which cost functions priced a step, with which numbers: what `hdpsim explain` shows.

A cost function marked `@priced` reports itself to whoever is listening: its arguments, its result, the constants it
read and the priced functions it called. Nobody else pays for it: without a listener a call costs one look-up. There
is no second implementation of any formula; words come from the functions' own docstrings. No number depends on
whether somebody listens: what was kept is worked out again (`remembered`), and what only a listener wants to see is
worked out beside it (`aside`).

    with tracing() as calls:
        costs = step_costs(...)         # of values wrapped by `watched`, so that what they are asked for is noted
    calls[0].term, calls[0].inputs, calls[0].read, calls[0].result, calls[0].calls
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache, wraps
from typing import Any, Generic, ParamSpec, TypeVar

from hdpsim.cost_models.values_read import agrees, notes_reads, noting, values_at

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
K = TypeVar("K")


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of a priced function.

    Attributes:
        function: the function; its docstring holds formula, what is counted and ignored, and the source.
        owner: class of the object it is a method of.
        terms: accounts of a step that it prices; empty for a building block.
        inputs: its arguments and what it noted, by name.
        read: constants and properties it asked watched values for, such as "calibration.gemm_efficiency".
        result: what it returned.
        calls: priced functions it called, in order.
    """

    function: Callable[..., Any]
    owner: type | None
    terms: tuple[str, ...]
    inputs: dict[str, Any]
    read: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    calls: list[Call] = field(default_factory=list)


_current: ContextVar[Call | None] = ContextVar("hdpsim_current_call", default=None)


def priced(*terms: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a cost function; *terms*: accounts of a step that its result is, or is summed up into."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def reported(*args: P.args, **kwargs: P.kwargs) -> R:
            caller = _current.get()
            if caller is None:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            inputs = dict(bound.arguments)
            owner = type(inputs.pop("self")) if "self" in inputs else None
            call = Call(function=function, owner=owner, terms=terms, inputs=inputs)
            caller.calls.append(call)
            token = _current.set(call)
            try:
                result = function(*args, **kwargs)
            finally:
                _current.reset(token)
            call.result = result
            return result

        return reported

    return mark


def remembered(kept: dict[K, V], key: K, work: Callable[[K], V]) -> V:
    """What *work* made of *key* before, kept in *kept*; a listener sees the same work done again."""
    if _current.get() is not None:
        return work(key)
    if key not in kept:
        kept[key] = work(key)
    return kept[key]


def shared(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep what a function made of its latest *most* arguments; a listener sees the work done again."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        kept = lru_cache(maxsize=most)(function)

        @wraps(function)
        def found(*args: P.args, **kwargs: P.kwargs) -> R:
            return (kept if _current.get() is None else function)(*args, **kwargs)  # type: ignore[arg-type]

        return found

    return mark


class Latest(dict[K, V]):
    """A dict of at most so many entries: a new one takes the place of the oldest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class KeptByReads(Generic[V, R]):
    """What a calculation made of values that agree in all that it read of them; of each *key* the latest few."""

    def __init__(self, keys: int, values: int) -> None:
        """Keep results of so many *keys*, for so many *values* each."""
        self._kept: Latest[Hashable, list[tuple[dict[str, object], R]]] = Latest(keys)
        self._values = values

    def of(self, key: Hashable, value: V, work: Callable[[V], R]) -> R:
        """What *work* makes of the *value*; the key is everything else that it depends on.

        Who listens, or notes what is read, sees the work done again.
        """
        if _current.get() is not None or notes_reads(value):
            return work(value)
        kept = self._kept.get(key, [])
        for known, result in kept:
            if agrees(value, known):
                return result
        read = set[str]()
        result = work(noting(value, "", read))
        self._kept[key] = [(values_at(value, read), result), *kept[: self._values - 1]]
        return result


def aside(work: Callable[[], object]) -> None:
    """Let a listener see *work*, whose result nothing else uses; without one it is not done."""
    if _current.get() is not None:
        work()


def unheard(work: Callable[[], V]) -> V:
    """What *work* returns, of which no listener hears: of alternatives that are compared only one will be a price."""
    token = _current.set(None)
    try:
        return work()
    finally:
        _current.reset(token)


def note(**numbers: object) -> None:
    """Add numbers that a priced function works out itself to what it reports."""
    call = _current.get()
    if call is not None:
        call.inputs.update(numbers)


@contextmanager
def tracing() -> Iterator[list[Call]]:
    """Listen: yields the calls of priced functions made while the context is open."""
    root = Call(function=tracing, owner=None, terms=(), inputs={})
    token = _current.set(root)
    try:
        yield root.calls
    finally:
        _current.reset(token)


def watched(value: V, label: str, called: Mapping[str, str] | None = None) -> V:
    """A copy of a frozen dataclass that tells the current call which of its numbers and names are read.

    Fields that are dataclasses themselves (a cluster's node, a calibration's network) are watched too, under their
    own names. *called* says under which name a field is reported, where that is not its own. A copy is of a class of
    its own: it equals no other value, so nothing cached for one is reused.
    """
    kind: Any = type(value)
    names = {item.name: (called or {}).get(item.name, item.name) for item in fields(kind)}

    def read(self: Any, name: str) -> Any:
        attribute = object.__getattribute__(self, name)
        if name in names and isinstance(attribute, bool | int | float | str):
            call = _current.get()
            if call is not None:
                call.read[f"{label}.{names[name]}"] = attribute
        return attribute

    def same_hash(self: Any) -> int:
        token = _current.set(None)
        try:
            return int(kind.__hash__(self))
        finally:
            _current.reset(token)

    body = {"__slots__": (), "__getattribute__": read, "__hash__": same_hash}
    copy: Any = object.__new__(type(kind.__name__, (kind,), body))
    for name in names:
        part = getattr(value, name)
        if is_dataclass(part) and not isinstance(part, type):
            part = watched(part, name)
        object.__setattr__(copy, name, part)
    result: V = copy
    return result
