"""A cluster whose nodes are of several kinds: other GPUs, memory sizes or NICs, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Node
from hdpsim.cost_models.reading.checked import Checked, ContradictionError, Count
from hdpsim.errors import InfeasibleError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup(Checked):
    """Neighbouring nodes of one kind."""

    node: Node
    nodes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCluster(Cluster):
    """Groups of nodes on one fabric, numbered group by group.

    It has no `node` and no `gpu` that would stand for all: code that asks for them was written for one kind of node,
    and the question ends in an InfeasibleError. What is the same everywhere (`gpus`, `node_gpus`) is there.
    """

    node: Node = field(init=False, compare=False, repr=False)
    nodes: Count = field(init=False, compare=False, repr=False)
    groups: tuple[NodeGroup, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", sum(group.nodes for group in self.groups))
        sizes = sorted({group.node.gpus for group in self.groups})
        if len(sizes) > 1:
            counts = " and ".join(map(str, sizes))
            text = f"must have equally many GPUs each, not {counts}: the fabric counts in nodes"
            raise ContradictionError(type(self).__name__, (("nodes", text),))

    def __getattr__(self, name: str) -> NoReturn:
        """Answer for the fields that are never set."""
        if name == "node":
            raise InfeasibleError(
                f"cluster {self.name} ({self.gpu_words}): this is not modelled for a cluster that mixes nodes; take "
                "a cluster of one kind of node (simulate, compare, whatif and sweep take mixed ones)"
            )
        raise AttributeError(name)

    def __reduce__(self) -> tuple[object, ...]:
        return (_mixed, (self.name, self.groups, self.fabric, self.source))

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.node_gpus

    @property
    def node_gpus(self) -> int:
        """GPUs of every node."""
        return self.groups[0].node.gpus

    @property
    def node_kinds(self) -> tuple[Node, ...]:
        """The different nodes, in the order in which they first appear."""
        return tuple(dict.fromkeys(group.node for group in self.groups))

    @property
    def kinds(self) -> tuple[Cluster, ...]:
        """The cluster as if all its nodes were of one kind, for every kind."""
        return tuple(
            Cluster(name=f"{self.name} as {node.name}", node=node, nodes=self.nodes, fabric=self.fabric)
            for node in self.node_kinds
        )

    @property
    def gpu_kinds(self) -> Ints:
        """[gpus]: the kind (place in `kinds`) of every GPU's node."""
        kinds = self.node_kinds
        of_group = [kinds.index(group.node) for group in self.groups]
        return np.repeat(of_group, [group.nodes * self.node_gpus for group in self.groups])

    @property
    def bf16_flop_per_s(self) -> float:
        """Dense peak of all GPUs together."""
        return sum(group.nodes * group.node.gpus * group.node.gpu.bf16_flop_per_s for group in self.groups)

    @property
    def gpu_words(self) -> str:
        """How many of which GPU."""
        counts = dict.fromkeys(self.node_kinds, 0)
        for group in self.groups:
            counts[group.node] += group.nodes * group.node.gpus
        names = [node.gpu.name for node in counts]
        if len(set(names)) < len(names):
            names = [node.name for node in counts]
        return " + ".join(f"{gpus:,} x {name}" for name, gpus in zip(names, counts.values(), strict=True))


def cluster_of_groups(
    name: str, groups: Sequence[NodeGroup], fabric: Fabric | None = None, source: str = ""
) -> Cluster:
    """The cluster of these groups of nodes: an ordinary one where all are of one kind."""
    fabric = fabric or Fabric()
    first = groups[0].node
    if all(group.node == first for group in groups):
        nodes = sum(group.nodes for group in groups)
        return Cluster(name=name, node=first, nodes=nodes, fabric=fabric, source=source)
    return _mixed(name, tuple(groups), fabric, source)


def _mixed(name: str, groups: tuple[NodeGroup, ...], fabric: Fabric, source: str) -> MixedCluster:
    return MixedCluster(name=name, groups=groups, fabric=fabric, source=source)
