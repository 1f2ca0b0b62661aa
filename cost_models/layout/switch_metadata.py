"""What is said about a switch of a layout beside its annotation, its default and the words below it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hdpsim.cost_models.layout.layout import Layout


class Need(NamedTuple):
    """What a switch needs of the others to have an effect.

    Attributes:
        words: for documentation.
        otherwise: why there is no effect, with the values of switches in braces.
        met: whether a layout has what is needed.
    """

    words: str
    otherwise: str
    met: Callable[[Layout], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What scenarios need to know of a switch.

    Attributes:
        name: what scenarios, software stacks and `Layout(...)` call it; empty: as its group does.
        none: the word that a scenario writes for None.
        basic: whether everybody needs it, not experts alone.
        needs: without which it changes nothing.
    """

    name: str = ""
    none: str = ""
    basic: bool = False
    needs: tuple[Need, ...] = ()


def switch(
    default: Any, *, name: str = "", none: str = "", basic: bool = False, needs: tuple[Need, ...] = ()
) -> Any:
    """A field of a group with a default and what `About` says."""
    return field(default=default, metadata={"about": About(name=name, none=none, basic=basic, needs=needs)})


def about(item: Field[Any]) -> About:
    """What is said of a field."""
    metadata: About = item.metadata.get("about", _NOTHING)
    return metadata


_NOTHING = About()
