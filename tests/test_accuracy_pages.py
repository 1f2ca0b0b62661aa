"""README and docs show the accuracy that the commands compute; errors must not grow unnoticed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy_tool", ROOT / "tools" / "accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blocks_are_filled_between_their_markers(tool: ModuleType) -> None:
    end = "<!-- accuracy end -->"
    page = f"a\n<!-- accuracy:short -->\nold\n{end}\nb\n<!-- accuracy:other -->\nkept\n{end}\n"
    filled = tool.filled(page, {"short": "new"})
    assert filled == page.replace("old", "new")


@pytest.mark.parametrize(
    ("shown", "same"),
    [("median 4.1 %", True), ("median 4.2 %", True), ("median 4.4 %", False), ("mean 4.1 %", False)],
)
def test_only_the_last_digit_may_differ(tool: ModuleType, shown: str, same: bool) -> None:
    assert tool.alike(shown, "median 4.1 %") is same


def test_pages_have_their_blocks() -> None:
    assert "<!-- accuracy:short -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- accuracy:validate -->" in (ROOT / "docs" / "explanation" / "validation.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
def test_pages_show_what_is_computed(tool: ModuleType) -> None:
    found, whole = tool.blocks(False)
    for name in tool.PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert tool.alike(text, tool.filled(text, found)), f"{name}: run python tools/accuracy.py"
    for name, text in whole.items():
        assert tool.alike((ROOT / name).read_text(encoding="utf-8"), text), (
            f"{name}: run python tools/accuracy.py"
        )
