from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hdpsim.experiments.cli.app import VERBS, cli
from hdpsim.experiments.scenario.scenario import load_scenario, scenario_names
from hdpsim.yaml_loader import load_yaml

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

SMALL = ("quickstart-8gpu", "--batches", "1")
MODULE = (sys.executable, "-m", "hdpsim")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def document(*arguments: str) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    parsed = json.loads(result.stdout)
    assert isinstance(parsed, dict)
    return parsed


def test_every_verb_explains_itself() -> None:
    listing = run("--help")
    assert listing.exit_code == 0
    for verb in VERBS:
        assert verb in listing.stdout
        assert run(verb, "--help").exit_code == 0


def test_help_loads_nothing_that_only_simulations_need() -> None:
    script = (
        "import sys; from hdpsim.experiments.cli.app import cli; cli(['--help'], standalone_mode=False); "
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = set(re.findall(r"'(\w+)'", done.stderr))
    assert "click" in loaded
    assert not loaded & {"numpy", "pandas", "scipy", "matplotlib", "networkx", "simpy", "yaml"}


def test_version() -> None:
    import hdpsim

    assert run("--version").stdout == f"hdpsim {hdpsim.__version__}\n"


@pytest.mark.usefixtures("fake_simulator")
class TestVerbs:
    def test_simulate_prints_the_step_and_where_its_time_goes(self) -> None:
        result = run("simulate", *SMALL)
        assert result.exit_code == 0, result.stderr
        assert "1.750 s" in result.stdout
        assert "CP ring" in result.stdout
        assert "989 TFLOP/s" in result.stdout  # which peak the MFU means
        for rate, words in ((400, "model, causal"), (500, "model, full"), (600, "hardware, full")):
            assert f"{rate}.0 TFLOP/s per GPU ({words} attention)" in result.stdout

    def test_simulate_json_holds_scenario_seed_version_and_results(self) -> None:
        found = document("simulate", *SMALL, "--set", "data.seed=7")
        assert {"schema_version", "hdpsim_version", "scenario", "seed", "results"} <= set(found)
        assert found["seed"] == {"data": 7, "execution": 0}
        assert found["results"]["step_s"]["mean"] == pytest.approx(1.75)  # type: ignore[index]

    def test_compare_says_which_is_fastest_by_how_much_and_why(self) -> None:
        result = run("compare", *SMALL)
        assert "hdp-opt is 2.86 times as fast as static" in result.stdout
        assert "less in CP ring" in result.stdout

    def test_compare_json(self) -> None:
        found = document("compare", *SMALL, "--strategies", "static,hdp-opt")
        results = found["results"]
        assert [row["strategy"] for row in results] == ["static", "hdp-opt"]  # type: ignore[attr-defined]
        assert results[1]["speed_up"]["mean"] == pytest.approx(5 / 1.75)  # type: ignore[index]

    def test_compare_writes_a_run_directory_and_replaces_its_own(self, tmp_path: Path) -> None:
        for _ in range(2):
            assert run("compare", *SMALL, "--out", str(tmp_path / "run")).exit_code == 0
        stored = json.loads((tmp_path / "run" / "result.json").read_text())
        assert stored == document("compare", *SMALL)

    def test_a_foreign_directory_is_refused_before_anything_is_simulated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "precious.txt").write_text("mine")
        monkeypatch.setattr(
            "hdpsim.experiments.studies.comparing.compare.simulate_step",
            lambda *_, **__: pytest.fail("simulated"),
        )
        result = run("compare", *SMALL, "--out", str(tmp_path))
        assert result.exit_code == 2
        assert (tmp_path / "precious.txt").read_text() == "mine"

    def test_timeline_uses_the_engine(self, tmp_path: Path) -> None:
        path = tmp_path / "step.json.gz"
        found = document("simulate", *SMALL, "--timeline", str(path))
        assert found["scenario"]["execution"]["executor"] == "engine"  # type: ignore[index]
        assert path.stat().st_size > 0

    def test_scale(self, tmp_path: Path) -> None:
        out = tmp_path / "run"
        result = run("scale", *SMALL, "--gpus", "8,16,12", "--out", str(out))
        assert result.exit_code == 0, result.stderr
        assert "cannot run: gpus: 12 GPUs" in result.stdout
        assert (out / "scaling.csv").exists()
        assert (out / "scaling.svg").exists()

    def test_whatif(self) -> None:
        result = run("whatif", *SMALL, "--set", "gpus=16", "--set", "layout.tp=3")
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        assert any(line.startswith("gpus=16") and "2.000" in line for line in lines)
        assert any(line.startswith("layout.tp=3") and "cannot run" in line for line in lines)

    def test_infeasible_is_exit_code_3(self) -> None:
        result = run("simulate", *SMALL, "--set", "gpus=16", "--set", "layout.tp=16")
        assert result.exit_code == 3
        assert "90 GiB" in result.stderr
        assert result.stdout == ""

    def test_a_bug_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("ours")

        monkeypatch.setattr("hdpsim.experiments.studies.comparing.compare.simulate_step", broken)
        result = run("simulate", *SMALL)
        assert result.exit_code == 1
        assert isinstance(result.exception, ZeroDivisionError)

    def test_ctrl_c_is_exit_code_130(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("hdpsim.experiments.studies.comparing.compare.simulate_step", interrupted)
        result = run("simulate", *SMALL)
        assert result.exit_code == 130
        assert result.stderr == "Error: interrupted\n"


REAL = (
    "llama-7b-1k-github",
    "--batches",
    "1",
    "--set",
    "gpus=64",
    "--set",
    "data.batch=2M",
    "--set",
    "data.context=256K",
)


def test_the_real_simulator_compares_and_explains() -> None:
    found = document("compare", *REAL)
    rows = {row["strategy"]: row for row in found["results"]}  # type: ignore[attr-defined]
    assert rows["static"]["speed_up"]["mean"] == 1.0
    assert rows["hdp-opt"]["speed_up"]["mean"] > 1.0
    for row in rows.values():
        assert sum(row["account_s"].values()) == pytest.approx(row["step_s"]["mean"], rel=1e-9)
        assert row["memory"]["capacity_bytes"] > 0
    assert str(found["explanation"]).startswith("hdp-opt is")


def test_both_executors_give_the_same_step() -> None:
    replay = document("simulate", *REAL)
    engine = document("simulate", *REAL, "--set", "execution.executor=engine")
    step_s = [found["results"]["step_s"]["mean"] for found in (replay, engine)]  # type: ignore[index]
    assert step_s[0] == pytest.approx(step_s[1], rel=1e-9)


def test_the_real_engine_writes_a_timeline_that_checks(
    tmp_path: Path, timeline_problems: Callable[[Path], tuple[str, ...]]
) -> None:
    path = tmp_path / "step.json.gz"
    assert run("simulate", *REAL, "--timeline", str(path)).exit_code == 0
    assert timeline_problems(path) == ()


def test_too_little_memory_is_infeasible_with_the_figures() -> None:
    result = run("simulate", *REAL, "--set", "layout.rank_capacity=256K")
    assert result.exit_code == 3
    assert "GiB" in result.stderr


def test_trace_stats_of_a_shipped_trace() -> None:
    found = document("trace", "stats", "debian-code")
    assert found["samples"] > 1000  # type: ignore[operator]
    assert sum(row["token_share"] for row in found["buckets"]) == pytest.approx(1.0)  # type: ignore[attr-defined]
    assert "up to 2K" in run("trace", "stats", "debian-code").stdout


def test_trace_stats_draws(tmp_path: Path) -> None:
    assert run("trace", "stats", "debian-code", "--plot", str(tmp_path / "lengths")).exit_code == 0
    assert (tmp_path / "lengths.png").exists()


def test_trace_synth_check_and_stats_go_together(tmp_path: Path) -> None:
    path = str(tmp_path / "drawn.csv")
    made = document(
        "trace", "synth", "--distribution", "bytescale-github", "--count", "500", "--seed", "3", "-o", path
    )
    assert made["sequences"] == 500
    checked = document("trace", "check", path)
    assert (checked["ok"], checked["tokens"]) == (True, made["tokens"])
    assert document("trace", "stats", path)["tokens"] == made["tokens"]


def test_trace_synth_to_a_number_of_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "drawn.npy")
    made = document("trace", "synth", "--distribution", "bytescale-byted", "--tokens", "1M", "-o", path)
    assert made["tokens"] == 2**20


