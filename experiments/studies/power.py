"""Power of a simulated step: what its accounts let GPUs, servers and the data centre draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.cost_models.kernels.power import GpuWork, gpu_w, node_w, waiting_w
from hdpsim.cost_models.layout_checks import rank_kinds
from hdpsim.cost_models.reading.units import format_quantity
from hdpsim.experiments.output.plots.style import account_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdpsim.arrays import Floats, Ints
    from hdpsim.cost_models.hardware.parts import Cluster
    from hdpsim.cost_models.hardware.prices import CostOptions
    from hdpsim.simulator.plan import Plan
    from hdpsim.simulator.setup import Setup
    from hdpsim.simulator.step import StepResult

_MEMORY_BOUND = frozenset({"small_kernels", "ring_merge", "optimizer"})
"""Accounts of kernels that HBM limits; other compute is matrix work, other overhead waits for host or storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Mean power while something goes on.

    Attributes:
        gpu_w: watts of a GPU.
        node_w: watts of a server with its GPUs.
        network_w: watts of all switches between the nodes.
        pue: power of the data centre over that of its computers (PUE).
        nodes: how many servers.
    """

    gpu_w: float
    node_w: float
    network_w: float
    pue: float
    nodes: int

    @property
    def facility_w(self) -> float:
        """All that the data centre draws: servers, network, and what cooling and distribution add."""
        return (self.nodes * self.node_w + self.network_w) * self.pue

    def mixed_with(self, other: Power, share: float) -> Power:
        """The mean of *share* of the time this power, and of the rest the other."""
        return replace(
            self,
            gpu_w=share * self.gpu_w + (1.0 - share) * other.gpu_w,
            node_w=share * self.node_w + (1.0 - share) * other.node_w,
        )

    @property
    def words(self) -> str:
        """A line for people."""
        of_network = (
            f" and {self.network_w / self.nodes / 1e3:.2f} kW for its network" if self.network_w else ""
        )
        return (
            f"{self.gpu_w:,.0f} W per GPU, {self.node_w / 1e3:.2f} kW per node{of_network}; "
            f"{format_quantity(self.facility_w, 'power')} with PUE {self.pue:g}"
        )

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            "gpu_w": self.gpu_w,
            "kw_per_node": self.node_w / 1e3,
            "network_kw": self.network_w / 1e3,
            "facility_kw": self.facility_w / 1e3,
            "pue": self.pue,
        }


def power_of(
    setup: Setup, results: Sequence[StepResult], account_s: Mapping[str, float], costs: CostOptions
) -> Power:
    """Mean power of steps whose accounts have so many seconds on average."""
    if len(setup.cluster.kinds) > 1:
        return _mixed_power(setup, results, costs)
    work = gpu_work(results, account_s)
    drawn = gpu_w(work, setup.cluster.gpu, setup.calibration, setup.layout.precision.products)
    return cluster_power(setup.cluster, drawn, costs)


def _mixed_power(setup: Setup, results: Sequence[StepResult], costs: CostOptions) -> Power:
    """Mean power on nodes of several kinds: each kind by the accounts of its own ranks and its share of the FLOP."""
    rank_kind, cluster = rank_kinds(setup.cluster, setup.layout.parallel), setup.cluster
    done = np.sum([_kind_work(result.plan, rank_kind, len(cluster.kinds)) for result in results], axis=0)
    done = done / done.sum(axis=1, keepdims=True)  # [products and attention, kinds]
    ranks = np.bincount(rank_kind, minlength=len(cluster.kinds))
    gpu_power_w = node_power_w = 0.0
    for number, kind in enumerate(setup.kinds):
        own_s = np.mean(
            [result.account_s[:, rank_kind == number].mean(axis=(1, 2)) for result in results], axis=0
        )
        work = gpu_work(results, dict(zip(results[0].accounts, own_s.tolist(), strict=True)))
        products, attention = done[:, number] * setup.ranks / ranks[number]
        work = replace(
            work,
            product_flop=work.product_flop * products,
            attention_flop=work.attention_flop * attention,
        )
        drawn_w = gpu_w(work, kind.cluster.gpu, kind.calibration, setup.layout.precision.products)
        gpu_power_w += drawn_w * ranks[number] / setup.ranks
        node_power_w += node_w(kind.cluster.node, drawn_w) * ranks[number] / setup.ranks
    return _power(cluster, gpu_power_w, node_power_w, costs)


def _kind_work(plan: Plan, rank_kind: Ints, kinds: int) -> Floats:
    """[2, kinds]: tokens, and the squares of the lengths of sequences, that ranks of every kind work on."""
    tokens = plan.segment_tokens.astype(np.float64)
    first, sizes = plan.segment_offsets[:-1], plan.group_size
    of_member = np.repeat(np.arange(plan.micro_batches), sizes)
    means = [np.add.reduceat(amount, first) / sizes for amount in (tokens, tokens**2)]
    return np.array(
        [
            np.bincount(rank_kind[plan.member_ranks], weights=share[of_member], minlength=kinds)
            for share in means
        ]
    )


def waiting_power(cluster: Cluster, costs: CostOptions) -> Power:
    """Power while all GPUs wait: for a restart, a checkpoint, a node."""
    return cluster_power(cluster, waiting_w(cluster.gpu), costs)


def cluster_power(cluster: Cluster, drawn_w: float, costs: CostOptions) -> Power:
    """Power of a cluster whose GPUs draw *drawn_w* on average."""
    return _power(cluster, drawn_w, node_w(cluster.node, drawn_w), costs)


def _power(cluster: Cluster, of_gpu_w: float, of_node_w: float, costs: CostOptions) -> Power:
    return Power(
        gpu_w=of_gpu_w,
        node_w=of_node_w,
        network_w=costs.network_w * cluster.gpus if cluster.nodes > 1 else 0.0,
        pue=costs.pue,
        nodes=cluster.nodes,
    )


def gpu_work(results: Sequence[StepResult], account_s: Mapping[str, float]) -> GpuWork:
    """What a GPU does, from the accounts and the FLOP of the steps.

    Attention is the half that the full convention adds to the causal one; windows, where it is less, are ignored.
    """
    seconds = {"matrix": 0.0, "memory": 0.0, "communication": 0.0, "waiting": 0.0}
    for account, spent_s in account_s.items():
        seconds[_kind(account)] += spent_s
    gpus = sum(result.gpus for result in results)
    attention = sum(result.hardware_flop_full - result.hardware_flop for result in results)
    return GpuWork(
        matrix_s=seconds["matrix"],
        memory_s=seconds["memory"],
        communication_s=seconds["communication"],
        waiting_s=seconds["waiting"],
        product_flop=(sum(result.hardware_flop for result in results) - attention) / gpus,
        attention_flop=attention / gpus,
    )


def _kind(account: str) -> str:
    if account in _MEMORY_BOUND:
        return "memory"
    group = account_group(account)
    return {"compute": "matrix", "communication": "communication"}.get(group, "waiting")
