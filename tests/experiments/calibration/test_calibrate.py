"""hdpsim calibrate: constants that made the data are found again, what data do not tell is refused or kept."""

from __future__ import annotations

import csv
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hdpsim.cost_models.calibration.calibration import calibration, load_calibration
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.calibration.constants import KERNEL_CONSTANTS, RUN_CONSTANTS, apply, value_of
from hdpsim.experiments.calibration.file import check_calibration_file, write_calibration
from hdpsim.experiments.calibration.run import calibrate
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.records.columns import read_records
from hdpsim.experiments.records.prediction import predict_step
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.scenario.scenario import load_scenario

SHAPE = {
    "gpu": "H100-SXM-80G", "gpus_per_node": "8", "model_name": "small", "hidden": "4096", "heads": "32",
    "ffn_hidden": "14336", "kv_heads": "8", "vocab": "32000", "gated_mlp": "1", "head_dim": "128", "tp": "1", "pp": "1",
    "vpp": "1", "cp": "1", "sp": "0", "zero_stage": "zero1", "recompute": "none", "precision": "bf16", "year": "2025",
    "attention": "FlashAttention-3", "task": "pretrain",
}  # fmt: skip
TRUE = {"gemm_efficiency": 0.74, "step_fixed_s": 0.03}


def rows() -> list[dict[str, str]]:
    """Runs that differ in what decides rates and fixed time: layers, length, micro-batches, batch."""
    return [
        {
            **SHAPE, "id": f"{source}-{layers}-{seq_len}-{micro}-{count}", "family": source, "n_gpus": "8", "dp": "8",
            "layers": str(layers), "seq_len": str(seq_len), "micro_batch": str(micro),
            "global_batch_seqs": str(8 * micro * count),
        }
        for source, layers in (("one", 8), ("two", 16))
        for seq_len in (2048, 8192)
        for micro in (1, 2)
        for count in (1, 64)
    ]  # fmt: skip


