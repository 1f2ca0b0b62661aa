"""`hdpsim plan` as a command: what it writes, and what it answers where nothing runs or the input is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import load_scenario

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once", "one_process")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.slow
def test_nothing_that_runs_says_which_limit_and_what_to_change() -> None:
    result = run("plan", "llama-3-70b-h100", "--gpus", "8", "--set", "model=llama-3-405b", "--batches", "1")
    assert result.exit_code == 3
    assert "refused by GPU memory" in result.stderr
    assert "closest" in result.stderr
    assert "--gpus" in result.stderr


@pytest.mark.slow
def test_command_writes_tables_plots_and_the_winner(tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "best.yaml"
    searched = (
        "--search",
        "layout.pp=1",
        "--search",
        "layout.recompute=none,full",
        "--search",
        "layout.tp=2,4",
    )
    toml = tmp_path / "run.toml"
    result = run("plan", "quickstart-8gpu", "--batches", "1", *searched, "--search", "strategy.name=hdp-opt",
                 "--workers", "1", "--out", str(out), "-o", str(file), "--torchtitan", str(toml),
                 "--megatron", "-")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert {"plan.yaml", "candidates.csv", "pareto.csv", "pareto.png"} <= {
        path.name for path in out.iterdir()
    }
    assert yaml.safe_load(file.read_text()) == yaml.safe_load((out / "plan.yaml").read_text())
    assert load_scenario(file).layout.recompute.kind == "none"
    for target, text in (("torchtitan", toml.read_text()), ("megatron-core", result.stdout)):
        assert run("export", str(file), "--to", target).stdout.split("\n", 1)[1].strip() in text
    assert "times as fast" in result.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--search", "layout.tpp=1"),
        ("--search", "layout.tp=many"),
        ("--gpu", "h900"),
        ("--objective", "time_to_train"),
        ("--objective", "usd_per_token", "--gpu", "a800"),
        ("--budget", "soon"),
        ("--gpus", "none"),
        ("-o", "plan.txt"),
        ("--headroom", "much"),
        ("--engine", "somewhere"),
        ("--bridge", "no/such/folder/recipe.yaml"),
        ("--megatron", "-", "--json"),
    ],
)
def test_wrong_input_is_one_message(options: tuple[str, ...]) -> None:
    result = run("plan", "quickstart-8gpu", "--batches", "1", *options)
    assert result.exit_code == 2
    assert result.stderr.count("Error") == 1
