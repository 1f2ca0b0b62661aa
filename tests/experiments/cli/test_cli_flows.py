"""`hdpsim flows`: patterns by hand, degraded links, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hdpsim.experiments.cli.app import cli

ECMP = ("--set", "cluster.fabric.routing=ecmp")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["flows", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_an_incast_by_hand() -> None:
    found = document(
        "superpod-h100", "--pattern", "incast", "--gpus", "64", "--group", "7", "--size", "9.7GB"
    )
    assert found["alone_s"] == pytest.approx(0.2)  # 9.7 GB at 48.5 GB/s
    assert found["slowest_s"] == found["mean_s"] == pytest.approx(1.4)
    assert found["links"][0]["link"] == "nic-in:0.0"
    assert found["links"][0]["busy_share"] == pytest.approx(1.0)
    assert found["slowed_activities"] == found["activities"] == 7
    assert sum(one["lost_s"] for one in found["collisions"]) <= 7 * 1.2 + 1e-9


def test_nobody_meets_on_a_fabric_that_does_not_block() -> None:
    for pattern in ("permutation", "ring", "all-reduce", "all-to-all"):
        found = document("superpod-h100", "--gpus", "512", "--pattern", pattern)
        assert found["slowed_activities"] == 0
        assert found["collisions"] == []


def test_hashed_flows_meet_and_controls_cost_those_behind() -> None:
    ideal, none = (
        document(
            "superpod-h100", "--gpus", "512", *ECMP, "--set", f"cluster.fabric.congestion_control={control}"
        )
        for control in ("ideal", "none")
    )
    assert ideal["slowest_s"] > 1.9 * ideal["alone_s"]
    assert none["mean_s"] > ideal["mean_s"]
    assert {kind["kind"] for kind in ideal["kinds"]} >= {"leaf-up", "leaf-down", "nic-in"}
    assert document("superpod-h100", "--gpus", "512", *ECMP, "--seed", "1") != ideal


def test_degraded_and_cut_links() -> None:
    half = document(
        "superpod-h100",
        "--gpus",
        "64",
        "--pattern",
        "ring",
        "--set",
        "cluster.fabric.degraded_links=nic-out:3.*=0.5",
    )
    whole = document("superpod-h100", "--gpus", "64", "--pattern", "ring")
    assert half["slowest_s"] == pytest.approx(2 * whole["slowest_s"])
    moved = document(
        "superpod-h100",
        "--gpus",
        "512",
        *ECMP,
        "--set",
        "cluster.fabric.degraded_links=leaf-up:0.0.[12]?=0",
        "--top",
        "99",
    )
    assert all(link["capacity_bytes_per_s"] > 0 for link in moved["links"])
    cut = run(
        "superpod-h100",
        "--gpus",
        "64",
        "--pattern",
        "ring",
        "--set",
        "cluster.fabric.degraded_links=nic-out:3.1=0",
    )
    assert cut.exit_code == 3
    assert "nic-out:3.1 is cut" in cut.stderr


def test_a_scenario_and_its_text() -> None:
    degraded = "cluster.fabric.degraded_links=nic-out:0.*=0.5"  # whatever network its steps have
    result = run("quickstart-8gpu", "--pattern", "ring", "--set", degraded)
    assert result.exit_code == 0, result.output
    assert "Hottest links" in result.stdout
    assert "gpu-out" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("superpod-h100", "--size", "7"), 2, "--size: expected bytes such as 64MB"),
        (("superpod-h100", "--group", "8"), 2, "a permutation has no groups"),
        (("superpod-h100", "--pattern", "ring", "--group", "7"), 3, "not a whole number of groups of 7"),
        (
            ("superpod-h100", "--pattern", "all-to-all", "--gpus", "8192", "--group", "8192"),
            3,
            "67,108,864 flows",
        ),
        (("superpod-h100", "--pattern", "incast", "--group", "1024"), 3, "an incast needs 1 to 1023 senders"),
        (("superpod-h100", "--set", "cluster.fabric.degraded_links=nic-out:3.*"), 2, "expected NAME=FACTOR"),
        (("superpod-h100", "--set", "cluster.fabric.degraded_links=nic=0"), 2, "is called 'nic'"),
        (
            ("superpod-h100", "--set", "cluster.fabric.degraded_links=nic-out:999.0=0"),
            3,
            "is called 'nic-out:999.0'",
        ),
        (("superpod-h100", "--set", "layout.tp=4"), 2, "those begin with cluster."),
        (("superpod-h100", "--set", "cluster.fabric.routing=magic"), 2, "cluster.fabric.routing"),
        (("nowhere",), 2, "no such file, scenario or cluster"),
    ],
)
def test_refused(arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert said in result.stderr
