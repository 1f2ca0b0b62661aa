"""Steps on shared links whose ranks meet in every layer, and run different micro-batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulator_setups import MODEL, Task, small_cluster, small_setup

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.links import Links
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.step.step_traffic import HOST_KINDS
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.play.accounts import Timeline
from hdpsim.simulator.play.execution import Execution
from hdpsim.simulator.play.flows.engine import FlowStep, run_flows
from hdpsim.simulator.play.flows.program import FlowProgram
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.playing import plan_noise, wired
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.setup import ExecutionOptions, Setup
from hdpsim.simulator.step import simulate_step

pytestmark = pytest.mark.usefixtures("each_plan_once")

EXPERTS = replace(MODEL, name="experts", experts=16, top_k=2)


@st.composite
def meetings_across_nodes(draw: st.DrawFn) -> Task:
    """Ranks on two nodes or more that gather parameters layer by layer, or send to experts of a group of 16 GPUs."""
    tp = draw(st.sampled_from([1, 2, 4]))
    sharding = draw(st.sampled_from(["zero1", "zero3"]))
    experts = sharding != "zero3" or draw(st.booleans())
    pipelines = [(1, "1f1b", True), (1, "1f1b", True), (2, "1f1b", True), (2, "1f1b", False)]
    pp, schedule, pp_overlap = draw(
        st.sampled_from(pipelines if experts else [*pipelines, (2, "zb-h1", True)])
    )
    ranks = draw(st.sampled_from([16 // tp, 32 // tp]))
    layout = Layout(
        tp=tp,
        pp=pp,
        schedule=schedule,
        pp_overlap=pp_overlap,
        ep=16 if experts else 1,
        sharding=sharding,
        shard_ranks=draw(st.sampled_from([None, 16 // tp])) if sharding == "zero3" else None,
        recompute=draw(st.sampled_from(["none", "full"])),
        loss_average=draw(st.sampled_from(["step", "step", "micro-batch"])),
    )
    capacity = draw(st.sampled_from([256, 1024]))
    context = draw(st.integers(1, ranks)) * capacity
    noisy = not experts and draw(
        st.booleans()
    )  # where routes have the rate of prices: what they add has other noise
    execution = ExecutionOptions(network="flows", jitter=0.2 * noisy, slow_node_share=0.3 * noisy)
    cluster = small_cluster(ranks * tp * pp // 8, oversubscription=draw(st.sampled_from([1.0, 8.0])))
    setup = small_setup(
        capacity=capacity,
        context=context,
        model=EXPERTS if experts else MODEL,
        cluster=replace(
            cluster, node=replace(cluster.node, nics=8 if noisy else draw(st.sampled_from([8, 2])))
        ),
        layout=layout,
        execution=execution,
        name=draw(st.sampled_from(["static", "hdp-balance", "hdp-opt"])),
        activation_offload=draw(st.sampled_from([0.0, 0.0, 1.0])),
    )
    setup = replace(setup, memory=replace(setup.memory, must_fit=False))
    short = st.integers(1, capacity)
    lengths = draw(st.lists(st.one_of(short, st.integers(1, context)), min_size=2, max_size=20))
    return Task(setup, np.array(lengths, dtype=np.int64))


def with_own_routes(flows: FlowProgram) -> StepCosts:
    """Prices with every transfer at the rate of its own routes, as the executor of independent transfers takes them."""
    assert flows.priced.given is not None
    plan, costs, _ = flows.priced.given
    chain, routes, traffic = flows.priced.chain, flows.routes, costs.traffic
    assert traffic is not None
    kinds, count = chain.kinds(costs.kind), plan.micro_batches
    group = routes.group_of_unit[:count]
    terms = [costs.forward_terms_s[:, kinds].copy(), costs.backward_terms_s[:, kinds].copy()]
    capacity = routes.links.capacity_bytes_per_s
    for one in traffic.passes:
        rate = routes.burst_bytes_per_s(one.kind)
        for virtual, stage in enumerate(chain.stage[0, : chain.virtual_stages].tolist()):
            own = rate[stage * routes.groups + group]
            own = np.where(np.isfinite(own), own, one.sent.bytes_per_s)
            if one.kind in HOST_KINDS:
                own = np.minimum(own, one.sent.bytes_per_s)
            longer_s = one.seconds(own) - one.seconds(one.sent.bytes_per_s)
            terms[one.backward][one.term, virtual] += longer_s[kinds[virtual]]
    transfer_s = costs.transfer_s
    for rows in routes.transfers.values():
        rate = rows.bytes_per_s(capacity)[group]
        rate = np.where(np.isfinite(rate), rate, traffic.node_bytes_per_s)
        transfer_s = traffic.transfer_fixed_s + traffic.transfer_bytes / rate
    kind = np.zeros_like(costs.kind)
    kind[chain.stage[0, : len(kinds)], chain.chunk[0, : len(kinds)]] = np.arange(len(kinds))
    weights = costs.weight_terms_s
    epilogue = replace(
        costs.epilogue, parameter_gather_s=flows.gather.exposed_s, gradient_sync_s=flows.sync.exposed_s
    )
    return replace(
        costs,
        forward_terms_s=terms[0],
        backward_terms_s=terms[1],
        weight_terms_s=None if weights is None else weights[:, kinds],
        kind=kind,
        transfer_s=transfer_s,
        epilogue=epilogue,
    )


def flows_of(of: Setup, lengths: list[int] | Ints) -> FlowProgram:
    plan, problem, _ = plan_batch(of, lengths)
    costs = price_plan(of, problem, plan)
    return FlowProgram.of(compile_program(plan, costs, plan_noise(of, plan, costs)), wired(of))


def played(flows: FlowProgram, links: Links) -> tuple[float, Floats, Execution]:
    """The step on these links, whatever its times alone were taken from."""
    env = simpy.Environment()
    step = FlowStep(flows, FlowNetwork(env, links))
    begins = [env.timeout(seconds) for seconds in flows.played.step_end.begin_s.tolist()]
    timeline = env.run(step.start(env, begins))
    assert isinstance(timeline, Timeline)
    execution, contention_s = step.account(timeline)
    return timeline.step_end.step_s, contention_s, execution


def faster(links: Links, factor: float) -> Links:
    return replace(links, capacity_bytes_per_s=factor * links.capacity_bytes_per_s)


@settings(max_examples=12)
@given(meetings_across_nodes())
def test_meetings_on_shared_links_are_those_of_independent_transfers_or_later(task: Task) -> None:
    of = task.setup
    plan, problem, _ = plan_batch(of, task.lengths)
    costs = price_plan(of, problem, plan)
    noise = plan_noise(of, plan, costs)
    where = replace(wired(of), record=True)
    flows = FlowProgram.of(compile_program(plan, costs, noise), where)
    assume(flows.works.meeting is not None)
    independent = run_replay(plan, with_own_routes(flows), noise)

    step_s, contention_s, execution = played(flows, faster(where.links, 1e6))
    assert step_s == pytest.approx(independent.step_s, rel=1e-9)
    np.testing.assert_allclose(contention_s, 0.0, atol=1e-9 * step_s)
    accounts_s = [execution.account_s, independent.account_s]
    if costs.alike:  # who has no micro-batch waits in empty passes here, and for the gradients there
        waits = [execution.accounts.index(name) for name in ("wait_group", "wait_gradients")]
        accounts_s = [
            np.vstack([np.delete(one, waits, axis=0), one[waits].sum(axis=0, keepdims=True)])
            for one in accounts_s
        ]
    np.testing.assert_allclose(*accounts_s, rtol=1e-8, atol=1e-9 * step_s)

    shared = run_flows(plan, costs, where, noise)
    assert shared.step_s >= independent.step_s * (1.0 - 1e-12)
    np.testing.assert_allclose(shared.account_s.sum(axis=0), shared.step_s, rtol=1e-9)
    assert shared.account_s.min() >= -1e-9 * shared.step_s
    assert shared.network is not None
    assert (shared.network.contention_s >= -1e-12).all()
    assert shared.network.record is not None
    every = FlowProgram.of(compile_program(plan, costs, noise), replace(where, every_link=True))
    np.testing.assert_allclose(shared.network.record.link_bytes(), every.carried_bytes(), rtol=1e-6, atol=1.0)


TWO_NODES = small_setup(
    capacity=2048,
    context=2048,
    layout=Layout(tp=8, sharding="zero3"),
    name="hdp-balance",
    execution=ExecutionOptions(network="flows"),
)
"""Two ranks on a node each, which gather each other's half of every layer."""


