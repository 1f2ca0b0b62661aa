"""Strategies of one's own on the command line: where they are found, and how their faults leave the program."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hdpsim.experiments.cli.app import cli
from hdpsim.simulator import find_own_strategy as own_strategy

_GOOD = """
import hdpsim

@hdpsim.strategy("one-rank")
def plan(problem):
    builder = hdpsim.PlanBuilder(problem)
    for sequence in range(len(problem.lengths)):
        builder.add(sequence, ranks=sequence % problem.ranks)
    return builder.build()

def crash(problem):
    return 1 / 0

def lost(problem):
    builder = hdpsim.PlanBuilder(problem)
    builder.add(0, ranks=0)
    return builder.build()

def two(problem, other):
    return None
"""
_SMALL = ("--set", "data.batch=64K tokens", "--set", "data.context=16K", "--batches", "1")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own_strategy, "_registered", {})
    (tmp_path / "cli_own.py").write_text(_GOOD)
    monkeypatch.delitem(sys.modules, "cli_own", raising=False)
    yield lambda *words: CliRunner().invoke(cli, list(words))
    sys.modules.pop("cli_own", None)


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "quickstart-8gpu", "--strategies", "static,cli_own:plan", *_SMALL, "--json"),
        ("compare", "quickstart-8gpu", "--strategies", "static,cli_own:one-rank", *_SMALL, "--json"),
        ("simulate", "quickstart-8gpu", "--set", "strategy.name=cli_own:plan", *_SMALL, "--json"),
        (
            "replay", "quickstart-8gpu", "--set", "strategy.name=cli_own:plan", *_SMALL[:4], "--steps", "2",
            "--workers", "2", "--json",
        ),
        ("scale", "quickstart-8gpu", "--gpus", "8", "--strategies", "cli_own:plan", *_SMALL, "--json"),
        (
            "whatif", "quickstart-8gpu", "--set", "strategy.name=cli_own:plan,data.context=16K,data.batch=64K tokens",
            "--batches", "1", "--json",
        ),
    ],
)  # fmt: skip
def test_every_verb_takes_them(run, words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "cli_own:" in json.dumps(json.loads(result.stdout))
    assert "no band" in result.stdout or words[0] == "replay"  # which has no bands


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("cli_own:crash", 2, "strategy cli_own:crash failed: ZeroDivisionError: division by zero"),
        ("cli_own:two", 2, "must take one argument, the planning problem; its signature is (problem, other)"),
        ("cli_own:none", 2, "has no none; its functions: crash, lost, plan, two"),
        ("cli_missing:plan", 2, "cannot import cli_missing: ModuleNotFoundError"),
        ("hdp-naiv", 2, "did you mean 'hdp-naive'?); or my_module:function for one's own"),
        ("megatron-dynamic", 2, "did you mean 'megatron-dynamic-cp'?"),
        ("cli_own:lost", 3, "strategy cli_own:lost: 0 of the"),
    ],
)
def test_faults_are_one_message_and_an_exit_code(run, name, code, message):
    result = run("compare", "quickstart-8gpu", "--strategies", f"static,{name}", *_SMALL)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    ran = name in ("cli_own:crash", "cli_own:lost")
    assert (f"{name} cannot run: strategy {name}" in result.stdout) == ran  # the others keep their rows


_SWEEP = """
base: quickstart-8gpu
set: {{data.batch: 64K tokens, data.context: 16K, execution.batches: 1}}
grid:
  strategy.name: [static, {name}]
"""


def test_sweeps_load_them_in_workers_and_notice_another_source(run, tmp_path):
    (tmp_path / "sweep.yaml").write_text(_SWEEP.format(name="cli_own:plan"))
    words = ("sweep", "sweep.yaml", "--store", "store", "--workers", "2", "--json")
    first = json.loads(run(*words).stdout)
    assert first["counts"]["ok"] == 2
    again = json.loads(run(*words).stdout)
    assert [cell["step_s"] for cell in again["results"]] == [cell["step_s"] for cell in first["results"]]
    assert "cli_own:plan" in json.dumps(again)
    (tmp_path / "cli_own.py").write_text(_GOOD.replace("sequence % problem.ranks", "0"))
    sys.modules.pop("cli_own")
    own_strategy._registered.clear()
    changed = json.loads(run(*words).stdout)["results"]
    assert changed[0]["step_s"] == first["results"][0]["step_s"]
    assert changed[1]["step_s"]["mean"] > first["results"][1]["step_s"]["mean"]


@pytest.mark.parametrize(("name", "code", "status"), [("crash", 2, "bad_strategy"), ("lost", 3, "bad_plan")])
def test_a_sweep_goes_on_where_one_of_them_fails(run, tmp_path, name, code, status):
    (tmp_path / "sweep.yaml").write_text(_SWEEP.format(name=f"cli_own:{name}"))
    result = run("sweep", "sweep.yaml", "--store", "store", "--workers", "1", "--json")
    assert result.exit_code == code
    counts = json.loads(result.stdout)["counts"]
    assert (counts["ok"], counts[status]) == (1, 1)
    assert f"strategy cli_own:{name}" in result.stderr


def test_a_sweep_needs_a_strategy_that_can_be_found(run, tmp_path):
    (tmp_path / "sweep.yaml").write_text(_SWEEP.format(name="cli_missing:plan"))
    result = run("sweep", "sweep.yaml", "--store", "store")
    assert result.exit_code == 2
    assert "cannot import cli_missing" in result.stderr


def test_the_example_of_the_documentation_runs_in_compare_and_in_a_sweep(run, tmp_path):
    page = Path(__file__).parents[3] / "docs" / "how-to" / "own_strategy.md"
    example = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[1]
    assert len([line for line in example.splitlines() if line]) <= 20
    (tmp_path / "longest_first.py").write_text(example)
    try:
        compared = run(
            "compare", "quickstart-8gpu", "--strategies", "static,longest_first:plan", *_SMALL, "--json"
        )
        assert compared.exit_code == 0, compared.output
        assert json.loads(compared.stdout)["results"][-1]["feasible"]
        (tmp_path / "sweep.yaml").write_text(_SWEEP.format(name="longest_first:longest-first"))
        swept = run("sweep", "sweep.yaml", "--store", "store", "--workers", "1", "--json")
        assert json.loads(swept.stdout)["counts"]["ok"] == 2, swept.output
    finally:
        sys.modules.pop("longest_first", None)
