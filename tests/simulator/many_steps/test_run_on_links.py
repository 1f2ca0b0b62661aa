"""Steps whose transfers are flows, and storage traffic on the same NICs, in one environment."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from simulator_setups import small_cluster, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.links import Links
from hdpsim.simulator.many_steps.clock import run_of
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.many_steps.prepared_step import prepare_step
from hdpsim.simulator.many_steps.storage import StorageOnNics, with_storage
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.setup import ExecutionOptions, Setup
from hdpsim.simulator.step import simulate_step

LENGTHS = np.array([1024] * 4 + [900, 700, 512, 300] * 4)
SHARED = RunOptions(storage_bytes_per_s=1e18, storage_nics="shared", token_bytes=0.0)


def on_links(**layout: object) -> Setup:
    return small_setup(
        capacity=256,
        context=1024,
        nodes=4,
        name="static",
        execution=ExecutionOptions(network="flows"),
        layout=Layout(**layout),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("layout", [{}, {"pp": 2}])
def test_without_storage_traffic_steps_on_one_network_are_single_steps(layout):
    setup = on_links(**layout)
    step = prepare_step(setup, LENGTHS, SHARED)
    rows = list(run_of(setup, [step] * 3, SHARED))
    single = simulate_step(setup, LENGTHS)
    assert step.network is not None
    assert step.network.alone_s + step.sharing_s == pytest.approx(single.step_s, rel=1e-12)
    assert [row.period_s for row in rows[1:]] == pytest.approx([single.step_s] * 2, rel=1e-9)
    assert [row.contention_s for row in rows] == pytest.approx([0.0] * 3, abs=1e-9 * single.step_s)


def test_stages_that_follow_each_other_on_one_network():
    setup = on_links(pp=2, schedule="zb-h2")
    own = replace(SHARED, storage_nics="own")
    step = prepare_step(setup, LENGTHS, own)
    assert step.flowing is not None
    rows = list(run_of(setup, [step] * 8, own))
    # The end of one step meets the begin of the next, as far as stages drift apart.
    assert rows[-1].period_s == pytest.approx(simulate_step(setup, LENGTHS).step_s, rel=0.05)
    assert sum(row.period_s for row in rows) == pytest.approx(rows[-1].end_s, rel=1e-9)


def test_a_checkpoint_that_is_written_over_the_nics_holds_up_the_step_beside_it():
    setup = on_links()
    options = replace(SHARED, checkpoint_steps=2, checkpoint_block_s=0.0)
    rows = list(run_of(setup, [prepare_step(setup, LENGTHS, options)] * 5, options))
    assert rows[2].contention_s > 1e-3 * rows[2].step_s
    assert rows[1].contention_s == pytest.approx(0.0, abs=1e-9)
    apart = replace(options, storage_nics="own")
    faster = list(run_of(setup, [prepare_step(setup, LENGTHS, apart)] * 5, apart))
    assert faster[-1].end_s < rows[-1].end_s


def test_a_transfer_over_nics_alone_takes_the_slowest_of_nics_storage_and_itself():
    cluster = small_cluster(2)
    nics = 2 * cluster.node.nics
    for storage_bytes_per_s, fastest, expected_s in ((1e18, 1e18, None), (1e9, 1e18, 4.0), (1e18, 5e8, 8.0)):
        env = simpy.Environment()
        links = with_storage(Links.of(cluster), storage_bytes_per_s)
        rate = links.capacity_bytes_per_s[links.first["nic-out"]]
        storage = StorageOnNics(FlowNetwork(env, links))
        env.run(storage.transfer(4e9, fastest, "write"))
        assert env.now == pytest.approx(expected_s or 4e9 / (nics * rate))
        assert storage.moved_bytes == 4e9
