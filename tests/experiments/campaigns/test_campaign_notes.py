"""Every key of a campaign changes what comes of it, or is named with the reason why it does not."""

from __future__ import annotations

from functools import cache

import pytest
from key_values import VALUES

from hdpsim.experiments.campaigns.report import campaign_remarks
from hdpsim.experiments.campaigns.run import run_campaign
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.simulator.campaign.run_with_failures import simulate_campaign

pytestmark = pytest.mark.usefixtures("each_step_once")

SMALL = (
    "gpus=64", "campaign.step=20s", "campaign.duration=4d", "campaign.seeds=2", "campaign.failure_scale=120",
    "campaign.storage_bandwidth=1GB/s", "data.batch=256K tokens", "data.context=16K", "layout.rank_capacity=auto",
    "strategy.name=static",
    "execution.batches=1",
)  # fmt: skip
CASES = {
    "plain": SMALL,
    "flaps and slow nodes": (
        *SMALL, "campaign.link_flaps_per_day=0.05", "campaign.manual_share=0.3", "campaign.straggler_share=0.3",
        "campaign.straggler_mttf=5d", "campaign.jitter=0.1", "campaign.drift_per_day=0.001", "campaign.spares=1",
    ),
    "tests that err": (*SMALL, "campaign.diagnosis_tests=rnic"),
    "times given": (
        *SMALL, "campaign.group_initialisation=100s", "campaign.checkpoint_load=60s", "campaign.manual=60s",
        "campaign.checkpoint_upload=60s", "campaign.failures=meta-rsc-1", "campaign.manual_share=1",
        "campaign.failure_scale=200",
    ),
}  # fmt: skip


def outcome(changes: tuple[str, ...], key: str) -> tuple[object, bool]:
    """What every run keeps and loses, and whether *key* is named; no other key is put back and run again."""
    others = {name.removeprefix("campaign.") for name in KEYS if name.startswith("campaign.") and name != key}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdpsim.experiments.campaigns.hidden._SHOWN", frozenset(others))
        study = run_campaign(load_scenario("quickstart-8gpu", changes), workers=1)
    notes = (*study.plan.idle_notes, *study.hidden_notes)
    shown = [
        (run.tokens, tuple(run.account_s.items()), len(run.incidents), run.evictions) for run in study.results
    ]
    return shown, any(note.startswith(f"{key} = ") for note in notes)


@pytest.mark.slow
def test_a_key_changes_a_campaign_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdpsim.experiments.campaigns.run.simulate_campaign", cache(simulate_campaign))
    seen, silent = set(), []
    for case, changes in CASES.items():
        written = load_scenario("quickstart-8gpu", changes).document["campaign"]
        for key in (key for key in VALUES if key.startswith("campaign.")):
            base, named_before = outcome(changes, key)
            for value in VALUES[key]:
                changed = (*changes, f"{key}={value}")
                now = load_scenario("quickstart-8gpu", changed).document["campaign"]
                if now == written:
                    continue
                found, named = outcome(changed, key)
                if found != base:
                    seen.add(key)
                    assert not named, f"{case}: {key}={value} is named and changes the runs"
                elif not (named or named_before):
                    silent.append(f"{case}: {key}={value}")
    assert silent == []
    assert seen == {key for key in VALUES if key.startswith("campaign.")}


def test_a_hidden_key_is_named_with_the_reason() -> None:
    study = run_campaign(load_scenario("quickstart-8gpu", (*SMALL, "campaign.repair=2h")), workers=1)
    assert (
        "campaign.repair = 7200s changes nothing in these runs: no run waits for a node" in study.hidden_notes
    )
    assert set(study.hidden_notes) <= set(campaign_remarks(study))
