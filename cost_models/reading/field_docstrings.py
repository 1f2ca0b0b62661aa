"""What a class says of its fields in its own source: the text below each, or below `Attributes:` in its docstring."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from functools import cache


@cache
def field_words(kind: type) -> dict[str, str]:
    """Field -> what is said of it, on one line; fields of which nothing is said are left out."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    attributes = (ast.get_docstring(definition) or "").partition("Attributes:\n")[2]
    words = named_words(attributes)
    for item, below in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            words[item.target.id] = _line(str(below.value.value))
    return words


def named_words(section: str) -> dict[str, str]:
    """What the entries of a section of a docstring (`Attributes:`, `Args:`) say, each on one line."""
    return {name: _line(text) for name, text in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.M)}


def _line(text: str) -> str:
    return " ".join(text.split())
