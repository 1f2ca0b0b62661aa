"""A scenario file with a comment behind every key that says where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hdpsim.experiments.scenario.setup_document import as_yaml
from hdpsim.quoting import printable

_COLUMN = 34
_LONGEST = 110


def scenario_text(
    document: Mapping[str, Any], comments: Mapping[str, str], head: Iterable[str], foot: Iterable[str] = ()
) -> str:
    """The document as YAML between comment lines; *comments* are those of single keys, by their dotted names."""
    lines = [*(f"# {line}" for line in _wrapped(head)), ""]
    for key, value in document.items():
        lines += _entry(key, value, comments)
    lines += [f"# {line}".rstrip() for line in _wrapped(foot)]
    return printable("\n".join(lines).rstrip("\n")) + "\n"


def _entry(key: str, value: Any, comments: Mapping[str, str]) -> Iterator[str]:
    shown = as_yaml({key: value}).rstrip("\n").split("\n")
    if isinstance(value, Mapping) and key in ("layout", "data", "strategy"):
        yield f"{key}:"
        for inner, part in value.items():
            line = "  " + as_yaml({inner: part}).rstrip("\n").replace("\n", "\n  ")
            yield _with_comment(line, comments.get(f"{key}.{inner}", ""))
    else:
        yield _with_comment(shown[0], comments.get(key, ""))
        yield from shown[1:]
    yield ""


def _with_comment(line: str, comment: str) -> str:
    line_of_comment = " ".join(comment.split())
    return f"{line:<{_COLUMN}}  # {line_of_comment}" if line_of_comment else line


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    import textwrap

    for line in lines:
        yield from textwrap.wrap(line, _LONGEST, subsequent_indent="    ") or [""]
