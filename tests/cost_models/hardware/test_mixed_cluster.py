"""Clusters that list groups of nodes: what is read, written back and refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.documents import cluster_document
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster, NodeGroup
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.switches import Parallel
from hdpsim.cost_models.layout_checks import rank_kinds
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.errors import InfeasibleError, ScenarioError

GROUPS = [
    {"node": "hgx-h100-80gb", "count": 2},
    {"node": {"like": "hgx-a100-80gb", "nic": "100Gbps"}, "count": 1},
    {"node": "hgx-h100-80gb", "count": 1},
]


def read(document: dict[str, object]) -> Cluster:
    problems = Problems("test")
    cluster = catalog.cluster_entry(document, problems, "cluster")
    problems.raise_if_any()
    assert cluster is not None
    return cluster


def test_groups_are_read_and_written_back():
    cluster = read({"name": "mix", "nodes": GROUPS, "fabric": {"nodes_per_block": 2}})
    assert isinstance(cluster, MixedCluster)
    assert (cluster.gpus, cluster.nodes, cluster.node_gpus) == (32, 4, 8)
    assert cluster.fabric.nodes_per_block == 2
    assert [kind.gpu.name for kind in cluster.kinds] == ["h100-80gb", "a100-80gb"]
    assert [kind.nodes for kind in cluster.kinds] == [4, 4]
    assert cluster.kinds[1].node.nic_bytes_per_s == 12.5e9
    assert cluster.gpu_words == "24 x h100-80gb + 8 x a100-80gb"
    assert cluster.bf16_flop_per_s == 24 * 989e12 + 8 * 312e12
    assert read(cluster_document(cluster)) == replace(cluster, source="")
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_a_list_of_one_kind_is_an_ordinary_cluster():
    group = {"node": "hgx-h100-80gb", "count": 2}
    listed = read({"name": "c", "nodes": [group, group]})
    assert listed == read({"name": "c", "node": "hgx-h100-80gb", "nodes": 4})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"nodes": []}, "needs at least one group"),
        ({"nodes": GROUPS, "node": "hgx-h100-80gb"}, "must not be given together with a list"),
        ({"nodes": GROUPS, "gpus": 32}, "must not be given together with a list"),
        ({"nodes": [{"node": "hgx-h100-80gb"}]}, r"nodes\[0\].count: is required"),
        ({"nodes": [{"count": 2}]}, r"nodes\[0\].node: is required"),
        ({"nodes": [{"node": "hgx-h100-80gb", "count": 2, "gpu": "h100"}]}, "gpu"),
        ({"nodes": ["hgx-h100-80gb"]}, "must be a mapping"),
        ({"nodes": [*GROUPS, {"node": "nvl72-gb200", "count": 1}]}, "equally many GPUs each, not 8 and 72"),
        ({"nodes": [{"node": "hgx-h100", "count": 2_000_000}]}, "ten times the largest"),
    ],
)
def test_what_cannot_be_is_said(document: dict[str, object], words: str):
    with pytest.raises(ScenarioError, match=words):
        read(document)


def test_ranks_lie_on_one_kind_or_are_refused():
    cluster = read({"nodes": GROUPS})
    assert rank_kinds(cluster, Parallel(tp=8)).tolist() == [0, 0, 1, 0]
    assert rank_kinds(cluster, Parallel(tp=2, pp=4, order="tp-pp-dp")).tolist() == [0, 0, 1, 0]
    with pytest.raises(InfeasibleError, match=r"layout\.order = tp-pp-dp"):
        rank_kinds(cluster, Parallel(tp=2, pp=4))
    with pytest.raises(InfeasibleError, match="whose GPUs tp x pp divides"):
        rank_kinds(cluster, Parallel(tp=8, pp=2, order="tp-pp-dp"))


def test_nodes_that_differ_by_their_name_are_counted_by_their_names():
    node = catalog.node("hgx-h100-80gb")
    groups = (NodeGroup(node=node, nodes=1), NodeGroup(node=replace(node, name="other"), nodes=1))
    assert MixedCluster(name="m", groups=groups).gpu_words == "8 x hgx-h100-80gb + 8 x other"
