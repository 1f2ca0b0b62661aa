"""The benchmark of accuracy: what predictors see, how they are scored, and the yardstick."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "accuracy"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("benchmark")


@pytest.fixture
def score(benchmark: Any) -> Any:
    return importlib.import_module("score")


def test_a_predictor_sees_no_measurement(benchmark: Any) -> None:
    for case in benchmark.cases():
        assert case.measured_step_s > 0
        assert not [name for name in case.cells if name.startswith("measured") or name == "peak_mem_gb"]
        assert not {"source_fields", "derived_fields"} & case.cells.keys()


def test_a_question_about_a_generation_asks_for_its_runs_only(benchmark: Any) -> None:
    generations = {case.generation for case in benchmark.asked("generation")}
    assert generations == {benchmark.NEWEST}
    assert len(list(benchmark.asked("family"))) == len(benchmark.cases())


def test_scores_are_errors_of_the_step(benchmark: Any, score: Any, tmp_path: Path) -> None:
    first, second, third = benchmark.cases()[:3]
    path = tmp_path / "mine.csv"
    path.write_text(
        f"id,step_s\n{first.name},{1.1 * first.measured_step_s}\n{second.name},{0.8 * second.measured_step_s}\n"
        f"{third.name},{third.measured_step_s}\n"
    )
    found = benchmark.read_predictions(path)
    runs, predicted, median, bias, p90, largest, _ = score.scores("known", found["known"])
    assert (int(runs), predicted) == (len(benchmark.cases()), "3")
    assert (median, bias, largest) == ("10.0", "+0.0", "20.0")  # of 10, -20 and 0 %
    assert p90 == "18.0"  # between 10 and 20 %, four fifths of the way
    assert found["family"] == found["known"]  # without a column question


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id\nbloom-0001\n", "no column step_s"),
        ("id,step_s\nnobody,1\n", "line 2: 'nobody' is no run"),
        ("id,step_s\nbloom-0001,-1\n", "expected a positive number"),
        ("id,step_s,question\nbloom-0001,1,all\n", "'all' is none of known, family, generation"),
    ],
)
def test_a_file_that_cannot_be_scored_says_why(benchmark: Any, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        benchmark.read_predictions(path)


def test_the_page_shows_the_scores_of_the_files(benchmark: Any, score: Any) -> None:
    files = {path.stem.replace("_", " "): path for path in (FOLDER / "predictions").glob("*.csv")}
    assert set(files) == {"hdpsim", "gradient boosting"}
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, path in files.items():
        found = benchmark.read_predictions(path)
        for question in benchmark.QUESTIONS:
            assert f"| {name} | {question} | {' | '.join(score.scores(question, found[question]))} |" in page


def test_the_yardstick_is_never_asked_about_a_configuration_that_it_saw(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    yardstick = importlib.import_module("yardstick")
    runs = [case for case in benchmark.cases() if case.family in ("pythia", "simumax", "megatron-lm")]
    known = iter([([float(place)], 1.0, f"configuration {place // 2}") for place in range(len(runs))])
    monkeypatch.setattr(yardstick, "known_of", lambda config: next(known))

    def last(features: Any, target: Any, asked: Any) -> Any:
        seen = {place // 2 for place in features[:, 0].tolist()}
        assert seen.isdisjoint(place // 2 for place in asked[:, 0].tolist())
        return [float(target[-1])] * len(asked)

    monkeypatch.setattr(yardstick, "learn", last)
    found = yardstick.predictions(runs)
    newest = sum(run.generation == benchmark.NEWEST for run in runs)
    assert len(found) == 2 * len(runs) + newest
    steps = {run.name: run.measured_step_s for run in runs}
    families = {run.name: run.family for run in runs}
    for question, name, step_s in found:
        of_same = {families[other] for other, seconds in steps.items() if seconds == pytest.approx(step_s)}
        assert question == "known" or of_same != {families[name]}


def test_trees_learn_a_line(benchmark: Any) -> None:
    pytest.importorskip("sklearn")
    import numpy as np

    learn = importlib.import_module("yardstick").learn
    features = np.linspace(0.0, 1.0, 200)[:, None]
    first, second = (learn(features, 3.0 * features[:, 0], features[10:190:20]) for _ in range(2))
    assert (first == second).all()
    assert np.abs(first - 3.0 * features[10:190:20, 0]).max() < 0.2
