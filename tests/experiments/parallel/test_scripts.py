"""A user's script that uses processes: it runs once, guard or no guard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hdpsim.experiments.parallel.pool import _has_guard

CALL = """
import hdpsim
print("the script runs")
small = {"execution.batches": 1, "data.batch": "64K tokens", "data.context": "16K tokens", "strategy.name": "static"}
sweep = {"base": "quickstart-8gpu", "set": small, "grid": {"layout.tp": [2, 4]}}
print(hdpsim.sweep(sweep, store="store", workers=1).to_frame()["status"].tolist())
"""


GUARDED = "if __name__ == '__main__':" + CALL.replace("\n", "\n    ") + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("text", [CALL, GUARDED], ids=["bare", "guarded"])
def test_a_script_runs_once(text: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the script runs", "['ok', 'ok']"]


@pytest.mark.parametrize(
    ("text", "guard"),
    [
        ("if __name__ == '__main__':\n    pass", True),
        ('if "__main__" == __name__:\n    pass', True),
        ("import sys\nif __name__ == '__main__':\n    sys.exit(0)\nelse:\n    pass", True),
        ("print(type(3).__name__)", False),
        ("print(__name__)", False),
        ("# if __name__ == '__main__':", False),
        ('"""\nif __name__ == "__main__":\n"""', False),
        ("if __name__ != '__main__':\n    pass", False),
        ("def main():\n    if __name__ == '__main__':\n        pass", False),
        ("if type(3).__name__ == '__main__':\n    pass", False),
        ("this is no Python", True),
    ],
)
def test_a_guard_is_a_statement_of_the_script(text: str, guard: bool, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(text)
    assert _has_guard(str(file)) is guard


@pytest.mark.slow
def test_a_script_through_a_pipe_runs(tmp_path: Path) -> None:
    """As `python - < script.py` gives it: there is no file for a worker to run again."""
    done = subprocess.run(
        [sys.executable, "-"],
        input=CALL,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the script runs", "['ok', 'ok']"]
