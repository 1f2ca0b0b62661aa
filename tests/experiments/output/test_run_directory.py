"""Run directories: complete or absent, explained, and never at the cost of somebody's files."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hdpsim import __version__
from hdpsim.errors import NotFiniteError, UserInputError
from hdpsim.experiments.output.document import SCHEMA_VERSION
from hdpsim.experiments.output.files.run_directory import MARKER, RunDirectory
from hdpsim.experiments.output.plots.runs import plot_throughput_bars


@dataclass(frozen=True)
class Point:
    tokens: int
    where: Path


def write_run(path: Path, text: str = "hello") -> None:
    with RunDirectory(path, title="A test") as run:
        run.write_text("notes.txt", text, "Some words.")


def names(folder: Path) -> list[str]:
    return sorted(item.relative_to(folder).as_posix() for item in folder.rglob("*") if item.is_file())


def test_every_file_is_there_and_explained(tmp_path: Path) -> None:
    with RunDirectory(
        tmp_path / "run", title="Static against HDP", command="hdpsim compare x", notes=["seed 0"]
    ) as run:
        run.write_csv("steps.csv", [{"strategy": "static", "step_s": 1.5}], "One row | per strategy.")
        run.write_json("result.json", {"step_s": 1.5}, "All numbers.")
        run.save_figure("plots/throughput", plot_throughput_bars({"a": 1.0}), "Tokens per second.")
        run.file("timeline.json", "For ui.perfetto.dev.").write_text("{}")
        assert not (tmp_path / "run").exists()  # not before it is complete
    expected = ["plots/throughput.png", "plots/throughput.svg", "result.json", "steps.csv", "timeline.json"]
    assert names(tmp_path / "run") == sorted([MARKER, "README.md", *expected])
    readme = (tmp_path / "run" / "README.md").read_text()
    assert readme.startswith("# Static against HDP\n")
    assert "    hdpsim compare x\n" in readme
    assert f"hdpsim {__version__}" in readme
    assert "- seed 0" in readme
    for name in expected:
        assert f"| `{name}` |" in readme
    assert "One row \\| per strategy." in readme
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), RunDirectory(tmp_path / "a" / "b" / "run") as run:
        run.write_text("notes.txt", "half", "Some words.")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_old_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "old")
    with pytest.raises(RuntimeError), RunDirectory(tmp_path / "run") as run:
        run.write_text("notes.txt", "new", "Some words.")
        raise RuntimeError
    assert (tmp_path / "run" / "notes.txt").read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


def test_an_own_run_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "old")
    with RunDirectory(tmp_path / "run") as run:
        run.write_json("result.json", {}, "Numbers.")
    assert names(tmp_path / "run") == [MARKER, "README.md", "result.json"]
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").exists()


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserInputError, match="not a run directory of hdpsim"):
        RunDirectory(tmp_path / "thesis")
    assert names(tmp_path / "thesis") == ["thesis.tex"]


def test_a_run_with_added_files_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "mine.txt").write_text("my notes")
    with pytest.raises(UserInputError, match=r"hdpsim did not write \(mine.txt\)"):
        RunDirectory(tmp_path / "run")
    assert (tmp_path / "run" / "mine.txt").read_text() == "my notes"


def test_files_added_while_the_run_computes_are_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(UserInputError, match="did not write"), RunDirectory(tmp_path / "run") as run:
        run.write_text("notes.txt", "new", "Some words.")
        (tmp_path / "run" / "mine.txt").write_text("my notes")
    assert names(tmp_path / "run") == [MARKER, "README.md", "mine.txt", "notes.txt"]
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


def test_a_file_in_the_way_and_a_broken_marker_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserInputError, match="file is a file, not a directory"):
        RunDirectory(tmp_path / "file")
    write_run(tmp_path / "run")
    (tmp_path / "run" / MARKER).write_text("not JSON")
    with pytest.raises(UserInputError, match="unreadable"):
        RunDirectory(tmp_path / "run")


def test_the_current_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserInputError, match="current directory"):
        RunDirectory(".")


def test_a_parent_that_is_a_file_is_a_users_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserInputError, match="file is a file, not a directory"):
        RunDirectory(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_parent_is_a_users_problem(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserInputError, match="Permission denied"), RunDirectory(tmp_path / "locked" / "run"):
        pass


def test_json_holds_plain_data_and_its_version(tmp_path: Path) -> None:
    value = {"n": np.int64(3), "x": np.array([1.5, 2.0]), "point": Point(7, Path("a/b")), "pair": (1, "é")}
    with RunDirectory(tmp_path / "run") as run:
        run.write_json("result.json", value, "Numbers.")
    document = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert document == {
        "schema_version": SCHEMA_VERSION,
        "n": 3,
        "x": [1.5, 2.0],
        "point": {"tokens": 7, "where": "a/b"},
        "pair": [1, "é"],
    }


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.array([1.0, np.nan])])
def test_json_refuses_what_is_not_a_number(tmp_path: Path, bad: object) -> None:
    with pytest.raises(NotFiniteError, match="x of the result is"), RunDirectory(tmp_path / "run") as run:
        run.write_json("result.json", {"x": bad}, "Numbers.")


def test_tables_from_rows_and_from_frames_read_back(tmp_path: Path) -> None:
    rows = [{"name": "a, b", "x": 0.1}, {"name": 'say "c"', "x": None}]
    frame = pd.DataFrame({"n": [1, 2], "x": [0.1, 1e-9]})
    with RunDirectory(tmp_path / "run") as run:
        run.write_csv("rows.csv", rows, "Rows.")
        run.write_csv("frame.csv", frame, "A frame.")
        run.write_csv("empty.csv", [], "Nothing.")
    with (tmp_path / "run" / "rows.csv").open(newline="") as source:
        assert list(csv.reader(source)) == [["name", "x"], ["a, b", "0.1"], ['say "c"', ""]]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "run" / "frame.csv"), frame)


def test_mistakes_of_the_program_are_loud(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="row 2 has columns"), RunDirectory(tmp_path / "run") as run:
        run.write_csv("rows.csv", [{"a": 1}, {"b": 2}], "Rows.")
    with pytest.raises(ValueError, match="written twice"), RunDirectory(tmp_path / "run") as run:
        run.write_text("a.txt", "", "One.")
        run.write_text("a.txt", "", "Two.")
    with pytest.raises(RuntimeError, match=r"never written: a\.json"), RunDirectory(tmp_path / "run") as run:
        run.file("a.json", "Announced.")
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        RunDirectory(tmp_path / "run").file("a.txt", "Outside.")
    for name in ("../a.txt", "/a.txt", "README.md", MARKER):
        with pytest.raises(ValueError, match="not a file name"), RunDirectory(tmp_path / "run") as run:
            run.file(name, "Outside.")
    assert list(tmp_path.iterdir()) == []
