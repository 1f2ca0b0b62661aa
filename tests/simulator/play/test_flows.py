"""Steps whose transfers share links: against the replay where nothing is shared, and against themselves where it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, Task, pipelines, small_cluster, small_setup, tasks

from hdpsim.arrays import Ints
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.links import LinkKind
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.network.link_flaps_on_flows import Flap
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.play.accounts import Timeline
from hdpsim.simulator.play.execution import Execution
from hdpsim.simulator.play.flows.engine import FlowStep, run_flows
from hdpsim.simulator.play.flows.program import FlowProgram
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.playing import link_flaps, plan_noise, wired
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.setup import ExecutionOptions, Setup
from hdpsim.simulator.step import simulate_step

pytestmark = pytest.mark.usefixtures("each_plan_once")

FLOWS = ExecutionOptions(network="flows")
LENGTHS = np.array([16384, 9000, 8192, 4000, 3000, 2048, 2048, *[1024] * 40])
EXPERTS = replace(MODEL, name="experts", experts=16, top_k=2)


def step_setup(
    model=MODEL,
    execution=FLOWS,
    nodes=8,
    oversubscription=1.0,
    cluster=None,
    strategy="hdp-opt",
    offload=0.0,
    **layout,
):
    return small_setup(
        nodes=nodes,
        capacity=2048,
        context=16384,
        model=model,
        cluster=cluster or small_cluster(nodes, oversubscription=oversubscription),
        execution=execution,
        layout=Layout(**layout),
        name=strategy,
        activation_offload=offload,
    )


SETUPS = {
    "rings": step_setup(tp=2),
    "static": step_setup(tp=2, cp=8, strategy="static"),
    "sums shown": step_setup(tp=2, dp_overlap=False),
    "sharded among some": step_setup(tp=2, sharding="zero2", shard_ranks=8),
    "nothing sharded": step_setup(tp=2, sharding="none"),
    "pipeline": step_setup(tp=2, pp=4),
    "pipelines side by side": step_setup(nodes=16, tp=8, pp=2, order="tp-pp-dp"),
    "interleaved": step_setup(tp=4, pp=2, vpp=2, schedule="interleaved"),
    "blocking": step_setup(tp=2, pp=4, pp_overlap=False),
    "blocking interleaved": step_setup(tp=4, pp=2, vpp=2, schedule="interleaved", pp_overlap=False),
    "zb-h1": step_setup(tp=2, pp=4, schedule="zb-h1"),
    "zb-h2": step_setup(tp=2, pp=4, schedule="zb-h2"),
    "zb-v": step_setup(tp=4, pp=2, vpp=2, schedule="zb-v"),
    "all-gather": step_setup(tp=1, cp=16, cp_kind="all-gather", strategy="static"),
    "gathered ring": step_setup(tp=2, cp=16, cp_kind="gathered-ring", strategy="static"),
    "ulysses": step_setup(tp=1, cp=8, cp_kind="ulysses", strategy="static", order="tp-pp-dp", pp=2),
    "layer by layer": step_setup(tp=2, cp=8, sharding="zero3", strategy="static"),
    "recomputed": step_setup(tp=2, cp=8, recompute="full", strategy="static"),
    "wide tensor groups": step_setup(tp=16, model=replace(MODEL, heads=16, kv_heads=16)),
    "experts": step_setup(tp=2, cp=8, ep=16, model=EXPERTS, strategy="static"),
    "fused experts": step_setup(tp=2, cp=8, ep=16, expert_dispatch="fused", model=EXPERTS, strategy="static"),
    "offloading": step_setup(tp=2, cp=8, strategy="static", offload=1.0),
    "offloading pipeline": step_setup(tp=2, cp=8, pp=2, strategy="static", offload=0.8, recompute="full"),
    "noise": step_setup(
        tp=4, pp=2, execution=ExecutionOptions(network="flows", jitter=0.2, slow_node_share=0.3)
    ),
}


def played(
    of: Setup,
    *,
    lengths: Ints = LENGTHS,
    share: float = 1.0,
    faster: tuple[int, float] = (0, 1.0),
    every_link: bool = False,
) -> tuple[FlowProgram, Timeline, FlowStep]:
    """The step with links that have *share* times the rate that the durations alone assume; one *faster* than that."""
    plan, problem, _ = plan_batch(of, lengths)
    costs = price_plan(of, problem, plan)
    where = replace(wired(of), every_link=every_link)
    flows = FlowProgram.of(compile_program(plan, costs, plan_noise(of, plan, costs)), where)
    env = simpy.Environment()
    capacity = share * where.links.capacity_bytes_per_s
    capacity[faster[0]] *= faster[1]
    links = replace(where.links, capacity_bytes_per_s=capacity)
    step = FlowStep(flows, FlowNetwork(env, links))
    begin_s = flows.played.step_end.begin_s.tolist()
    timeline = env.run(step.start(env, [env.timeout(seconds) for seconds in begin_s]))
    assert isinstance(timeline, Timeline)
    return flows, timeline, step


def replayed(of: Setup, lengths: Ints) -> Execution:
    plan, problem, _ = plan_batch(of, lengths)
    costs = price_plan(of, problem, plan)
    return run_replay(plan, costs, plan_noise(of, plan, costs))


@pytest.mark.parametrize("name", SETUPS)
def test_with_nothing_shared_a_step_of_flows_is_the_replay(name: str):
    lengths = LENGTHS
    _, timeline, step = played(SETUPS[name], lengths=lengths, share=1e6)
    replay = replayed(
        replace(SETUPS[name], execution=replace(SETUPS[name].execution, network="independent")), lengths
    )
    assert timeline.step_end.step_s == pytest.approx(replay.step_s, rel=1e-9)
    execution, contention_s = step.account(timeline)
    assert execution.accounts == replay.accounts
    np.testing.assert_allclose(execution.account_s, replay.account_s, rtol=1e-8, atol=1e-9 * replay.step_s)
    np.testing.assert_allclose(contention_s, 0.0, atol=1e-9 * replay.step_s)


@pytest.mark.slow
@settings(max_examples=15)
@given(pipelines())
def test_any_pipeline_with_nothing_shared_is_the_replay(task: Task):
    assume(task.setup.layout.pipeline.schedule != "dualpipe")
    of = replace(task.setup, memory=replace(task.setup.memory, must_fit=False), execution=FLOWS)
    flows, timeline, step = played(of, lengths=task.lengths, share=1e6)
    alone, step_s = flows.played, flows.played.step_end.step_s
    for shared_s, alone_s in ((timeline.start_s, alone.start_s), (timeline.end_s, alone.end_s)):
        np.testing.assert_allclose(shared_s, alone_s, rtol=1e-9, atol=1e-9 * step_s)
    _, contention_s = step.account(timeline)
    np.testing.assert_allclose(contention_s, 0.0, atol=1e-9 * step_s)


def test_transfers_that_hold_stages_hold_them_longer_where_they_meet():
    # Two pipelines side by side, their first stages on a node with one NIC, their last ones on another; two equal
    # micro-batches each. Stage 0 runs F0 F1 B0 B1, stage 1 F0+B0 and F1+B1; between them are three exchanges:
    #     F0 down; F1 down while B0 comes up; B1 up          step = 3 (f + b) + 3 (latency + wire)
    # Both ranks send each at the same time over the same NIC, one way each: every wire takes twice as long.
    cluster = small_cluster(2)
    of = small_setup(
        capacity=2048,
        context=2048,
        cluster=replace(cluster, node=replace(cluster.node, nics=1)),
        execution=FLOWS,
        layout=Layout(tp=4, pp=2, order="tp-dp-pp", pp_overlap=False),
        name="static",
    )
    flows, timeline, _ = played(of, lengths=np.full(4, 2048))
    traffic = flows.priced.costs.traffic
    assert traffic is not None
    assert [len(flows.priced.plan.order), flows.priced.plan.ranks] == [4, 2]
    wire_s = float(flows.alone.result_delay_s[0] - traffic.transfer_fixed_s[0])
    assert wire_s > 0
    assert timeline.step_end.step_s - flows.played.step_end.step_s == pytest.approx(3 * wire_s, rel=1e-9)


@pytest.mark.parametrize("name", SETUPS)
def test_sharing_links_never_makes_a_step_faster_and_every_second_has_an_account(name: str):
    step = simulate_step(SETUPS[name], LENGTHS)
    assert step.network is not None
    assert step.step_s >= step.network.alone_s * (1.0 - 1e-12)
    np.testing.assert_allclose(step.account_s.sum(axis=0), step.step_s, rtol=1e-9)
    assert (step.network.contention_s >= -1e-12).all()


def small_nics(count: int) -> Setup:
    """Pipelines between nodes with *count* NICs for 8 GPUs."""
    cluster = small_cluster(8)
    return step_setup(cluster=replace(cluster, node=replace(cluster.node, nics=count)), tp=2, pp=2)


CONTENDED = {
    "pipeline": SETUPS["pipeline"],
    "interleaved": SETUPS["interleaved"],
    "two NICs for eight GPUs": small_nics(2),
    "oversubscribed": step_setup(tp=2, oversubscription=8.0),
    "oversubscribed pipeline": step_setup(tp=2, pp=4, oversubscription=8.0),
    "hashed": step_setup(
        tp=2,
        pp=2,
        cluster=replace(small_cluster(8), fabric=replace(small_cluster(8).fabric, routing="ecmp", uplinks=2)),
    ),
}


@pytest.mark.parametrize("name", CONTENDED)
@pytest.mark.parametrize("share", [0.5, 1.5])
def test_more_capacity_never_costs_more_than_contention_costs_with_it(name: str, share: float):
    # step(more) = alone + contention(more), and alone <= step(less): durations in a fixed order only grow.
    _, less, _ = played(CONTENDED[name], share=share)
    _, more, _ = played(CONTENDED[name], share=2.0 * share)
    network = simulate_step(CONTENDED[name], LENGTHS).network
    assert network is not None
    contention_s = more.step_end.step_s - network.alone_s
    assert more.step_end.step_s <= less.step_end.step_s + max(0.0, contention_s) * (1 + 1e-9)


@pytest.mark.parametrize("name", CONTENDED)
def test_links_that_carry_the_same_are_followed_once_and_give_the_same_step(name: str):
    _, once, _ = played(CONTENDED[name])
    _, every, _ = played(CONTENDED[name], every_link=True)
    assert once.step_end.step_s == pytest.approx(every.step_end.step_s, rel=1e-9)


def test_a_nic_that_eight_gpus_share_costs_what_its_flows_take_from_each_other():
    # Everybody waits for the ring of ranks 0 to 7. On the node's only NIC (48.5 GB/s) its 2 flows meet the 8 flows of a
    # hidden gather in the forward, and of a hidden sum in the backward; each flow gets a tenth, 4.85 GB/s:
    #     gather   7.99 MB: 1.65 ms; the ring, alone at 19.7 GB/s, falls behind by 1.65 x (1 - 4.85 / 19.7) = 1.24 ms
    #     sum     15.98 MB: 3.29 ms; the ring, alone at 21.7 GB/s, falls behind by 3.29 x (1 - 4.85 / 21.7) = 2.56 ms
    # Nothing else holds the step up: 3.80 of 65.8 ms are 5.8 %. With a NIC for each GPU it is 0.3 %.
    alone_each = simulate_step(small_nics(8), LENGTHS)
    assert alone_each.network is not None
    assert alone_each.network.contention(alone_each.step_s) < 5e-3
    of = small_nics(1)
    step = simulate_step(replace(of, execution=replace(FLOWS, record_links=True)), LENGTHS)
    network = step.network
    assert network is not None
    assert network.record is not None
    record = network.record
    nic = record.follows[record.links.first["nic-in"]]

    def named(who: str) -> list[Activity]:
        return [one for one in record.activities if one.who == who]

    def flows_on_nic(one: Activity) -> float:
        return float(one.pattern.flows[one.pattern.links == nic][0])

    behind_s = 0.0
    rings = named("ring of ranks 0 to 7, stage 0")
    others = named("parameter gather, stage 0")[1], named("gradient sum, stage 0")[0]
    for ring, other in zip(rings, others, strict=True):
        assert (flows_on_nic(ring), flows_on_nic(other)) == (2.0, 8.0)
        fair = record.links.capacity_bytes_per_s[nic] / 10.0
        assert fair < other.volume_bytes / other.alone_s
        behind_s += other.volume_bytes / fair * (1.0 - fair * ring.alone_s / ring.volume_bytes)
    assert step.step_s - network.alone_s == pytest.approx(behind_s, rel=0.01)
    assert network.contention(step.step_s) == pytest.approx(0.058, abs=0.001)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    st.sampled_from(sorted(CONTENDED)),
    st.sampled_from(["nic-out", "nic-in", "leaf-up", "leaf-down", "spine-up"]),
    st.integers(0, 1000),
    st.sampled_from([1.5, 4.0, 1e6]),
)
def test_more_capacity_on_any_link_hardly_costs_anything(
    name: str, kind: LinkKind, number: int, factor: float
):
    """A flow that ends sooner may let the next one meet a third: a step may get longer, but hardly."""
    of = CONTENDED[name]
    links = wired(of).links
    if not links.count[kind]:
        return
    less, alone_s = played(of)[1].step_end.step_s, played(of, share=1e6)[1].step_end.step_s
    more = played(of, faster=(links.first[kind] + number % links.count[kind], factor))[1].step_end.step_s
    assert alone_s * (1 - 1e-9) <= min(less, more)
    assert more <= 1.05 * less


def test_what_flows_cannot_play_is_refused():
    of = step_setup(tp=2, pp=2, cp=8, strategy="static", schedule="dualpipe")
    with pytest.raises(InfeasibleError, match="dualpipe"):
        simulate_step(of, np.full(64, 16384))


def test_bytes_on_the_nics_are_what_the_rings_carry():
    # Two ranks of one node each share one sequence: rank 0 -> 1 -> 0 over their NICs, both directions of the ring.
    of = step_setup(nodes=2, tp=8)
    plan, problem, _ = plan_batch(of, [4096])
    costs = price_plan(of, problem, plan)
    flows = FlowProgram.of(compile_program(plan, costs), replace(wired(of), every_link=True))
    assert plan.group_size.tolist() == [2]
    rows = flows.routes.passes["ring"]
    links = flows.routes.links
    sent = sum(
        float(one.sent_bytes.sum()) * np.bincount(rows.link, rows.flows, len(links)) for one in flows.sent
    )
    # 2,048 tokens x keys and values of one head x 2 bytes, once forward and twice backward, 8 layers
    per_gpu = 8 * (1 + 2) * 2048 * 2 * 128 * 2
    nics = slice(links.first["nic-out"], links.first["nic-out"] + 16)
    np.testing.assert_allclose(sent[nics], per_gpu)


@pytest.mark.parametrize(
    "name",
    [
        "static",
        "pipeline",
        "blocking",
        "experts",
        "layer by layer",
        "sums shown",
        "offloading",
        "offloading pipeline",
    ],
)
def test_every_link_carries_what_operations_transfers_and_sums_send(name: str):
    of = SETUPS[name]
    plan, problem, _ = plan_batch(of, LENGTHS)
    costs = price_plan(of, problem, plan)
    where = replace(wired(of), record=True)  # links that carry the same are watched once
    network = run_flows(plan, costs, where).network
    assert network is not None
    assert network.record is not None
    record = network.record
    flows = FlowProgram.of(compile_program(plan, costs), replace(where, every_link=True))

    carried = flows.carried_bytes()
    assert carried.any()
    np.testing.assert_allclose(record.link_bytes(), carried, rtol=1e-6, atol=1.0)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.one_of(tasks(), tasks(noise=True), pipelines()))
def test_any_step_of_flows_accounts_for_its_time_and_is_never_faster_than_alone(task: Task):
    setup = replace(task.setup, memory=replace(task.setup.memory, must_fit=False))
    flows = replace(setup, execution=replace(setup.execution, network="flows"))
    independent = simulate_step(setup, task.lengths)
    if setup.layout.pipeline.schedule == "dualpipe":
        with pytest.raises(InfeasibleError, match="flows does not play"):
            simulate_step(flows, task.lengths)
        return
    step = simulate_step(flows, task.lengths)
    assert step.network is not None
    assert step.network.independent_s == pytest.approx(independent.step_s, rel=1e-9)
    assert step.step_s >= step.network.alone_s * (1.0 - 1e-9)
    np.testing.assert_allclose(step.account_s.sum(axis=0), step.step_s, rtol=1e-9)
    assert (step.account_s >= -1e-9 * step.step_s).all()
    fabric = setup.cluster.fabric
    if fabric.leaf_oversubscription == fabric.spine_oversubscription == 1.0 and setup.layout.parallel.pp == 1:
        assert step.network.alone_s == pytest.approx(independent.step_s, rel=1e-9)


def test_a_ring_and_the_streams_of_offloading_share_the_ports_of_gpus():
    # One micro-batch on 8 ranks of two GPUs; rank 3 sends to rank 4, rank 7 to rank 0 over their NICs, and all of them
    # stream to their hosts and back. On ports of 33 GB/s the stream gets the 12 GB/s that it wants, less than half;
    # the ring the rest, and when the stream is over all of the port, which is still less than it wants.
    of = step_setup(tp=2, cp=8, strategy="static", offload=1.0, dp_overlap=False)  # sums and gathers apart
    plan, problem, _ = plan_batch(of, [4096])
    costs = price_plan(of, problem, plan)
    where = wired(of)
    flows = FlowProgram.of(compile_program(plan, costs), where)
    ring_bytes = sum(float(one.sent_bytes[0]) for one in flows.sent)
    out, back = (float(one.sent_bytes[0]) for one in flows.streams)
    assert out == back
    ring_s, stream_s = float(flows.sending_s[0]), float(flows.streaming_s[0])
    port = 0.6 * of.cluster.node.gpu.host_link_bytes_per_s
    assert out / stream_s < port / 2 < port - out / stream_s < port < ring_bytes / ring_s
    longer_s = stream_s + (ring_bytes - (port * stream_s - out)) / port - ring_s

    capacity = where.links.capacity_bytes_per_s.copy()
    first = where.links.first["pcie-out"]
    capacity[first : first + 2 * of.cluster.gpus] = port
    env = simpy.Environment()
    network = FlowNetwork(env, replace(where.links, capacity_bytes_per_s=capacity))
    step = FlowStep(flows, network)
    timeline = env.run(step.start(env, [env.timeout(0.0)]))
    assert isinstance(timeline, Timeline)
    took_s = timeline.end_s[0] - timeline.start_s[0]
    assert took_s == pytest.approx(flows.alone.operation_s[0] + longer_s, rel=1e-9)
    execution, contention_s = step.account(timeline)
    named = dict(zip(execution.accounts, contention_s.tolist(), strict=True))
    assert named["ring_wait"] == pytest.approx(longer_s * 8 / plan.ranks, rel=1e-6)
    assert named["offload_wait"] == 0.0


def flap_at(of: Setup, at_s: float) -> Execution:
    """The step of two nodes that share a sequence, a NIC of which is down for 2 s."""
    plan, problem, _ = plan_batch(of, [4096])
    flaps = (Flap(nic=8, at_s=at_s, down_s=1.5, stall_s=2.0),)
    return run_flows(plan, price_plan(of, problem, plan), wired(of), flaps=lambda _: flaps)


def test_a_flap_costs_its_stall_where_something_is_sent_and_else_nothing():
    of = step_setup(nodes=2, tp=8)
    quiet = simulate_step(of, [4096])
    assert quiet.network is not None
    # the ring runs from the first forward on; the optimizer at the end sends nothing
    accounts = dict(zip(quiet.accounts, quiet.account_s.max(axis=(1, 2)).tolist(), strict=True))
    first_s = sum(accounts[name] for name in ("data", "planning", "parameter_gather"))
    hit, missed = flap_at(of, first_s + 1e-5), flap_at(of, quiet.step_s - 1e-6)
    assert hit.step_s == pytest.approx(quiet.step_s + 2.0, rel=1e-9)
    assert missed.step_s == pytest.approx(quiet.step_s, rel=1e-9)
    for step, cost_s in ((hit, 2.0), (missed, 0.0)):
        assert step.network is not None
        assert len(step.network.flaps) == 1
        assert step.network.flaps_s == pytest.approx(cost_s, abs=1e-9)
        assert step.network.contention(step.step_s) == pytest.approx(0.0, abs=1e-9)
        np.testing.assert_allclose(step.account_s.sum(axis=0), step.step_s, rtol=1e-9)


@pytest.mark.parametrize("name", ["static", "pipeline", "hashed"])
def test_links_that_carry_the_same_are_followed_once_but_for_those_that_flap(name: str):
    of = SETUPS.get(name) or CONTENDED[name]
    plan, problem, _ = plan_batch(of, LENGTHS)
    costs = price_plan(of, problem, plan)
    quiet = simulate_step(of, LENGTHS)
    flaps = tuple(
        Flap(nic=nic, at_s=share * quiet.step_s, down_s=0.1, stall_s=0.2 * quiet.step_s)
        for nic, share in ((3, 0.2), (12, 0.4), (3, 0.7))
    )
    steps = [
        run_flows(plan, costs, replace(wired(of), every_link=every, record=True), flaps=lambda _: flaps)
        for every in (False, True)
    ]
    assert steps[0].step_s == pytest.approx(steps[1].step_s, rel=1e-9)
    assert steps[0].step_s > quiet.step_s
    carried = [step.network.record.link_bytes() for step in steps if step.network and step.network.record]
    np.testing.assert_allclose(carried[0], carried[1], rtol=1e-6, atol=1.0)


def test_flaps_of_a_scenario_differ_by_step_and_are_the_same_under_every_strategy():
    often = replace(
        FLOWS, link_flaps_per_hour=1000.0, link_flap_mean_s=0.01, adaptive_retransmission=True, seed=4
    )
    for number in range(3):
        met = []
        for name in ("hdp-naive", "hdp-opt"):
            of = step_setup(tp=2, strategy=name, execution=often).at_step(number)
            step = simulate_step(of, LENGTHS)
            assert step.network is not None
            assert step.network.flaps == link_flaps(of, step.step_s)
            met.append(link_flaps(of, 100.0))
        assert met[0] == met[1]
        assert met[0] != link_flaps(step_setup(execution=often).at_step(number + 1), 100.0)
    never = replace(FLOWS, link_flaps_per_hour=1e-9)
    quiet = simulate_step(SETUPS["rings"], LENGTHS)
    assert simulate_step(step_setup(tp=2, execution=never), LENGTHS).step_s == quiet.step_s


@pytest.mark.parametrize("name", ["static", "pipeline", "experts", "noise"])
def test_a_record_changes_nothing(name: str):
    of = SETUPS[name]
    recording = replace(of, execution=replace(of.execution, record_links=True))
    lengths = LENGTHS
    assert simulate_step(recording, lengths).step_s == pytest.approx(
        simulate_step(of, lengths).step_s, rel=1e-12
    )
