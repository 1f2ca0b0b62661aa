"""Which fields of its inputs a calculation reads: a field that it does not read cannot change what it returns.

    read = set()
    first = calculate(noting(value, "cluster", read))
    if read.isdisjoint(differences(value, other, "cluster")):
        second = first      # without calculating it

`tracing.KeptByReads` keeps results that way: a table of matrix products does not depend on constants of the network.

A copy that notes what it is asked works like the value itself. It differs in one thing: whatever was kept for the value
is not found for the copy, since reads that happened before would be missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import Any, TypeVar

V = TypeVar("V")


class _Noting:
    """Base of the classes of copies.

    Attributes:
        _kind: class of the value that was copied.
        _label: what its fields are noted under.
        _read: where they are noted.
        _known: fields that are not noted.
    """

    __slots__ = ()
    _kind: type
    _label: str
    _read: set[str]
    _known: frozenset[str]


def noting(value: V, label: str, read: set[str], known: frozenset[str] = frozenset()) -> V:
    """A copy of a frozen dataclass that adds `label.name` to *read* when its field `name` is read.

    Fields that are dataclasses are copied likewise, as `label.name` themselves. Of a container the whole field counts
    as read. Comparing the copy counts as reading all of it. Fields that are *known* to follow from others are not
    noted.
    """
    kind: Any = type(value)
    names = [item.name for item in fields(kind)]
    noted = frozenset(names) - known

    def get(self: Any, name: str) -> Any:
        if name in noted:
            read.add(f"{label}.{name}")
        return object.__getattribute__(self, name)

    def equal(self: Any, other: object) -> bool:
        read.update(_leaves(self, label))
        return bool(_plain(self) == (_plain(other) if isinstance(other, _Noting) else other))

    body = {
        "__slots__": (),
        "__getattribute__": get,
        "__eq__": equal,
        "__hash__": object.__hash__,  # its own: nothing that is kept for an equal value may be found
        "_kind": kind,
        "_label": label,
        "_read": read,
        "_known": known,
    }
    copy: Any = object.__new__(type(kind.__name__, (kind, _Noting), body))
    for name in names:
        part = getattr(value, name)
        object.__setattr__(copy, name, noting(part, f"{label}.{name}", read) if _is_value(part) else part)
    result: V = copy
    return result


def changed(value: V, **changes: Any) -> V:
    """`dataclasses.replace`, of a noting copy as well.

    Copying a field does not count as reading it. Nor does reading one of the *changes*: they follow from what was read.
    """
    if not isinstance(value, _Noting):
        return replace(value, **changes)  # type: ignore[type-var]
    kind = type(value)
    new = replace(_plain(value), **changes)
    result: V = noting(new, kind._label, kind._read, kind._known | changes.keys())
    return result


def differences(one: object, other: object, label: str) -> Iterator[str]:
    """The fields in which two values differ, named as `noting` names them; the label where they are of two classes."""
    if one is other:
        return
    if not _is_value(one) or type(one) is not type(other):
        if type(one) is not type(other) or one != other:
            yield label
        return
    for item in fields(one):  # type: ignore[arg-type]
        yield from differences(getattr(one, item.name), getattr(other, item.name), f"{label}.{item.name}")


def notes_reads(value: object) -> bool:
    """Whether it is a copy that notes what is read of it."""
    return isinstance(value, _Noting)


def values_at(value: object, paths: set[str]) -> dict[str, object]:
    """What stands at the paths that `noting` gave under no label; parts that have fields of their own are left out."""
    parts = {path: _at(value, path) for path in sorted(paths)}
    return {path: part for path, part in parts.items() if not _is_value(part)}


def agrees(value: object, known: dict[str, object]) -> bool:
    """Whether a value has at every path what is *known* of it."""
    return all(_at(value, path) == part for path, part in known.items())


def _at(value: object, path: str) -> Any:
    """The part of a value at a path that `noting` gave it, under no label."""
    return reduce(getattr, path.split(".")[1:], value)


def _is_value(part: object) -> bool:
    return is_dataclass(part) and not isinstance(part, type)


def _plain(value: Any) -> Any:
    """What a noting copy is a copy of, parts included; nothing is noted."""
    if not isinstance(value, _Noting):
        return value
    kind: Any = type(value)._kind
    plain = object.__new__(kind)
    for item in fields(kind):
        object.__setattr__(plain, item.name, _plain(object.__getattribute__(value, item.name)))
    return plain


def _leaves(value: Any, label: str) -> Iterator[str]:
    """The names of all fields of a value and of its parts."""
    for item in fields(value):
        name, part = f"{label}.{item.name}", object.__getattribute__(value, item.name)
        yield name
        if _is_value(part):
            yield from _leaves(part, name)
