"""What a configuration file says, whatever its format: options with names, values and lines."""

from __future__ import annotations

import json
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
    return tuple(_leaves(document.data, "", document.lines))


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
