"""What a scenario wastes: planted wastes are found, and every change that is recommended does what is said."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.planning.checking import trials as of_trials
from hdpsim.experiments.planning.checking.check import WITHOUT_EFFECT, CheckedScenario, Finding, check
from hdpsim.experiments.planning.checking.checks import CHECKS, Check
from hdpsim.experiments.planning.checking.document import check_document
from hdpsim.experiments.planning.checking.trials import Trials, overrides_of
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, resolve_scenario
from hdpsim.experiments.studies.comparing.compare import run_batches

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")


@pytest.fixture(scope="module", autouse=True)
def _time_is_never_up() -> Iterator[None]:
    """A busy machine would end the search for a change that runs before it is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdpsim.experiments.planning.checking.repair.BUDGET_S", math.inf)
        yield


def small(*overrides: str, layout: Mapping[str, object] | None = None, **sections: Any) -> Scenario:
    """A small model on two servers, equal sequences."""
    document = {
        "name": "small",
        "model": {"name": "tiny", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128,
                  "ffn_hidden": 5632, "vocab": 32_000},
        "cluster": {"node": "hgx-h100-80gb", "gpus": 16},
        "layout": {"tp": 2, **(layout or {})},
        "data": {"lengths": ["4K tokens"], "batch": "64 sequences", "context": "4K tokens"},
        "strategy": {"name": "static"},
        "execution": {"batches": 1},
        **sections,
    }  # fmt: skip
    return resolve_scenario(document, overrides=overrides)


def only(scenario: Scenario, *names: str) -> CheckedScenario:
    """The result of some checks alone."""
    return check(scenario, checks=[one for one in CHECKS if one.name in names])


def step_s(scenario: Scenario, count: int | None = None) -> float:
    """Mean step of a scenario that runs."""
    outcome = run_batches(scenario, scenario.draw(count).lengths)
    assert outcome.results, outcome.reason
    assert all(result.memory.fits for result in outcome.results)
    return outcome.step_s.mean


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["check", *arguments])


def test_other_stages_are_not_cut_as_those_were_by_hand() -> None:
    """A cut belongs to its number of stages: changes of that leave it behind, so that they can be tried at all."""
    cut = small(layout={"pp": 4, "pipeline_layout": "Et|ttt|ttt|tL"})
    trials = Trials(scenario=cut, drawn=cut.draw(1), base=run_batches(cut, cut.draw(1).lengths))
    changes = trials.without_same({"layout.pp": 2})
    assert changes == {"layout.pp": 2, "layout.pipeline_layout": "auto"}
    assert trials.on_first(overrides_of(changes)).results
    assert not trials.on_first(("layout.pp=2",)).results
    assert trials.without_same({"layout.tp_overlap": True}) == {"layout.tp_overlap": True}


def test_a_change_that_plan_would_refuse_for_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = small(layout={"recompute": "full"})
    drawn = scenario.draw(1)
    trials = Trials(scenario=scenario, drawn=drawn, base=run_batches(scenario, drawn.lengths))
    more = run_batches(small(), drawn.lengths).results[0].memory
    between = (more.capacity_bytes / more.total_bytes - 1.0) * 1.01  # what it has free, and a little more
    monkeypatch.setattr(of_trials, "shipped_margin", lambda: SimpleNamespace(headroom=between))
    assert not trials.on_first(("layout.recompute=none",)).results
    assert trials.on_first(("layout.recompute=full",)).results


@pytest.mark.parametrize("strategy", ["static", "hdp-naive"])
def test_batches_that_were_simulated_before_are_taken_as_if_they_were_simulated_now(strategy: str) -> None:
    varied = {"lengths": ["1K tokens", "3K tokens"], "batch": "32K tokens", "context": "4K tokens"}
    jitter = {"batches": 3, "jitter": 0.05}  # drawn anew for every step
    scenario = small(data=varied, execution=jitter, strategy={"name": strategy})
    trials = Trials(
        scenario=scenario, drawn=scenario.draw(), base=run_batches(scenario, scenario.draw().lengths)
    )
    change = ("layout.recompute=full",)
    afresh = run_batches(scenario.with_changes(change), scenario.draw().lengths)
    for _ in range(2):
        trials.on_first(change)
        steps_s = [result.step_s for result in trials.on_all(change).results]
        assert steps_s == [result.step_s for result in afresh.results]
    assert len(set(steps_s)) == 3


