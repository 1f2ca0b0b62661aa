"""What `make bench` makes of its measurements; the measurements themselves take minutes and are no test."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("run")


def points(run: Any, exponent: float) -> list[dict[str, Any]]:
    """seconds = 1 us x GPUs^exponent, memory 100 B a GPU."""
    return [
        {"name": "plan-scaling", "seconds": 1e-6 * gpus**exponent, "peak_bytes": 100 * gpus}
        for gpus in run.SCALING_GPUS
    ]


def test_sizes_reach_a_million_gpus(run: Any):
    assert run.SCALING_GPUS[0] == 1024
    assert run.SCALING_GPUS[-1] == 2**20


def test_every_size_is_in_the_entry_of_a_series(run: Any):
    entry = run._of_all_sizes(points(run, 1.5))
    assert entry["gpus"] == list(run.SCALING_GPUS)
    assert entry["seconds"] == pytest.approx(1e-6 * 131072**1.5)  # the size that has a target
    assert entry["seconds_by_gpus"][-1] == pytest.approx(1e-6 * 2**30)
    assert entry["peak_bytes_by_gpus"][0] == 102_400
    assert entry["exponent"] == pytest.approx(1.5)
    assert entry["peak_exponent_of_all_sizes"] == pytest.approx(1.0)
    assert not entry["met"]


def test_the_plot_states_the_exponents_of_time_and_memory(run: Any, tmp_path: Path):
    entries = [run._of_all_sizes(points(run, 0.8)), {"name": "help", "seconds": 0.1}]
    figure = importlib.import_module("scaling_plot").scaling_figure(entries)
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert labels == [["plan: exponent 0.80", "linear"], ["plan: exponent 1.00", "linear"]]
    run.draw_scaling(entries, tmp_path / "images" / "scaling.png")
    assert (tmp_path / "images" / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("run_s", "repeats", "runs"), [(0.03, 5, 11), (5.0, 5, 2), (5.0, 1, 1)])
def test_long_runs_are_their_own_warm_up(
    run: Any, monkeypatch: pytest.MonkeyPatch, run_s: float, repeats: int, runs: int
):
    measure = importlib.import_module("measure")
    now = [0.0]
    calls: list[float] = []

    def once() -> None:
        calls.append(now[0])
        now[0] += run_s

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    assert measure.median_s(once, repeats) == pytest.approx(run_s)
    assert len(calls) == runs


def test_the_cost_of_flows_is_measured_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cost = importlib.import_module("flow_cost")
    activities, seconds = cost.play(cost.hashed_permutation, 64)
    assert activities == 64
    assert seconds > 0
    entry = {"what": "all", "activities": [64, 128], "cpu_s": [1.0, 2.0], "exponent": 1.0}
    cost.draw([entry], tmp_path / "cost.png")
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
