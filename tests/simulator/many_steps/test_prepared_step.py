"""Steps of real setups on one clock, held against single steps, the engine and the closed form."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_runs import played
from simulator_setups import Task, pipelines, small_cluster, small_setup, tasks

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.errors import OutOfMemoryError
from hdpsim.simulator.many_steps.clock import Run, run_of
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.many_steps.prepared_step import prepare_step
from hdpsim.simulator.setup import ExecutionOptions, Executor, Setup
from hdpsim.simulator.step import simulate_step

pytestmark = pytest.mark.usefixtures("each_plan_once")

LENGTHS = np.array([900, 700, 512, 300, 256, 100, 64, 1024])
BIG = RunOptions(storage_bytes_per_s=1e18)


def a_run(setup: Setup, batches, options: RunOptions = BIG) -> Run:
    degree = None
    steps = [prepare_step(setup, lengths, options, mesh_degree=degree) for lengths in batches]
    return run_of(setup, steps, options)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.one_of(tasks(), tasks(noise=True), pipelines()), st.integers(1, 3))
def test_with_nothing_slow_many_steps_are_single_steps(task: Task, prefetch: int):
    setup = replace(task.setup, data_pipeline=replace(task.setup.data_pipeline, prefetch_steps=prefetch))
    setup = replace(setup, memory=replace(setup.memory, must_fit=False))
    single = simulate_step(setup, task.lengths)
    step = prepare_step(setup, task.lengths, BIG)
    count = 6 + 4 * step.stages + 2 * prefetch
    rows = list(run_of(setup, [step] * count, BIG))
    # Stages that repeat in turns of several steps have the mean over the last ones.
    last = rows[-4 * step.stages :] if step.stages > 1 else rows[-1:]
    mean_s = sum(row.period_s for row in last) / len(last)
    assert mean_s == pytest.approx(single.step_s, rel=1e-9 if step.stages == 1 else 1e-6)
    assert sum(row.period_s for row in rows) == pytest.approx(rows[-1].end_s, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=8)
@given(st.one_of(tasks(noise=True), pipelines()))
def test_the_engine_in_the_run_is_the_replay(task: Task):
    quick = replace(task.setup, memory=replace(task.setup.memory, must_fit=False))
    slow = replace(quick, execution=replace(quick.execution, executor="engine"))
    batches = [task.lengths, task.lengths[: max(1, len(task.lengths) // 2)], task.lengths]
    if quick.layout.pipeline.schedule == "dualpipe":  # which needs whole batches
        batches = [task.lengths] * 3
    in_run, beforehand = (list(a_run(setup, batches)) for setup in (slow, quick))
    for one, other in zip(in_run, beforehand, strict=True):
        assert one.end_s == pytest.approx(other.end_s, rel=1e-9)
        assert one.start_s == pytest.approx(other.start_s, rel=1e-9, abs=1e-12)
        assert one.period_s == pytest.approx(other.period_s, rel=1e-9)


def slow_planner(setup: Setup, seconds: float) -> Setup:
    calibration = replace(setup.calibration, planner_s_per_sequence=seconds)
    return replace(setup, calibration=calibration)


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_a_slow_planner_is_what_the_closed_form_says(prefetch):
    setup = slow_planner(small_setup(capacity=1024, context=1024), 1.0)
    setup = replace(setup, data_pipeline=replace(setup.data_pipeline, prefetch_steps=prefetch))
    rows = list(a_run(setup, [LENGTHS] * 8))
    single = simulate_step(setup, LENGTHS)
    assert rows[-1].period_s == pytest.approx(single.step_s, rel=1e-9)
    assert single.step_s > 8.0
    accounts = dict(zip(single.accounts, single.account_s[:, 0, 0], strict=True))
    assert rows[-1].account_s["planning"] == pytest.approx(accounts["planning"], rel=1e-9)


def test_planning_takes_what_is_stated_or_what_our_own_planner_takes():
    setup = small_setup(capacity=1024, context=1024)
    stated, own, calibrated = (
        prepare_step(setup, LENGTHS, replace(BIG, **options)).path
        for options in ({"planning_s": 3.0}, {"planner": "measured"}, {})
    )
    assert stated.plan_s == 3.0
    assert own.plan_s == 0.30  # hdp-opt searches, whatever sequences and ranks
    naive = replace(setup, strategy=replace(setup.strategy, name="hdp-naive"))
    own = prepare_step(naive, LENGTHS, replace(BIG, planner="measured")).path
    assert own.plan_s == pytest.approx(1.3e-5 * 8**0.64 * setup.ranks**0.25)
    assert calibrated.plan_s == pytest.approx(8 * setup.calibration.planner_s_per_sequence)
    assert stated.gather_s == stated.send_s == calibrated.gather_s > 0


def test_a_static_mesh_has_no_planner():
    path = prepare_step(small_setup(capacity=1024, context=1024, name="static"), LENGTHS, BIG).path
    assert path.planning_s == 0.0


def test_every_node_reads_everything_without_the_remote_loader():
    options = replace(BIG, token_bytes=2.0)
    setup = small_setup(capacity=1024, context=1024, nodes=3)
    once = prepare_step(setup, LENGTHS, options).path
    everybody = prepare_step(
        replace(setup, strategy=replace(setup.strategy, remote_data_loading=False)), LENGTHS, options
    ).path
    tokens = int(LENGTHS.sum())
    assert once.read_bytes == 2.0 * tokens
    assert everybody.read_bytes == pytest.approx(3 * 2.0 * tokens)
    assert (once.ahead_steps, everybody.ahead_steps) == (1, 0)


def test_a_slow_storage_sets_the_pace():
    setup = small_setup(capacity=1024, context=1024)
    step = prepare_step(setup, LENGTHS, BIG)
    rate = step.path.read_bytes / (5.0 * step.step_s)
    rows = list(run_of(setup, [step] * 6, replace(BIG, storage_bytes_per_s=rate)))
    way_s = 5.0 * step.step_s + step.path.planning_s
    assert rows[-1].period_s == pytest.approx(way_s, rel=1e-9)  # one batch ahead: loading, then planning


def offloading(host_bytes: float) -> Setup:
    setup = small_setup(capacity=1024, context=4096, name="static", activation_offload=1.0)
    node = replace(setup.cluster.node, host_memory_bytes=host_bytes)
    return replace(setup, cluster=replace(setup.cluster, node=node))


def test_host_memory_holds_what_a_step_offloads():
    step = prepare_step(offloading(1e15), LENGTHS, BIG)
    assert step.offload is not None
    # One micro-batch at a time is on its way forward or back: r x bytes x tokens x (layers - 2) on each GPU.
    from hdpsim.simulator.planning import micro_batch_cost, plan_batch

    setup = offloading(1e15)
    plan, _, _ = plan_batch(setup, LENGTHS)
    cost = micro_batch_cost(setup)
    tokens = np.add.reduceat(plan.segment_tokens, plan.segment_offsets[:-1]) / plan.group_size
    if plan.padding_tokens is not None:
        tokens = tokens + plan.padding_tokens / plan.group_size
    of_gpu = cost.offloading.activation_bytes_per_token * tokens.max() * (setup.model.layers - 2)
    assert step.offload.peak_bytes == pytest.approx(of_gpu * setup.cluster.node.gpus)
    begins, ends = step.offload.to_host_s.T
    assert np.all(begins < ends)
    assert np.all(ends <= step.offload.from_host_s[:, 1])
    with pytest.raises(OutOfMemoryError, match="step 1 needs"):
        list(run_of(offloading(0.9 * step.offload.peak_bytes), [step], BIG))


def test_an_empty_run_has_no_steps():
    assert played([]) == []


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h2"])
@pytest.mark.parametrize("executor", ["replay", "engine"])
def test_flows_share_links_in_a_run_as_in_a_single_step(schedule: Schedule, executor: Executor):
    cluster = small_cluster(4)
    setup = small_setup(
        cluster=replace(cluster, node=replace(cluster.node, nics=1)),
        context=16384,
        capacity=2048,
        layout=Layout(tp=1, pp=4, schedule=schedule),
        execution=ExecutionOptions(network="flows", executor=executor),
    )
    lengths = np.array([8192, 4000, 3000, *[1024] * 24])
    single = simulate_step(setup, lengths)
    assert single.network is not None
    assert single.step_s > single.network.alone_s
    rows = list(a_run(setup, [lengths] * 12))
    if schedule == "1f1b":
        np.testing.assert_allclose([row.period_s for row in rows[1:]], single.step_s, rtol=1e-9)
    else:  # stages begin when they can, and transfers of two steps meet
        period_s = rows[-1].period_s
        assert single.network.alone_s <= period_s * (1 + 1e-9)
        assert period_s == pytest.approx(single.step_s, rel=0.05)
