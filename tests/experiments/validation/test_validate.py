"""hdpsim validate: errors, groups, memory verdicts, files, and that no measurement reaches a prediction."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.records.columns import (
    MEASURED_COLUMNS,
    misspelt_columns,
    read_records,
    shipped_records,
)
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.validation.report import markdown
from hdpsim.experiments.validation.run import run

SOME = ("megatron-lm-0001", "bloom-0001", "dgxc-0003", "zero-bubble-0028", "zero-bubble-0004", "simumax-0001",
        "mlperf-0001", "alst-0006")  # fmt: skip


def rows() -> list[dict[str, str]]:
    with shipped_records().open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["id"] in SOME]


def write(path: Path, records: list[dict[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return str(path)


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("records") / "some.csv", rows())


def test_every_record_is_predicted_or_has_a_reason(some: str) -> None:
    document = run(some).data()
    assert len(document["records"]) == len(rows())
    for record in document["records"]:
        assert (record["predicted"] is None) == bool(record["reason"])
        if record["predicted"] is not None:
            expected = (record["predicted"] - record["measured"]) / record["measured"]
            assert record["error"] == pytest.approx(expected)
    summary = document["summary"]
    assert summary["count"] + summary["unpredicted"] + summary["unmeasured"] == len(rows())
    assert sum(summary["unpredicted_reasons"].values()) == summary["unpredicted"]
    json.dumps(document, allow_nan=False)


def test_input_columns_come_back(some: str) -> None:
    record = next(r for r in run(some).data()["records"] if r["id"] == "bloom-0001")
    assert record["n_gpus"] == 384
    assert record["vpp"] == 1
    assert record["quantity"] == "step_s"
    assert record["measured"] == record["measured_step_s"] == 143.31


def test_predictions_never_see_a_measurement(some: str, tmp_path: Path) -> None:
    scrambled = rows()
    for number, row in enumerate(scrambled):
        for column in MEASURED_COLUMNS:
            if row.get(column):
                row[column] = str(float(row[column]) * (3 + number))
    other = run(write(tmp_path / "scrambled.csv", scrambled)).data()["records"]
    for before, after in zip(run(some).data()["records"], other, strict=True):
        for name, value in before.items():
            if name.startswith("predicted") or name in ("account_s", "assumptions", "not_modelled", "reason"):
                assert after[name] == value


def test_a_missing_measurement_falls_back_to_the_next_quantity(tmp_path: Path) -> None:
    first, second, third = (dict(rows()[0]) for _ in range(3))
    second["measured_step_s"] = ""
    third["measured_step_s"] = third["measured_tokens_per_s_per_gpu"] = ""
    records = run(write(tmp_path / "r.csv", [first, second, third])).data()["records"]
    assert [r["quantity"] for r in records] == ["step_s", "tokens_per_s_per_gpu", "tflops_per_gpu"]
    # A step that is predicted too short is a throughput that is predicted too high.
    assert (records[0]["error"] > 0) != (records[1]["error"] > 0)


def test_a_record_without_measurement_is_predicted_all_the_same(tmp_path: Path) -> None:
    row = {name: "" if name in MEASURED_COLUMNS else value for name, value in rows()[0].items()}
    document = run(write(tmp_path / "r.csv", [row])).data()
    assert document["records"][0]["predicted"] > 0
    assert document["records"][0]["error"] is None
    assert document["summary"]["unmeasured"] == 1
    assert document["summary"]["median_abs_error"] is None


def test_out_of_memory_records_are_judged_by_verdict(tmp_path: Path) -> None:
    base = next(row for row in rows() if row["id"] == "simumax-0001")
    too_large = {**base, "layers": "80", "peak_mem_gb": "", "measured_step_s": "", "outcome": "OOM",
                 "measured_tokens_per_s_per_gpu": ""}  # fmt: skip
    validation = run(write(tmp_path / "oom.csv", [{**base, "outcome": ""}, too_large]), memory=True)
    found = validation.data()["summary"]["memory"]
    # Llama-3 70B on two stages without TP: 35e9 parameters x 6 bytes alone are 210 GB; twelve layers ran.
    assert (found["ran_predicted_to_fit"], found["oom_predicted_too_large"]) == (1, 1)
    assert (found["verdicts_right"], found["right_of_ran"], found["right_of_oom"]) == (1.0, 1.0, 1.0)
    assert "100.0 % of those that ran, 100.0 % of those that ran out of memory" in "\n".join(validation.notes)
    assert validation.data()["records"][0]["quantity"] == "peak_mem_gb"
    assert "Does it fit?" in [table.title for table in validation.blocks]
    parts = validation.data()["records"][0]["memory_parts_gb"]  # allocated: without context and NCCL
    assert sum(parts.values()) == pytest.approx(validation.data()["records"][0]["predicted"])


def test_order_of_layouts_is_ranked(tmp_path: Path) -> None:
    base = next(row for row in rows() if row["id"] == "simumax-0001")
    layouts = [{**base, "micro_batch": "1", "global_batch_seqs": str(4 * n)} for n in (1, 2, 3, 4, 5)]
    # Longer pipelines fill better: predicted throughput grows with the batch.
    for position, row in enumerate(layouts):
        row["measured_tokens_per_s_per_gpu"] = str(100 - position)
    found = run(write(tmp_path / "r.csv", layouts)).data()["summary"]["rank_correlation"]
    assert found["groups"] == 1
    assert found["median"] == pytest.approx(-1.0)


def test_doubtful_records_are_summed_up_and_ranked_apart(tmp_path: Path) -> None:
    base = next(row for row in rows() if row["id"] == "simumax-0001")
    layouts = [{**base, "micro_batch": "1", "global_batch_seqs": str(4 * n)} for n in (1, 2, 3, 4, 5)]
    right = [
        {**row, "measured_tokens_per_s_per_gpu": str(100 + n), "suspect": ""} for n, row in enumerate(layouts)
    ]
    wrong = [
        {**row, "measured_tokens_per_s_per_gpu": str(100 - n), "suspect": "slow_net"}
        for n, row in enumerate(layouts)
    ]
    validation = run(write(tmp_path / "r.csv", right + wrong))
    apart = validation.data()["summary"]["by_doubt"]
    assert list(apart) == ["sound", "slow_net"]
    assert [part["count"] for part in apart.values()] == [5, 5]
    assert [part["rank_correlation"]["median"] for part in apart.values()] == pytest.approx([1.0, -1.0])
    assert sum("records marked slow_net" in line for line in validation.notes) == 2


def test_the_command_writes_a_run_directory_and_json(some: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(cli, ["validate", some, "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["kind"] == "validate"
    assert {
        "result.json",
        "records.csv",
        "groups.csv",
        "README.md",
        "measured_against_predicted_step_s.svg",
    } <= {path.name for path in out.iterdir()}
    with (out / "records.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == [r["id"] for r in document["records"]]


def test_the_command_prints_tables(some: str) -> None:
    result = CliRunner().invoke(cli, ["validate", some])
    assert result.exit_code == 0, result.output
    assert "megatron-lm" in result.stdout
    assert "Errors by source and GPU" in result.stdout
    assert "all records: " in result.stdout


def test_few_records_are_shown_one_by_one(tmp_path: Path) -> None:
    one = {**rows()[0], "id": "mine", "measured_step_s": "1e-9"}
    path = write(tmp_path / "one.csv", [one])
    shown = CliRunner().invoke(cli, ["validate", path]).stdout
    assert "mine" in shown.partition("Errors by source")[0]
    assert "Not predicted" not in shown
    assert max(len(line) for line in shown.splitlines()) < 200  # an absurd error has no hundred digits
    assert "mine" in CliRunner().invoke(cli, ["validate", path, "--memory"]).stdout
    lost = (
        CliRunner().invoke(cli, ["validate", write(tmp_path / "lost.csv", [{**one, "gpu": "H900"}])]).stdout
    )
    assert "there is no gpu 'H900'" in lost.partition("Not predicted")[2]


def test_bad_records_end_in_one_message(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("gpu,n_gpus\nh100,8\n")
    result = CliRunner().invoke(cli, ["validate", str(path)])
    assert result.exit_code == 2
    assert "missing columns gpus_per_node" in result.output


@pytest.mark.parametrize(
    ("columns", "verb"),
    [
        ("model,dataset,gpus,context_tokens,strategy,measured_tokens_per_s", "reproduce bytescale --cells"),
        ("system,model,gpus,global_batch,metric,measured", "reproduce megascale --cells"),
        ("id,kind,gpu,dtype,m,n,k,time_us", "validate --kernels"),
    ],
)
def test_files_of_other_verbs_are_sent_there(tmp_path: Path, columns: str, verb: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(columns + "\n")
    with pytest.raises(UserInputError, match=verb):
        run(str(path))


def test_kernels_are_judged_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(
        "kind,gpu,dtype,m,n,k,time_us,tflops,busbw_gbs\n"
        "gemm,H100-SXM-80G,bf16,8192,8192,8192,1500,,\ngemm,TPU,bf16,8192,8192,8192,1500,,\n"
    )
    result = CliRunner().invoke(cli, ["validate", "--kernels", str(path), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["summary"]["count"], document["summary"]["unpredicted"]) == (1, 1)
    assert abs(document["records"][0]["error"]) < 0.2
    assert "gemm" in CliRunner().invoke(cli, ["validate", "--kernels", str(path)]).stdout
    (tmp_path / "none.csv").write_text("a,b\n1,2\n")
    assert CliRunner().invoke(cli, ["validate", "--kernels", str(tmp_path / "none.csv")]).exit_code == 2
    assert CliRunner().invoke(cli, ["validate", "--kernels", str(path), "--memory"]).exit_code == 2


def test_a_template_is_a_table_that_can_be_judged(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["validate", "--template"])
    assert printed.exit_code == 0
    path = tmp_path / "mine.csv"
    path.write_text(printed.stdout)
    done = CliRunner().invoke(cli, ["validate", str(path)])
    assert done.exit_code == 0, done.stderr
    assert "1 judged" in done.stdout
    mine, published = (prepare(read_records(of)[0].config).setup.model for of in (path, shipped_records()))
    assert (mine.gated_mlp, mine.kv_heads) == (published.gated_mlp, published.kv_heads)


@settings(derandomize=True, max_examples=12, deadline=None)
@given(
    st.sampled_from(("bloom-0001", "dgxc-0003", "megatron-lm-0001", "simumax-0001")),
    st.floats(-1.5, 1.5).filter(lambda log: abs(log) > 1e-6),
)
def test_a_measurement_above_the_peak_is_named_and_counts_nowhere(
    tmp_path_factory: pytest.TempPathFactory, name: str, log_faster: float
) -> None:
    """What a GPU cannot do is no record of accuracy, however it was measured; what it can do is never doubted."""
    row = next(row for row in rows() if row["id"] == name) | {"complete": "1", "suspect": "", "task": ""}
    steady = run(write(tmp_path_factory.mktemp("peak") / "one.csv", [row])).data()["records"][0]
    share = steady["measured_share_of_peak"]
    assert 0.0 < share < 1.0
    faster = math.exp(log_faster) / share  # around the peak
    for column in ("measured_step_s", "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu"):
        if row[column]:
            row[column] = str(float(row[column]) * (1 / faster if column == "measured_step_s" else faster))
    document = run(write(tmp_path_factory.mktemp("peak") / "one.csv", [row]))
    data = document.data()
    found = data["records"][0]
    assert found["measured_share_of_peak"] == pytest.approx(math.exp(log_faster))
    impossible = log_faster > 0.0
    assert found["counts"] == (not impossible)
    assert data["summary"]["complete_pretraining"]["count"] == (0 if impossible else 1)
    assert any("no run is that fast" in line for line in document.notes) == impossible


def test_no_published_run_is_above_the_peak(some: str) -> None:
    shares = [record["measured_share_of_peak"] for record in run(some).data()["records"]]
    assert all(share is None or share <= 1.0 for share in shares)


def test_a_reason_names_the_first_record_that_has_it(tmp_path: Path) -> None:
    broken = [row | {"dp": "7"} for row in rows() if row["id"] in ("bloom-0001", "dgxc-0003")]
    text = run(write(tmp_path / "two.csv", broken)).text()
    assert "dgxc-0003" in text.partition("Not predicted")[2]


def test_the_markdown_names_reasons_beside_how_many_runs_have_them(some: str) -> None:
    payload = dict(run(some).data())
    payload["summary"] = {**payload["summary"], "unpredicted_reasons": {"layers are not stated": 3}}
    assert "| 3 | layers are not stated |" in markdown(payload)


def test_a_misspelt_column_is_named(tmp_path: Path) -> None:
    row = rows()[0]
    row["recompte"] = row["remarks"] = ""
    del row["vpp"]
    names = [name for name in row if name != "recompute"]
    assert misspelt_columns(names) == ("column 'recompte' is not read (did you mean 'recompute'?)",)
    assert "those that do: measured_step_s, " in misspelt_columns(["gpu", "step_s"])[-1]
    row["vppp"] = ""
    document = run(write(tmp_path / "runs.csv", [row]))
    assert document.notes[0] == "column 'vppp' is not read (did you mean 'vpp'?)"
    assert document.data()["notes"] == list(document.notes)


def test_records_outside_their_bands_are_named_with_what_takes_one_apart(tmp_path: Path) -> None:
    fine = next(row for row in rows() if row["id"] == "megatron-lm-0001") | {"complete": "1"}
    slow = fine | {"id": "slow one", "measured_step_s": str(3 * float(fine["measured_step_s"]))}
    for column in ("measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu", "measured_mfu_pct"):
        slow[column] = ""
    path = write(tmp_path / "runs.csv", [fine, slow])
    *_, outside, asked = run(path).notes
    assert outside.startswith("outside their bands: slow one; ")
    assert asked == f"hdpsim validate {path} --scenario-of 'slow one' -o run.yaml && hdpsim explain run.yaml"
    assert not any("outside" in note for note in run(write(tmp_path / "fine.csv", [fine])).notes)


def test_records_none_of_which_is_predicted_end_with_their_reasons(tmp_path: Path) -> None:
    unknown = rows()[0] | {"model_name": "nobody knows", "layers": ""}
    result = CliRunner().invoke(cli, ["validate", write(tmp_path / "runs.csv", [unknown])])
    assert result.exit_code == InfeasibleError.exit_code
    assert "no record can be predicted" in result.stderr
    assert "layers is not stated" in result.stderr
