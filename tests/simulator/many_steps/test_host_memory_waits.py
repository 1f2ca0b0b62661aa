"""Forwards that wait for room on their hosts: cases by hand, and what holds for all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_plans import Case, cases, make_costs, make_plan
from simulator_runs import a_step, played
from simulator_setups import small_setup

from hdpsim.errors import OutOfMemoryError
from hdpsim.simulator.many_steps.clock import run_of
from hdpsim.simulator.many_steps.host_memory import HostedProgram, operation_bytes
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.many_steps.prepared_step import prepare_step
from hdpsim.simulator.play.pipeline.program import compile_program
from hdpsim.simulator.play.replay import run_replay


def hosted(plan, costs, volume, room, *, node_gpus=2) -> HostedProgram:
    """Every rank's stage is one GPU; stages of a rank are neighbours."""
    program = compile_program(plan, costs)
    moved = np.broadcast_to(
        np.asarray(volume, dtype=float), (costs.forward_terms_s.shape[1], plan.micro_batches)
    )
    return HostedProgram(
        program=program,
        unit_bytes=operation_bytes(program, moved),
        rank_stride=costs.stages,
        stage_stride=1,
        tensor_gpus=1,
        node_gpus=node_gpus,
        room_bytes=room,
    )


def end_s(plan, costs, volume, room, **where) -> float:
    step = a_step(run_replay(plan, costs).step_s, stages=costs.stages)
    return played([replace(step, hosted=hosted(plan, costs, volume, room, **where))])[0].end_s


def test_two_ranks_of_a_node_take_turns():
    plan, costs = make_plan([[0], [1]]), make_costs([2.0, 2.0], [4.0, 4.0])
    assert end_s(plan, costs, 60.0, 120.0) == 6.0
    assert end_s(plan, costs, 60.0, 100.0) == 12.0
    assert end_s(plan, costs, 60.0, 100.0, node_gpus=1) == 6.0  # on nodes of their own


def test_the_wait_is_in_its_own_account():
    plan, costs = make_plan([[0], [1]]), make_costs([2.0, 2.0], [4.0, 4.0])
    step = a_step(6.0)
    rows = played([step, replace(step, hosted=hosted(plan, costs, 60.0, 100.0)), step])
    assert [row.end_s for row in rows] == [6.0, 18.0, 24.0]
    assert [row.wait_host_memory_s for row in rows] == [0.0, 6.0, 0.0]


def test_a_backward_gives_back_what_its_forward_took():
    # Two stages on nodes of their own, three micro-batches of 1 s forward and backward.
    plan, costs = make_plan([[0, 1, 2]]), make_costs([1.0] * 3, [1.0] * 3, stages=2)
    assert end_s(plan, costs, 10.0, 100.0, node_gpus=1) == run_replay(plan, costs).step_s == 8.0
    with pytest.raises(OutOfMemoryError, match=r"step 1 offloads more .* on node 0 a forward waits for 10 B"):
        # 1F1B runs the second forward before the first backward: waiting does not help.
        end_s(plan, costs, 10.0, 19.0, node_gpus=1)


def test_a_group_takes_room_on_all_of_its_nodes_at_once():
    # Ranks 0 and 1 share micro-batch 0, then each has its own; rank 1's node has room for one at a time.
    plan = make_plan([[0, 1], [0, 2]])
    costs = make_costs([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert end_s(plan, costs, [10.0, 5.0, 5.0], 10.0, node_gpus=1) == run_replay(plan, costs).step_s == 8.0


@given(cases(), st.floats(0.0, 3.0))
def test_room_for_everything_changes_nothing_and_less_never_helps_a_pipeline_alone(case: Case, volume: float):
    plan, costs = case.plan, case.costs
    if not plan.micro_batches or case.noise is not None:
        return
    alone_s = run_replay(plan, costs).step_s
    enough = (plan.micro_batches + 1) * volume * plan.ranks * costs.stages * costs.chunks + 1.0
    assert end_s(plan, costs, volume, enough) == pytest.approx(alone_s, rel=1e-9)
    try:
        tight_s = end_s(plan, costs, volume, 1.5 * volume + 0.1)
    except OutOfMemoryError:
        return
    assert tight_s >= alone_s * (1 - 1e-9)


def test_a_setup_with_small_hosts_waits_or_is_refused():
    options = RunOptions(storage_bytes_per_s=1e18)
    lengths = np.array([1024] * 16)

    def on_hosts(host_bytes: float):
        setup = small_setup(capacity=1024, context=1024, name="static", nodes=1, activation_offload=1.0)
        node = replace(setup.cluster.node, host_memory_bytes=host_bytes)
        return replace(
            setup,
            cluster=replace(setup.cluster, node=node),
            memory=replace(setup.memory, must_fit=True),
        )

    roomy = prepare_step(on_hosts(1e15), lengths, options)
    assert roomy.hosted is None
    peak = roomy.host_bytes
    setup = on_hosts(peak * 1.001 + 1e6)
    assert prepare_step(setup, lengths, options).hosted is None
    small = RunOptions(
        storage_bytes_per_s=1e18, token_bytes=peak / 2 / (16 * 1024)
    )  # batches take half of the room
    tight = prepare_step(setup, lengths, small)
    assert tight.hosted is not None
    rows = list(run_of(setup, [tight] * 3, small))
    assert rows[-1].wait_host_memory_s > 0
    assert rows[-1].period_s <= 2.1 * roomy.step_s
