"""`hdpsim validate --longctx`: rows of published tables become scenarios, and are predicted as those are."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.records.longctx import prediction
from hdpsim.experiments.records.longctx.prediction import LongPredictor, _drawn, _first_lengths
from hdpsim.experiments.records.longctx.rows import LongRow, read_long_rows
from hdpsim.experiments.records.longctx.systems import merged, source_of, sources
from hdpsim.experiments.scenario.scenario import resolve_scenario
from hdpsim.experiments.validation.longctx import run
from hdpsim.simulator.step import simulate_step

BURST = {
    "source": "thunlp/BurstEngine@main", "model": "Llama-7B 32L h4096 ffn11008 32h v32000", "gpu": "A800-80G",
    "gpus": "8",
    "tp": "1", "pp": "1", "cp": "4", "dp": "2", "strategy": "ds-ulysses", "context_tokens": "65536",
    "metric": "tokens_per_s_per_gpu", "measured": "1300",
}  # fmt: skip


class Played(NamedTuple):
    """As much of a step as a prediction looks at."""

    step_s: float
    memory: MemoryReport


def row(**columns: str) -> LongRow:
    return LongRow(where="table.csv, row 2", columns={**BURST, **columns})


def written(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*list(BURST), "dataset"])
        writer.writeheader()
        writer.writerows({**BURST, **one} for one in rows)
    return path


class TestSystems:
    def test_every_system_of_every_source_can_be_told(self) -> None:
        for source in sources():
            assert source.shapes, source.name
            for system in source.systems:
                assert system.refused or merged(source.scenario, system.scenario), (source.name, system.rows)
                assert re.compile(system.rows).groups >= 0

    def test_the_first_system_whose_words_hold(self) -> None:
        source = source_of(row())
        assert (
            source.system(row(strategy="Burst-Ring w/o sele-ckpt")).name == "BurstEngine ring, all recomputed"
        )
        assert source.system(row(strategy="Burst-Ring")).name == "BurstEngine ring"
        with pytest.raises(InfeasibleError, match="'a new one' was run is not known"):
            source.system(row(strategy="a new one"))

    def test_a_system_is_told_by_its_data_set_and_model(self) -> None:
        source = "FlexSP arXiv 2412.01523 Fig 4"
        table = row(source=source, model="GPT-13B", strategy="DeepSpeed", dataset="Wikipedia")
        found = source_of(table).system(table)
        assert found.columns == {"cp": "64"}
        assert found.keys(table)["layout"]["recompute_products"] == 0.667
        other = row(source=source, strategy="DeepSpeed", dataset="GitHub")
        assert source_of(other).system(other).columns == {}

    def test_a_node_that_holds_all_gpus(self) -> None:
        table = row(source="dev:examples/dynamic_context_parallel", gpu="not stated", gpus="16")
        assert source_of(table).node(table) == {"like": "nvl72-gb200", "gpus": 16, "nics": 16}

    def test_a_model_is_read_from_its_words(self) -> None:
        shape = source_of(row()).shape(row(model="Llama-14B 40L h5120 ffn13824 40h v120000"))
        assert shape == {"layers": 40, "hidden": 5120, "ffn_hidden": 13824, "heads": 40, "vocab": 120000}

    def test_sections_are_merged_key_by_key(self) -> None:
        first: dict[str, Any] = {"a": {"x": 1, "y": 2}, "b": 1}
        assert merged(first, {"a": {"y": 3}}) == {"a": {"x": 1, "y": 3}, "b": 1}
        merged(first)["a"]["x"] = 4
        assert first["a"] == {"x": 1, "y": 2}


class TestPrediction:
    def test_a_row_is_the_step_of_its_scenario(self) -> None:
        """Two groups of four GPUs, each with a sequence of 64K: as a scenario written by hand."""
        document = {
            "model": {
                "layers": 32, "hidden": 4096, "ffn_hidden": 11008, "heads": 32, "head_dim": 128, "vocab": 120000,
                "gated_mlp": True,
            },
            "cluster": {"node": "hgx-a800-80gb", "gpus": 8},
            "layout": {
                "cp": 4, "cp_kind": "ulysses", "sharding": "zero3", "recompute": "full", "gradient_bytes": 2,
                "optimizer_offload": True, "rank_capacity": 16384,
            },
            "data": {"lengths": 65536, "batch": "2 sequences", "context": 65536},
            "strategy": {"name": "static"},
        }  # fmt: skip
        step = simulate_step(resolve_scenario(document, source="by hand").setup(), [65536, 65536])
        found = LongPredictor({}, None).predict(row())
        assert found.value == pytest.approx(2 * 65536 / step.step_s / 8)
        assert found.peak_mem_gb == pytest.approx(step.memory.total_bytes / 1e9)

    def test_rows_do_not_change_those_after_them(self) -> None:
        """A source whose systems share a layout: the table and the same from its end say the same of every row."""
        easy = {
            "source": "jzhang38/EasyContext",
            "model": "Llama-2-7B",
            "gpu": "A100-80G",
            "strategy": "DP, 64K",
        }
        rows = [
            row(**easy, cp="1", dp="8"),
            row(**easy, cp="1", dp="8", context_tokens="32768"),
            row(**{**easy, "strategy": "zigzag ring"}, cp="8", dp="1"),
        ]
        forwards = [LongPredictor({}, None).predict(one).peak_mem_gb for one in rows]
        backwards = [LongPredictor({}, None).predict(one).peak_mem_gb for one in reversed(rows)]
        assert forwards == backwards[::-1]
        assert len(set(forwards)) == 3

    def test_memory_that_does_not_suffice_is_a_verdict(self) -> None:
        predictor = LongPredictor({}, None)
        small = predictor.predict(row(metric="fits_in_memory"))
        large = predictor.predict(row(metric="fits_in_memory", context_tokens="1048576"))
        assert (small.value, small.fits, large.value, large.fits) == (1.0, True, 0.0, False)

    def test_a_layout_that_cannot_be_does_not_fit(self) -> None:
        found = LongPredictor({}, None).predict(row(metric="fits_in_memory", gpus="64", cp="64", dp="1"))
        assert (found.value, found.reason) == (0.0, "")  # 64 ranks, 32 heads

    def test_a_speed_up_is_a_ratio_of_steps(self) -> None:
        predictor = LongPredictor({}, None)
        ratio = predictor.predict(row(metric="speedup_x", strategy="burst / ds-ulysses")).value
        one, other = (predictor.predict(row(strategy=name)).step_s for name in ("burst", "ds-ulysses"))
        assert one
        assert other
        assert ratio == pytest.approx(other / one)

    def test_lengths_of_megatron_cores_benchmark_are_those_that_its_code_draws(self) -> None:
        """numpy's seed 0 starts with 1.7641, 0.4002 and 0.9787: e^(ln 1024 - 1.5^2 / 2 + 1.5 x) tokens."""
        (source,) = (one for one in sources() if one.name == "megatron-dynamic-cp")
        (given,) = source.scenario["data"]["datasets"].values()
        drawn = _drawn(given, gpus=4)
        assert drawn["lengths"][:3] == [4687, 605, 1443]
        assert len(drawn["lengths"]) == 30 * 8
        assert drawn["batch"] == "8 sequences"
        assert min(drawn["lengths"]) == 128
        assert max(drawn["lengths"]) == 8192

    def test_a_trimmed_mean_leaves_out_a_tenth_at_either_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = iter([5.0, 1.0, *[2.0] * 16, 100.0, 3.0])
        monkeypatch.setattr(
            prediction,
            "simulate_step",
            lambda setup, lengths: Played(next(steps), simulate_step(setup, lengths).memory),
        )
        columns = {
            "source": "examples/dynamic_context_parallel", "model": "GPT mock 2L h2048", "gpu": "not stated",
            "gpus": "4", "cp": "4", "strategy": "dp_balanced", "dataset": "lognormal(1024,1.5)",
            "context_tokens": "8192",
        }  # fmt: skip
        predictor = LongPredictor({}, None)
        trimmed, mean = (
            predictor.predict(row(**columns, metric=f"ms_per_iteration_{kind}")).value
            for kind in ("trimmed_mean", "mean")
        )
        assert trimmed == pytest.approx((15 * 2 + 3) / 16 * 1000)  # 1, a 2, 5 and 100 are left out
        assert mean == pytest.approx((5 + 1 + 32 + 100 + 3) / 20 * 1000)

    def test_lengths_that_are_not_shipped_are_asked_for(self, tmp_path: Path) -> None:
        flexsp = row(
            source="FlexSP arXiv 2412.01523 Fig 4", model="GPT-7B (2L h4096 64heads ffn4h)", gpu="A100-40G", gpus="64",
            cp="32", dp="2", strategy="DeepSpeed", dataset="Wikipedia", metric="seconds_per_iteration",
        )  # fmt: skip
        assert "--lengths Wikipedia=TRACE" in LongPredictor({}, None).predict(flexsp).reason
        lengths = tmp_path / "lengths.csv"
        lengths.write_text("length\n" + "1000\n" * 512)
        assert LongPredictor({"Wikipedia": str(lengths)}, None).predict(flexsp).value

    def test_the_first_lengths_that_a_context_holds_are_filled_up(self, tmp_path: Path) -> None:
        lengths = tmp_path / "lengths.csv"
        lengths.write_text("length\n1\n128\n900\n129\n500\n7\n")
        assert _first_lengths(str(lengths), 3, 128, 512) == [
            128,
            128,
            256,
        ]  # 900 is dropped, 500 and 7 are beyond

    def test_attention_alone(self) -> None:
        """One GPU's worth of the rate: half the pairs of 4 h d s^2."""
        magi = row(
            source="SandAI-org/MagiAttention", model="attention module 64q/8kv heads d128", gpu="H100-SXM-80G", cp="8",
            strategy="ulysses", dataset="causal_mask", metric="attention_fwd_tflops_per_gpu",
        )  # fmt: skip
        predictor = LongPredictor({}, None)
        assert predictor.predict(magi).value == pytest.approx(601, rel=0.15)  # published
        full = LongRow(where="", columns={**magi.columns, "dataset": "full_mask"})
        assert "without a mask" in predictor.predict(full).reason


