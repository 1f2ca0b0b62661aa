"""What a configuration file says, whatever its format: options with names, values and lines."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hdpsim.errors import UserInputError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import LIMITS
from hdpsim.yaml_loader import load_document


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that the file does not hold, and why."""

    why: str


Value = str | int | float | bool | None | Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting of another tool.

    Attributes:
        name: `num-layers`, `model.num_layers`, `$CUDA_LAUNCH_BLOCKING`.
        value: True for a flag without a value; a list's parts are joined by blanks.
        line: where it stands; 0: the format does not say.
    """

    name: str
    value: Value
    line: int


def read_yaml(text: str, where: str) -> tuple[Option, ...]:
    """Every leaf of a YAML document by its dotted name; `_target_` and its like are no settings."""
    document = load_document(text, where)
    if not isinstance(document.data, Mapping):
        raise UserInputError(f"{where}: expected a mapping of keys, got {quoted(document.data)}")
    return tuple(_leaves(_References(document.data).resolved(document.data, ()), "", document.lines))


_REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_]\w*(?:\.\w+)*)\}", re.ASCII)
_COMPUTED = re.compile(
    r"\$\{(multiply|divide_ceil|divide_floor):\s*([^,]{1,200}),\s*([^,]{1,200})\}", re.ASCII
)
_MOST_REFERENCES = 8
_RESOLVERS = {
    "multiply": lambda left, right: left * right,
    "divide_ceil": lambda left, right: math.ceil(left / right),
    "divide_floor": lambda left, right: math.floor(left / right),
}
"""Of NVIDIA/NeMo-Framework-Launcher, launcher_scripts/main.py."""


class _References:
    """Values that stand elsewhere in a document, as OmegaConf has them: `${model.x}`, `${.x}`, `${multiply:4, ${.x}}`.

    What the document does not hold, or not as a number where one is computed, stays as it is written.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def resolved(self, data: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """The mapping at *path* with the values of its references."""
        found: dict[str, Any] = {}
        for key, value in data.items():
            if isinstance(value, Mapping):
                found[key] = self.resolved(value, (*path, key))
            else:
                known = self._value(value, path, 0)
                found[key] = value if known is None else known
        return found

    def _value(self, value: object, path: tuple[str, ...], depth: int) -> object:
        """A scalar, or None where nobody knows it."""
        if not isinstance(value, str) or "${" not in value:
            return value
        if depth == _MOST_REFERENCES:
            return None
        reference, computed = _REFERENCE.fullmatch(value), _COMPUTED.fullmatch(value)
        if reference is not None:
            dots, names = len(reference[1]), tuple(reference[2].split("."))
            above = path[: len(path) - dots + 1] if dots else ()
            return self._at((*above, *names), depth)
        if computed is None:
            return None
        sides = [self._value(side.strip(), path, depth + 1) for side in computed.groups()[1:]]
        numbers = [_number(side) for side in sides]
        try:
            return None if None in numbers else _RESOLVERS[computed[1]](*numbers)
        except (ArithmeticError, ValueError):  # a division by zero, infinity
            return None

    def _at(self, names: tuple[str, ...], depth: int) -> object:
        """What stands under these names; the launcher puts a recipe under `training`."""
        for tried in (names, names[1:] if names[0] == "training" else ()):
            value: object = self._root
            for name in tried:
                value = value.get(name) if isinstance(value, Mapping) else None
            if tried and value is not None and not isinstance(value, Mapping | list):
                return self._value(value, tried[:-1], depth + 1)
        return None


def _number(value: object) -> int | float | None:
    """A number, or a text that is one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value) else None


def read_toml(text: str, where: str) -> tuple[Option, ...]:
    """Every leaf of a TOML document by its dotted name."""
    deepest, too_deep = LIMITS["configuration_depth"]
    names = (line for line in text.splitlines() if "=" in line or line.startswith("["))
    if any(line.count(".") > 20 * deepest for line in names):
        raise UserInputError(f"{where}: is nested more than {deepest} levels deep: {too_deep}")
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise UserInputError(f"{where}: not valid TOML: {shortened(str(error), LONGEST_NAME)}") from None
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        head = re.match(r"\s*\[([\w.-]+)\]", line)
        key = re.match(r"\s*([\w.-]+)\s*=", line)
        section = f"{head[1]}." if head else section
        if key:
            lines.setdefault(f"{section}{key[1]}", number)
    return tuple(_leaves(data, "", lines))


def _leaves(data: Mapping[str, Any], above: str, lines: Mapping[str, int]) -> Iterator[Option]:
    for key, value in data.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and _is_word(value):
            yield Option(name=name, value=str(value["_target_"]).rpartition(".")[2], line=lines.get(name, 0))
        elif isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.", lines)
        elif not key.startswith("_"):
            yield Option(name=name, value=_leaf(value), line=lines.get(name, 0))


def _is_word(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is how a dumped configuration writes one word, such as torch.bfloat16."""
    flat = not any(isinstance(inner, Mapping) for inner in value.values())
    return flat and "_target_" in value and value.keys() <= {"_target_", "_call_", "_args_", "_name_"}


def _leaf(value: Any) -> Value:
    if isinstance(value, list):
        if not value:
            return None
        return " ".join(part if isinstance(part, str) else json.dumps(part, default=str) for part in value)
    if isinstance(value, str) and "${" in value:
        return Unread(f"{quoted(value)} is known when the file is used")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)  # a date of TOML
