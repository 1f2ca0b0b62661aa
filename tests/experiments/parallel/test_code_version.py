"""The key of a result: everything that changes it, nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hdpsim.experiments.parallel.code_version import code_version, scenario_key
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario

ROOT = Path(__file__).resolve().parents[3]


def quickstart(*changes: str) -> Scenario:
    return load_scenario("quickstart-8gpu", changes)


@pytest.mark.parametrize(
    "change",
    [
        "data.seed=1",
        "execution.seed=1",
        "execution.batches=7",
        "data.context=64K",
        "layout.recompute=none",
        "strategy.balancing=false",
        "cluster.node.nic=200Gbps",
        "model=llama-2-7b",
        "calibration=ampere",
        "memory.host_run_ahead=true",
        "memory.must_fit=false",
        "strategy.activation_offload=1",
    ],
)
def test_every_change_that_counts_changes_it(change: str) -> None:
    assert scenario_key(quickstart(change)) != scenario_key(quickstart())


def test_names_and_ways_of_writing_do_not_count() -> None:
    assert scenario_key(quickstart("name=other", "description=x")) == scenario_key(quickstart())
    assert scenario_key(quickstart("data.context=64K")) == scenario_key(
        quickstart("data.context=65536 tokens")
    )


def test_a_trace_counts_with_its_content_wherever_it_is(tmp_path: Path) -> None:
    one, two = tmp_path / "one.npy", tmp_path / "two.npy"
    np.save(one, np.arange(1, 1000))
    np.save(two, np.arange(1, 1000))
    same = scenario_key(quickstart(f"data.trace={one}"))
    assert same == scenario_key(quickstart(f"data.trace={two}"))
    np.save(two, np.arange(2, 1001))
    os.utime(two, ns=(0, 0))
    assert same != scenario_key(quickstart(f"data.trace={two}"))


def shipped_files() -> list[Path]:
    """Every file of the five packages that is in version control, or would be: no bytecode."""
    packages = ("hdpsim", "traces", "cost_models", "simulator", "experiments")
    return [
        path.relative_to(ROOT)
        for package in packages
        for path in sorted((ROOT / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def test_every_shipped_file_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    add = "hdpsim.experiments.parallel.code_version._add_file"
    monkeypatch.setattr(add, lambda _digest, name, _path: counted.append(name))
    code_version.__wrapped__()
    assert counted == sorted(set(counted), key=counted.index)
    assert {Path(name) for name in counted} == set(shipped_files())
    kinds = {path.suffix for path in shipped_files()}
    assert {".py", ".yaml", ".csv", ".npz"} <= kinds


@pytest.mark.parametrize(
    "name",
    [
        "experiments/data/residuals.csv",  # bands inside stored results
        "experiments/data/records/runs.csv",
        "experiments/scenarios/quickstart-8gpu.yaml",
        "cost_models/data/calibration/hopper.yaml",
        "traces/data/debian-code.npz",
    ],
)
def test_a_changed_byte_of_data_changes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_version.__wrapped__()
    read = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read(path) + (b" " if path.resolve() == ROOT / name else b"")
    )
    assert code_version.__wrapped__() != before


def test_it_is_the_same_in_every_process() -> None:
    code = (
        "from hdpsim.experiments.scenario.scenario import load_scenario\n"
        "from hdpsim.experiments.parallel.code_version import code_version, scenario_key\n"
        "print(scenario_key(load_scenario('quickstart-8gpu')))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == scenario_key(quickstart())
