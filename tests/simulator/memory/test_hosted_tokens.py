"""How many tokens of a sequence a rank can hold: its host has only so much room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulator_setups import small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.planning import micro_batch_cost, plan_batch
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.step_memory import hosted_tokens

LENGTHS = np.array([8192, 6000, *[1000] * 8])


def on_hosts(host_bytes: float, **strategy: object) -> Setup:
    setup = small_setup(
        nodes=1, capacity=1024, context=8192, layout=Layout(tp=1), name="hdp-naive", **strategy
    )
    return replace(
        setup, cluster=replace(setup.cluster, node=replace(setup.cluster.node, host_memory_bytes=host_bytes))
    )


def test_room_is_what_other_tokens_keep_in_all_layers() -> None:
    setup = on_hosts(8e9)
    cost = micro_batch_cost(setup)
    of_token = cost.offloading.activation_bytes_per_token * setup.model.layers
    assert hosted_tokens(setup, cost, 1024) == pytest.approx(1024 + 1e9 / of_token)
    pipeline = replace(setup, layout=setup.layout.changed(pp=2))
    # half of the layers, two micro-batches in flight on the first stage
    assert hosted_tokens(pipeline, cost, 1024) == pytest.approx(1024 + 1e9 / of_token)
    assert hosted_tokens(replace(setup, memory=replace(setup.memory, must_fit=False)), cost, 1024) == np.inf


def test_full_hosts_take_more_ranks_and_offload_less() -> None:
    def held(setup: Setup) -> tuple[int, float]:
        plan, _, _ = plan_batch(setup, LENGTHS)
        layers = setup.model.layers
        cost = micro_batch_cost(setup)
        tokens = np.add.reduceat(plan.segment_tokens, plan.segment_offsets[:-1]) / plan.group_size
        most = (plan.offload_ratio * tokens).max() * cost.offloading.activation_bytes_per_token * (layers - 2)
        return int(plan.group_size.max()), float(most)

    roomy, tight, none = (on_hosts(host_bytes, offload_ratio=1.0) for host_bytes in (1e15, 2e9, 1e3))
    (few, much), (more, less), (most, nothing) = (held(setup) for setup in (roomy, tight, none))
    assert few < more <= most == 8
    assert much > less > nothing
    assert less <= 2e9 / 8 * (1 + 1e-9)
    assert nothing == pytest.approx(0.0, abs=1.0)


def test_a_given_ratio_offloads_where_eq_3_would_not() -> None:
    slow = on_hosts(1e15, offload_ratio=1.0)
    auto = on_hosts(1e15)
    forced, chosen = simulate_step(slow, LENGTHS), simulate_step(auto, LENGTHS)
    assert forced.plan.offload_ratio.max() > chosen.plan.offload_ratio.max()
    waits = forced.account_s[forced.accounts.index("offload_wait")]
    assert waits.max() > 0