def test_trace_check_names_the_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("tokens\n5\n0\n")
    result = run("trace", "check", str(path))
    assert result.exit_code == 2
    assert "bad.csv" in result.stderr
    assert "row" in result.stderr


def test_scenarios_lists_what_is_shipped() -> None:
    listed = document("scenarios")["scenarios"]
    assert [row["name"] for row in listed] == list(scenario_names())  # type: ignore[attr-defined]
    assert "quickstart-8gpu" in run("scenarios").stdout


def test_scenarios_prints_a_scenario_that_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "full.yaml"
    path.write_text(run("scenarios", "quickstart-8gpu", "--set", "layout.tp=4").stdout)
    assert load_scenario(path) == load_scenario("quickstart-8gpu", ("layout.tp=4",))


@pytest.mark.parametrize("kind", ["models", "gpus", "nodes", "clusters"])
def test_catalog(kind: str) -> None:
    entries = document("catalog", kind)["entries"]
    assert len(entries) > 3  # type: ignore[arg-type]
    assert len(run("catalog", kind).stdout.splitlines()) == 1 + len(entries)  # type: ignore[arg-type]
    name = entries[0]["name"]  # type: ignore[index]
    assert document("catalog", kind, name)["entries"] == entries[:1]  # type: ignore[index]
    assert load_yaml(run("catalog", kind, name).stdout)


def test_switches_without_effect_are_noted() -> None:
    result = run(
        "simulate", *SMALL, "--set", "layout.gather_overlap=false", "--set", "layout.recompute_share=0.5"
    )
    assert "gather_overlap" not in result.stdout  # sharding is zero1: it has an effect
    assert "recompute_share = 0.5 changes nothing: recompute is full" in result.stdout


def test_ctrl_c_while_the_command_line_is_loaded_has_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from hdpsim.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Error: interrupted\n")


def test_errors_of_a_process_have_no_traceback() -> None:
    done = subprocess.run([*MODULE, "simulate", "nowhere"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: nowhere: no such file and no shipped scenario")


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_called_empty(name: str) -> None:
    done = CliRunner().invoke(cli, ["simulate", name])
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: the name of a scenario is empty; shipped: campaign-llama3-16k")


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen(
        [*MODULE, "catalog", "models", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 128 + signal.SIGPIPE


def test_no_colours_reach_a_pipe() -> None:
    done = subprocess.run(
        [*MODULE, "catalog", "gpus"], capture_output=True, env={**os.environ, "FORCE_COLOR": "1"}
    )
    assert b"\x1b" not in done.stdout
