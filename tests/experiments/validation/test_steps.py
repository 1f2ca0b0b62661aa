"""`hdpsim validate --steps`: the reader of measured steps, their prediction, groups and pairs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hdpsim.errors import UserInputError
from hdpsim.experiments.bands.residuals import setup_band
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.records.step_benchmarks import benchmark_of
from hdpsim.experiments.records.step_prediction import StepPredictor
from hdpsim.experiments.records.steps import MeasuredStep, read_steps
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.validation.steps import run
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.play.pipeline.validate_plan import validate_plan
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.static.given_packs import plan_given_packs
from hdpsim.simulator.strategies.static.wlb_llm import balanced_packs

SCENARIO = "quickstart-8gpu"  # 4 ranks of 2 GPUs
MODEL = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"


def written(folder: Path, *lines: dict[str, Any] | str, name: str = "steps.jsonl") -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path = folder / name
    path.write_text("\n".join(texts) + "\n")
    return path


def benchmark_row(mode: str, packs: list[list[int]], dp: int, **more: Any) -> dict[str, Any]:
    return {
        "mode": mode, "tp_size": 8, "dp_size": dp, "cp_size": None, "num_tokens": 16384, "num_layers": 2,
        "model_path": MODEL, "packs": packs, "duration_ms": 100.0, **more,
    }  # fmt: skip


def step_of(tmp_path: Path, row: dict[str, Any]) -> MeasuredStep:
    (step,) = read_steps(written(tmp_path, row))
    return step


class TestReading:
    def test_what_a_line_says(self, tmp_path: Path) -> None:
        rows = [
            {"lengths": [5, 3], "step_s": 2.0, "id": "a"},
            "",
            {"packs": [[5], [3, 1]], "duration_ms": 4, "clean": False},
        ]
        first, second = read_steps(written(tmp_path, *rows))
        assert (first.packs, first.packed, first.measured_s, first.clean) == (((5, 3),), False, 2.0, True)
        assert (second.lengths, second.packed, second.measured_s, second.clean) == (
            (5, 3, 1),
            True,
            0.004,
            False,
        )
        assert first.name == "a"
        assert second.name == "line 3"

    def test_compressed(self, tmp_path: Path) -> None:
        path = tmp_path / "steps.jsonl.gz"
        path.write_bytes(gzip.compress(b'{"lengths": [5], "step_s": 1}'))
        assert read_steps(path)[0].lengths == (5,)

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("", "holds no steps"),
            ("{", "line 1: not JSON"),
            ("[1]", "expected an object"),
            ({"step_s": 1}, "neither is given"),
            ({"lengths": [1], "packs": [[1]], "step_s": 1}, "both are given"),
            ({"lengths": [], "step_s": 1}, "lengths: expected a list of lengths"),
            ({"packs": [[]], "step_s": 1}, "packs: expected a list of lists"),
            ({"lengths": [1.5], "step_s": 1}, "a length must be a whole number"),
            ({"lengths": [True], "step_s": 1}, "a length must be a whole number"),
            ({"lengths": [0], "step_s": 1}, "a length must be"),
            ({"lengths": [1]}, "step_s or as duration_ms; neither"),
            ({"lengths": [1], "step_s": 1, "duration_ms": 1}, "both are given"),
            ({"lengths": [1], "step_s": "fast"}, "step_s: must be a number"),
            ({"lengths": [1], "step_s": -1}, "step_s: must be a number"),
            ({"lengths": [1], "step_s": 1, "clean": "yes"}, "clean: expected true or false"),
            ({"lengths": [1], "step_s": 1}, "give --scenario"),
            ({"lengths": [1], "step_s": 1, "mode": "d3"}, "mode: 'd3' is not one of baseline"),
            ({"lengths": [1], "step_s": 1, "scenario": 3}, "scenario: expected a name"),
            ({"lengths": [1], "step_s": 1, "scenario": "no-such"}, "no-such"),
            ({"lengths": [1], "step_s": 1, "scenario": SCENARIO, "set": [1]}, "set: expected keys"),
            ({"lengths": [1], "step_s": 1, "scenario": SCENARIO, "set": {"layout.tq": 1}}, "layout.tq"),
            ({"lengths": [1], "step_s": 1, "scenario": SCENARIO, "strategy": "fastest"}, "fastest"),
            ({"lengths": [1], "step_s": 1, "scenario": SCENARIO, "strategy": "packs"}, "needs the documents as packs"),
            ({"mode": "d2", "packs": [[8]], "step_s": 1}, "tp_size: expected a whole number"),
            (benchmark_row("d2", [[8]], 1, model_path="gpt"), "model_path: 'gpt' is none of distca's"),
            (benchmark_row("d2", [[8]], 1, num_layers="4"), "num_layers: expected a whole number"),
        ],
    )  # fmt: skip
    def test_bad_input_is_one_message(self, tmp_path: Path, line: Any, words: str) -> None:
        found = CliRunner().invoke(cli, ["validate", "--steps", str(written(tmp_path, line))])
        assert found.exit_code == 2, found.output
        assert words in found.output
        assert "Traceback" not in found.output

    @pytest.mark.parametrize(
        "more", [["records.csv"], ["--memory"], ["--kernels", "x"], ["--markdown"], ["--without", "stated"]]
    )
    def test_options_of_other_kinds_of_validation(self, tmp_path: Path, more: list[str]) -> None:
        path = written(tmp_path, {"lengths": [1], "step_s": 1})
        assert CliRunner().invoke(cli, ["validate", "--steps", str(path), *more]).exit_code == 2
        assert CliRunner().invoke(cli, ["validate", "--scenario", SCENARIO]).exit_code == 2


class TestPacks:
    def test_least_work_first(self) -> None:
        # 8 goes first; 5 and 4 to the other (41 of work against 64), then 3 (50); 1 still goes there
        lengths = np.array([3, 8, 4, 5, 1])
        chosen = balanced_packs(lengths, (lengths**2).astype(float), 2, 100)
        assert chosen.tolist() == [1, 0, 1, 1, 1]

    def test_the_shorter_pack_takes_what_does_not_fit_the_lighter(self) -> None:
        lengths = np.array([6, 5, 4, 3])
        work = np.array([36.0, 1.0, 1.0, 1.0])  # the second pack stays the lightest
        assert balanced_packs(lengths, work, 2, 10).tolist() == [0, 1, 1, 0]

    def test_what_fits_nowhere_goes_by_work_in_the_end(self) -> None:
        lengths = np.array([6, 5, 5])
        assert balanced_packs(lengths, lengths.astype(float), 2, 6).tolist() == [0, 1, 1]

    @pytest.mark.parametrize("degree", [1, 2, 4])
    def test_given_packs_are_a_valid_plan(self, degree: int) -> None:
        setup = load_scenario(SCENARIO, ("layout.rank_capacity=128K",)).setup("static")
        lengths = np.array([9000, 1000, 5000, 400, 30, 7000])
        pack = np.array([0, 3, 1, 2, 2, 4])
        problem = planning_problem(setup, lengths)
        plan = plan_given_packs(problem, pack, degree)
        validate_plan(plan, lengths, 1)
        assert plan.micro_batches == 5
        assert set(plan.group_size) == {degree}
        groups = setup.ranks // degree
        for rank in range(setup.ranks):
            run_here = plan.order[plan.order_offsets[rank] : plan.order_offsets[rank + 1]]
            assert run_here.tolist() == [number for number in range(5) if number % groups == rank // degree]


class TestBenchmarks:
    def test_rank_k_runs_packs_k_and_k_plus_dp(self, tmp_path: Path) -> None:
        step = step_of(tmp_path, benchmark_row("baseline", [[4, 3], [2], [5], [1, 1]], 2))
        benchmark = benchmark_of(step)
        assert benchmark is not None
        pack, degree = benchmark.packs(step)
        assert (pack.tolist(), degree) == ([0, 0, 1, 0, 1, 1], 1)

    def test_most_tokens_of_a_replica(self, tmp_path: Path) -> None:
        """In K tokens: 64 fills one replica, three of 24 the other, whose work stays less. 12 more make that 84.

        Of at most 2 x 40 they go to the replica of 64; of at most 2 x 40 x 3 / 2 work decides.
        """
        packs = [[65536, 24576], [24576, 24576, 12288]]
        row = benchmark_row("wlbllm", packs, 2, cp_size=2, num_tokens=40960)
        for more, chosen in (({}, [0, 1, 1, 1, 0]), ({"batch_size": 3}, [0, 1, 1, 1, 1])):
            step = step_of(tmp_path, {**row, **more})
            benchmark = benchmark_of(step)
            assert benchmark is not None
            pack, degree = benchmark.packs(step)
            assert (pack.tolist(), degree) == (chosen, 2)

    def test_the_busiest_rank_decides_a_static_step_and_attention_spread_evenly_does_not(
        self, tmp_path: Path
    ) -> None:
        uneven, even = [[16384], [1024] * 16], [[8192, 8192], [8192, 8192]]
        predictor = StepPredictor(None, None, tmp_path)

        def predicted_s(mode: str, packs: list[list[int]]) -> float:
            row = benchmark_row(mode, [*packs, *packs], 2)
            found = predictor.predict(step_of(tmp_path, row))
            assert found.step_s is not None, found.reason
            return found.step_s

        assert predicted_s("baseline", uneven) > 1.05 * predicted_s("d2", uneven)
        assert predicted_s("baseline", even) == pytest.approx(predicted_s("d2", even), rel=0.05)

    def test_fewer_packs_than_ranks_are_a_reason(self, tmp_path: Path) -> None:
        found = StepPredictor(None, None, tmp_path).predict(
            step_of(tmp_path, benchmark_row("baseline", [[8]], 2))
        )
        assert found.step_s is None
        assert "1 packs are not two for each" in found.reason


class TestOwnSteps:
    def test_a_step_is_what_simulate_says(self, tmp_path: Path) -> None:
        lengths = [30000, 2000, 900, 16000]
        path = written(
            tmp_path, {"lengths": lengths, "step_s": 1.0, "strategy": "static", "set": {"layout.cp": 4}}
        )
        (record,) = run(str(path), scenario=SCENARIO).payload["records"]
        setup = load_scenario(SCENARIO, ("layout.cp=4",)).setup("static")
        assert record["predicted"] == simulate_step(setup, lengths).step_s
        assert record["error"] == pytest.approx(record["predicted"] - 1.0)
        assert record["settings"] == "static layout.cp=4"
        assert sum(record["account_s"].values()) == pytest.approx(record["predicted"])

    def test_packs_run_as_they_are(self, tmp_path: Path) -> None:
        """Four ranks, a pack each: one that holds everything takes longer than any deal of it."""
        spread = {"packs": [[8000], [8000], [8000], [8000]], "step_s": 1.0, "id": "spread"}
        piled = {"packs": [[8000, 8000, 8000, 7000], [400], [300], [300]], "step_s": 1.0, "id": "piled"}
        records = run(str(written(tmp_path, spread, piled)), scenario=SCENARIO).payload["records"]
        assert records[1]["predicted"] > 2.0 * records[0]["predicted"]
        few = {"packs": [[8000]], "step_s": 1.0}
        (record,) = run(str(written(tmp_path, few)), scenario=SCENARIO).payload["records"]
        assert record["predicted"] is None
        assert "without work" in record["reason"]

    def test_groups_and_pairs_by_hand(self, tmp_path: Path) -> None:
        """Measured times are the predicted ones with known errors."""
        batches = [[30000, 500, 400, 300], [16000, 16000, 900], [9000] * 6, [70000, 100], [5000] * 8]
        factors = {"static": [1.1, 1.2, 1.0, 1.3, 1.1], "hdp-naive": [1.0] * 5}
        rows = [
            {"lengths": batch, "step_s": 1.0, "strategy": name}
            for name in factors
            for batch in batches
        ]  # fmt: skip
        first = run(str(written(tmp_path, *rows)), scenario=SCENARIO).payload["records"]
        for row, record, factor in zip(rows, first, [*factors["static"], *factors["hdp-naive"]], strict=True):
            row["step_s"] = record["predicted"] / factor
        rows.append({**rows[0], "step_s": rows[0]["step_s"] * 9, "clean": False, "group": "doubted"})
        payload = run(str(written(tmp_path, *rows)), scenario=SCENARIO).payload
        static, naive, doubted = payload["groups"]
        assert static["bias"] == pytest.approx(0.1)
        assert static["records"] == 5
        assert static["spread"] == pytest.approx(np.percentile([0.1, 0.2, 0.0, 0.3, 0.1], 90) - 0.04)
        assert naive["median_abs_error"] == pytest.approx(0.0, abs=1e-9)
        assert naive["rank_correlation"] == pytest.approx(1.0)
        assert doubted["clean"] is False
        assert doubted["rank_correlation"] is None
        assert payload["summary"]["count"] == 11
        assert payload["summary"]["clean"]["count"] == 10
        times = [
            (rows[i]["step_s"], rows[i + 5]["step_s"], first[i]["predicted"], first[i + 5]["predicted"])
            for i in range(5)
        ]
        apart = [t for t in times if max(t[0] / t[1], t[1] / t[0]) > 1.03]
        right = sum((t[0] < t[1]) == (t[2] < t[3]) for t in apart)
        assert (payload["faster"]["pairs"], payload["faster"]["right"]) == (len(apart), right)

    def test_the_command(self, tmp_path: Path) -> None:
        path = written(tmp_path, {"lengths": [3000, 900], "step_s": 0.5, "id": 7})
        shown = CliRunner().invoke(cli, ["validate", "--steps", str(path), "--scenario", SCENARIO])
        assert shown.exit_code == 0
        assert "all steps: 1 judged" in shown.output
        out = tmp_path / "out"
        told = CliRunner().invoke(
            cli, ["validate", "--steps", str(path), "--scenario", SCENARIO, "--json", "--out", str(out)]
        )
        payload = json.loads(told.stdout)
        assert payload["records"][0]["record"] == "7"
        assert payload["summary"]["count"] == 1
        assert (out / "README.md").is_file()

    def test_no_scenario_file_of_another_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UserInputError, match="no-such"):
            run(str(written(tmp_path, {"lengths": [1], "step_s": 1, "scenario": "no-such"})))


def test_a_log_in_another_unit_is_named(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"lengths": [8192, 4096], "step_s": 0.3}, {"lengths": [8192, 4096], "step_s": 300.0}
    )
    notes = run(str(path), scenario=SCENARIO).notes
    assert [note for note in notes if "in milliseconds" in note] == [notes[-1]]
    assert notes[-1].startswith("line 2: measured_step_s 300 is")


def test_measured_steps_are_held_against_the_band_that_simulate_prints(tmp_path: Path) -> None:
    scenario = load_scenario(SCENARIO)
    lengths = [4096] * 32
    setup = scenario.setup("static")
    band, step_s = setup_band(setup, np.asarray(lengths)), simulate_step(setup, tuple(lengths)).step_s
    times = [
        step_s * band.low * 0.99,
        step_s * band.low * 1.01,
        step_s * band.high * 0.99,
        step_s * band.high * 1.01,
    ]
    rows = [{"lengths": lengths, "step_s": time_s, "strategy": "static"} for time_s in times]
    document = run(str(written(tmp_path, *rows)), scenario=SCENARIO)
    assert document.payload["records"][0]["band_s"] == pytest.approx([step_s * band.low, step_s * band.high])
    assert "2 of 4 measured steps lie in the P10-P90 band" in document.text()
    assert "our-step-is-slower-than-predicted" in document.text()
    inside = run(str(written(tmp_path, rows[1])), scenario=SCENARIO)
    assert "our-step-is-slower" not in inside.text()
    packed = {"packs": [[4096]] * 4, "step_s": step_s}
    assert "P10-P90" not in run(str(written(tmp_path, packed)), scenario=SCENARIO).text()


def test_steps_of_a_run_are_on_one_mesh_as_in_simulate(tmp_path: Path) -> None:
    changes = ("gpus=64", "data.context=8K", "layout.tp=4", "layout.rank_capacity=16K")  # 16 ranks
    scenario = load_scenario(SCENARIO, changes)
    (tmp_path / "own.yaml").write_text(scenario.to_yaml())
    # Three packs for each pair of ranks take less than two for a rank
    first, second = [8192] * 16, [8192] * 24
    setup = scenario.setup("static")
    one = simulate_step(setup, first)
    later = simulate_step(setup, second, mesh_degree=one.largest_group)
    assert simulate_step(setup, second).step_s < later.step_s  # alone it would be on another mesh
    rows = [
        {"lengths": lengths, "step_s": step.step_s, "strategy": "static"}
        for lengths, step in ((first, one), (second, later))
    ]
    document = run(str(written(tmp_path, *rows)), scenario=str(tmp_path / "own.yaml"))
    assert [record["error"] for record in document.payload["records"]] == pytest.approx([0.0, 0.0], abs=1e-9)
