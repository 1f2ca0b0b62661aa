"""tools/planner_gap.py: bound <= ideal step <= end of the plan, in every batch."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_plans_lie_above_the_ideal_step_and_near_it() -> None:
    tool = [sys.executable, str(ROOT / "tools" / "planner_gap.py"), "demo-8x22b-12k", "--batches", "2"]
    found = subprocess.run(tool, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rows = [re.split(r"\s{2,}", line.strip()) for line in found.splitlines()[2:]]
    assert [row[0] for row in rows] == ["0", "1"]
    for _, bound, ideal, plan, over in rows:
        assert float(bound) <= float(ideal) <= float(plan.partition(" ")[0]) * 1.001
        assert float(over.rstrip("%")) < 10.0