PLANTED = {
    "launch-bound": ({"launch_blocking": True}, "layout."),
    "slow-kernels": ({"fused_kernels": False}, "layout.fused_kernels=true"),
    "pipeline-bubbles": ({"pp": 4}, ""),
    "gradient-synchronisation": ({"dp_overlap": False}, "layout.dp_overlap=true"),
    "parameter-gather": ({"dp_overlap": False, "prefetch_gather": False}, "layout.dp_overlap=true"),
    "optimizer": ({"optimizer_offload": True}, "layout.optimizer_offload=false"),
    "recomputation": ({"recompute": "full"}, "layout.recompute=none"),
    "tensor-parallel-communication": ({"tp": 16}, ""),
    "replicated-heads": ({"tp": 16}, "layout.tp=8"),
    "layer-gathers": ({"sharding": "zero3"}, ""),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_waste_is_found_and_its_change_saves_what_is_said(name: str) -> None:
    layout, key = PLANTED[name]
    scenario = small(layout=layout)
    found = only(scenario, name).findings[0]
    assert (found.name, found.verified) == (name, True)
    assert any(key in text for text in found.change)
    assert found.gain_s is not None
    saved_s = step_s(scenario) - step_s(scenario.with_changes(found.change))
    assert saved_s == pytest.approx(found.gain_s.mean)
    assert saved_s > 0.0


def test_a_pipeline_that_drains_in_between_has_the_micro_batches_of_a_call() -> None:
    (found, *_) = only(small(layout={"pp": 4, "schedule_micro_batches": 1}), "pipeline-bubbles").findings
    assert "a rank has 1.0 micro-batches" in found.seen


def test_seconds_of_an_account_are_those_of_the_step() -> None:
    scenario = small(layout={"recompute": "full"})
    (found,) = only(scenario, "recomputation").findings
    accounts = run_batches(scenario, scenario.draw(1).lengths).account_s()
    assert found.seconds == pytest.approx(accounts["recompute"])
    assert found.share == pytest.approx(accounts["recompute"] / sum(accounts.values()))


def test_padding_is_its_share_of_the_compute() -> None:
    # Packs of 4K hold one sequence of 3K: a quarter of every pack is padding.
    scenario = small(
        data={"lengths": ["3K tokens"], "batch": "64 sequences", "context": "4K tokens"},
    )
    (found,) = only(scenario, "padding").findings
    compute_s = run_batches(scenario, scenario.draw(1).lengths).shares()["compute"] * step_s(scenario)
    assert found.seconds == pytest.approx(compute_s / 4.0)
    assert "25.0% of what packs hold is padding" in found.seen
    assert "strategy.padding=false" in found.change


def test_packs_that_do_not_divide_leave_groups_without_one() -> None:
    # 12 packs on 8 groups: two rounds have room for 16, so a quarter of the step is idle.
    scenario = small("data.batch=12 sequences", "layout.cp=1")
    found, *_ = only(scenario, "batch-does-not-divide").findings
    assert found.share == pytest.approx(0.25)
    assert "12 packs do not divide by 8 data-parallel groups: 4 work in the last round" in found.seen


def test_rings_that_leave_a_server_are_told_from_those_that_do_not() -> None:
    data = {"lengths": ["64K tokens"], "batch": "1 sequences", "context": "64K tokens"}
    across = only(small("layout.cp=8", data=data), "rings-bound-by-nics", "rings-inside-servers")
    inside = only(small("layout.cp=4", "gpus=8", data=data), "rings-bound-by-nics", "rings-inside-servers")
    assert "rings-bound-by-nics" in {finding.name for finding in across.findings}
    assert {finding.name for finding in inside.findings} <= {"rings-inside-servers", WITHOUT_EFFECT}


def test_oversubscription_is_the_difference_to_even_tiers() -> None:
    scenario = small(
        "cluster.fabric.leaf_oversubscription=8",
        cluster={"node": "hgx-h100-80gb", "gpus": 64, "fabric": {"nodes_per_block": 1}},
        layout={"tp": 8, "pp": 1, "dp_overlap": False},
    )
    even = scenario.with_changes(("cluster.fabric.leaf_oversubscription=1",))
    (found,) = only(scenario, "oversubscribed-tiers").findings
    assert found.seconds == pytest.approx(step_s(scenario) - step_s(even))


def test_findings_are_sorted_and_changes_together_gain_at_least_the_best() -> None:
    scenario = small(layout={"pp": 2, "recompute": "full", "dp_overlap": False, "launch_blocking": True})
    found = check(scenario)
    timed = [finding for finding in found.findings if finding.name != WITHOUT_EFFECT]
    assert len(timed) > 3
    assert [finding.seconds for finding in timed] == sorted((f.seconds for f in timed), reverse=True)
    gains = [finding.gain_s.mean for finding in timed if finding.gain_s and not finding.elsewhere]
    assert found.together_gain_s is not None
    assert found.together_gain_s.mean >= max(gains)
    saved_s = step_s(scenario) - step_s(scenario.with_changes(found.together))
    assert saved_s == pytest.approx(found.together_gain_s.mean)


def test_a_change_that_does_not_fit_is_not_recommended() -> None:
    # Without recomputation 128K tokens on four ranks need 119 of 79 GiB, whatever it would save.
    scenario = load_scenario("quickstart-8gpu", ("execution.batches=1", "data.batch=256K tokens"))
    (found,) = only(scenario, "recomputation").findings
    assert found.change != ("layout.recompute=none",)
    assert step_s(scenario.with_changes(found.change)) < step_s(scenario)


def test_a_check_is_one_entry_and_says_when_nothing_helps() -> None:
    own = Check(
        name="always", accounts=("gemm",), seen="something is lost",
        remedies=[{"layout.launch_blocking": True}, {"layout.tp": 3}],
    )  # fmt: skip
    found = check(small(), checks=[own])
    finding: Finding = found.findings[0]
    assert (finding.change, finding.gain_s, finding.tried, finding.verified) == ((), None, 2, False)
    assert "No verified remedy: none of 2 changes" in check_document(found).text()


def test_settings_that_change_nothing_are_findings_whose_change_saves_nothing() -> None:
    found = check(small(layout={"expert_kernels": "separate"}), checks=[])
    (finding,) = [finding for finding in found.findings if "expert_kernels" in finding.seen]
    assert finding.name == WITHOUT_EFFECT
    assert finding.change == ("layout.expert_kernels=grouped",)
    assert finding.gain_s is not None
    assert finding.gain_s.mean == 0.0


def test_what_the_software_sets_is_not_the_scenarios_to_leave_out() -> None:
    stacked = small("software=megatron-core 0.13")
    of_stack = [setting.switch for setting in stacked.settings]
    found = check(stacked, checks=[])
    assert of_stack
    assert not [finding for finding in found.findings if any(name in finding.seen for name in of_stack)]


def test_money_is_price_times_gpu_hours_of_the_lost_share() -> None:
    scenario = small("cluster.node.gpu.price=2USD/h", layout={"recompute": "full"})
    document = check_document(only(scenario, "recomputation"), tokens=1e12).data()
    (finding,) = [finding for finding in document["findings"] if finding["name"] == "recomputation"]
    # 16 GPUs at 2 USD an hour, 24 hours, the share of them that is lost.
    assert finding["usd_per_day"] == pytest.approx(16 * 2.0 * 24 * finding["share"])
    hours = 1e12 / (64 * 4096) * step_s(scenario) / 3600.0
    assert finding["usd"] == pytest.approx(16 * 2.0 * hours * finding["share"])


def test_json_has_the_keys_of_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(small(layout={"recompute": "full"}).to_yaml())
    result = run(str(path), "--json", "--out", str(tmp_path / "out"))
    document = json.loads(result.stdout)
    keys = {"name", "seconds", "share", "usd_per_day", "change", "gain_s", "verified", "words"}
    assert all(keys <= finding.keys() for finding in document["findings"])
    assert len(document["memory"]) == 1
    changed = load_scenario(tmp_path / "out" / "changed.yaml")
    assert step_s(changed) < step_s(load_scenario(path))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"tp": 3}, ("heads of tiny do not divide", "layout.tp=")),
        ({"pp": 16}, ("stages are more than", "layout.pp=")),
        ({"rank_capacity": "4M tokens"}, ("1 of 1 stages do not fit", "activations", "layout.rank_capacity=")),
    ],
)  # fmt: skip
def test_what_cannot_run_gets_a_change_that_makes_it_run(
    layout: dict[str, object], words: tuple[str, ...], tmp_path: Path
) -> None:
    document = yaml.safe_load(small().to_yaml())
    document["layout"] |= layout
    # Ranks of a static mesh never hold more than their share of the context.
    document["strategy"]["name"] = "hdp-balance"
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(document))
    result = run(str(path))
    assert result.exit_code == 3
    assert all(word in result.output for word in words)
    line = next(line for line in result.output.splitlines() if line.startswith("The nearest change"))
    changes = tuple(part.split(" ")[0].strip("'") for part in line.split("--set ")[1:])
    assert (
        CliRunner()
        .invoke(cli, ["simulate", str(path), *(x for c in changes for x in ("--set", c))])
        .exit_code
        == 0
    )


@pytest.mark.slow
def test_a_model_that_is_far_too_large_is_told_how_many_gpus_it_needs() -> None:
    result = run("quickstart-8gpu", "--set", "model=llama-3-405b", "--set", "data.batch=256K tokens")
    assert result.exit_code == 3
    assert "The nearest change that makes it run: --set gpus=" in result.output
