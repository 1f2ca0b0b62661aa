"""Whole data sets: every full batch once and in order, the running mean, stopping early, partial results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.datasets.replay import DatasetReplay, replay_dataset
from hdpsim.experiments.datasets.report import replay_document, replay_lines
from hdpsim.experiments.output.throughput import RunningThroughput
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.simulator.many_steps.prepared_step import BatchPath, PreparedStep
from hdpsim.simulator.play.execution import WAITS
from hdpsim.simulator.strategies.static.outlier_queues import delayed_batches
from hdpsim.traces import global_batches

BATCH = 2**17  # 128K tokens


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "trace.npy"
    np.save(path, rng.integers(1, 20_000, 600).astype(np.int32))
    return path


def scenario(trace: Path, *changes: str) -> Scenario:
    mine = (f"data.trace={trace}", "data.batch=128K tokens", "data.context=16K")
    return load_scenario("quickstart-8gpu", (*mine, *changes))


@pytest.fixture
def fast_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second and a millisecond for every sequence."""

    def prepare(numbered: Any, **_: object) -> PreparedStep:
        _, lengths = numbered
        seconds = 1.0 + 0.001 * len(lengths)
        return PreparedStep(
            tokens=int(lengths.sum()),
            sequences=len(lengths),
            longest_tokens=int(lengths.max()),
            model_flop=0.4 * seconds,
            model_flop_full=0.5 * seconds,
            peak_flop_per_s=1.0,
            micro_batches=len(lengths),
            largest_group=1,
            notes=(),
            path=BatchPath(
                read_bytes=0.0,
                loading_s=0.0,
                gather_s=0.0,
                plan_s=0.0,
                send_s=0.0,
                ahead_steps=1,
                host_bytes=0.0,
            ),
            step_s=seconds,
            account_s={"attention": seconds, **dict.fromkeys(WAITS, 0.0)},
            phases_s=np.array([[seconds] * 4]),
            longest_s=None,
            offload=None,
            program=None,
            flowing=None,
            hosted=None,
            allocator_wait_s=0.0,
        )

    monkeypatch.setattr("hdpsim.experiments.datasets.replay._prepare", prepare)


def test_the_mean_is_tokens_over_seconds() -> None:
    mean = RunningThroughput()
    for tokens, seconds in ((100, 1.0), (100, 3.0)):
        mean.add(tokens, seconds)
    assert mean.tokens_per_s == 50.0
    # residuals 100 - 50 * 1 and 100 - 50 * 3: s^2 = 5000, se = sqrt(5000 / 2) / 2 = 25, t(0.975, 1) = 12.7062
    assert mean.half_width() == pytest.approx(12.7062 * 25.0, rel=1e-5)
    assert mean.relative_half_width() is None  # two steps decide nothing


def test_equal_steps_have_no_spread_and_one_step_no_interval() -> None:
    mean = RunningThroughput()
    mean.add(7, 2.0)
    assert mean.half_width() is None
    for _ in range(500):
        mean.add(7, 2.0)
    assert mean.half_width() == pytest.approx(0.0, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=300))
def test_the_mean_never_depends_on_groups_and_groups_stay_few(seconds: list[float]) -> None:
    mean = RunningThroughput()
    for value in seconds:
        mean.add(10, value)
    assert mean.tokens_per_s == pytest.approx(10 * len(seconds) / math.fsum(seconds))
    assert len(mean._tokens) < 64
    half = mean.half_width()
    assert half is not None
    assert half >= 0


@pytest.mark.parametrize("steps", [20, 50, 200])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(steps: int) -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        mean = RunningThroughput()
        for value in rng.gamma(20.0, 0.05, steps):  # mean 1 s
            mean.add(1000, float(value))
        half = mean.half_width()
        assert half is not None
        hits += abs(mean.tokens_per_s - 1000.0) <= half
    assert 0.91 <= hits / 400 <= 0.985


