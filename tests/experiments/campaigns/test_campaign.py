from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.experiments.campaigns.report import campaign_document
from hdpsim.experiments.campaigns.run import run_campaign
from hdpsim.experiments.campaigns.setup import plan_campaign
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.output.plots.campaign import plot_lost_tokens
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, resolve_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.simulator.campaign.setup import EFFECTIVE
from hdpsim.simulator.many_steps.checkpoints import checkpoints_of

pytestmark = pytest.mark.usefixtures("each_step_once")

DAY = 86400.0
NODE = {"name": "few", "gpu": "h100-80gb", "gpus": 8, "nic": "100Gbps", "host_memory": "2TiB"}
FIXED = ("campaign.step=6s", "campaign.seeds=4")
SMALL = ("gpus=1024", "data.batch=1M tokens")


@pytest.fixture(scope="module", autouse=True)
def _no_pool() -> Iterator[None]:
    """A busy machine would start one: what a run took says whether it is worth it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdpsim.experiments.campaigns.run.WORTH_A_POOL_S", math.inf)
        yield


def llama(*changes: str) -> Scenario:
    return load_scenario("campaign-llama3-16k", (*FIXED, *changes))


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["campaign", *arguments])
    return done.exit_code, done.output


def test_llama3s_run_as_published() -> None:
    study = run_campaign(llama("campaign.seeds=8"))
    assert study.restarts.mean == pytest.approx(466, rel=0.1)
    assert study.failures.mean == pytest.approx(419, rel=0.1)
    assert study.ettr.mean > 0.9
    assert study.mtbf_s == pytest.approx(54 * DAY / 419, rel=0.1)
    assert study.plan.closed_form_valid
    assert study.ettr.mean == pytest.approx(study.plan.closed_form_ettr, abs=0.015)
    for result in study.results:
        assert sum(result.account_ticks) == 54 * 86400 * 10**6


@pytest.mark.parametrize(
    ("failures", "block"),
    [("meta-rsc-1", "60s"), ("meta-rsc-2", "10s"), ("meta-ft-hsdp", "60s"), ("megascale", "10s")],
)
def test_the_closed_form_is_met_where_it_is_valid(failures: str, block: str) -> None:
    changes = (f"campaign.failures={failures}", f"campaign.checkpoint_block={block}", "campaign.spares=60")
    study = run_campaign(llama(*changes, "campaign.seeds=2"))
    assert study.plan.closed_form_valid
    assert study.ettr.mean == pytest.approx(study.plan.closed_form_ettr, abs=0.015)


@pytest.mark.parametrize("formula", ["young", "daly"])
def test_the_best_interval_waits_for_no_upload(formula: str) -> None:
    """Uploads of an hour and more, where checkpoints that hold nothing up would be taken every few minutes."""
    slow = (
        "campaign.step=6s",
        "campaign.storage_bandwidth=1GB/s",
        "campaign.duration=20d",
        "campaign.seeds=4",
    )
    study = run_campaign(llama(*slow, f"campaign.checkpoint_interval={formula}"))
    setup = study.plan.setup
    interval_s = setup.steps_per_checkpoint * setup.step_s
    assert setup.upload_s <= interval_s < setup.upload_s + setup.step_s
    for factor in (0.5, 2.0):
        other = run_campaign(llama(*slow, f"campaign.checkpoint_interval={factor * interval_s:.0f}s"))
        assert other.ettr.mean < study.ettr.mean


def test_the_closed_form_says_when_it_is_not_valid() -> None:
    assert not plan_campaign(llama("campaign.step=6s", "campaign.spares=0")).closed_form_valid
    assert not plan_campaign(llama("campaign.failure_scale=10")).closed_form_valid


@pytest.mark.parametrize(("gpus", "hours"), [(16384, 1.80), (131072, 0.23)])
def test_metas_mean_time_to_failure(gpus: int, hours: float) -> None:
    plan = plan_campaign(llama("campaign.failures=meta-rsc-1", f"gpus={gpus}"))
    assert plan.expected_mtbf_s is not None
    assert plan.expected_mtbf_s / 3600 == pytest.approx(hours, rel=0.03)


def test_the_number_of_workers_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdpsim.experiments.campaigns.run.WORTH_A_POOL_S", 0.0)
    scenario = llama("campaign.duration=5d")
    assert run_campaign(scenario, workers=1).results == run_campaign(scenario, workers=2).results


def test_the_step_comes_from_the_simulator_unless_it_is_fixed() -> None:
    scenario = load_scenario("quickstart-8gpu", ("execution.batches=2", "campaign.failures=meta-rsc-1"))
    plan = plan_campaign(scenario)
    assert plan.step_note == "simulated, mean over 2 global batches (hdp-opt)"
    assert plan.setup.tokens_per_step == 2**20
    assert plan.setup.nodes == 1
    assert plan_campaign(llama()).setup.step_s == 6.0


def test_slow_nodes_cost_a_campaign_what_they_cost_a_step() -> None:
    factor = 1.1
    small = ("gpus=1024", "data.batch=1M tokens")
    scenario = llama(*small, "campaign.straggler_share=0.1", f"campaign.straggler_factor={factor}")
    setup, clean = plan_campaign(scenario).setup, llama(*small)
    clean_s = run_batches(clean, clean.batches()).step_s.mean
    for nodes in (1, 4, 64):
        slow = llama(
            *small, f"execution.slow_node_share={nodes / 128}", f"execution.slow_node_factor={factor}"
        )
        found = setup.slowness(nodes)
        assert found == pytest.approx(run_batches(slow, slow.batches()).step_s.mean / clean_s, rel=1e-12)
        assert 1.0 < found <= factor


def test_slow_nodes_of_the_step_and_of_the_campaign_are_not_counted_twice() -> None:
    own = ("gpus=1024", "data.batch=1M tokens", "campaign.step=auto", "execution.slow_node_share=0.1")
    clean = plan_campaign(llama(*own[:3])).setup.step_s
    assert plan_campaign(llama(*own)).setup.step_s > clean
    assert plan_campaign(llama(*own, "campaign.straggler_share=0.01")).setup.step_s == clean
    assert plan_campaign(llama(*own, "campaign.straggler_mttf=90d")).setup.step_s == clean


def test_megascales_campaign_takes_megascales_steps() -> None:
    step = load_scenario("megascale-175b-12k")
    plan = plan_campaign(load_scenario("campaign-megascale-12k"))
    assert plan.setup.step_s == run_batches(step, step.batches()).step_s.mean
    assert plan.setup.step_s == pytest.approx(6.34, rel=0.08)  # table 2


@pytest.mark.parametrize("nics", [1, 8])
@pytest.mark.parametrize("storage", ["10GB/s", "500GB/s"])
@pytest.mark.parametrize("gpus", [8, 64])
def test_a_checkpoint_takes_as_long_in_weeks_as_in_a_run_of_steps(nics: int, storage: str, gpus: int) -> None:
    node = {**NODE, "nics": nics}
    scenario = resolve_scenario({
        "model": "llama-3-8b", "cluster": {"node": node, "gpus": gpus}, "layout": {"tp": 2},
        "data": {"lengths": ["4K tokens"], "batch": "64 sequences", "context": "4K tokens"},
        "campaign": {"step": "6s", "storage_bandwidth": storage}, "run": {"checkpoint_steps": 3},
    })  # fmt: skip
    weeks = plan_campaign(scenario).setup
    steps = checkpoints_of(scenario.setup(), scenario.run)
    assert steps is not None
    slowest = min(steps.fastest_bytes_per_s, scenario.run.storage_bytes_per_s)
    assert weeks.upload_s == pytest.approx(steps.upload_bytes / slowest)
    assert weeks.block_s == steps.block_s


def test_spares_cover_the_nodes_in_repair() -> None:
    # 356 of 466 interruptions evict a node: 356 / 54 d x 1 d = 6.6 in repair; Poisson(6.6) <= 16 with 99.9 %
    assert plan_campaign(llama()).setup.spares == 16
    assert plan_campaign(llama("campaign.spares=3")).setup.spares == 3


@pytest.mark.parametrize(
    ("changes", "spares"),
    [
        ((), 30),  # 128 nodes / 8 d x 1 d = 16 in repair; Poisson(16): at most 30 with 99.94 %
        (("campaign.straggler_recovery=1h",), 15),  # looks are 1 h apart, exp(-1) of them are found: 5.9
        # exp(-1) / 2 at the first look, of the rest as many again: 0.184 / (1 - 0.184) of them, 3.6
        (("campaign.straggler_recovery=1h", "campaign.straggler_misses=0.5"), 11),
        (("campaign.straggler_misses=1",), 0),
    ],
)
def test_spares_cover_slow_nodes_that_are_found(changes: tuple[str, ...], spares: int) -> None:
    slow = (*SMALL, "campaign.failure_scale=0", "campaign.straggler_mttf=8d", *changes)
    assert plan_campaign(llama(*slow)).setup.spares == spares


def test_fewer_failures_are_never_worse_where_nodes_become_slow() -> None:
    slow = (*SMALL, "campaign.duration=20d", "campaign.straggler_mttf=100d")
    goodput = [
        run_campaign(llama(*slow, f"campaign.failure_scale={scale}")).goodput.mean for scale in (3, 1, 0)
    ]
    assert goodput == sorted(goodput)
    assert goodput[-1] > 0.98


def test_goodput_is_that_of_a_run_whose_links_never_go_down() -> None:
    short = (*SMALL, "campaign.failure_scale=0", "campaign.link_flap_mean=1s")
    calm, flapping = (run_campaign(llama(*short, f"campaign.link_flaps_per_day={flaps}")) for flaps in (0, 1))
    # 1,024 links, each down once a day: 4.36 s in the mean until the next try, 5.2 % of the time
    assert flapping.tokens.mean == pytest.approx(0.948 * calm.tokens.mean, rel=1e-3)
    lost = flapping.tokens.mean / calm.tokens.mean
    assert flapping.goodput.mean == pytest.approx(lost * calm.goodput.mean, rel=1e-9)


def test_a_profile_of_ones_own_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("title: mine\ncauses: {fan: {per_1000_days: 2}}")
    plan = plan_campaign(replace(llama("campaign.failures=mine.yaml"), folder=tmp_path))
    assert plan.unplanned_per_s == pytest.approx(2048 * 0.002 / DAY)
    with pytest.raises(UserInputError, match="no such file"):
        plan_campaign(llama("campaign.failures=mine.yaml"))


def test_without_failures_there_is_one_checkpoint_and_no_mtbf() -> None:
    scenario = llama("campaign.failure_scale=0", "campaign.duration=1d")
    study = run_campaign(scenario)
    assert study.mtbf_s is None
    assert study.plan.expected_mtbf_s is None
    assert study.restarts.mean == 0
    text = campaign_document(scenario, study).text()
    assert "no failure in these runs (expected: never)" in text
    assert "Restarts by cause" not in text
    assert "How far off" not in text  # its step was not predicted


def test_without_failures_a_planned_stop_still_finds_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "title: mine\ncauses: {upgrade: {per_1000_days: 200, scope: job, detection: planned}}"
    )
    changes = ("campaign.failures=mine.yaml", "campaign.duration=30d")
    study = run_campaign(replace(llama(*changes), folder=tmp_path))
    # one in 5 days, 24 in the four runs of 30 days: Poisson, at least 12 with 99.7 %
    assert study.restarts.mean * len(study.results) >= 12


def test_a_campaign_of_a_simulated_step_says_how_far_it_is_to_be_believed() -> None:
    scenario = load_scenario(
        "quickstart-8gpu", ("campaign.duration=1h", "campaign.seeds=2", "execution.batches=1")
    )
    study = run_campaign(scenario)
    document = campaign_document(scenario, study)
    band = document.data()["results"]["fidelity"]
    assert band["step_s_p10"] <= study.plan.undisturbed.seconds <= band["step_s_p90"]
    assert f"How far off predictions of such runs were: {band['note']}." in document.notes


BAD = {
    "no unit": ("campaign.duration=30", "campaign.duration"),
    "too long": ("campaign.duration=1e300d", "to 36500d"),
    "other unit": ("campaign.duration=30GB", "duration"),
    "zero": ("campaign.duration=0d", "must be positive"),
    "word": ("campaign.step=soon", "or auto"),
    "interval": ("campaign.checkpoint_interval=often", "or young, daly"),
    "share": ("campaign.straggler_share=1.5", "from 0 to 1"),
    "misses": ("campaign.heartbeat_misses=0", "at least 1"),
    "method": ("campaign.startup=etcd", "tcp-store, redis, ordered"),
    "readers": ("campaign.readers=all", "one-per-group, every-rank"),
    "unknown": ("campaign.spare=3", "did you mean 'spares'"),
    "bandwidth": ("campaign.storage_bandwidth=100", "100GB/s"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_keys_are_one_message(change: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        llama(change)
    assert message in str(caught.value)


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match=r"campaign\.failures.*llama-3.*meta-rsc-1"):
        plan_campaign(llama("campaign.failures=llama-3"))


def test_a_campaign_shorter_than_a_step_cannot_run() -> None:
    with pytest.raises(InfeasibleError, match="shorter than one step"):
        plan_campaign(llama("campaign.duration=3s"))


def test_absurdly_many_checkpoints_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="checkpoint_interval"):
        plan_campaign(
            llama("campaign.step=1us", "campaign.checkpoint_interval=1us", "campaign.checkpoint_block=0s")
        )


@given(st.floats(1e-3, 1e9), st.floats(1e6, 1e15))
def test_quantities_survive_writing_and_reading(seconds: float, rate: float) -> None:
    for name, value in (("campaign.duration", seconds), ("campaign.storage_bandwidth", rate)):
        assert KEYS[name].parse(KEYS[name].dump(value)) == pytest.approx(value, rel=1e-15)


def test_the_written_scenario_runs_the_same_campaign() -> None:
    scenario = llama(
        "gpus=1024", "data.batch=1M tokens", "campaign.duration=2d", "campaign.checkpoint_interval=17min",
        "campaign.straggler_mttf=90d",
    )  # fmt: skip
    again = resolve_scenario(scenario.document)
    assert again.document == scenario.document
    assert plan_campaign(again) == plan_campaign(scenario)


def test_the_command_prints_tables() -> None:
    code, text = run("campaign-llama3-16k", "--duration", "2d", "--seeds", "2", "--set", "campaign.step=6s")
    assert code == 0
    for words in ("effective training time", "lost work", "Restarts by cause", "48.00  100.00%"):
        assert words in text


def test_the_command_prints_one_json_document_and_writes_a_run_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text = run(
        "campaign-llama3-16k", "--duration", "3d", "--seeds", "2", "--set", "campaign.step=6s",
        "--out", str(out), "--json",
    )  # fmt: skip
    assert code == 0
    document = json.loads(text)
    results = document["results"]
    assert document["kind"] == "campaign"
    assert results["duration_s"] == 3 * DAY
    assert sum(account["mean"] for account in results["account_s"].values()) == pytest.approx(3 * DAY)
    assert len(results["runs"]) == 2
    assert json.loads((out / "result.json").read_text())["results"] == results
    names = {path.name for path in out.iterdir()}
    assert {
        "README.md",
        "lost_tokens.png",
        "lost_hours.svg",
        "restarts_by_cause.png",
        "incidents.csv",
    } <= names


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("campaign-llama3-16k", "--duration", "30"), 2),
        (("campaign-llama3-16k", "--seeds", "0"), 2),
        (("nowhere",), 2),
        (("campaign-llama3-16k", "--duration", "1s", "--set", "campaign.step=6s"), 3),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int) -> None:
    assert run(*arguments)[0] == code


def test_the_figure_of_lost_tokens_shows_the_run_with_most_restarts_or_says_that_there_is_none() -> None:
    quiet = ((0.0, 60.0, 1000.0), (0.0, 0.0, 940.0))
    stopped = ((0.0, 60.0, 500.0, 500.0, 560.0, 1000.0), (0.0, 0.0, 440.0, 400.0, 400.0, 840.0))
    for curves, title in (
        ((quiet, stopped, quiet), "Run 1: its first restarts"),
        ((quiet, quiet), "No run was interrupted"),
    ):
        right = plot_lost_tokens(curves, 1.0).axes[1]
        shown = {axes_title for where in ("left", "center") if (axes_title := right.get_title(loc=where))}
        assert shown == {title}
        assert len(right.lines[0].get_xdata()) == max(len(curve[0]) for curve in curves)


def test_the_answer_comes_first_and_agrees_with_the_tables() -> None:
    scenario = llama("campaign.duration=20d")
    study = run_campaign(scenario)
    said = str(campaign_document(scenario, study).blocks[0])
    assert said.startswith(f"In 20 d the job trains {study.ettr.mean:.2%} of the time, on ")
    assert f"with {study.restarts.mean:,.1f} restarts" in said
    lost = {name: value.mean for name, value in study.account_s().items() if name not in EFFECTIVE}
    assert f"Most of the rest is {max(lost, key=lambda name: lost[name]).replace('_', ' ')} " in said
