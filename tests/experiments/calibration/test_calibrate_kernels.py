"""hdpsim calibrate --kernels: kernels decide rates, runs start from what kernels say; files read as well as before."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hdpsim
from hdpsim.cost_models.calibration.calibration import Calibration, calibration, load_calibration
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.calibration.constants import RUN_CONSTANTS, Constant, Prior, prior_of
from hdpsim.experiments.calibration.file import head_of, with_entries, write_calibration
from hdpsim.experiments.calibration.fit import determined, fit, refit
from hdpsim.experiments.calibration.model import Linearised, Model, Sample, linearised, weights_of
from hdpsim.experiments.calibration.run import calibrate
from hdpsim.experiments.calibration.samples import kernel_samples
from hdpsim.experiments.calibration.stage import entries_of, run_stage
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.validation.kernel_prediction import predicted_s

SHIPPED = Path(__file__).parents[3] / "cost_models" / "data" / "calibration"
TRUE = 0.62
SHAPES = [(m, n, k) for m in (4096, 8192, 16384) for n in (4096, 12288) for k in (4096, 8192)]


def rows() -> list[dict[str, str]]:
    """Products that last: of two sites, and rows that do not count."""
    made = [
        {"id": f"{site}-{m}-{n}-{k}", "kind": "gemm", "gpu": "H100-SXM-80G", "dtype": "bf16", "m": str(m), "n": str(n),
         "k": str(k), "source": f"{site}/bench:table", "time_us": "", "notes": ""}
        for site in ("here", "there") for m, n, k in SHAPES
    ]  # fmt: skip
    short = {**made[0], "id": "short", "m": "16", "n": "16"}
    return [*made, short, {**made[0], "id": "best", "notes": "BEST of a search"}, {**made[0], "gpu": "TPUv4"}]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "kernels.csv"
    world = replace(calibration("hopper"), gemm_efficiency=TRUE)
    made = rows()
    for number, row in enumerate(made):
        if row["gpu"] != "TPUv4":
            row["time_us"] = str(1e6 * predicted_s(row, world) * (1.01 if number % 2 else 0.99))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    return path


def test_the_rate_that_made_the_kernels_is_found(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    arguments = ["calibrate", "--gpu", "h100", "-o", str(out), "--kernels", str(table), "--no-runs", "--json"]
    result = CliRunner().invoke(cli, [*arguments, "--constants", "gemm_efficiency", "--workers", "1"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    found = hdpsim.calibrate(
        gpu="h100", output=out, kernels=[table], runs=False, constants=["gemm_efficiency"], workers=1
    )
    assert found.to_dict() == document
    assert document["fitted_on"] == "kernels"
    assert document["records"] == 2 * len(SHAPES)
    assert document["sources"] == {"bench": 24}
    (row,) = document["constants"]
    assert row["value"] == pytest.approx(TRUE, abs=row["half_width"] + 1e-3)
    assert row["half_width"] < 0.05
    entry = dict(load_calibration(out).entries)["gemm_efficiency"]
    assert entry.value == entry.prior == pytest.approx(TRUE, rel=0.02)
    assert entry.doubt is not None
    assert entry.doubt >= next(c.doubt for c in RUN_CONSTANTS if c.name == "gemm_efficiency")
    assert entry.kernels.endswith("by 24 kernels (bench)")
    assert entry.fitted_on == ""


def test_rows_that_do_not_count_say_why(table: Path) -> None:
    samples, left_out = kernel_samples([str(table)], "hopper")
    assert len(samples) == 2 * len(SHAPES)
    assert left_out["the best of a search, not one shape"] == 1
    assert sum(count for reason, count in left_out.items() if reason.startswith("shorter than 100 us")) == 1
    assert len(left_out) == 3


def test_unusable_tables_and_nothing_to_fit_on(tmp_path: Path, table: Path) -> None:
    with pytest.raises(UserInputError, match="no such file"):
        kernel_samples([str(tmp_path / "none.csv")], "hopper")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserInputError, match="missing columns kind, gpu"):
        kernel_samples([str(tmp_path / "other.csv")], "hopper")
    out = str(tmp_path / "x.yaml")
    with pytest.raises(UserInputError, match="leaves nothing to fit on"):
        calibrate(None, "h100", out, runs=False)
    with pytest.raises(InfeasibleError, match="0 kernels of b200's generation"):
        calibrate(None, "b200", out, kernels=[str(table)], runs=False)
    with pytest.raises(InfeasibleError, match="gemm_half_k: is decided by the other kind"):
        calibrate(None, "h100", out, constants=["gemm_half_k"])
    with pytest.raises(UserInputError, match="is of generation ampere"):
        (tmp_path / "old.yaml").write_text(
            (SHIPPED / "ampere.yaml").read_text().replace("name: ampere", "name: old\ngeneration: ampere")
        )
        calibrate(None, "h100", out, kernels=[str(table)], runs=False, start=str(tmp_path / "old.yaml"))


@pytest.mark.parametrize("name", ["ampere", "hopper", "blackwell"])
def test_a_shipped_file_is_written_as_it_is(name: str, tmp_path: Path) -> None:
    shipped = SHIPPED / f"{name}.yaml"
    write_calibration(str(tmp_path / f"{name}.yaml"), calibration(name), name, head_of(shipped))
    assert (tmp_path / f"{name}.yaml").read_text() == shipped.read_text()
    write_calibration(str(tmp_path / "mine.yaml"), calibration(name), name, "")
    mine = load_calibration(tmp_path / "mine.yaml")
    assert mine.generation == name
    assert replace(mine, name=name) == calibration(name)


X = Constant(name="gemm_efficiency", low=0.0, high=2.0, doubt=0.1, decided_by="x")
Y = Constant(name="launch_s", low=0.0, high=2.0, doubt=0.5, decided_by="y")


def straight(work, base, values):  # type: ignore[no-untyped-def]
    """A world whose log times are linear in x and y."""
    return [float(np.exp(a * values.get(X, 1.0) + b * values.get(Y, 1.0))) for a, b in work]


def model_of(slopes: list[tuple[float, float]], x: float, y: float, sources: int = 4) -> Model:
    samples = [
        Sample(
            name=str(n), source=f"s{n % sources}", group=f"s{n % sources}", work=(a, b),
            measured_s=float(np.exp(a * x + b * y + 0.02 * (-1) ** (n // sources))),
        )
        for n, (a, b) in enumerate(slopes)
    ]  # fmt: skip
    return Model(samples, calibration("hopper"), straight)


def test_large_groups_weigh_little_more_than_small_ones() -> None:
    samples = [Sample(name="", source="a", group="a", work=None, measured_s=1.0) for _ in range(100)]
    samples.append(replace(samples[0], group="b"))
    weights = weights_of(samples)
    assert weights[-1] == 1.0
    assert weights[:100].sum() == pytest.approx(100 / (1 + 99 * 0.4))


def test_the_prior_holds_what_measurements_say_little_of() -> None:
    """Halfway between both where they are equally sure: conjugate normal distributions."""
    model = model_of([(1.0, 0.0)] * 8, x=1.2, y=1.0)
    prior = Prior(centre=np.array([1.0]), doubt=np.array([0.02]))
    line = linearised(model, [X], prior.centre)
    found = fit(model, [X], prior, line)
    information = float(found.weights.sum()) / found.scale.noise**2
    expected = (1.2 * information + 1.0 / 0.02**2) / (information + 1.0 / 0.02**2)
    assert found.values[0] == pytest.approx(expected, abs=0.01)
    assert 1.05 < found.values[0] < 1.19
    kept = np.arange(8) >= 4
    assert refit(found, kept)[0] < found.values[0] + 1e-6  # fewer measurements move it less


def test_only_what_measurements_tell_is_determined() -> None:
    model = model_of([(1.0, 0.0)] * 12, x=1.1, y=1.0)
    prior = Prior(centre=np.array([1.0, 1.0]), doubt=np.array([X.doubt, Y.doubt]))
    kept, dropped = determined(model, [X, Y], prior, linearised(model, [X, Y], prior.centre))
    assert kept == (0,)
    assert dropped == {1: np.inf}
    blurred = Linearised(
        values=prior.centre, residuals=np.zeros(12), jacobian=np.array([[1.0, 1.0 + 1e-9]] * 12)
    )
    free = Prior(centre=prior.centre, doubt=np.array([np.inf, np.inf]))
    kept, dropped = determined(model, [X, Y], free, blurred)
    assert len(kept) == 1  # only their sum is seen
    assert len(dropped) == 1


def test_priors_come_from_the_file_that_was_fitted() -> None:
    base = calibration("hopper")
    entry = dict(base.entries)["launch_s"]
    constants = [constant for constant in RUN_CONSTANTS if constant.name == "launch_s"]
    moved = with_entries(base, {"launch_s": replace(entry, value=5e-5, prior=3e-5, doubt=1e-6)})
    assert moved.launch_s == 5e-5
    assert prior_of(moved, constants).centre[0] == 3e-5
    assert prior_of(moved, constants).doubt[0] == 1e-6
    plain = with_entries(base, {"launch_s": replace(entry, value=5e-5, prior=None, doubt=None)})
    assert prior_of(plain, constants).centre[0] == 5e-5
    assert prior_of(plain, constants).doubt[0] == constants[0].doubt


@pytest.mark.parametrize(("here", "there", "taken"), [(1.2, 1.2, True), (1.2, 0.8, False)])
def test_a_fit_is_taken_where_it_helps_a_source_it_has_not_seen(
    here: float, there: float, taken: bool
) -> None:
    launch = next(constant for constant in RUN_CONSTANTS if constant.name == "launch_s")
    base = calibration("hopper")

    def predict(
        work: Sequence[float], base: Calibration, values: Mapping[Constant, float]
    ) -> list[float]:  # proportional to the constant
        return [values.get(launch, base.launch_s) / base.launch_s for _ in work]

    samples = [
        Sample(name="", source=source, group=source, work=None, measured_s=seconds * (1 + 0.001 * (n % 3)))
        for source, seconds in (("a", here), ("b", there)) for n in range(20)
    ]  # fmt: skip
    stage = run_stage("runs", (samples, {}), base, [launch], predict, None, chunk=8, report=lambda done: None)
    assert stage.found is not None
    assert stage.taken is taken
    written = entries_of(stage, "")
    assert (written.launch_s > base.launch_s) is taken
    assert ("stays" in dict(written.entries)["launch_s"].runs) is not taken
