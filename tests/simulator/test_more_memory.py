"""More memory never slows a step that is planned anew, whatever the strategy, where nothing but memory limits it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import STRATEGIES, Task, tasks

from hdpsim.cost_models.memory.report import CAPACITY_STEP_TOKENS
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.setup import Setup, StrategyName
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
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25, deadline=None)
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