class TestTable:
    def test_errors_verdicts_and_ratios(self, tmp_path: Path) -> None:
        path = written(
            tmp_path,
            {"measured": "1300"},
            {"strategy": "burst", "measured": "1400"},
            {"metric": "fits_in_memory", "measured": "0", "context_tokens": "1048576"},
            {"source": "another paper"},
        )
        payload: Any = run(str(path)).payload
        first, second, third, fourth = payload["records"]
        assert first["error"] == pytest.approx(first["predicted"] / 1300 - 1)
        assert (third["ran"], third["predicted_fits"], third["error"]) == (False, False, None)
        assert "none of those" in fourth["reason"]
        ratios = payload["summary"]["ratios"]
        wanted = first["predicted"] / second["predicted"] / (1300 / 1400) - 1
        assert ratios["pairs"] == 1
        assert ratios["median_abs_error"] == pytest.approx(abs(wanted))
        assert payload["summary"]["memory"]["oom_predicted_too_large"] == 1

    def test_from_the_shell(self, tmp_path: Path) -> None:
        path = str(written(tmp_path, {}))
        result = CliRunner().invoke(cli, ["validate", "--longctx", path, "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["summary"]["count"] == 1

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["--lengths", "a=b"], 2, "--lengths goes with --longctx"),
            (["--longctx", "TABLE", "--lengths", "a"], 2, "expected DATASET=TRACE, got 'a'"),
            (["--longctx", "TABLE", "--memory"], 2, "--longctx goes with"),
            (["--longctx", "UNKNOWN"], 3, "none of 1 rows can be predicted"),
            (
                ["--longctx", "NEGATIVE"],
                2,
                "row 2: cp: must be a whole number from 1 to 10,000,000 ranks, got -4",
            ),
        ],
    )
    def test_bad_input(self, tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
        known, folder = written(tmp_path, {}), tmp_path / "unknown"
        folder.mkdir()
        (tmp_path / "negative").mkdir()
        files = {
            "TABLE": str(known),
            "UNKNOWN": str(written(folder, {"source": "another"})),
            "NEGATIVE": str(written(tmp_path / "negative", {"cp": "-4"})),
        }
        result = CliRunner().invoke(cli, ["validate", *(files.get(one, one) for one in arguments)])
        assert (result.exit_code, words in result.output) == (code, True), result.output

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ({"gpus": "nan"}, "gpus: must be a whole number from 1 to 10,000,000 GPUs, got 'nan'"),
            ({"tp": "0"}, "tp: must be a whole number from 1 to 65,536 GPUs, got 0"),
            ({"dp": "1.5"}, "dp: must be a whole number from 1 to 10,000,000 ranks, got '1.5'"),
            (
                {"context_tokens": "1e300"},
                "context_tokens: must be a whole number from 1 to 2,147,483,648 tokens, got 1",
            ),
            ({"measured": "-3"}, "measured: tokens_per_s_per_gpu must be a number from 1e-06 to 1e+15"),
            ({"measured": "inf"}, "measured: tokens_per_s_per_gpu must be a number from"),
            (
                {"metric": "ms_per_iteration", "measured": "0"},
                "measured: ms_per_iteration must be a number from 0",
            ),
            (
                {"metric": "fits_in_memory", "measured": "0.5"},
                "measured: fits_in_memory must be 1 (it ran) or 0",
            ),
            (
                {"metric": "constant_ms", "measured": "nan"},
                "measured: constant_ms must be a number, got 'nan'",
            ),
        ],
    )
    def test_numbers_that_cannot_be_meant(self, tmp_path: Path, columns: dict[str, str], words: str) -> None:
        path = written(tmp_path, {}, columns)
        with pytest.raises(UserInputError, match=re.escape(f"{path}, row 3: {words}")):
            read_long_rows(path)

    @pytest.mark.parametrize(
        "columns",
        [
            {"gpus": "64-512"},
            {"tp": "", "cp": ""},
            {"measured": ""},
            {"metric": "linear_ms", "measured": "0"},
        ],
    )
    def test_what_a_source_says_in_words_or_not_at_all_is_no_mistake(
        self, tmp_path: Path, columns: dict[str, str]
    ) -> None:
        assert len(read_long_rows(written(tmp_path, {}, columns))) == 2

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        column=st.sampled_from(["gpus", "tp", "pp", "cp", "dp", "context_tokens", "measured"]),
        number=st.one_of(
            st.floats(),
            st.integers(),
            st.sampled_from(["", "NaN", "-inf", "1e400", "0x10", "1_0", "٣", "-0"]),
        ),
    )
    def test_a_cell_is_refused_by_its_name_or_the_row_has_a_prediction_or_a_reason(
        self, tmp_path: Path, column: str, number: object
    ) -> None:
        path = written(tmp_path, {"source": "another", column: str(number)})
        refused = ""
        try:
            (found,) = read_long_rows(path)
        except UserInputError as error:
            refused = str(error)
        if refused:
            assert refused.startswith(f"{path}, row 2: {column}: ")
            assert len(refused) < 400 + len(str(path))
            return
        if isinstance(number, int) and column != "measured":
            assert found.whole_number(column) == number
        assert LongPredictor({}, None).predict(found).reason

    def test_a_table_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "runs.csv").write_text("id,step_s\na,1\n")
        with pytest.raises(UserInputError, match="missing columns source, model"):
            read_long_rows(tmp_path / "runs.csv")


def test_rotary_tables_take_memory_from_every_gpu() -> None:
    """LoongTrain's layers have tables of their own; BurstEngine's share two of twice the width, all else is alike."""
    predictor = LongPredictor({}, None)
    long = {"context_tokens": "524288", "cp": "8", "dp": "1"}
    own, shared = (
        predictor.predict(row(strategy=name, **long)).peak_mem_gb for name in ("loong-train-cp", "burst")
    )
    assert own is not None
    assert shared is not None
    assert own - shared == pytest.approx((32 - 2) * 524288 * 256 / 1e9)