def write(path: Path, records: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs with step times of a world that has other constants, off by a few percent."""
    folder = tmp_path_factory.mktemp("calibrate")
    world = replace(calibration("hopper"), **TRUE)  # type: ignore[arg-type]
    table = rows()
    for number, (row, record) in enumerate(
        zip(table, read_records(write(folder / "runs.csv", table)), strict=True)
    ):
        step_s, _ = predict_step(prepare(record.config), world)
        row["measured_step_s"] = str(step_s * (1.01 if number % 2 else 0.99))
    return write(folder / "measured.csv", table)


@pytest.fixture(scope="module")
def fitted(measured: Path) -> tuple[dict[str, object], Path]:
    out = measured.parent / "mine.yaml"
    document = calibrate(str(measured), "h100", str(out), constants=list(TRUE)).data()
    return dict(document), out


def test_the_constants_that_made_the_data_are_found(fitted: tuple[dict[str, object], Path]) -> None:
    document, out = fitted
    found = {row["name"]: row for row in document["constants"]}  # type: ignore[attr-defined]
    assert set(found) == set(TRUE)
    for name, value in TRUE.items():
        assert abs(found[name]["value"] - value) <= found[name]["half_width"] + 0.01, name
    gemm = found["gemm_efficiency"]
    assert (
        TRUE["gemm_efficiency"] < gemm["value"] < gemm["prior"]
    )  # 16 runs of a power-limited GPU and kernels agree on
    assert document["error_fitted"]["median_abs_error"] < 0.02  # type: ignore[index]
    assert document["error_at_start"]["median_abs_error"] > 0.02  # type: ignore[index]
    assert document["cross_validation"] == "leave one source out"
    assert document["error_cross_validated"]["median_abs_error"] < 0.05  # type: ignore[index]
    json.dumps(document, allow_nan=False)
    mine = load_calibration(out)
    assert mine.gemm_efficiency == pytest.approx(found["gemm_efficiency"]["value"], rel=1e-3)
    assert mine.generation == "hopper"
    assert mine.hbm_efficiency == calibration("hopper").hbm_efficiency
    entry = dict(mine.entries)["gemm_efficiency"]
    assert "(95 %) by 16 runs (one, two) of measured.csv" in entry.runs
    assert entry.prior == pytest.approx(document["constants"][0]["prior"])  # type: ignore[index]
    assert entry.source == dict(calibration("hopper").entries)["gemm_efficiency"].source


def test_scenarios_and_validate_take_the_file(fitted: tuple[dict[str, object], Path], measured: Path) -> None:
    document, out = fitted
    assert load_scenario("quickstart-8gpu", (f"calibration={out}",)).calibration.name == "mine"
    runner = CliRunner()
    before, after = (
        json.loads(runner.invoke(cli, ["validate", str(measured), "--json", *extra]).stdout)["summary"]
        for extra in ((), ("--calibration", str(out)))
    )
    assert after["median_abs_error"] < before["median_abs_error"]
    assert after["median_abs_error"] == pytest.approx(document["error_fitted"]["median_abs_error"], abs=2e-3)  # type: ignore[index]


def test_too_few_records_are_refused(tmp_path: Path, measured: Path) -> None:
    with measured.open(newline="") as file:
        few = list(csv.DictReader(file))[:4]
    result = CliRunner().invoke(
        cli,
        ["calibrate", str(write(tmp_path / "few.csv", few)), "--gpu", "h100", "-o", str(tmp_path / "x.yaml")],
    )
    assert result.exit_code == 3
    assert "4 records" in result.output
    assert "at least 6" in result.output
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.yaml", "is there and is no calibration; give another name"),
        ("runs.csv", "expected a file ending in .yaml or .yml"),
    ],
)
def test_only_a_calibration_is_replaced(name: str, said: str, measured: Path, tmp_path: Path) -> None:
    mine = tmp_path / name
    mine.write_bytes(measured.read_bytes())
    result = CliRunner().invoke(cli, ["calibrate", str(measured), "--gpu", "h100", "-o", str(mine)])
    assert result.exit_code == 2
    assert said in result.output
    assert mine.read_bytes() == measured.read_bytes()
    check_calibration_file(str(tmp_path / "new.yaml"))
    (tmp_path / "new.yaml").touch()
    check_calibration_file(str(tmp_path / "new.yaml"))


def test_a_calibration_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine.yaml"
    write_calibration(str(out), calibration("hopper"), "hopper", "# head")
    before = out.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserInputError, match="cannot write the calibration: No space left"):
        write_calibration(str(out), calibration("ampere"), "ampere", "")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
    assert out.read_bytes() == before


def test_what_records_do_not_tell_is_refused_by_name(measured: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InfeasibleError, match=r"grouped_gemm_efficiency: no record depends on it; would be decided by"
    ):
        calibrate(str(measured), "h100", str(tmp_path / "x.yaml"), constants=["grouped_gemm_efficiency"])
    with pytest.raises(InfeasibleError, match="0 records of a100-80gb's generation"):
        calibrate(str(measured), "a100-80gb", str(tmp_path / "x.yaml"))
    with pytest.raises(UserInputError, match="did you mean 'gemm_efficiency'"):
        calibrate(str(measured), "h100", str(tmp_path / "x.yaml"), constants=["gemm_eficiency"])


def test_constants_are_those_of_a_calibration_within_their_bounds() -> None:
    for name in ("ampere", "hopper", "blackwell", "bytescale-h20"):
        cal = calibration(name)
        for constant in (*KERNEL_CONSTANTS, *RUN_CONSTANTS):
            assert constant.low <= value_of(cal, constant.name) <= constant.high, (name, constant.name)


def test_tied_constants_keep_their_ratio() -> None:
    base = calibration("hopper")
    attention = next(c for c in RUN_CONSTANTS if c.name == "attention_forward_efficiency")
    changed = apply(base, base, {attention: base.attention_forward_efficiency * 0.9})
    assert changed.attention_backward_efficiency == pytest.approx(base.attention_backward_efficiency * 0.9)
    network = next(c for c in RUN_CONSTANTS if c.name == "network.nic_efficiency")
    assert apply(base, base, {network: 0.5}).network.nic_efficiency == 0.5
