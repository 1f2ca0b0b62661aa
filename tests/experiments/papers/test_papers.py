"""A paper is a folder of data and a short module: a tiny one, made here, runs through the skeleton of all papers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hdpsim.arrays import Ints
from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.residuals import read_residuals
from hdpsim.experiments.output.files.run_directory import write_document
from hdpsim.experiments.papers.folder import PublishedFigure, paper_folder, paper_names, read_folder
from hdpsim.experiments.papers.paper import (
    Paper,
    Results,
    Section,
    load_paper,
    reproduce,
    run_jobs,
)
from hdpsim.experiments.papers.report import FigureRow, Part, rows_part
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.setup import Setup

SETUP = """
title: Tiny
about: "Tiny (arXiv 0000.00000): one table."
notes: ["Means over {batches} batches."]
cells:
  place: Table 1
  default: Table 1
  title: "Throughput (Table 1)"
  words: "{system} on {gpus:,} GPUs"
  columns: {system: [slow, fast], gpus: gpus}
  measured: measured
  unit: tokens_per_s
figure: {unit: tokens_per_s, x: gpus, series: system, name: lines, title: Tiny, panel: ""}
batches: 4
sections:
  gain: {title: Gain (section 2), file: The gain., columns: {paper_gain: {heading: paper}, gain: {format: "{:.2f}×"}}}
"""
PUBLISHED = "gain: 1.9\n"
CELLS = """system,gpus,measured
slow,8,80
fast,8,160
fast,16,
fast,32,1
"""


@dataclass(frozen=True)
class RateJob:
    system: str
    gpus: int
    batches: int

    def run(self) -> float | None:
        return None if self.gpus > 16 else self.gpus * (10.0 if self.system == "slow" else 22.0)


def prediction(cell: PublishedFigure, rate: float | None) -> FigureRow:
    return {"predicted": rate, "reason": "too many GPUs" if rate is None else ""}


def step(cell: PublishedFigure, batches: int) -> tuple[Setup, Ints]:
    scenario = load_scenario("quickstart-8gpu")
    return scenario.setup(), scenario.batches(1)[0]


def tiny(folder: Path) -> Paper:
    folder.mkdir()
    for name, text in (("setup.yaml", SETUP), ("published.yaml", PUBLISHED), ("cells.csv", CELLS)):
        (folder / name).write_text(text, encoding="utf-8")
    data = read_folder(folder)

    def gain(results: Results) -> Part:
        rates = {system: results.outcomes[RateJob(system, 8, results.batches)] for system in ("slow", "fast")}
        rows = [{"gain": rates["fast"] / rates["slow"], "paper_gain": data.published["gain"]}]
        return rows_part(data, "gain", rows)

    return Paper(
        folder=data,
        job=lambda cell, batches: RateJob(cell["system"], cell["gpus"], batches),
        prediction=prediction,
        step=step,
        sections=(
            Section(
                name="gain",
                part=gain,
                jobs=lambda batches: (RateJob(s, 8, batches) for s in ("slow", "fast")),
            ),
        ),
    )


def test_a_third_paper_is_data_and_a_few_functions(tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    document = reproduce(tiny(tmp_path / "tiny"), workers=1, report=lambda *at: done.append(at))
    data = document.data()
    assert data["kind"] == "reproduce-tiny"
    assert [r["predicted"] for r in data["records"]] == [80.0, 176.0, 352.0, None]
    assert [r["error"] for r in data["records"]] == [0.0, pytest.approx(0.1), None, None]
    assert (data["batches"], data["summary"]["count"], data["summary"]["unpredicted"]) == (4, 2, 1)
    assert data["gain"] == [{"gain": 2.2, "paper_gain": 1.9}]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]  # equal jobs run once
    text = document.text()
    for words in (
        "Throughput (Table 1)",
        "Gain (section 2)",
        "2.20×",
        "2 cells with a measurement: absolute error median 5.0%",
        "Cannot run: fast on 32 GPUs: too many GPUs",
        "Means over 4 batches.",
    ):
        assert words in text


def test_it_gets_a_run_directory_and_residuals(tmp_path: Path) -> None:
    residuals = tmp_path / "residuals.csv"
    document = reproduce(tiny(tmp_path / "tiny"), workers=1, batches=2, residuals=str(residuals))
    write_document(str(tmp_path / "run"), document)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"records.csv", "gain.csv", "lines.png", "paper_against_prediction.svg", "result.json"} <= names
    assert (tmp_path / "run/records.csv").read_text().splitlines()[:2] == [
        "system,gpus,measured,predicted,error,reason",
        "slow,8,80.0,80.0,0.0,",
    ]
    assert "\n- \n" not in (tmp_path / "run/README.md").read_text(encoding="utf-8")
    found = read_residuals(residuals)
    assert set(found.sources.tolist()) == {"tiny"}
    # 10 % too many tokens/s are a step of 1 / 1.1 of the true one
    assert sorted(found.log_error) == [pytest.approx(-0.09531, abs=1e-5), pytest.approx(0.0, abs=1e-5)]


def test_cells_of_a_user_are_checked_by_the_columns_of_the_paper(tmp_path: Path) -> None:
    paper = tiny(tmp_path / "tiny")
    path = tmp_path / "cells.csv"
    path.write_text("system,gpus,measured\nquick,8,1\n", encoding="utf-8")
    with pytest.raises(UserInputError, match=r"row 2: system: 'quick' is not one of slow, fast"):
        reproduce(paper, str(path))
    with pytest.raises(UserInputError, match="batches must be at least 1"):
        reproduce(paper, batches=0)


def test_a_folder_that_lacks_something_says_what(tmp_path: Path) -> None:
    tiny(tmp_path / "tiny")
    (tmp_path / "tiny/setup.yaml").write_text(SETUP.replace("  place: Table 1\n", ""), encoding="utf-8")
    with pytest.raises(UserInputError, match=r"setup\.yaml: missing cells\.place$"):
        read_folder(tmp_path / "tiny")


def test_outcomes_do_not_depend_on_the_number_of_workers() -> None:
    from hdpsim.experiments.papers.megascale_steps import StepJob

    place: dict[str, Any] = {"model": "megascale-175b", "gpus": 256, "global_batch": 32}
    jobs = [StepJob(system=system, **place) for system in ("megascale", "megatron-lm")]
    alone, shared = (run_jobs([*jobs, jobs[0]], lambda done, total: None, workers) for workers in (1, 2))
    assert alone == shared


@pytest.mark.parametrize("name", paper_names())
def test_shipped_papers_are_complete(name: str) -> None:
    paper, folder = load_paper(name), paper_folder(name)
    assert paper.folder == folder
    assert folder.published_cells()
    assert not {section.name for section in paper.sections} & {"records", "summary", "notes"}
