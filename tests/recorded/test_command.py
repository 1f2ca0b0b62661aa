"""`hdpsim replay-ops` from the outside."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recorded_jobs import Shape

import hdpsim
from hdpsim.experiments.cli.app import cli

Files = Callable[[Shape], tuple[Path, Path]]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["replay-ops", *map(str, arguments)])


def test_tables_and_sentences(files: Files) -> None:
    trace, meta = files(Shape(stages=2, steps=3))
    result = run(trace, "--meta", meta)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("made-up: 8 GPUs, 2 data-parallel ranks x 2 stages, 3 steps")
    for words in ("recorded s", "By kind of operation", "backward-compute", "stage 1", "Slowest ranks",
                  "micro-batches even", "median error 0.00%", "Slowdown against ideal: 1."):  # fmt: skip
        assert words in result.stdout
    assert "nan" not in result.stdout


def test_python_gives_the_same(files: Files) -> None:
    trace, meta = files(Shape(stages=2, chunks=2))
    result = hdpsim.replay_ops(trace, meta)
    assert json.loads(run(trace, "--meta", meta, "--json").stdout) == result.to_dict()
    assert result.to_frame("by_optype")["saved_s"].notna().all()


def test_json_is_one_document(files: Files) -> None:
    trace, meta = files(Shape(stages=2, chunks=2, beside=True, no_ops=True))
    document = json.loads(run(trace, "--meta", meta, "--json").stdout)
    assert document["kind"] == "replay-ops"
    assert [row["step"] for row in document["steps"]] == [3, 13]
    for row in document["steps"]:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["recorded_s"] - 1)
    assert document["summary"]["count"] == 2
    assert document["summary"]["median_abs_error"] < 1e-9
    assert document["slowdown"] > 1
    assert document["job"]["transfers_block_computation"] is False
    assert document["job"]["transfers_that_never_ran"] > 0
    assert {row["dp_rank"] for row in document["attribution"]["by_rank"]} == {0, 1}


def test_a_run_directory_explains_itself(files: Files, tmp_path: Path) -> None:
    trace, meta = files(Shape(stages=2, steps=3))
    out = tmp_path / "run"
    assert run(trace, "--meta", meta, "--out", out).exit_code == 0
    with (out / "steps.csv").open() as rows:
        assert [row["step"] for row in csv.DictReader(rows)] == ["3", "13", "23"]
    readme = (out / "README.md").read_text()
    for name in ("by_optype.csv", "by_stage.csv", "by_rank.csv", "remedies.csv", "steps.png", "workers.svg"):
        assert (out / name).stat().st_size > 0
        assert name in readme


def test_wrong_input_is_a_message(files: Files, tmp_path: Path) -> None:
    trace, meta = files(Shape(stages=2))
    meta.write_text("dp_size: 3\npp_size: 2\n")
    result = run(trace, "--meta", meta)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {trace}: no operation has dp_rank 2, but dp_size is 3 in {meta}")
    assert run(tmp_path / "none.parquet", "--meta", meta).exit_code == 2
    assert run(trace).exit_code == 2
