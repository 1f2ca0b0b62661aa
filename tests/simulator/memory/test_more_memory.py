"""More memory, or faster GPUs, never slow a step that is planned anew, where nothing but they limit it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import STRATEGIES, Task, tasks

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.peak import CAPACITY_STEP_TOKENS
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.setup import Setup, StrategyName, StrategyOptions
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.step_memory import capacity_tokens, memory_of

FOR_NOTHING = 1.02
"""A planner is no optimiser: so much slower a step with more memory may be."""


def with_room_for(setup: Setup, times: float) -> Setup:
    """The setup with no degree or capacity stated, on GPUs whose memory just holds *times* the tokens that were."""
    capacity, step = (
        setup.layout.context.rank_capacity_tokens,
        CAPACITY_STEP_TOKENS * setup.layout.parallel.tp,
    )
    assert capacity is not None
    free = replace(setup, layout=setup.layout.changed(cp=None, rank_capacity_tokens=None))
    report = memory_of(free, int(np.ceil(capacity * times / step)) * step, micro_batches=None)
    node = free.cluster.node
    usable = report.capacity_bytes / node.gpu.hbm_bytes
    gpu = replace(node.gpu, hbm_bytes=report.total_bytes / usable * 1.0001)
    return replace(free, cluster=replace(free.cluster, node=replace(node, gpu=gpu)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STRATEGIES, "hdp-balance"])
@settings(max_examples=10, deadline=None)
@given(task=tasks(), times=st.sampled_from([1.3, 2.0, 4.0, 32.0]))
def test_more_memory_never_slows_a_step_planned_anew(name: StrategyName, task: Task, times: float):
    options = replace(task.setup.strategy, name=name, balancing=True, dynamic_groups=True)
    setup = replace(task.setup, strategy=options)
    less, more = with_room_for(setup, 1.0), with_room_for(setup, times)
    assert capacity_tokens(less) <= capacity_tokens(more)
    try:
        before_s = simulate_step(less, task.lengths).step_s
    except InfeasibleError:  # activations on the host, too
        return
    assert simulate_step(more, task.lengths).step_s <= before_s * FOR_NOTHING


def test_hdp_balance_does_not_leave_ranks_idle_because_one_would_hold_a_sequence():
    """Four sequences on 64 ranks: with room for a whole one, groups of one rank took ten times as long."""
    steps = []
    for times in (1.0, 3.0):
        cluster = catalog.cluster_of("hgx-a100-80gb", 64)
        gpu = replace(cluster.node.gpu, hbm_bytes=times * cluster.node.gpu.hbm_bytes)
        setup = Setup(
            model=replace(catalog.model("mixtral-8x7b"), layers=8),
            cluster=replace(cluster, node=replace(cluster.node, gpu=gpu)),
            layout=Layout(sharding="zero3"),
            calibration=calibration("ampere"),
            context_tokens=65_536,
            strategy=StrategyOptions(name="hdp-balance"),
        )
        result = simulate_step(setup, [65_536] * 4)
        naive = simulate_step(replace(setup, strategy=StrategyOptions(name="hdp-naive")), [65_536] * 4)
        assert result.step_s == pytest.approx(naive.step_s, rel=0.01)
        steps.append(result.step_s)
    assert steps[1] <= steps[0]


def test_faster_products_do_not_slow_a_batch_of_one_long_and_many_short_sequences():
    """Gradients hide behind the micro-batch of most ranks, the shared one, not behind the mean of all micro-batches."""
    lengths = [15, 15, 46, 277, 317, 369, 621, 840, 1092, 1250, 2064, 3124, 5104, 5909, 7779, 36_714]
    steps = []
    for times in (1.0, 2.0):
        cluster = catalog.cluster_of("p4d", 64)
        node, gpu = cluster.node, cluster.node.gpu
        faster = replace(gpu, bf16_flop_per_s=times * gpu.bf16_flop_per_s, tdp_w=4 * gpu.tdp_w)
        setup = Setup(
            model=replace(catalog.model("llama-7b"), layers=16),
            cluster=replace(cluster, node=replace(node, gpu=faster)),
            layout=Layout(tp=4, recompute="selective"),
            calibration=calibration("ampere"),
            context_tokens=65_536,
            strategy=StrategyOptions(name="hdp-opt"),
        )
        steps.append(simulate_step(setup, lengths).step_s)
    assert steps[1] <= FOR_NOTHING * steps[0]
