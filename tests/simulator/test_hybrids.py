"""Steps of hybrids: bounds, both executors, meshes that cannot spread a scan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.model import Mamba
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.lower_bound import lower_bound_s
from hdpsim.simulator.setup import ExecutionOptions
from hdpsim.simulator.step import simulate_step

pytestmark = pytest.mark.usefixtures("each_plan_once")

MAMBA = Mamba(heads=32, head_dim=64, state=128, groups=8)
HYBRID = replace(MODEL, name="hybrid", layer_pattern="M-M*M-M-", mamba=MAMBA)
EXPERTS = replace(HYBRID, name="experts", layer_pattern="MEM*E*ME", experts=8, top_k=2, expert_latent=256)
SCAN_ONLY = replace(HYBRID, name="scan", layer_pattern="8M")


@settings(max_examples=40)
@given(
    model=st.sampled_from([HYBRID, EXPERTS, SCAN_ONLY]),
    name=st.sampled_from(["static", "hdp-naive", "hdp-balance", "hdp-opt", "wlb-llm"]),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from([{}, {"recompute": "full"}, {"recompute": "full", "recompute_layers": "moe"}]),
    lengths=st.lists(st.integers(1, 4096), min_size=1, max_size=24),
)
def test_no_step_is_below_its_bound_and_both_executors_agree(model, name, tp, pp, recompute, lengths):
    if not model.experts and "recompute_layers" in recompute:
        recompute = {}
    layout = Layout(tp=tp, pp=pp, ep=2 if model.experts else 1, **recompute)
    setup = small_setup(model=model, layout=layout, capacity=2048, name=name)
    batch = np.array(lengths)
    step_s = simulate_step(setup, batch).step_s
    assert step_s >= lower_bound_s(setup, batch) * (1 - 1e-9)
    engine = replace(setup, execution=ExecutionOptions(executor="engine"))
    assert simulate_step(engine, batch).step_s == pytest.approx(step_s, rel=1e-9)


def test_a_longer_sequence_of_scans_alone_takes_as_long_as_two_of_half_of_it():
    setup = small_setup(model=SCAN_ONLY, layout=Layout(), capacity=8192, context=8192, nodes=1, name="static")
    whole, halves = (simulate_step(setup, np.array(lengths * 8)).step_s for lengths in ([8192], [4096, 4096]))
    assert whole == pytest.approx(halves)


def test_a_mesh_takes_degrees_that_divide_the_heads():
    """24 ranks and a context of three capacities: three ranks cannot share 32 heads, four can."""
    setup = small_setup(model=HYBRID, nodes=3, capacity=1024, context=3072, name="static")
    found = simulate_step(setup, np.array([3072, 100, 2000]))
    assert set(found.plan.group_size) <= {4, 8}
    odd = replace(setup, model=replace(HYBRID, mamba=replace(MAMBA, heads=7, groups=1)))
    with pytest.raises(InfeasibleError, match="7 Mamba-2 heads of a GPU"):
        simulate_step(odd, np.array([3072]))


def test_no_group_is_larger_than_a_gpu_has_heads():
    few = replace(HYBRID, mamba=replace(MAMBA, heads=2, groups=2))
    setup = small_setup(model=few, capacity=1024, context=4096, name="hdp-opt", selective_offloading=False)
    with pytest.raises(InfeasibleError, match="whole heads, of which a GPU has 2"):
        simulate_step(setup, np.array([4096]))
