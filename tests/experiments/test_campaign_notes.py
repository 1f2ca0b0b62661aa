"""Every key of a campaign changes what comes of it, or is named with the reason why it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from key_values import VALUES

from hdpsim.experiments.campaigns.setup import plan_campaign
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.campaign.run import simulate_campaign

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
    "times given": (
        *SMALL, "campaign.group_initialisation=100s", "campaign.checkpoint_load=60s", "campaign.manual=60s",
        "campaign.checkpoint_upload=60s", "campaign.failures=meta-rsc-1", "campaign.manual_share=1",
        "campaign.failure_scale=200",
    ),
}  # fmt: skip
HIDDEN = {
    "campaign.repair",  # where no run ever waits for a node
    "campaign.spares",
    "campaign.straggler_share",  # where it is less than one node
    "campaign.straggler_mttf",  # where no node gets slow in so short a run
    "campaign.checkpoint_interval",  # optima may be the same number of steps
    "campaign.heartbeat",  # where such a failure never happens in so short a run
    "campaign.heartbeat_misses",
    "campaign.hang_timeout",
    "campaign.nccl_timeout",  # where flaps are shorter, or longer, than both
    "campaign.nccl_retries",
    "campaign.adaptive_retransmission",
    "campaign.link_flap_mean",
}
"""Keys whose effect may be hidden by chance; each shows in one of the cases at least."""


def outcome(changes: tuple[str, ...]) -> tuple[object, frozenset[str]]:
    """What every run keeps and loses, and the keys that are named."""
    plan = plan_campaign(load_scenario("quickstart-8gpu", changes))
    runs = [simulate_campaign(replace(plan.setup, seed=(plan.seed, run))) for run in range(plan.seeds)]
    named = frozenset(note.partition(" = ")[0] for note in plan.idle_notes)
    return [(run.tokens, tuple(run.account_s.items()), len(run.incidents)) for run in runs], named


@pytest.mark.slow
def test_a_key_changes_a_campaign_or_is_named() -> None:
    seen, silent = set(), []
    for case, changes in CASES.items():
        base, named_before = outcome(changes)
        written = load_scenario("quickstart-8gpu", changes).document["campaign"]
        for key in (key for key in VALUES if key.startswith("campaign.")):
            for value in VALUES[key]:
                changed = (*changes, f"{key}={value}")
                now = load_scenario("quickstart-8gpu", changed).document["campaign"]
                if now == written:
                    continue
                found, named = outcome(changed)
                if found != base:
                    seen.add(key)
                    assert key not in named, f"{case}: {key}={value} is named and changes the runs"
                elif key not in HIDDEN | named | named_before:
                    silent.append(f"{case}: {key}={value}")
    assert silent == []
    assert seen == {key for key in VALUES if key.startswith("campaign.")}