@pytest.mark.parametrize(("gigabytes_per_s", "late_ms"), [(9.03, 0.0), (4.85, 4.90214)])
def test_a_short_micro_batch_has_the_time_of_the_long_one_to_send_and_then_holds_it_up(
    gigabytes_per_s: float, late_ms: float
) -> None:
    # Rank 0 has 2,048 tokens: 3.287 ms forward + 5.366 ms backward = 8.653 ms. Rank 1 has 512: 6.226 ms, in 3.278 ms
    # of which it sends 12.86 + 38.58 = 51.45 MB. It waits for rank 0 layer by layer, 2.427 ms in all, so it has
    # 5.705 ms for them: 9.017 GB/s are enough. At 4.85 GB/s they take 10.607 ms, and rank 0 waits.
    flows = flows_of(TWO_NODES, [2048, 512])
    assert flows.alone.operation_s == pytest.approx([8.65332e-3], rel=1e-5)
    assert flows.sending_s == pytest.approx([5.61961e-3, 5.70523e-3], rel=1e-5)
    links = wired(TWO_NODES).links
    capacity = links.capacity_bytes_per_s.copy()
    first = links.first["nic-out"] + 8
    capacity[first : first + 8] = 1e9 * gigabytes_per_s
    step_s, contention_s, execution = played(flows, replace(links, capacity_bytes_per_s=capacity))
    assert 1e3 * (step_s - flows.played.step_end.step_s) == pytest.approx(late_ms, rel=1e-4, abs=1e-9)
    assert 1e3 * contention_s.sum() == pytest.approx(late_ms / 2, rel=1e-4, abs=1e-9)
    waits_s = execution.account_s[execution.accounts.index("wait_group"), :, 0]
    assert 1e3 * waits_s == pytest.approx([late_ms, 2.42749], rel=1e-4, abs=1e-9)


