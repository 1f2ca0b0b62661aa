"""Everything that writes a file: through one door, never through a link, and never at the cost of somebody's work."""

from __future__ import annotations

import ast
import csv
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpsim.errors import UserInputError
from hdpsim.experiments.output.files.out_file import check_out_file, write_whole
from hdpsim.experiments.output.files.run_directory import RunDirectory
from hdpsim.experiments.output.plots.runs import plot_throughput_bars
from hdpsim.experiments.output.plots.style import save_figure
from hdpsim.experiments.sweeps.store import ResultStore
from hdpsim.traces import Trace, write_trace

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hdpsim", "traces", "cost_models", "simulator", "experiments")
DOORS = {"hdpsim/files.py", "experiments/output/files/run_directory.py"}
"""Where files are opened for writing: the door, and the private folder of a run, which nobody else can enter."""

few = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def opens_for_writing(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in (
        "write_text",
        "write_bytes",
        "mkstemp",
        "mkdtemp",
        "NamedTemporaryFile",
        "TemporaryDirectory",
    ):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        return not (
            name == "write_text" and isinstance(owner, ast.Name) and owner.id in ("run", "directory", "self")
        )
    if name not in ("open", "GzipFile"):
        return False
    modes = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    modes += [word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)]
    fresh = any(isinstance(mode, str) and set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
    return fresh and not any(word.arg == "fileobj" for word in call.keywords)


def test_files_are_written_through_one_door() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.relative_to(ROOT).as_posix() not in DOORS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_for_writing(node) and "devnull" not in ast.dump(node)
    ]
    assert found == []


TRACE = Trace(np.arange(1, 100), "t", "")
WRITERS: dict[str, Callable[[Path], object]] = {
    **{
        f"t.{ending}": lambda path: write_trace(TRACE, path)
        for ending in ("csv", "tsv", "txt", "jsonl", "csv.gz", "npy", "npz", "parquet")
    },
    "calibration.yaml": lambda path: write_whole(str(path), "text"),
    "tried.json": lambda path: check_out_file(str(path), "--timeline"),
    "plot.png": lambda path: save_figure(plot_throughput_bars({"a": 1.0}), path.with_suffix("")),
}


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("name", WRITERS)
def test_a_prepared_link_is_never_written_through(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    for guess in (name, f".{name}.{os.getpid()}.part", f"{name}.part", f".{name}.tmp", f"{name}~"):
        (tmp_path / guess).symlink_to(victim)
    before = {path.name for path in tmp_path.iterdir()}
    WRITERS[name](tmp_path / name)
    assert victim.read_text() == "years of work"
    assert not victim.is_symlink()
    new = {path.name for path in tmp_path.iterdir()} - before
    assert new <= {"plot.svg"}
    if name != "tried.json":
        assert not (tmp_path / name).is_symlink()


def test_temporary_names_cannot_be_guessed_and_files_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def watched(path: str, flags: int, *rest: int) -> int:
        opened.append((str(path), flags))
        return real(path, flags, *rest)

    monkeypatch.setattr("hdpsim.files.os.open", watched)
    for _ in range(5):
        write_trace(TRACE, tmp_path / "o.csv")
    ResultStore(tmp_path).put("ab" + 62 * "0", 1)
    assert len({path for path, _ in opened}) == 6
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in opened)


def test_a_run_is_private_until_it_is_complete(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        with RunDirectory(tmp_path / "run") as run:
            (work,) = tmp_path.iterdir()
            assert stat.S_IMODE(work.stat().st_mode) == 0o700
            run.write_text("notes.txt", "text", "Words.")
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o777
    finally:
        os.umask(mask)


def edit(run: Path) -> None:
    (run / "notes.txt").write_text("my notes")


def edit_below(run: Path) -> None:
    (run / "plots" / "a.txt").write_text("my notes")


def edit_readme(run: Path) -> None:
    with (run / "README.md").open("a") as file:
        file.write("\nmy notes\n")


def link_to_folder(run: Path) -> None:
    (run / "data").symlink_to(run.parent / "elsewhere")


def link_to_file(run: Path) -> None:
    (run / "notes.txt").unlink()
    (run / "notes.txt").symlink_to(run.parent / "elsewhere" / "file")


def broken_link(run: Path) -> None:
    (run / "later").symlink_to(run / "nowhere")


def empty_folder(run: Path) -> None:
    (run / "mine" / "deep").mkdir(parents=True)


def fifo(run: Path) -> None:
    os.mkfifo(run / "pipe")


CHANGES = (edit, edit_below, edit_readme, link_to_folder, link_to_file, broken_link, empty_folder, fifo)


def write_run(path: Path) -> None:
    with RunDirectory(path) as run:
        run.write_text("notes.txt", "text", "Words.")
        run.write_text("plots/a.txt", "text", "Words.")


def contents(folder: Path) -> dict[str, object]:
    return {
        path.relative_to(folder).as_posix(): os.readlink(path)
        if path.is_symlink()
        else path.read_text()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("meanwhile", [False, True], ids=["before", "meanwhile"])
def test_what_was_changed_in_a_run_is_never_deleted(
    tmp_path: Path, change: Callable[[Path], None], meanwhile: bool
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("text")
    write_run(tmp_path / "run")
    write_run(tmp_path / "run")  # unchanged, it is replaced
    if not meanwhile:
        change(tmp_path / "run")
        before = contents(tmp_path)
    with (
        pytest.raises(UserInputError, match=r"did not write|were changed since"),
        RunDirectory(tmp_path / "run"),
    ):
        change(tmp_path / "run")
        before = contents(tmp_path) | {}
    after = contents(tmp_path)
    assert {
        name: value for name, value in before.items() if name.split("/")[0] in ("run", "elsewhere")
    } == after


@pytest.mark.parametrize("mine", ["mine", "mine/deep"])
def test_an_empty_folder_of_somebody_is_no_free_place(tmp_path: Path, mine: str) -> None:
    (tmp_path / "run" / mine).mkdir(parents=True)
    with pytest.raises(UserInputError, match="not a run directory"):
        RunDirectory(tmp_path / "run")


cells = st.text(max_size=8) | st.builds(
    "{}{}".format, st.sampled_from(["=", "+", "-", "@", "\t", "\r"]), st.text(max_size=8)
)


@few
@given(texts=st.lists(cells, min_size=1, max_size=4), as_frame=st.booleans())
def test_no_cell_of_a_table_is_a_formula(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], as_frame: bool
) -> None:
    rows = [{"name": text, "x": -1.5, "-y": "-2.5"} for text in texts]
    path = tmp_path_factory.mktemp("cells") / "run"
    with RunDirectory(path) as run:
        run.write_csv("table.csv", pd.DataFrame(rows) if as_frame else rows, "Rows.")
    with (path / "table.csv").open(newline="", encoding="utf-8") as source:
        head, *written = list(csv.reader(source))
    assert head == ["name", "x", "'-y"]
    assert [row[1:] for row in written] == [["-1.5", "-2.5"]] * len(texts)  # numbers stay numbers
    for text, (cell, *_) in zip(texts, written, strict=True):
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        assert cell in (lines, f"'{lines}")
        if cell and cell[0] in "=+-@\t\r\n":
            float(cell)
