"""Nodes of several kinds: equal kinds change nothing, slow ones decide, and what is aware of speed loses nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, STRATEGIES, small_setup

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster, NodeGroup, cluster_of_groups
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Node
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.lower_bound import lower_bound_s
from hdpsim.simulator.planning import micro_batch_cost
from hdpsim.simulator.play.pipeline.validate_plan import validate_plan
from hdpsim.simulator.setup import ExecutionOptions, Setup, StrategyName
from hdpsim.simulator.step import StepResult, simulate_step
from hdpsim.simulator.step_memory import kind_memory

pytestmark = pytest.mark.usefixtures("each_plan_once")

H100 = catalog.node("hgx-h100-80gb")
A100 = catalog.node("hgx-a100-80gb")
SLOW_NIC = replace(H100, name="slow-nic", nic_bytes_per_s=H100.nic_bytes_per_s / 8)
SAME = replace(H100, name="same as hgx-h100-80gb")
"""Another kind by its name alone."""
HALF = replace(
    H100, name="half", gpu=replace(H100.gpu, name="half the memory", hbm_bytes=H100.gpu.hbm_bytes / 2)
)
CALIBRATIONS: dict[str, Calibration] = {
    name: replace(calibration(name), entries=(), launch_s=1e-6) for name in ("hopper", "ampere")
}
WIDE = replace(MODEL, hidden=4096, heads=32, kv_heads=32, ffn_hidden=11008, layers=16)
"""Large enough that kernels decide, not launches."""
LONG_TAIL = np.array([4096, 2048, 2048, *[1024] * 10, *[512] * 20, *[128] * 40, *[64] * 50])
UNIFORM = np.full(64, 1024)


def mixed_setup(groups: list[tuple[Node, int]], **keys: object) -> Setup:
    """The small setup on groups of nodes."""
    given = [NodeGroup(node=node, nodes=count) for node, count in groups]
    cluster = cluster_of_groups("mixed", given, Fabric(nodes_per_block=2, blocks_per_pod=2))
    fitted = tuple(CALIBRATIONS[kind.gpu.calibration] for kind in cluster.kinds)
    setup = small_setup(cluster=cluster, cal=fitted[0], **keys)  # type: ignore[arg-type]
    return replace(setup, kind_calibrations=fitted if len(fitted) > 1 else ())


def groups_of(cluster: Cluster) -> list[tuple[Node, int]]:
    """Nodes and how many of them."""
    if isinstance(cluster, MixedCluster):
        return [(group.node, group.nodes) for group in cluster.groups]
    return [(cluster.node, cluster.nodes)]


def assert_sound(setup: Setup, lengths: np.ndarray) -> StepResult:
    """Every promise that a step makes, on any cluster; return the step."""
    result = simulate_step(setup, lengths)
    validate_plan(result.plan, lengths, setup.layout.parallel.pp)
    assert result.account_s.sum(axis=0) == pytest.approx(result.step_s, rel=1e-9)
    assert result.account_s.min() >= -1e-9 * result.step_s
    assert result.tokens == lengths.sum()
    peak = 8 * sum(node.gpu.bf16_flop_per_s * count for node, count in groups_of(setup.cluster))
    assert result.mfu == pytest.approx(result.model_flop / (peak * result.step_s))
    noisy = setup.execution.jitter or setup.execution.slow_node_share
    if not noisy:
        assert result.step_s >= lower_bound_s(setup, lengths) * (1 - 1e-9)
    engine = simulate_step(replace(setup, execution=replace(setup.execution, executor="engine")), lengths)
    assert engine.step_s == pytest.approx(result.step_s, rel=1e-9)
    assert np.allclose(engine.account_s, result.account_s, rtol=0.0, atol=1e-9 * result.step_s)
    return result


@pytest.mark.parametrize("lengths", [LONG_TAIL, UNIFORM], ids=["long tail", "uniform"])
@pytest.mark.parametrize("layout", [Layout(tp=8), Layout(tp=4, pp=2, order="tp-pp-dp")], ids=["pp 1", "pp 2"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_kinds_that_are_equal_are_one_kind(name: StrategyName, layout: Layout, lengths: np.ndarray):
    keys = {"name": name, "layout": layout, "speed_aware": False}
    one = simulate_step(mixed_setup([(H100, 4)], **keys), lengths)
    setup = mixed_setup([(H100, 1), (SAME, 2), (H100, 1)], **keys)
    assert isinstance(setup.cluster, MixedCluster)
    two = simulate_step(setup, lengths)
    assert two.step_s == pytest.approx(one.step_s, rel=1e-12)
    assert np.allclose(two.account_s, one.account_s, rtol=0.0, atol=1e-12 * one.step_s)
    assert two.memory == one.memory
    homogeneous = replace(setup, cluster=Cluster(name="one", node=H100, nodes=4, fabric=setup.cluster.fabric))
    bound_s = lower_bound_s(replace(homogeneous, kind_calibrations=()), lengths)
    assert lower_bound_s(setup, lengths) == pytest.approx(bound_s, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "layout"),
    [("static", Layout(tp=8)), ("wlb-llm", Layout(tp=8)), ("distca", Layout(tp=8, cp_kind="disaggregated"))],
)
def test_strategies_that_give_all_ranks_the_same_take_no_notice_of_kinds(name: StrategyName, layout: Layout):
    keys = {"name": name, "layout": layout}
    one, two = (
        simulate_step(mixed_setup(groups, **keys), LONG_TAIL)
        for groups in ([(H100, 4)], [(H100, 2), (SAME, 2)])
    )
    assert two.step_s == pytest.approx(one.step_s, rel=1e-12)
    assert two.plan_micro_batches == one.plan_micro_batches


def test_equal_kinds_meet_at_the_loss_as_one_kind_does():
    layout = Layout(tp=8, cp=1, loss_average="micro-batch")
    keys = {"name": "static", "layout": layout, "context": 1024, "padding": False}
    lengths = np.random.default_rng(0).integers(64, 1024, 32)
    one, two, never = (
        simulate_step(mixed_setup(groups, **keys | changed), lengths).step_s
        for groups, changed in (
            ([(H100, 4)], {}),
            ([(H100, 2), (SAME, 2)], {}),
            ([(H100, 4)], {"layout": layout.changed(loss_average="step")}),
        )
    )
    assert two == pytest.approx(one, rel=1e-12)
    assert one > 1.01 * never


def test_groups_of_one_kind_make_an_ordinary_cluster():
    cluster = mixed_setup([(H100, 1), (H100, 3)]).cluster
    assert type(cluster) is Cluster
    assert cluster.nodes == 4


@pytest.mark.parametrize("lengths", [LONG_TAIL, UNIFORM], ids=["long tail", "uniform"])
@pytest.mark.parametrize("slow", [A100, SLOW_NIC], ids=["slow GPU", "slow NIC"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_mixed_cluster_lies_between_all_slow_and_all_fast(
    name: StrategyName, slow: Node, lengths: np.ndarray
):
    all_slow, mixed, all_fast = (
        assert_sound(mixed_setup(groups, name=name, layout=Layout(tp=8)), lengths)
        if len(groups) > 1
        else simulate_step(mixed_setup(groups, name=name, layout=Layout(tp=8)), lengths)
        for groups in ([(slow, 4)], [(H100, 2), (slow, 2)], [(H100, 4)])
    )
    assert all_fast.step_s * (1 - 1e-9) <= mixed.step_s <= all_slow.step_s * (1 + 1e-9)


def test_a_static_mesh_of_equal_sequences_takes_what_the_slow_nodes_take():
    keys = {"name": "static", "layout": Layout(tp=8, cp=1), "capacity": 1024, "context": 1024}
    slow = simulate_step(mixed_setup([(A100, 4)], **keys), UNIFORM)
    mixed = simulate_step(mixed_setup([(H100, 2), (A100, 2)], **keys), UNIFORM)
    assert mixed.step_s == pytest.approx(slow.step_s, rel=1e-3)  # but for what the epilogue hides behind


def test_gradients_are_summed_at_the_slowest_nic():
    keys = {"name": "static", "layout": Layout(tp=8, cp=1, dp_overlap=False), "context": 1024}
    (slow, mixed) = (
        simulate_step(mixed_setup(groups, **keys), UNIFORM)
        for groups in ([(SLOW_NIC, 4)], [(H100, 3), (SLOW_NIC, 1)])
    )
    sync = slow.accounts.index("gradient_sync")
    assert mixed.account_s[sync] == pytest.approx(slow.account_s[sync], rel=1e-12)


def test_a_ring_goes_at_its_slowest_member():
    """One sequence on two ranks of two kinds: the fast one waits for the slow one."""
    keys = {"name": "static", "layout": Layout(tp=8, cp=2), "capacity": 1024, "context": 2048}
    lengths = np.array([2048])
    slow = simulate_step(mixed_setup([(A100, 2)], **keys), lengths)
    mixed = assert_sound(mixed_setup([(H100, 1), (A100, 1)], **keys), lengths)
    assert mixed.step_s == pytest.approx(slow.step_s, rel=1e-3)
    wait, gemm = (mixed.account_s[mixed.accounts.index(name)] for name in ("wait_group", "gemm"))
    assert wait[0] > 0.0 == wait[1]
    assert gemm[0] < gemm[1]


@pytest.mark.parametrize("name", ["hdp-naive", "hdp-opt"])
def test_two_ranks_get_sequences_by_their_speed(name: StrategyName):
    """By hand: of n equal sequences, each a micro-batch of its own, the fast rank runs k such that the later one of
    k x fast and (n - k) x slow is soonest; without regard for speed each runs half of them."""
    count = 24
    keys = {"name": name, "layout": Layout(tp=8), "capacity": 4096, "context": 4096}
    setup = mixed_setup([(H100, 1), (A100, 1)], model=WIDE, **keys)
    lengths = np.full(count, 4096)
    fast_s, slow_s = (float(micro_batch_cost(kind).busy_s(simple_batch(4096))[0]) for kind in setup.kinds)
    split = min(range(count + 1), key=lambda k: max(k * fast_s, (count - k) * slow_s))
    aware = assert_sound(setup, lengths)
    assert np.diff(aware.plan.order_offsets).tolist() == [split, count - split]
    around_s = aware.step_s - max(split * fast_s, (count - split) * slow_s)
    ignoring = simulate_step(replace(setup, strategy=replace(setup.strategy, speed_aware=False)), lengths)
    assert np.diff(ignoring.plan.order_offsets).tolist() == [count // 2, count // 2]
    assert ignoring.step_s == pytest.approx(count // 2 * slow_s + around_s, rel=0.02)
    assert aware.step_s < 0.75 * ignoring.step_s


def simple_batch(tokens: int):
    """One micro-batch of one sequence on one rank."""
    from hdpsim.cost_models.layer.micro_batches import MicroBatches

    return MicroBatches(
        segment_tokens=np.array([tokens]),
        segment_offsets=np.array([0, 1]),
        group_size=np.array([1]),
        tier=np.array([0]),
        offload_ratio=np.zeros(1),
    )


def test_ranks_hold_what_their_own_memory_allows():
    setup = mixed_setup([(H100, 1), (HALF, 1)], layout=Layout(tp=8), model=WIDE, context=1 << 20)
    setup = replace(setup, layout=setup.layout.changed(rank_capacity_tokens=None))
    lengths = np.full(64, 4096)
    result = simulate_step(setup, lengths)
    capacity = result.plan.rank_capacity_tokens
    assert capacity is not None
    assert capacity[0] > 1.5 * capacity[1]
    reports = kind_memory(setup, result.plan)
    assert [report.capacity_bytes for report in reports] == [
        kind.gpu.hbm_bytes for kind in setup.cluster.kinds
    ]
    assert all(report.fits for report in reports)
    ignoring = simulate_step(replace(setup, strategy=replace(setup.strategy, speed_aware=False)), lengths)
    assert ignoring.rank_capacity_tokens == capacity[1]


@st.composite
def mixes(draw: st.DrawFn) -> tuple[Setup, np.ndarray]:
    """Random groups of nodes, layouts, strategies and batches."""
    kinds = draw(st.lists(st.sampled_from([H100, A100, SLOW_NIC, SAME]), min_size=2, max_size=3))
    groups = [(kind, draw(st.integers(1, 3))) for kind in kinds]
    pp = draw(st.sampled_from([1, 1, 2]))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    layout = Layout(
        tp=8 // pp,
        pp=pp,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        order="tp-pp-dp",
        sharding=draw(st.sampled_from(["none", "zero1"])),
    )
    execution = ExecutionOptions(jitter=draw(st.sampled_from([0.0, 0.0, 0.1])))
    setup = mixed_setup(
        groups,
        layout=layout,
        name=draw(st.sampled_from(STRATEGIES)),
        speed_aware=draw(st.booleans()),
        execution=execution,
        context=2048,
        capacity=1024,
    )
    lengths = draw(st.lists(st.integers(1, 2048), min_size=1, max_size=60))
    return setup, np.array(lengths)


@pytest.mark.slow
@settings(max_examples=30)
@given(mixes())
def test_random_mixes_keep_every_promise(mix: tuple[Setup, np.ndarray]):
    setup, lengths = mix
    result = assert_sound(setup, lengths)
    if setup.strategy.name != "static" and setup.strategy.speed_aware and not setup.execution.jitter:
        ignoring = replace(setup, strategy=replace(setup.strategy, speed_aware=False))
        assert result.step_s <= simulate_step(ignoring, lengths).step_s * 1.01


def test_what_is_not_modelled_is_refused():
    groups = [(H100, 1), (A100, 1)]
    refused = {
        "one kind": mixed_setup(groups, layout=Layout(tp=8, pp=2)),
        "zb-h1": mixed_setup(groups, layout=Layout(tp=4, pp=2, order="tp-pp-dp", schedule="zb-h1")),
        "zero3": mixed_setup(groups, layout=Layout(tp=8, sharding="zero3"), name="static"),
        "gpu_spread": mixed_setup(groups, execution=ExecutionOptions(gpu_spread=0.02)),
        "gc_pause": mixed_setup(groups, execution=ExecutionOptions(gc_pause_s=0.1)),
        "calibration": replace(mixed_setup(groups), kind_calibrations=()),
    }
    for words, setup in refused.items():
        with pytest.raises(InfeasibleError, match=words):
            simulate_step(setup, UNIFORM)


def test_asking_for_the_one_gpu_of_a_mixed_cluster_is_refused():
    cluster = mixed_setup([(H100, 1), (A100, 1)]).cluster
    for name in ("node", "gpu"):
        with pytest.raises(InfeasibleError, match="mixes nodes"):
            getattr(cluster, name)
