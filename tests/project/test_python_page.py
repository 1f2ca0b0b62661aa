"""The Python of the documentation runs as a reader would type it: blocks of the page, cells of the notebook."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from hdpsim import Result

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # a reader's session, not a test's
def test_the_python_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((DOCS / "how-to" / "python.md").read_text(encoding="utf-8"))
    assert len(blocks) > 5
    session: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "python.md", "exec"), session)
    printed = capsys.readouterr().out
    for words in ("hdp-opt is", "'batches'", "tp = 3", " s, at least "):
        assert words in printed
    assert (tmp_path / "runs" / "first" / "README.md").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_python_of_the_readme_runs() -> None:
    (block,) = BLOCK.findall((DOCS.parent / "README.md").read_text(encoding="utf-8"))
    frame = shown(block.replace("llama-3-70b-h100", "quickstart-8gpu"), {})
    assert list(getattr(frame, "columns", ())) == ["strategy", "step_s", "tokens_per_s"]


def shown(cell: str, session: dict[str, object]) -> object:
    """Run a cell; the value of its last line, which a notebook shows."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), session)
    return (
        eval(compile(ast.Expression(last.value), "cell", "eval"), session)
        if isinstance(last, ast.Expr)
        else None
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs_and_shows_tables_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((DOCS / "how-to" / "files" / "first_look.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], {cell["cell_type"] for cell in notebook["cells"]}) == (
        4,
        {"code", "markdown"},
    )
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code), "outputs belong to whoever runs it"
    session: dict[str, object] = {}
    values = [shown("".join(cell["source"]), session) for cell in code]
    tables = [value._repr_html_() for value in values if isinstance(value, Result)]
    assert len(tables) == 3
    assert all("<table>" in html for html in tables)
    assert sum(hasattr(value, "_repr_png_") for value in values) == 1
    assert (tmp_path / "runs" / "my_lengths" / "result.json").exists()
