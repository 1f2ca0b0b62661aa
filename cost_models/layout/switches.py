"""What is said about a switch of a layout beside its annotation, its default and the words below it."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What scenarios need to know of a switch.

    Attributes:
        name: what scenarios, software stacks and `Layout(...)` call it; empty: as its group does.
        none: the word that a scenario writes for None.
        basic: whether everybody needs it, not experts alone.
    """

    name: str = ""
    none: str = ""
    basic: bool = False


def switch(default: Any, *, name: str = "", none: str = "", basic: bool = False) -> Any:
    """A field of a group with a default and what `About` says."""
    return field(default=default, metadata={"about": About(name=name, none=none, basic=basic)})


def about(item: Field[Any]) -> About:
    """What is said of a field."""
    found: About = item.metadata.get("about", _NOTHING)
    return found


_NOTHING = About()
