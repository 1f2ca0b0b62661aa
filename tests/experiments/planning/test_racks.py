"""Racks of 72 GPUs: whole, or 64 of each, whose other eight are paid for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_cases import TRAINING, training

import hdpsim
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.power import idle_w, node_w
from hdpsim.errors import ScenarioError
from hdpsim.experiments.planning.recommending.document import recommend_document
from hdpsim.experiments.planning.recommending.goal import parse_goal
from hdpsim.experiments.planning.recommending.recommend import recommend
from hdpsim.experiments.planning.search.space import Candidate, servers_of, space_of
from hdpsim.experiments.studies.money import mean_price

SHARE = (
    ("cluster.node.gpus", 64), ("cluster.node.nics", 64), ("cluster.node.idle_gpus", 8),
    ("cluster.node.host_memory", "15111GB"),
)  # fmt: skip
"""64 of 72: host memory 17 TB x 64 / 72."""


def test_racks_are_tried_whole_and_by_their_usual_share() -> None:
    racks = training("cluster.node=nvl72-gb200", "gpus=144")
    assert servers_of(racks, None, ()) == [(), SHARE]
    assert space_of(racks).sites == ((), (*SHARE, ("gpus", 128)))
    assert space_of(racks, gpus=(128, 144, 256)).sites == (
        (*SHARE, ("gpus", 128)), (("gpus", 144),), (*SHARE, ("gpus", 256)),
    )  # fmt: skip


@pytest.mark.parametrize("pinned", ["cluster.node", "cluster.node.nic"])
def test_a_server_that_somebody_set_stays(pinned: str) -> None:
    racks = training("cluster.node=nvl72-gb200", "gpus=144")
    assert servers_of(racks, None, (pinned,)) == [()]


def test_servers_of_eight_stay_whole() -> None:
    assert servers_of(training(), None, ()) == [()]
    assert space_of(training(), gpu_types=("h200",)).sites == ((("cluster.node", "hgx-h200-141gb"),),)


def test_gpus_of_another_type_come_in_shares_where_racks_do_not_divide_them() -> None:
    rack = ("cluster.node", "nvl72-gb200")
    assert space_of(training("gpus=128"), gpu_types=("gb200",)).sites == ((rack, *SHARE),)
    assert space_of(training("gpus=144"), gpu_types=("gb200",)).sites == ((rack,),)
    changed = training("gpus=128", *Candidate(changes=(rack, *SHARE)).overrides)
    assert (changed.cluster.nodes, changed.cluster.node.nic_bytes_per_s_per_gpu) == (2, 50e9)


def test_types_on_which_the_scenario_cannot_run_are_left_out_of_a_plan() -> None:
    """16 GPUs are no share of a rack. An H200 computes as fast as an H100: a tie goes to the one that comes first."""
    few = {"layout.tp=1", "layout.pp=1", "layout.recompute=none", "layout.sharding=zero1", "layout.cp=1",
           "layout.optimizer_offload=false", "data.context=4K tokens"}  # fmt: skip
    result = hdpsim.plan(
        TRAINING, gpu_types=["h100", "gb200", "a100"], searched=sorted(few), top=1, workers=1
    )
    data, text = result.to_dict(), result.document.text()
    assert [reason.partition(":")[0] for reason in data["left_out"]] == ["cluster.node=nvl72-gb200"]
    assert "Left out: cluster.node=nvl72-gb200: " in text
    assert data["best"]["gpu"] == "h100-80gb"
    assert "On 16 x a100-80gb " in text
    assert "USD an hour for each h100-80gb" in text
    assert "USD an hour for each a100-80gb" in text


def test_a_plan_for_no_cluster_that_can_run_says_why() -> None:
    with pytest.raises(ScenarioError, match="must be a multiple of the 72 GPUs"):
        hdpsim.plan(TRAINING, gpu_types=["gb200"], workers=1)


def test_idle_gpus_are_paid_and_draw_what_they_draw_without_work() -> None:
    rack = catalog.node("nvl72-gb200")
    used = replace(rack, gpus=64, nics=64, idle_gpus=8)
    assert node_w(used, 1000.0) == pytest.approx(
        node_w(replace(rack, gpus=64), 1000.0) + node_w(replace(rack, gpus=8), idle_w(rack.gpu))
    )
    scenario = training("gpus=128", *Candidate(changes=(("cluster.node", "nvl72-gb200"), *SHARE)).overrides)
    whole = training("gpus=144", "cluster.node=nvl72-gb200")
    prices = [mean_price(one.cluster, one.costs) for one in (scenario, whole)]
    assert prices[0].usd_per_hour == pytest.approx((prices[1].usd_per_hour or 0.0) * 72 / 64)
    assert "gb200-186gb that trains (72 are paid for 64 that train)" in prices[0].note


def test_a_share_is_recommended_where_whole_racks_are_no_better() -> None:
    """32 sequences have work for 32 ranks of two GPUs: 64 of a rack do in a step what 72 do in a step."""
    scenario = training(
        "data.batch=32 sequences", "campaign.seeds=2", "campaign.failure_scale=0", "cluster.node=nvl72-gb200",
        "gpus=72",
    )  # fmt: skip
    found = recommend(scenario, parse_goal("200B tokens in 3 days"), keep_layout=True)
    assert (found.best.gpus, found.best.paid_gpus) == (64, 72)
    document = recommend_document(found)
    assert "64 GPUs of each rack of 72 train; all 72 are paid" in document.text()
    assert document.payload["paid_gpus"] == 72
