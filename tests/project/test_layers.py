"""Who may import whom: the contracts of pyproject.toml, and that they notice a breach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs a source checkout")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
        "--no-cache",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_layers_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line", "blamed"),
    [
        ("cost_models/bad.py", "import hdpsim.simulator", "hdpsim.cost_models.bad -> hdpsim.simulator"),
        ("cost_models/bad.py", "import pandas", "hdpsim.cost_models.bad -> pandas"),
        ("traces/bad.py", "import hdpsim.cost_models", "hdpsim.traces.bad -> hdpsim.cost_models"),
        ("simulator/bad.py", "import hdpsim", "hdpsim.simulator.bad -> hdpsim"),
    ],
)
def test_a_breach_is_named(tmp_path: Path, module: str, line: str, blamed: str) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for path in (ROOT / "hdpsim").rglob("*"):  # does not follow the links to the inner packages
        if path.is_symlink():
            (tmp_path / "hdpsim" / path.name).symlink_to(f"../{path.name}")
        elif path.suffix == ".py":
            (tmp_path / "hdpsim").mkdir(exist_ok=True)
            (tmp_path / "hdpsim" / path.name).touch()
    for package in ("traces", "cost_models", "simulator", "experiments"):
        for folder in (ROOT / package).rglob("__init__.py"):
            empty = tmp_path / folder.relative_to(ROOT)
            empty.parent.mkdir(parents=True, exist_ok=True)
            empty.touch()
        for path in (ROOT / package).glob("*.py"):
            (tmp_path / package / path.name).touch()
    (tmp_path / module).write_text(line + "\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert blamed in done.stdout
