"""docs/reference/scenarios.md shows the keys that there are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_tool", ROOT / "tools" / "scenario_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_keys_that_there_are(tool: ModuleType) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    assert tool.filled(page) == page, "run python tools/scenario_reference.py"


def test_every_key_is_in_one_row(tool: ModuleType) -> None:
    rows = [line.split(" | ")[0] for line in tool.PAGE.read_text(encoding="utf-8").splitlines()]
    for key in tool.KEYS:
        assert rows.count(f"| `{key}`") == 1, key


def test_every_row_has_four_cells(tool: ModuleType) -> None:
    rows = [line for line in tool.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 5, row


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        ("2592000s", "30d"), ("86400s", "1d"), ("600s", "10min"), ("5s", "5s"), ("322122547.2B", "0.3GiB"), (0.0, "0"),
        ("100GB/s", "100GB/s"), ("auto", "auto"),
    ],
)  # fmt: skip
def test_defaults_are_short(tool: ModuleType, default: object, shown: str) -> None:
    assert tool._short(default) == shown
