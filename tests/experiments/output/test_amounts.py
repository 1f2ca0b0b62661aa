"""Durations, tokens, money and memory as people read them."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.errors import UserInputError
from hdpsim.experiments.campaigns.run import reached_s, run_campaign
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.output import amounts, statistics
from hdpsim.experiments.output.amounts import duration, large_amount, parse_target
from hdpsim.experiments.output.statistics import estimate
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.money import time_at
from hdpsim.experiments.studies.step_report import headline


@pytest.mark.parametrize("module", [amounts, statistics])
def test_examples_in_the_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.floats(1.0, 1e9))
def test_a_duration_is_within_five_percent_of_what_it_says(seconds: float) -> None:
    number, unit = duration(seconds).split()
    size = {"d": 86400, "h": 3600, "min": 60, "s": 1}[unit]
    assert float(number.replace(",", "")) * size == pytest.approx(seconds, rel=0.05)
    assert not number.startswith("0")


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.integers(1, 999), st.sampled_from("BT"))
def test_tokens_read_back(number: int, letter: str) -> None:
    assert large_amount(parse_target(f"{number}{letter}")) == f"{number}{letter}"


@pytest.mark.parametrize("text", ["", "300", "0", "300G", "-3B", "1e99", "nan", "300 B B", "1.5", "B"])
def test_what_is_no_number_of_tokens(text: str) -> None:
    if text == "300":
        assert parse_target(text) == 300
        return
    with pytest.raises(UserInputError, match="--tokens"):
        parse_target(text)


def test_time_to_a_target_has_the_interval_of_the_rate() -> None:
    rate = estimate([90.0, 100.0, 110.0])
    seconds = time_at(1e6, rate)
    assert seconds.mean == 1e4
    assert rate.half_width is not None
    assert seconds.half_width == pytest.approx(1e4 * rate.half_width / 100)
    assert (seconds.lowest, seconds.highest) == (pytest.approx(1e6 / 110), pytest.approx(1e6 / 90))


def test_a_campaign_to_a_target_includes_failures() -> None:
    changes = ("campaign.step=6s", "campaign.seeds=4")
    scenario = load_scenario("campaign-llama3-16k", changes)
    study = run_campaign(scenario, tokens=1e12, workers=1)
    undisturbed_s = 1e12 / study.plan.setup.tokens_per_step * 6.0
    assert study.target is not None
    assert study.target.seconds.mean * study.plan.closed_form_ettr == pytest.approx(undisturbed_s, rel=0.03)
    assert study.target.seconds.half_width is not None
    for result in study.results:
        at = reached_s(result, 1e12)
        assert at is not None
        assert undisturbed_s < at <= result.duration_s
    calm = run_campaign(
        load_scenario("campaign-llama3-16k", (*changes, "campaign.failure_scale=0")), tokens=1e12, workers=1
    )
    assert calm.target is not None
    assert calm.target.seconds.mean == pytest.approx(undisturbed_s, rel=0.01)


def test_duration_and_tokens_contradict_each_other() -> None:
    done = CliRunner().invoke(
        cli, ["campaign", "campaign-llama3-16k", "--duration", "3d", "--tokens", "1T"], standalone_mode=False
    )
    assert "give either --duration or --tokens" in str(done.exception)


def test_simulate_shows_memory_shares_and_the_target() -> None:
    command = ["simulate", "quickstart-8gpu", "--batches", "1", "--tokens", "300B"]
    text = CliRunner().invoke(cli, command, catch_exceptions=False).output
    assert " of 79.2 GiB (fits with " in text
    assert "exposed communication" in text
    assert "300B tokens" in text
    assert "USD an hour" in text
    document = json.loads(CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False).stdout)
    assert document["results"]["target"]["tokens"] == 3e11


def test_the_first_line_names_the_file_of_a_trace_and_the_model_of_a_configuration(tmp_path: Path) -> None:
    model = {
        "_name_or_path": "acme/Tiny-1B", "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(model))
    (tmp_path / "lengths.csv").write_text("tokens\n512\n4096\n")
    scenario = load_scenario(
        "quickstart-8gpu", (f"model={tmp_path}/config.json", f"data.trace={tmp_path}/lengths.csv")
    )
    line = headline(scenario)
    assert "acme/Tiny-1B on 8 x h100-80gb" in line
    assert "; lengths.csv, batches of " in line
    assert str(tmp_path) not in line
