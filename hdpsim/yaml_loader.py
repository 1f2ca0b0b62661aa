"""YAML as people mean it: the 1.2 core schema on PyYAML's parser, strict about what is ambiguous.

PyYAML reads YAML 1.1, where `1e9` is a string, `on` and `no` are booleans, `12:30` is 750 and `010` is 8. Here
1e9 and 5e-6 are numbers; on, off, yes, no, 12:30 and 010 are text; a key given twice is an error; tags such as
`!!python/...` are refused. Every value knows its line.
"""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from hdpsim.errors import UserInputError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import LIMITS
from hdpsim.reading import UnreadableError, read_text

_PACKAGE = Path(__file__).parent
_DEPTH, _TOO_DEEP = LIMITS["configuration_depth"]
_VALUES, _TOO_MANY = LIMITS["configuration_values"]


class YamlError(UserInputError):
    """A YAML text that cannot be read.

    Attributes:
        source: the file, or the name of the text.
        line: 1-based line of the fault, or None when no line is to blame.
    """

    def __init__(self, message: str, source: str, line: int | None = None) -> None:
        source = shortened(source, LONGEST_NAME)
        where = source if line is None else f"{source}:{line}"
        super().__init__(f"{where}: {message}")
        self.message, self.source, self.line = message, source, line


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """Plain data (dict, list, str, int, float, bool, None) and where it stood.

    Attributes:
        data: the value; the keys of every mapping are text.
        source: the file, or the name of the text.
        lines: dotted key ("cluster.nodes", "runs[2].name") to its 1-based line.
    """

    data: Any
    source: str
    lines: dict[str, int]

    def where(self, key: str) -> str:
        """`file:line` of a dotted key, or of its nearest ancestor that is there."""
        while key and key not in self.lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return f"{self.source}:{self.lines[key]}" if key else self.source


class _TooDeepError(Exception):
    """Nested beyond the limit, in this line."""

    def __init__(self, line: int) -> None:
        self.line = line


class _CoreLoader(yaml.SafeLoader):
    """Parser with the scalar rules of the YAML 1.2 core schema (and no octal trap: 010 stays text)."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as the base does, but not deeper than configurations are."""
        self._depth += 1
        if self._depth > _DEPTH:
            raise _TooDeepError(self.line + 1)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


_Fast = getattr(yaml, "CSafeLoader", _CoreLoader)


class _ShippedLoader(_Fast):  # type: ignore[misc, valid-type]
    """Load YAML by libyaml, ten times as fast: for shipped files, as it takes tabs and says less of faults."""


_CoreLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
):
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
_ShippedLoader.yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers


def load_yaml(source: Path | str) -> Any:
    """Return the data of a file (`Path`) or of a text (`str`); see load_document for the lines too."""
    return load_document(source).data


def load_document(source: Path | str, name: str = "<text>") -> YamlDocument:
    """Read one YAML document from a file (`Path`) or from a text (`str`, called *name* in errors).

    Raises:
        YamlError: not readable, not UTF-8, not YAML, or ambiguous; with file and line.
    """
    text = source if isinstance(source, str) else _read(source)
    shipped = isinstance(source, Path) and source.is_relative_to(_PACKAGE)
    document = _parsed(text, name if isinstance(source, str) else str(source), shipped=shipped)
    return replace(document, data=deepcopy(document.data))


@lru_cache(maxsize=32)
def _parsed(text: str, name: str, *, shipped: bool) -> YamlDocument:
    """A text that was read before is not parsed anew: studies load one scenario again and again."""
    try:
        text.encode("utf-8")
        node = yaml.compose(text, Loader=_ShippedLoader if shipped else _CoreLoader)
        builder = _Builder(name)
        data = None if node is None else builder.build(node, "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(
            f"not valid YAML: {shortened(problem, LONGEST_NAME)}", name, mark.line + 1 if mark else None
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(
            f"not valid YAML: character #x{error.character:04x} is not allowed", name, line
        ) from error
    except _TooDeepError as error:
        raise YamlError(f"is nested more than {_DEPTH} levels deep: {_TOO_DEEP}", name, error.line) from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise YamlError("not valid YAML: half a character (a lone surrogate)", name, line) from None
    except ValueError as error:  # an escape that stands for no character
        raise YamlError(f"not valid YAML: {shortened(str(error), LONGEST_NAME)}", name) from None
    return YamlDocument(data=data, source=name, lines=builder.lines)


def _read(path: Path) -> str:
    """The text of a file, or a YamlError that says why not."""
    try:
        return read_text(path)
    except UnreadableError as error:
        raise YamlError(error.reason, str(path)) from None


class _Builder:
    """Turns a node tree into plain data and remembers the line of every key."""

    def __init__(self, source: str) -> None:
        self.lines: dict[str, int] = {}
        self._source = source
        self._open: set[int] = set()
        self._values = 0

    def build(self, node: yaml.Node, key: str) -> Any:
        """The data below *node*, which stands at the dotted *key*."""
        self.lines.setdefault(key, node.start_mark.line + 1)
        self._values += 1
        if self._values > _VALUES:  # also by an anchor that repeats anchors ("billion laughs")
            raise self._error(f"expands to more than {_VALUES:,} values: {_TOO_MANY}", node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            raise self._error("an anchor contains itself", node)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self._check_tag(node, "seq")
                return [self.build(child, f"{key}[{i}]") for i, child in enumerate(node.value)]
            self._check_tag(node, "map")
            return self._mapping(node, key)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, key: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                raise self._error("a key must be a word, not a list or mapping", name_node)
            name = self._text(str(name_node.value), name_node)
            dotted = f"{key}.{name}" if key else name
            if name in result:
                first = self.lines[dotted]
                raise self._error(f"{quoted(dotted)} is given twice (first in line {first})", name_node)
            self.lines[dotted] = name_node.start_mark.line + 1
            result[name] = self.build(value_node, dotted)
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if kind == "str":
            return self._text(text, node)
        try:
            if kind == "int":
                # Python refuses to read decimal numbers of thousands of digits, but others it cannot print.
                return int(text[:1000], 0) if text[:2] in ("0x", "0o") else int(text)
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            raise self._error(f"{quoted(text)} is not a number of type {kind}", node) from None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "null":
            return None
        raise self._unknown_tag(node)

    def _text(self, text: str, node: yaml.Node) -> str:
        """A text without halves of characters, which an escape can hold."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self._error(f"{quoted(text)} holds half a character (a lone surrogate)", node)
        return text

    def _check_tag(self, node: yaml.Node, kind: str) -> None:
        if node.tag != f"tag:yaml.org,2002:{kind}":
            raise self._unknown_tag(node)

    def _unknown_tag(self, node: yaml.Node) -> YamlError:
        return self._error(f"the tag {quoted(node.tag)} is not allowed here", node)

    def _error(self, message: str, node: yaml.Node) -> YamlError:
        return YamlError(message, self._source, node.start_mark.line + 1)
