"""Links that are slow or cut, in a whole step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator_setups import small_cluster, small_setup

from hdpsim.cost_models.hardware.parts import Routing, degraded_links
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.simulator.setup import ExecutionOptions, Setup
from hdpsim.simulator.step import simulate_step

LENGTHS = np.array([16384, 9000, 8192, 4000, 3000, 2048, 2048, *[1024] * 40])


def setup(links: str = "", routing: Routing = "ideal") -> Setup:
    cluster = small_cluster(8)
    fabric = replace(cluster.fabric, degraded_links=links, routing=routing, nodes_per_block=4)
    made: Setup = small_setup(
        nodes=8, capacity=2048, context=16384, cluster=replace(cluster, fabric=fabric),
        execution=ExecutionOptions(network="flows"), layout=Layout(tp=2, cp=8), name="static",
    )  # fmt: skip
    return made


def step_s(of: Setup) -> float:
    return simulate_step(of, LENGTHS).step_s


def test_the_slower_a_nic_the_longer_the_step() -> None:
    whole, half, tenth = (step_s(setup(links)) for links in ("", "nic-out:3.*=0.5", "nic-out:3.*=0.1"))
    assert whole <= half < tenth


def test_cut_up_links_leave_the_others_and_a_cut_nic_leaves_nothing() -> None:
    assert step_s(setup("leaf-up:0.*.[01]=0", routing="ecmp")) > 0
    with pytest.raises(InfeasibleError, match=r"nic-out:3\.1 is cut"):
        step_s(setup("nic-out:3.1=0"))


def test_a_link_that_this_fabric_has_not_cannot_run() -> None:
    with pytest.raises(InfeasibleError, match=r"degraded_links: no link of .* is called 'leaf-up:0.0.1'"):
        step_s(setup("leaf-up:0.0.1=0"))


@pytest.mark.parametrize("name", ["foo:1", "leaf_up:0.0.1", "nic", "nic:3.1"])
def test_a_name_that_no_link_of_any_fabric_has_is_wrong_input(name: str) -> None:
    with pytest.raises(UserInputError, match=f"no link is called '{name}'; names begin with gpu-out:, "):
        degraded_links(f"{name}=0.5")


@pytest.mark.parametrize("name", ["*", "nic-*", "*-up:0.*", "leaf-up:[01].0.1", "storage:0"])
def test_a_pattern_that_links_of_some_fabric_have_is_read(name: str) -> None:
    assert degraded_links(f"{name}=0.5") == {name: 0.5}


def test_another_seed_of_the_hash_finds_other_up_links() -> None:
    def ups(seed: int) -> list[float]:
        of = setup(routing="ecmp")
        fabric = replace(of.cluster.fabric, ecmp_seed=seed)
        recording = replace(of.execution, record_links=True)
        changed = replace(of, cluster=replace(of.cluster, fabric=fabric), execution=recording)
        network = simulate_step(changed, LENGTHS).network
        assert network is not None
        assert network.record is not None
        record = network.record
        carried: list[float] = record.link_bytes()[record.links.of_kind("leaf-up")].tolist()
        return carried

    first, other = ups(0), ups(1)
    assert first == ups(0)
    assert first != other
    assert sum(first) == pytest.approx(sum(other))  # the same bytes go up, by other links


def test_rates_of_their_own_know_no_links() -> None:
    with pytest.raises(UserInputError, match=r"ecmp_seed.*set execution.network = flows"):
        fabric = replace(small_cluster(8).fabric, ecmp_seed=1)
        replace(setup(), cluster=replace(small_cluster(8), fabric=fabric), execution=ExecutionOptions())
    with pytest.raises(UserInputError, match=r"set execution.network = flows"):
        replace(setup("nic-out:3.*=0.5"), execution=ExecutionOptions())
