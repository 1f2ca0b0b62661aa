"""A result as JSON data, and the last look at it: no command shows a figure that is nan or infinite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hdpsim.errors import NotFiniteError


def plain(value: object, key: str = "") -> Any:
    """*value* as JSON data: dataclasses become objects, arrays lists.

    Raises:
        NotFiniteError: a number is nan or infinite; *key* is what the message calls the value.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name), _below(key, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), key)
    if isinstance(value, np.generic):
        return plain(value.item(), key)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotFiniteError(key, value)
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner, _below(key, str(name))) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner, key) for inner in value]
    if value is None or isinstance(value, str | int):
        return value
    return str(value)


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def attributes(of: object, names: str) -> dict[str, Any]:
    """Attributes of an object by their *names*, which are separated by blanks."""
    return {name: getattr(of, name) for name in names.split()}
