"""A user's script that uses processes: it runs once, guard or no guard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CALL = """
import hdpsim
print("the script runs")
small = {"execution.batches": 1, "data.batch": "64K tokens", "data.context": "16K tokens"}
sweep = {"base": "quickstart-8gpu", "set": small, "grid": {"layout.tp": [2, 4]}}
print(hdpsim.sweep(sweep, store="store", workers=1).to_frame()["status"].tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_runs_once(guarded: bool, tmp_path: Path) -> None:
    indented = CALL.replace("\n", "\n    ")
    text = f"if __name__ == '__main__':{indented}\n" if guarded else CALL
    (tmp_path / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the script runs", "['ok', 'ok']"]
