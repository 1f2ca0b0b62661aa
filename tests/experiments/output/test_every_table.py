"""Every table of a verb has its columns in their order, even without rows, cells that are values, and like files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pandas as pd
import pytest
import yaml

import hdpsim
from hdpsim import Result
from hdpsim.experiments.output.document import OutputFile
from hdpsim.experiments.output.files import run_directory
from hdpsim.experiments.output.files.run_directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("each_step_once", "each_plan_once", "one_process")]

COLUMNS = yaml.safe_load(Path(__file__).with_name("columns.yaml").read_text())
SCENARIO = {
    "name": "tables",
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "nodes": 1},
    "layout": {"tp": 2, "rank_capacity": "16K tokens", "recompute": "full"},
    "data": {"distribution": "bytescale-github", "batch": "256K tokens", "context": "64K tokens"},
    "execution": {"batches": 2},
}
MESH = {**SCENARIO, "strategy": {"name": "static"}, "execution": {"batches": 1}}
STEPS = '{"lengths": [8192, 100], "step_s": 1.0}\n{"lengths": [4096], "step_s": 2.0, "strategy": "static"}\n'
KERNELS = "id,kind,gpu,m,n,k,time_us\na,gemm,h100,8192,8192,8192,1500\n"
SHARE = re.compile(r"(^|_)(share|mfu|probability)($|_(?!of))")
"""Names of columns that hold numbers from 0 to 1."""
COLLECTION = re.compile(r"\[.*\]|\{.*\}|\(.*,.*\)|<.* object.*>")
"""What Python prints of lists, dictionaries, tuples and objects."""

VERBS: dict[str, Callable[[Path], Result]] = {
    "simulate": lambda _: hdpsim.simulate(SCENARIO, {"execution.network": "flows"}),
    "many steps": lambda _: hdpsim.simulate(SCENARIO, steps=3),
    "compare": lambda _: hdpsim.compare(SCENARIO, strategies="static,hdp-opt"),
    "whatif": lambda _: hdpsim.whatif(SCENARIO, ["layout.tp=4", "layout.tp_overlap=true,layout.pp=3"]),
    "tornado": lambda _: hdpsim.whatif(MESH, {}, tornado="10%"),
    "scale": lambda _: hdpsim.scale(SCENARIO, gpus=[8, 16], strategies="static,hdp-opt"),
    "sweep": lambda f: hdpsim.sweep({"base": SCENARIO, "grid": {"layout.tp": [2, 16]}}, store=f, workers=1),
    "replay": lambda _: hdpsim.replay(SCENARIO, steps=2, workers=1),
    "undisturbed campaign": lambda _: hdpsim.campaign(SCENARIO, duration="6h", seeds=2, workers=1),
    "campaign": lambda _: hdpsim.campaign(SCENARIO, {"gpus": 4096}, duration="5d", seeds=2, workers=1),
    "check": lambda _: hdpsim.check(SCENARIO, {"layout.tp": 8}, batches=1),
    "plan": lambda _: hdpsim.plan(SCENARIO, budget="10 steps", batches=1, workers=1),
    "recommend": lambda _: hdpsim.recommend(SCENARIO, "1B tokens in 2 days", keep_layout=True, batches=1),
    "fabric": lambda _: hdpsim.fabric(SCENARIO),
    "flows": lambda _: hdpsim.flows(SCENARIO),
    "explain": lambda _: hdpsim.explain(SCENARIO),
    "explain a term": lambda _: hdpsim.explain(SCENARIO, term="tp_communication"),
    "explain products": lambda _: hdpsim.explain(SCENARIO, term="gemm"),
    "explain a part": lambda _: hdpsim.explain(SCENARIO, term="gemm_qkv"),
    "kernels": lambda f: hdpsim.validate(kernels=written(f / "kernels.csv", KERNELS)),
    "steps": lambda f: hdpsim.validate(steps=written(f / "steps.jsonl", STEPS), scenario="quickstart-8gpu"),
    "check_strategy": lambda _: hdpsim.check_strategy("hdp-naive", ranks=2),
}  # fmt: skip


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run directories without figures, whose names have no suffix: drawing takes longer than all the rest."""
    write = run_directory._write_file

    def write_no_figure(run: RunDirectory, file: OutputFile) -> None:
        if PurePosixPath(file.name).suffix:
            write(run, file)

    monkeypatch.setattr(run_directory, "_write_file", write_no_figure)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("verb", VERBS)
def test_tables_have_columns_and_values_and_files_are_the_frames(verb: str, tmp_path: Path) -> None:
    result = VERBS[verb](tmp_path)
    folder = result.save(tmp_path / "out")
    assert result.tables
    for name in result.tables:
        frame = result.to_frame(name)
        assert list(frame.columns) == COLUMNS[verb][name]
        for column in frame:
            kept = frame[column].dropna()
            assert not kept.map(lambda cell: isinstance(cell, dict)).any(), (
                f"{name}.{column} holds dictionaries"
            )
            if SHARE.search(str(column)) and kept.dtype.kind == "f":
                assert kept.between(-1e-9, 1 + 1e-9).all(), f"{name}.{column} is no share"
        file = folder / f"{name}.csv"
        if not file.exists():
            continue
        read = pd.read_csv(file)
        assert list(read.columns) == list(frame.columns)
        assert len(read) == len(frame)
        for column in read.select_dtypes("number"):
            numbers = pd.to_numeric(frame[column], errors="coerce").astype(float).tolist()
            assert read[column].astype(float).tolist() == pytest.approx(numbers, nan_ok=True), column
        for column in read.select_dtypes(exclude="number"):
            for cell in read[column].dropna().astype(str):
                assert not COLLECTION.fullmatch(cell), f"{name}.{column}: {cell}"


def test_announced_columns_are_those_of_the_rows(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.write_csv("empty.csv", [], "None.", ("run", "at_s"))
        run.write_csv("one.csv", [{"run": 1, "at_s": 2.5}], "One.", ("run", "at_s"))
    assert list(pd.read_csv(tmp_path / "run" / "empty.csv")) == ["run", "at_s"]
    with pytest.raises(ValueError, match="announced were"), RunDirectory(tmp_path / "other") as run:
        run.write_csv("one.csv", [{"run": 1}], "One.", ("run", "at_s"))
