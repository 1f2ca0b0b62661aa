"""Sweeps: nothing is computed twice, nothing finished is lost, every cell is accounted for."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.sweeps.axes import load_sweep
from hdpsim.experiments.sweeps.cells import expand
from hdpsim.experiments.sweeps.plots import arrange
from hdpsim.experiments.sweeps.report import rows_of, sweep_document
from hdpsim.experiments.sweeps.run import SweepRun, run_sweep
from hdpsim.experiments.sweeps.store import ResultStore, StoreError
from hdpsim.experiments.sweeps.worker import simulate_cell

SWEEP = """
base: quickstart-8gpu
set: {execution.batches: 1, data.batch: 128K tokens, data.context: 16K}
grid:
  layout.tp: [2, 4, 16]
  strategy.name: [static, hdp-opt]
"""


@pytest.fixture
def run(tmp_path: Path, thread_engine: type) -> Callable[..., SweepRun]:
    def play(text: str = SWEEP, **options: Any) -> SweepRun:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        sweep = load_sweep(path)
        engine = thread_engine(**options)
        return run_sweep(sweep, expand(sweep), ResultStore(tmp_path / "store"), engine)

    return play


def document(run: SweepRun) -> str:
    return json.dumps(sweep_document(run, "store").data(), allow_nan=False)


def test_every_cell_has_a_row_and_those_that_cannot_run_a_reason(run: Callable[..., SweepRun]) -> None:
    done = run()
    rows = rows_of(done)
    assert [(row["layout.tp"], row["strategy.name"], row["status"]) for row in rows] == [
        (2, "static", "ok"),
        (2, "hdp-opt", "ok"),
        (4, "static", "ok"),
        (4, "hdp-opt", "ok"),
        (16, "static", "infeasible"),
        (16, "hdp-opt", "infeasible"),
    ]
    assert all("8 GPUs" in row["reason"] for row in rows[4:])
    assert all(row["tokens_per_s"] == pytest.approx(131072 / row["step_s"]) for row in rows[:4])
    assert (done.found, done.computed) == (0, 4)


def test_a_cell_is_what_simulate_says(run: Callable[..., SweepRun]) -> None:
    from hdpsim.experiments.scenario.scenario import load_scenario
    from hdpsim.experiments.studies.comparing.compare import run_batches

    changes = ("execution.batches=1", "data.batch=128K tokens", "data.context=16K", "layout.tp=4")
    scenario = load_scenario("quickstart-8gpu", changes)
    outcome = run_batches(scenario, scenario.batches())
    done = run()
    (row,) = [r for r in rows_of(done) if r["layout.tp"] == 4 and r["strategy.name"] == "hdp-opt"]
    assert row["step_s"] == outcome.step_s.mean
    assert row["mfu"] == outcome.mfu
    assert outcome.band is not None
    assert row["step_s_p10"] == outcome.step_s.mean * outcome.band.low
    assert row["step_s_p90"] == outcome.step_s.mean * outcome.band.high
    text = sweep_document(done, "store").text()
    assert " USD per million tokens; true step " in text
    assert " s (P10-P90 of how far off predictions are)." in text


def test_a_repeated_sweep_computes_nothing_and_says_the_same(
    run: Callable[..., SweepRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run()
    monkeypatch.setattr("hdpsim.experiments.sweeps.run.simulate_cells", None)
    again = run()
    assert (again.found, again.computed) == (4, 0)
    assert document(again) == document(first)


@pytest.mark.parametrize(("slots", "task_s"), [(1, 0.0), (3, 0.0), (2, 5.0)])
def test_the_result_does_not_depend_on_workers_or_bundles(
    run: Callable[..., SweepRun], tmp_path: Path, slots: int, task_s: float
) -> None:
    import shutil

    first = document(run())
    shutil.rmtree(tmp_path / "store")
    assert document(run(slots=slots, task_s=task_s)) == first


def test_an_interrupted_sweep_goes_on_where_it_stopped(
    run: Callable[..., SweepRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ResultStore.put
    written: list[str] = []

    def interrupted(store: ResultStore, key: str, value: object) -> None:
        whole(store, key, value)
        written.append(key)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResultStore, "put", interrupted)
    stopped = run(slots=1)
    assert stopped.interrupted
    # the second was written, but not reported any more: a run says too little rather than too much
    assert (stopped.count("ok"), stopped.count("not run"), stopped.count("infeasible")) == (1, 3, 2)
    monkeypatch.setattr(ResultStore, "put", whole)
    done = run()
    assert (done.found, done.computed, done.interrupted) == (2, 2, False)


def test_a_damaged_entry_is_computed_again(run: Callable[..., SweepRun], tmp_path: Path) -> None:
    first = run()
    entry = sorted((tmp_path / "store").glob("??/*.json"))[0]
    entry.write_text(entry.read_text()[:-20])
    again = run()
    assert (again.found, again.computed, again.repaired) == (3, 1, 1)
    assert document(again) == document(first)


def test_a_full_disk_keeps_what_was_written_and_says_so(
    run: Callable[..., SweepRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace, calls = os.replace, []

    def full(source: str, target: Path) -> None:
        calls.append(target)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("hdpsim.experiments.sweeps.store.os.replace", full)
        with pytest.raises(UserInputError, match=r"No space left(.|\n)*\n2 of 4 simulations") as caught:
            run(slots=1)
    assert isinstance(caught.value.__cause__, StoreError)
    assert len(list((tmp_path / "store").glob("??/*.json"))) == 2
    assert run().found == 2


def test_a_bug_in_one_cell_is_its_row_and_is_tried_again(
    run: Callable[..., SweepRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hdpsim.experiments.studies.comparing.compare import run_batches

    def buggy(scenario: Any, batches: Any, **options: Any) -> Any:
        if scenario.layout.parallel.tp == 4:
            raise ZeroDivisionError("oops")
        return run_batches(scenario, batches, **options)

    with monkeypatch.context() as patched:
        patched.setattr("hdpsim.experiments.sweeps.worker.run_batches", buggy)
        done = run()
    assert (done.count("ok"), done.count("failed")) == (2, 2)
    assert "ZeroDivisionError: oops" in next(r.reason for r in done.results if r.status == "failed")
    again = run()
    assert (again.found, again.computed, again.count("failed")) == (2, 2, 0)


def test_cells_that_mean_the_same_are_computed_once(run: Callable[..., SweepRun]) -> None:
    done = run(
        "base: quickstart-8gpu\nset: {execution.batches: 1}\ngrid: {data.context: [16K, 16384, 16384 tokens]}"
    )
    assert done.computed == 1
    assert len({row["step_s"] for row in rows_of(done)}) == 1


def test_axes_go_where_the_file_says_and_else_to_sensible_places(run: Callable[..., SweepRun]) -> None:
    done = run()
    guessed = arrange(done.sweep, rows_of(done))
    assert guessed is not None
    assert guessed.colour is not None
    assert (guessed.x.key, guessed.x.numbers, guessed.colour.key) == (
        "layout.tp",
        (2.0, 4.0, 16.0),
        "strategy.name",
    )
    asked = run(SWEEP + "plot: {x: strategy.name, column: layout.tp}\n")
    arrangement = arrange(asked.sweep, rows_of(asked))
    assert arrangement is not None
    assert arrangement.column is not None
    assert (arrangement.x.key, arrangement.x.numbers, arrangement.column.key) == (
        "strategy.name",
        None,
        "layout.tp",
    )
    assert arrangement.colour is None


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_the_command_writes_tables_and_plots_and_the_second_time_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SWEEP)
    arguments = ("sweep", tmp_path / "mine.yaml", "--store", tmp_path / "store", "--out", tmp_path / "out")
    first = invoke(*arguments, "--workers", "2")
    assert first.exit_code == 0, first.output
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"cells.csv", "cells.parquet", "accounts.csv", "throughput.png", "mfu.svg", "README.md"} <= files
    table = pd.read_csv(tmp_path / "out" / "cells.csv")
    typed = pd.read_parquet(tmp_path / "out" / "cells.parquet")
    assert table["status"].tolist() == ["ok"] * 4 + ["infeasible"] * 2
    assert typed["step_s"].tolist()[:4] == table["step_s"].tolist()[:4]
    before = {name: (tmp_path / "out" / name).read_bytes() for name in files}
    again = invoke(*arguments, "--workers", "2")
    assert "4 simulations were in the store, 0 computed now" in again.output
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before
    assert invoke(*arguments, "--workers", "1").exit_code == 0
    command = {"README.md", "page.json", ".hdpsim-run.json"}  # they say which command made them
    assert all((tmp_path / "out" / name).read_bytes() == before[name] for name in files - command)


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SWEEP)
    done = invoke(
        "sweep", tmp_path / "mine.yaml", "--dry-run", "--store", tmp_path / "store", "--workers", "2"
    )
    assert done.exit_code == 0, done.output
    assert "6 cells, 4 different simulations" in done.output
    assert "2 cells cannot run" in done.output
    assert "4 steps to play: about " in done.output
    assert not (tmp_path / "store").exists()


def test_when_no_cell_can_run_the_exit_code_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: quickstart-8gpu\ngrid: {gpus: [9, 11]}")
    done = invoke("sweep", tmp_path / "mine.yaml", "--store", tmp_path / "store")
    assert done.exit_code == 3
    assert "no cell can run" in done.output


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("ray", "expected local or dask"),
        ("dask://host", "expected local or dask"),
        ("dask://h:99999", "expected"),
    ],
)
def test_an_engine_that_does_not_exist_is_refused(tmp_path: Path, engine: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(SWEEP)
    done = invoke("sweep", tmp_path / "mine.yaml", "--store", tmp_path / "store", "--engine", engine)
    assert done.exit_code == 2
    assert message in done.output


def test_without_the_extra_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    (tmp_path / "mine.yaml").write_text(SWEEP)
    done = invoke("sweep", tmp_path / "mine.yaml", "--engine", "dask://localhost:8786")
    assert done.exit_code == 2
    assert "pip install 'hdpsim[dask]'" in done.output


def test_cells_do_not_look_for_hidden_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes time in every cell."""

    def search(*_: object) -> tuple[str, ...]:
        raise AssertionError("a cell looks for hidden settings")

    monkeypatch.setattr("hdpsim.experiments.studies.comparing.compare.hidden_settings", search)
    assert simulate_cell(load_scenario("quickstart-8gpu", ("execution.batches=1",)))["status"] == "ok"
