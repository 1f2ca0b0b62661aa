"""What is said about a switch of a layout beside its annotation and its default."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def switch(default: Any, *, name: str) -> Any:
    """A field that a scenario and `Layout(...)` call by another *name* than its group does."""
    return field(default=default, metadata={"name": name})