def test_a_rank_without_a_micro_batch_gathers_parameters_all_the_same() -> None:
    # Rank 0 runs two micro-batches, rank 1 one of them with it; every gather and sum of a layer goes both ways.
    flows = flows_of(TWO_NODES, [2048, 2048, 512])
    assert flows.priced.given is not None
    assert np.diff(flows.priced.given[0].order_offsets).tolist() == [2, 1]
    per_pass = 51_445_760.0
    carried = flows.carried_bytes()
    used = flows.routes.links.of_kind("nic-out")
    np.testing.assert_allclose(carried[used], 2 * per_pass)
    assert flows.sending_s[-1] == pytest.approx(flows.alone.operation_s[-1])  # all the time of the other's


def test_a_step_of_meetings_that_share_links_is_what_it_was() -> None:
    """Pipelines of experts on two nodes each, whose layers are gathered from all, over narrow up-links."""
    of = small_setup(
        capacity=1024,
        context=4096,
        model=EXPERTS,
        cluster=small_cluster(4, oversubscription=8.0),
        layout=Layout(tp=2, pp=2, ep=16, sharding="zero3"),
        name="hdp-balance",
        execution=ExecutionOptions(network="flows"),
    )
    step = simulate_step(of, np.array([4096, 4000, 3000, 1000, *[700] * 12]))
    assert step.network is not None
    assert step.network.independent_s == pytest.approx(0.043335997243880285, rel=1e-9)
    assert step.network.alone_s == pytest.approx(0.043189352691388995, rel=1e-9)
    assert step.step_s == pytest.approx(0.04333292382540961, rel=1e-9)


def test_ranks_that_run_the_same_wait_for_the_one_with_the_slow_link() -> None:
    # As above, both with 2,048 tokens: 8.653 ms, of which they send for 5.620. At 4.85 GB/s rank 1 needs 10.607.
    flows = flows_of(TWO_NODES, [2048, 2048, 2048, 2048])
    assert flows.priced.given is not None
    links = wired(TWO_NODES).links
    capacity = links.capacity_bytes_per_s.copy()
    first = links.first["nic-out"] + 8
    capacity[first : first + 8] = 4.85e9
    step_s, _, execution = played(flows, replace(links, capacity_bytes_per_s=capacity))
    late_ms = 2 * (10.6074 - 5.61961)
    assert 1e3 * (step_s - flows.played.step_end.step_s) == pytest.approx(late_ms, rel=1e-4)
    waits_s = execution.account_s[execution.accounts.index("wait_group"), :, 0]
    assert 1e3 * waits_s == pytest.approx([late_ms, 0.0], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("lengths", [[1024] * 16, [1000, 700, 300]])
@pytest.mark.parametrize("layout", [{"ep": 16}, {"sharding": "zero3"}])
def test_collectives_of_a_block_alone_have_the_nics_that_all_of_it_leave_each(
    layout: dict[str, object], lengths: list[int]
) -> None:
    """A rank that had eight NICs to itself for its tokens made steps shorter than independent transfers do."""
    cluster = small_cluster(2)
    of = small_setup(
        model=EXPERTS if "ep" in layout else MODEL,
        cluster=replace(cluster, node=replace(cluster.node, nics=2)),
        layout=Layout(**layout),
        name="hdp-balance",
        execution=ExecutionOptions(network="flows"),
    )
    network = simulate_step(of, lengths).network
    assert network is not None
    assert network.alone_s == pytest.approx(network.independent_s, rel=1e-9)
