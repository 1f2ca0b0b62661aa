"""No choice between words ends in a fall-through: a word nobody thought of must not be taken for the last one.

A function that tells several words of a Literal apart names all of them, or ends in `assert_never`, which mypy holds
to be unreachable. What asks for one word alone ("is it zero3?") is no such choice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("cost_models", "simulator", "traces", "experiments")
    for path in (ROOT / folder).rglob("*.py")
)


def literals(tree: ast.Module) -> Iterator[frozenset[str]]:
    """The words of every `Name = Literal[...]` of a module."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Literal":
            inside = ast.literal_eval(value.slice)
            yield frozenset(inside if isinstance(inside, tuple) else (inside,))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def kinds() -> frozenset[frozenset[str]]:
    trees = map(tree_of, FILES)
    return frozenset(
        words for tree in trees for words in literals(tree) if all(isinstance(w, str) for w in words)
    )


def asked(test: ast.expr) -> tuple[str, frozenset[str]] | None:
    """The expression and the words of a test that asks for nothing but words."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.In):
        try:
            words = ast.literal_eval(test.comparators[0])
        except ValueError:
            return None
        words = (words,) if isinstance(words, str) else words
        if isinstance(words, tuple) and all(isinstance(word, str) for word in words):
            return ast.unparse(test.left), frozenset(words)
    return None


def leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue)


def conditions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The tests of an if and its elifs, and of conditional expressions in what it ends in."""
    here: ast.stmt | None = statement
    while isinstance(here, ast.If):
        yield here.test
        here = here.orelse[0] if len(here.orelse) == 1 else None
    for node in (
        ast.walk(statement)
        if not isinstance(statement, ast.If | ast.FunctionDef | ast.For | ast.While)
        else ()
    ):
        if isinstance(node, ast.IfExp):
            yield node.test


def choices(body: list[ast.stmt]) -> Iterator[dict[str, set[frozenset[str]]]]:
    """Runs of statements that tell words apart: an if with its elifs, or one that leaves after another."""
    found: dict[str, set[frozenset[str]]] = {}
    for statement in body:
        for subject, words in filter(None, map(asked, conditions(statement))):
            found.setdefault(subject, set()).add(words)
        if not (isinstance(statement, ast.If) and leaves(statement.body) and not statement.orelse):
            yield found
            found = {}
    yield found


def bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                yield inner


def fall_throughs(tree: ast.Module) -> Iterator[str]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for found in (choice for body in bodies(function) for choice in choices(body)):
            for subject, asked_for in found.items():
                words = frozenset[str]().union(*asked_for)
                wider = [kind for kind in kinds() if len(asked_for) > 1 and words <= kind]
                ends = f"assert_never({subject})"
                if wider and all(kind - words for kind in wider) and ends not in ast.unparse(function):
                    left = sorted(min(wider, key=len) - words)
                    yield f"{function.name}, line {function.lineno}: {subject} may also be {left}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_choice_between_words_ends_in_a_fall_through(path: Path) -> None:
    assert list(fall_throughs(tree_of(path))) == []


def test_the_check_sees_a_fall_through() -> None:
    source = """
def plan(name):
    if name == "static":
        return 1
    if name == "hdp-opt":
        return 2
    return 3
"""
    assert len(list(fall_throughs(ast.parse(source)))) == 1
