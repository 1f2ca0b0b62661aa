"""Sweeps on a real Dask scheduler with two worker processes, on ports the system chooses."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SWEEP = """
base: llama-7b-1k-byted
set: {execution.batches: 2}
grid: {data.context: [32K, 128K, 512K], strategy.name: [static, hdp-opt], data.seed: [0, 1]}
"""


POINT = "  - {{data.context: {}, strategy.name: {}, data.seed: {}, execution.batches: {}}}"
ENDLESS = "\n".join(
    (
        "base: llama-7b-1k-byted",
        "list:",
        *(
            POINT.format(context, strategy, seed, 2)
            for context in ("32K", "128K", "512K")
            for strategy in ("static", "hdp-opt")
            for seed in (0, 1)
        ),
        POINT.format("512K", "hdp-opt", 0, 20_000),
    )
)
"""The same cells, and one that takes minutes: no sweep that ends before it is disturbed, however busy the machine."""


def python(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, *arguments], env=ENVIRONMENT, stdout=output, stderr=output)


def wait_for(condition: object, what: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


class Cluster:
    def __init__(self, folder: Path) -> None:
        contact = folder / "scheduler.json"
        self.processes = [
            python("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                   "--scheduler-file", str(contact), log=folder / "scheduler.log")
        ]  # fmt: skip
        wait_for(lambda: contact.exists() and contact.stat().st_size, "the scheduler")
        self.address = json.loads(contact.read_text())["address"].replace("tcp://", "dask://")
        self.workers = [
            python("-m", "distributed.cli.dask_worker", "--scheduler-file", str(contact), "--nthreads", "1",
                   "--no-nanny", "--no-dashboard", "--local-directory", str(folder), log=folder / f"worker{i}.log")
            for i in range(2)
        ]  # fmt: skip
        self.processes += self.workers
        for i in range(2):
            wait_for(lambda i=i: b"Registered to" in (folder / f"worker{i}.log").read_bytes(), "the workers")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "dask"
    folder.mkdir()
    found = Cluster(folder)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


def sweeping(tmp_path: Path, store: str, *arguments: str, sweep: str = SWEEP) -> subprocess.Popen[str]:
    (tmp_path / "mine.yaml").write_text(sweep)
    command = [
        "-m",
        "hdpsim",
        "sweep",
        str(tmp_path / "mine.yaml"),
        "--json",
        "--store",
        str(tmp_path / store),
    ]
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def entries(folder: Path) -> int:
    return len(list(folder.glob("??/*.json")))


@pytest.mark.slow
def test_a_killed_worker_changes_nothing_and_a_lost_scheduler_loses_nothing_that_was_finished(
    tmp_path: Path, cluster: Cluster
) -> None:
    run = sweeping(tmp_path, "whole", "--engine", cluster.address)
    wait_for(lambda: entries(tmp_path / "whole") >= 2, "the first results")
    cluster.workers[0].kill()
    distributed, errors = run.communicate(timeout=600)
    assert run.returncode == 0, errors
    assert json.loads(distributed)["counts"]["ok"] == 12

    run = sweeping(tmp_path, "store", "--engine", cluster.address, sweep=ENDLESS)
    wait_for(lambda: entries(tmp_path / "store") >= 2, "the first results")
    cluster.processes[0].kill()
    _, errors = run.communicate(timeout=600)
    finished = entries(tmp_path / "store")
    assert run.returncode == 2, errors
    assert "lost the Dask scheduler" in errors
    assert "Traceback" not in errors
    assert 2 <= finished <= 12
    assert f"{finished} of 13 simulations are finished" in errors

    here, errors = sweeping(tmp_path, "store", "--workers", "1").communicate(timeout=600)
    assert here == distributed, errors
    assert entries(tmp_path / "store") == 12, "a cell that was finished was computed again"


def test_a_scheduler_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdpsim.errors import UserInputError
    from hdpsim.experiments.parallel.engines import engine_of

    monkeypatch.setattr("hdpsim.experiments.parallel.engines.CONNECT_S", 0.3)
    with pytest.raises(UserInputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 "):
        engine_of("dask://127.0.0.1:1")


@pytest.mark.parametrize("name", ["asyncio", "distributed.client", "tornado.application"])
def test_dask_prints_no_tracebacks_of_its_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its event loop logs connections that break while a result travels: whether one does is a matter of luck."""
    from hdpsim.errors import UserInputError
    from hdpsim.experiments.parallel.engines import engine_of

    monkeypatch.setattr("hdpsim.experiments.parallel.engines.CONNECT_S", 0.3)
    with pytest.raises(UserInputError):
        engine_of("dask://127.0.0.1:1")
    assert not logging.getLogger(name).isEnabledFor(logging.CRITICAL)
