"""`hdpsim fabric`: tiers by hand, all ways to name a cluster, drawings, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from click.testing import CliRunner, Result

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.network.graph import build_graph
from hdpsim.experiments.cli.files import fabric as command

CLUSTER = """
node: hgx-h100-80gb
nodes: 6
fabric:
  kind: rail-optimised
  nodes_per_block: 2
  blocks_per_pod: 2
  leaf_oversubscription: 2
  spine_oversubscription: 3
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_tiers_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "six.yaml"
    path.write_text(CLUSTER)
    found = document(str(path))
    # 2 nodes of 8 GPUs a block, 2 blocks a pod, 6 nodes in all
    assert [(t["name"], t["gpus"], t["switches"]) for t in found["tiers"]] == [
        ("node", 8, 0), ("block", 16, 1), ("pod", 32, 3), ("cluster", 48, 5),
    ]  # fmt: skip
    rates = [t["bytes_per_s_per_gpu"] for t in found["tiers"]]
    # up-links: half of the NIC out of a block, a sixth out of a pod
    assert rates[1] / rates[2] == pytest.approx(2.0)
    assert rates[1] / rates[3] == pytest.approx(6.0)
    latencies = [t["latency_s"] for t in found["tiers"]]
    assert latencies == sorted(latencies)
    assert (found["devices"]["gpu"], found["devices"]["nvswitch"]) == (48, 6)
    assert found["devices"]["leaf"] == 3 * 8  # three blocks of eight rails


def test_one_node_has_one_tier() -> None:
    found = document("quickstart-8gpu")
    assert [t["name"] for t in found["tiers"]] == ["node"]
    assert found["devices"] == {"gpu": 8, "nvswitch": 1}


def test_a_shipped_cluster_and_a_part_of_it() -> None:
    assert document("superpod-h100")["gpus"] == 1024
    assert document("superpod-h100", "--gpus", "256")["tiers"][-1]["name"] == "block"


def test_a_scenario_file(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "model: llama-3-8b\ncluster: superpod-h100\ngpus: 16\nlayout: {tp: 8}\n"
        "data: {distribution: bytescale-github, batch: 1M tokens, context: 32K}\n"
    )
    assert document(str(path))["gpus"] == 16


def test_the_table_reads_well() -> None:
    printed = run("superpod-h100").stdout
    assert "superpod-h100: 1,024 x h100-80gb in 128 x hgx-h100-80gb, rail-optimised" in printed
    assert "GB/s per GPU" in printed
    assert "Devices: " in printed


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_drawings(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"fabric.{suffix}"
    result = run("superpod-h100", "--gpus", "16", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert f"Drawing: {path}" in result.stdout
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_the_graph_for_other_tools(tmp_path: Path) -> None:
    path = tmp_path / "fabric.graphml"
    result = run("superpod-h100", "--gpus", "16", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert f"Graph: {path}" in result.stdout
    assert "Drawing" not in result.stdout
    graph = nx.read_graphml(path)
    assert sum(kind == "gpu" for _, kind in graph.nodes(data="kind")) == 16
    assert nx.is_isomorphic(graph, build_graph(catalog.cluster_of("hgx-h100-80gb", gpus=16), collapse=False))


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exception is not None
    return str(result.exception)


@pytest.mark.usefixtures("pictures")
def test_a_large_cluster_is_drawn_whole(tmp_path: Path) -> None:
    path = tmp_path / "fabric.png"
    assert run("llama3-24k", "--out", str(path)).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("superpod-h10",), "did you mean"),
        (("superpod-h100", "--gpus", "13"), "whole number"),
        (("superpod-h100", "--out", "fabric.pdf"), ".png, .svg or .graphml"),
        (("superpod-h100", "--out", "/nowhere/fabric.png"), "no directory /nowhere"),
    ],
)
def test_refused(arguments: tuple[str, ...], text: str) -> None:
    assert text in refused(*arguments)