def test_runs_of_like_steps_widen_the_interval() -> None:
    mixed, sorted_by_source = RunningThroughput(), RunningThroughput()
    values = np.random.default_rng(2).gamma(5.0, 0.2, 16)
    for step in range(1024):
        mixed.add(10, float(values[step % 16]))
        sorted_by_source.add(10, float(values[step // 64]))
    wide, narrow = sorted_by_source.half_width(), mixed.half_width()
    assert wide is not None
    assert narrow is not None
    assert wide > 5 * narrow


@pytest.mark.usefixtures("fast_steps")
def test_every_full_batch_is_played_once_and_in_order(trace: Path, thread_engine: type) -> None:
    replay = replay_dataset(scenario(trace), thread_engine())
    tokens = int(np.load(trace).sum())
    assert [step.step for step in replay.steps] == list(range(1, tokens // BATCH + 1))
    assert all(step.tokens == BATCH for step in replay.steps)
    assert replay.left_out_tokens == tokens % BATCH
    assert (replay.stopped, replay.partial) == ("end of the data", False)
    seconds = [step.step_s for step in replay.steps]
    assert replay.throughput.tokens_per_s == pytest.approx(len(seconds) * BATCH / sum(seconds))
    assert replay.steps[3].mean_tokens_per_s == pytest.approx(4 * BATCH / sum(seconds[:4]))
    assert replay.account_s["attention"] == pytest.approx(sum(seconds) / len(seconds))


@pytest.mark.usefixtures("fast_steps")
@pytest.mark.parametrize("slots", [1, 7])
def test_long_documents_wait_for_later_batches(trace: Path, thread_engine: type, slots: int) -> None:
    queued = (
        "strategy.name=wlb-llm",
        "layout.cp=1",
        "layout.cp_kind=all-gather",
        "strategy.outlier_queues=2",
    )
    usual = scenario(trace, *queued[:-1])
    waiting = scenario(trace, *queued)
    context = waiting.data.context_tokens
    source = global_batches([np.load(trace).astype(np.int64)], context_tokens=context, budget_tokens=BATCH)
    trained = delayed_batches([batch.lengths for batch in islice(source, 5)], 2, context)
    replay = replay_dataset(waiting, thread_engine(slots), steps=5)
    assert [step.tokens for step in replay.steps[:-1]] == [int(lengths.sum()) for lengths in trained[:-1]]
    # the last batch of a run takes what still waits, a replay leaves it out and says so
    assert replay.waiting_tokens == int(trained[-1].sum()) - replay.steps[-1].tokens
    assert replay.waiting_tokens > 0
    assert any(f"{replay.waiting_tokens:,} tokens of long documents" in line for line in replay_lines(replay))
    assert replay_dataset(usual, thread_engine(slots), steps=5).waiting_tokens == 0


@pytest.mark.usefixtures("fast_steps")
@pytest.mark.parametrize("slots", [1, 2, 7])
def test_stopping_early_does_not_depend_on_the_workers(trace: Path, thread_engine: type, slots: int) -> None:
    replay = replay_dataset(scenario(trace), thread_engine(slots), until=0.02)
    assert replay.stopped == "confidence"
    assert len(replay.steps) == 16
    same = replay_dataset(scenario(trace), thread_engine(2), until=0.02)
    assert replay_document(replay).data() == replay_document(same).data()
    assert any("like the part" in line for line in replay_lines(replay))


@pytest.mark.usefixtures("fast_steps")
def test_a_number_of_steps_is_a_limit(trace: Path, thread_engine: type) -> None:
    assert len(replay_dataset(scenario(trace), thread_engine(), steps=5).steps) == 5
    replay = replay_dataset(scenario(trace), thread_engine(), steps=10_000)
    assert replay.stopped == "end of the data"


@pytest.mark.usefixtures("fast_steps")
def test_what_the_policy_loses_is_counted(trace: Path, thread_engine: type) -> None:
    lengths = np.load(trace)
    replay = replay_dataset(scenario(trace, "data.policy=truncate"), thread_engine())
    assert replay.truncated_tokens == pytest.approx(int(np.maximum(lengths - 16384, 0).sum()), rel=0.05)
    replay = replay_dataset(scenario(trace, "data.policy=drop"), thread_engine())
    assert replay.dropped_tokens == pytest.approx(int(lengths[lengths > 16384].sum()), rel=0.05)


def interrupted(after: int) -> Callable[..., None]:
    def report(done: int, total: int | None, note: str) -> None:
        if done == after:
            raise KeyboardInterrupt

    return report


@pytest.mark.usefixtures("fast_steps")
def test_an_interrupt_leaves_what_was_played(trace: Path, thread_engine: type) -> None:
    whole = replay_dataset(scenario(trace), thread_engine())
    part = replay_dataset(scenario(trace), thread_engine(), report=interrupted(4))
    assert part.partial
    assert part.steps == whole.steps[:4]
    assert json.loads(json.dumps(replay_document(part).data()))["results"]["partial"] is True
    assert "PARTIAL" in replay_lines(part)[0]


@pytest.mark.usefixtures("fast_steps")
def test_a_bad_row_after_hours_does_not_lose_them(tmp_path: Path, thread_engine: type) -> None:
    lengths = np.full(2**19, 1000, dtype=np.int32)
    lengths[-1] = 0
    path = tmp_path / "bad.npy"
    np.save(path, lengths)
    replay = replay_dataset(scenario(path, "data.batch=16M tokens"), thread_engine())
    assert replay.stopped == "error"
    assert len(replay.steps) >= 10
    assert "row 524288: the length is zero" in str(replay.error)


@pytest.mark.usefixtures("fast_steps")
@pytest.mark.parametrize("good_rows", [2400, 2500, 4999])
def test_a_bad_row_in_the_first_block_leaves_all_full_batches_before_it(
    tmp_path: Path, thread_engine: type, good_rows: int
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("tokens\n" + "1000\n" * good_rows + "oops\n" + "1000\n" * 100)
    replay = replay_dataset(scenario(path, "data.seed=none"), thread_engine())
    assert replay.stopped == "error"
    assert len(replay.steps) == good_rows * 1000 // BATCH
    assert f"row {good_rows + 1}: 'oops' is not an integer" in str(replay.error)


@pytest.mark.usefixtures("fast_steps")
def test_data_that_fill_no_batch_or_never_end_are_refused(trace: Path, thread_engine: type) -> None:
    with pytest.raises(UserInputError, match=r"end before one batch of .* is full"):
        replay_dataset(scenario(trace, "data.batch=512M tokens"), thread_engine())
    with pytest.raises(UserInputError, match="has no end: give --steps"):
        replay_dataset(load_scenario("llama-7b-1k-byted"), thread_engine())


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


OPTIONS = ("--set", "data.batch=128K tokens", "--set", "data.context=16K")


@pytest.mark.slow
def test_the_command_plays_real_steps_the_same_on_any_number_of_workers(trace: Path, tmp_path: Path) -> None:
    results = [
        invoke(
            "replay", "quickstart-8gpu", "--trace", trace, "--steps", "3", "--json", "--workers", n, *OPTIONS
        )
        for n in ("1", "2")
    ]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    assert results[0].stdout == results[1].stdout
    document = json.loads(results[0].stdout)
    checked = scenario(trace, "data.seed=none")
    from hdpsim.experiments.studies.comparing.compare import run_batches

    expected = run_batches(checked, checked.batches(3))
    assert document["results"]["per_step"]["step_s"] == [result.step_s for result in expected.results]


@pytest.mark.usefixtures("fast_steps")
def test_a_run_directory_holds_the_steps(
    trace: Path, tmp_path: Path, thread_engine: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hdpsim.experiments.parallel.engines.LocalEngine", lambda workers: thread_engine(workers or 2)
    )
    out = tmp_path / "out"
    done = invoke("replay", "quickstart-8gpu", "--trace", trace, "--out", out, *OPTIONS)
    assert done.exit_code == 0, done.output
    assert "the whole of the data" in done.output
    results = json.loads((out / "result.json").read_text())["results"]
    training, band = results["training"], results["fidelity"]
    assert training["tokens"] == results["tokens"]
    assert training["gpu_hours"] == pytest.approx(results["simulated_s"] / 3600 * 8)
    assert band["step_s_p10"] <= results["step_s"] <= band["step_s_p90"]
    assert "GPU-hours" in done.output
    assert "How far off predictions of such runs were: true step" in done.output
    table = pd.read_csv(out / "steps.csv")
    assert table["step"].tolist() == list(range(1, len(table) + 1))
    assert {"throughput.png", "steps.parquet", "accounts.csv", "result.json"} <= {
        p.name for p in out.iterdir()
    }


@pytest.mark.usefixtures("fast_steps")
def test_an_interrupted_command_still_writes_and_exits_with_130(
    trace: Path, tmp_path: Path, thread_engine: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any, report: Any, **options: Any) -> DatasetReplay:
        return replay_dataset(*arguments, report=interrupted(3), **options)

    monkeypatch.setattr(
        "hdpsim.experiments.parallel.engines.LocalEngine", lambda workers: thread_engine(workers or 2)
    )
    monkeypatch.setattr("hdpsim.experiments.datasets.replay.replay_dataset", stopped)
    out = tmp_path / "out"
    done = invoke("replay", "quickstart-8gpu", "--trace", trace, "--json", "--out", out, *OPTIONS)
    assert done.exit_code == 130
    document = json.loads(done.stdout)
    assert (document["results"]["partial"], document["results"]["steps"]) == (True, 3)
    assert len(pd.read_csv(out / "steps.csv")) == 3
    assert "PARTIAL" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "0"), "--steps: expected all or a whole number"),
        (("--steps", "some"), "--steps: expected all"),
        (("--until-ci", "0%"), "--until-ci: expected a share"),
        (("--until-ci", "much"), "--until-ci: expected a share"),
        (("--trace", "nope.npy"), "no file and no shipped trace"),
        (("--column", "tokens"), "give both"),
    ],
)
def test_bad_options_are_said(arguments: tuple[str, ...], message: str) -> None:
    done = invoke("replay", "quickstart-8gpu", *arguments)
    assert done.exit_code == 2
    assert message in done.output
