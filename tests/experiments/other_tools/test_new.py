"""Five answers make a scenario that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import hdpsim
from hdpsim.experiments.bands.memory_fit import shipped_margin
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import load_scenario

GIVEN = {
    "--model": "llama-3-8b",
    "--gpu": "h100",
    "--gpus": "64",
    "--lengths": "debian-code",
    "--context": "32K",
}
GIVEN |= {"--batch": "2M", "--framework": "megatron-core 0.14"}


def new(*more: str, typed: str = "", **changed: str | None) -> Result:
    given = {**GIVEN, **{f"--{name}": value for name, value in changed.items()}}
    options = [part for name, value in given.items() if value is not None for part in (name, value)]
    return CliRunner().invoke(cli, ["new", *options, *more], input=typed)


def test_options_make_a_scenario_that_runs(tmp_path: Path) -> None:
    out = tmp_path / "first.yaml"
    result = new("-o", str(out))
    assert result.exit_code == 0, result.output
    scenario = load_scenario(out)
    assert scenario.name == "first"
    assert scenario.cluster.gpus == 64
    assert scenario.strategy.name == "hdp-opt"
    assert scenario.document["software"] == "megatron-core 0.14"
    assert "# hdpsim catalog models" in out.read_text()
    memory = hdpsim.simulate(out, batches=1).to_dict()["results"]["memory"]
    assert memory["total_bytes"] * (1.0 + shipped_margin().headroom) <= memory["capacity_bytes"]


def test_questions_are_asked_again_until_they_are_answered(tmp_path: Path) -> None:
    typed = [
        "lama-3-8b", "llama-3-8b",  # did you mean
        "h100", "h100 12", "h100 16",  # how many; whole nodes
        "nothing.csv", "4K",
        "8K", "4K many", "8K 512 sequences",
        "megatron 1", "torchtitan 2.8",
    ]  # fmt: skip
    out = tmp_path / "x.yaml"
    result = CliRunner().invoke(cli, ["new", "-o", str(out)], input="\n".join(typed) + "\n")
    assert result.exit_code == 0, result.output
    for words in (
        "did you mean 'llama-3-8b'",
        "such as h100 64",
        "nearest: 8 or 16",
        "is no file, no shipped trace",
    ):
        assert words in result.stderr
    scenario = load_scenario(out)
    assert scenario.data.lengths_tokens == (4096,)
    assert scenario.strategy.name == "static"
    assert scenario.layout.sharding.kind == "zero3"  # torchtitan's way


def test_what_options_leave_open_is_asked() -> None:
    result = new(gpus=None, typed="16\n")
    assert result.exit_code == 0, result.output
    assert "--gpu h100; --gpus is open" in result.stderr
    assert "gpus: 16" in result.stdout


def test_a_cluster_has_its_own_size() -> None:
    result = new(gpu="superpod-h100", gpus=None)
    assert result.exit_code == 0, result.output
    assert "cluster: superpod-h100" in result.stdout


def test_the_end_of_the_input_is_one_message() -> None:
    result = CliRunner().invoke(cli, ["new"], input="")
    assert result.exit_code == 2
    assert "Error: the input ended before question 1/5 was answered: --model" in result.stderr


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "lama-3-8b"}, "did you mean"),
        ({"gpu": "h1000"}, "is no shipped cluster, node or GPU"),
        ({"gpus": "many"}, "expected how many"),
        ({"gpus": "12"}, "nearest: 8 or 16"),
        ({"lengths": "debian-cod"}, "did you mean 'debian-code'"),
        ({"context": "lots"}, "context"),
        ({"batch": "some"}, "batch"),
        ({"framework": "megatron"}, "unknown software"),
        ({"framework": "nemo 1999"}, "had no release by 1999; known are 23.08 (2023)"),
    ],
)
def test_wrong_options_are_errors(changed: dict[str, str], words: str) -> None:
    result = new(**changed)
    assert result.exit_code == 2, result.output
    assert words in result.stderr


def test_where_nothing_fits_it_says_why() -> None:
    result = new(model="llama-3-405b", gpus="8")
    assert result.exit_code == 3
    assert "layouts fits; the last one: llama-3-405b with" in result.stderr
    assert "Take more GPUs" in result.stderr


def test_experts_are_spread() -> None:
    result = new(model="qwen3-30b-a3b", gpus="32", lengths="4K", context="4K", batch="64 sequences")
    assert result.exit_code == 0, result.output
    assert "  ep: " in result.stdout


def test_it_says_how_sure_it_is_that_the_layout_fits(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    options = "--model llama-3-8b --gpu h100 --gpus 8 --lengths 4K --context 4K --batch 1M --framework none"
    done = CliRunner().invoke(cli, ["new", "-o", str(out), *options.split()])
    assert done.exit_code == 0, done.output
    memory = hdpsim.simulate(out, batches=1).to_dict()["results"]["memory"]
    gib = 2.0**30
    used = f"memory: {memory['total_bytes'] / gib:.1f} of {memory['capacity_bytes'] / gib:.1f} GiB"
    assert f"{used}; it fits with {100 * memory['fits_probability']:.0f} % probability" in done.output
