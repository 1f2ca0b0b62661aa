from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import Task, problem_of, small_cluster, small_setup, tasks

from hdpsim import PlanError, validate_plan
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.data_loading import DataPipeline, Loader
from hdpsim.cost_models.step.epilogue import step_costs
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.studies.comparing.compare import run_setup
from hdpsim.simulator.plan import HOLE
from hdpsim.simulator.plan_micro_batches import distinct_micro_batches, plan_micro_batches
from hdpsim.simulator.planning import plan_batch, settled_degree
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.setup import Packing, StrategyName, StrategyOptions
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.registry import make_plan
from hdpsim.simulator.strategies.static.packing import pack
from hdpsim.simulator.strategies.static.static_mesh import (
    likely_degrees,
    mesh_degrees,
    mesh_drafts,
    plan_static,
)


def problem(
    lengths: list[int], *, context: int = 4096, capacity: int = 1024, cp: int | None = None, **changes: object
) -> PlanningProblem:
    changes.setdefault("name", "static")
    layout = changes.pop("layout", Layout(cp=cp))
    return problem_of(small_setup(context=context, capacity=capacity, layout=layout, **changes), lengths)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("context", "degree"), [(1, 1), (1024, 1), (1025, 2), (4096, 4), (4097, 8), (8193, 16), (16384, 16)]
)
def test_every_divisor_that_supports_the_context(context: int, degree: int):
    every = [1, 2, 4, 8, 16]  # divide 16 ranks
    assert mesh_degrees(problem([1], context=context)) == every[every.index(degree) :]


def test_every_divisor_of_an_odd_number_of_ranks():
    # 3 nodes of 8: 24 ranks; 5 are needed, 6 divide them.
    assert mesh_degrees(problem([1], nodes=3, context=5 * 1024)) == [6, 8, 12, 24]


def test_the_degree_asked_for():
    assert mesh_degrees(problem([1], cp=8)) == [8]


def test_a_degree_that_does_not_divide_the_ranks():
    with pytest.raises(InfeasibleError, match=r"^16 ranks do not divide by cp = 5$"):
        mesh_degrees(problem([1], cp=5))


def test_a_degree_too_small_for_the_context():
    with pytest.raises(InfeasibleError, match=r"^cp = 2: 2 ranks of 1024 tokens cannot hold .* at least 4$"):
        mesh_degrees(problem([1], cp=2))


def test_a_context_too_long_for_all_ranks():
    with pytest.raises(InfeasibleError, match=r"^a context of 17000 tokens needs 17 ranks .* only 16: gpus"):
        mesh_degrees(problem([1], context=17_000))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4096), min_size=1, max_size=40))
def test_without_a_degree_the_mesh_is_the_fastest_of_those_that_fit(lengths: list[int]):
    steps = {
        cp: simulate_step(small_setup(layout=Layout(cp=cp), name="static"), lengths).step_s
        for cp in (4, 8, 16)
    }
    result = simulate_step(small_setup(name="static"), lengths)
    assert result.step_s == min(steps.values())
    assert result.largest_group == min(steps, key=lambda cp: steps[cp])


def test_a_run_has_one_mesh_which_its_first_batch_decides():
    # One sequence is quickest on all ranks; many small ones are on as few as hold the context.
    batches = [np.array([4096]), np.array([4096] * 40)]
    setup = small_setup(name="static", capacity=4096)
    alone = [simulate_step(setup, lengths).largest_group for lengths in batches]
    assert alone[0] > alone[1]
    for order in (batches, batches[::-1]):
        outcome = run_setup(setup, order, "static")
        assert len({result.largest_group for result in outcome.results}) == 1
        assert outcome.results[0].step_s == simulate_step(setup, order[0]).step_s


def test_packs_are_dealt_round_robin():
    # cp 4, dp 4; six packs of one sequence: the groups get 2, 2, 1, 1.
    lengths = [4000, 3000, 2000, 4000, 3000, 4000]
    plan = plan_static(problem(lengths, cp=4))
    assert plan.group_size.tolist() == [4] * 6
    assert plan.member_ranks.reshape(6, 4)[:, 0].tolist() == [0, 4, 8, 12, 0, 4]
    assert plan.order[plan.order_offsets[0] : plan.order_offsets[1]].tolist() == [0, 4]
    assert plan.order[plan.order_offsets[12] : plan.order_offsets[13]].tolist() == [3]
    validate_plan(plan, np.array(lengths), 1)


def test_packs_are_padded_to_the_context_if_asked():
    plan = plan_static(problem([4000, 3000, 1000]))
    assert plan.padding_tokens is not None
    assert plan.padding_tokens.tolist() == [96, 96]
    assert plan_static(problem([4000], padding=False)).padding_tokens is None


def test_a_ring_pads_every_sequence_to_two_chunks_a_rank():
    # cp 4: 4001 and 90 tokens take 4008 and 96, more than the 4096 of a pack; who exchanges heads pads nothing.
    plan = plan_static(problem([4001, 90], cp=4, padding=False))
    assert plan.padding_tokens is not None
    assert plan.padding_tokens.tolist() == [7, 6]
    heads = plan_static(problem([4001, 90], layout=Layout(cp=4, cp_kind="ulysses"), padding=False))
    assert (heads.micro_batches, heads.padding_tokens) == (1, None)


def test_balancing_without_dynamic_groups_is_a_mesh_of_least_loaded_groups():
    # An ablation of HDP, cp 8 and dp 2. Longest first: 8000 | 7900, 6000 to the lighter group, 1000 to the other.
    lengths = [8000, 1000, 7900, 6000]
    plan = make_plan(
        problem(lengths, context=8192, cp=8, name="hdp-opt", dynamic_groups=False, balancing=True)
    )
    assert plan.strategy == "hdp-opt"
    # No two neighbours fit into one pack of 8192, so pack i is sequence i.
    first = plan.member_ranks[plan.member_offsets[:-1]]
    assert first.tolist() == [0, 0, 8, 8]


def test_an_unbalanced_ablation_is_the_static_mesh():
    lengths = [4000, 3000, 100, 2000] * 3
    static = make_plan(problem(lengths))
    ablation = make_plan(problem(lengths, name="hdp-naive", dynamic_groups=False, balancing=False))
    assert ablation.strategy == "hdp-naive"
    np.testing.assert_array_equal(static.order, ablation.order)
    np.testing.assert_array_equal(static.member_ranks, ablation.member_ranks)


def test_a_pipeline_keeps_equal_slots():
    lengths = [4000, 3000, 2000]
    setup = problem(lengths, layout=Layout(pp=2))
    plan = plan_static(setup)
    validate_plan(plan, np.array(lengths), 2)
    assert (plan.order != HOLE).all()


@pytest.mark.parametrize("packing", ["in-order", "first-fit", "best-fit", "concatenate"])
def test_every_packer_makes_a_valid_plan(packing: str):
    lengths = np.random.default_rng(1).integers(1, 4097, 50)
    plan = plan_static(problem(lengths.tolist(), packing=packing))
    validate_plan(plan, lengths, 1)
    assert plan.makespan_s > 0


@pytest.mark.parametrize(
    ("lengths", "changes", "in_step"),
    [
        ([4096] * 6, {}, True),  # 2, 2, 1, 1 packs: who has fewer does the same for less long
        ([1024] * 8, {}, True),
        ([4096] * 3 + [4095], {}, False),
        ([1024] * 7, {}, False),  # the last pack is not full
        ([1024] * 7, {"context": 1024}, True),
        # cp 6 on 24 ranks: the second group's ring leaves the first node
        ([6144] * 8, {"context": 6144, "nodes": 3, "cp": 6}, False),
    ],
)
def test_equal_packs_are_in_step(lengths: list[int], changes: dict[str, int], in_step: bool):
    made = problem(lengths, **changes)
    plan = plan_static(made)
    assert plan.in_step == in_step
    validate_plan(plan, np.array(lengths), 1)


def test_a_plan_in_step_is_priced_as_all_its_micro_batches():
    made = problem([4096] * 6)
    plan = plan_static(made)
    cost = made.cost
    one, all_of_them = (
        step_costs(cost, price(cost, plan), plan.ranks, data_s=0.0)
        for price in (distinct_micro_batches, plan_micro_batches)
    )
    assert distinct_micro_batches(cost, plan).copies == 6
    np.testing.assert_array_equal(one.forward_terms_s, all_of_them.forward_terms_s)
    np.testing.assert_array_equal(one.backward_terms_s, all_of_them.backward_terms_s)
    np.testing.assert_array_equal(one.transfer_s, all_of_them.transfer_s)
    np.testing.assert_array_equal(one.epilogue.gradient_sync_s, all_of_them.epilogue.gradient_sync_s)
    assert run_replay(plan, one).step_s == run_replay(replace(plan, in_step=False), all_of_them).step_s


def test_a_wrong_claim_to_be_in_step_is_found():
    lengths = np.array([4000, 3000])
    plan = replace(plan_static(problem(lengths.tolist())), in_step=True)
    with pytest.raises(PlanError, match="in step, but its micro-batches are not all alike"):
        validate_plan(plan, lengths, 1)
    shuffled = plan_static(problem([4096] * 8))
    members = shuffled.order[shuffled.order_offsets[0] : shuffled.order_offsets[1]]
    members[:] = members[::-1].copy()  # of its group the first rank alone
    with pytest.raises(PlanError, match="in step, but members of a group run it at different slots"):
        validate_plan(shuffled, np.array([4096] * 8), 1)


@pytest.mark.parametrize("cp", [32, 64])
def test_rings_that_leave_a_block_with_one_flow_in_many_are_not_slowed_by_oversubscription(cp: int):
    # 8 nodes of 8 ranks, 4 nodes a block: rings of 32 ranks are blocks, the ring of all 64 crosses with 2 of 64 hops
    steps = []
    for oversubscription in (1.0, 4.0, 32.0):
        cluster = small_cluster(8, nodes_per_block=4, oversubscription=oversubscription)
        setup = small_setup(
            cluster=cluster, context=64 * 1024, capacity=2048, layout=Layout(cp=cp), name="static"
        )
        steps.append(simulate_step(setup, np.array([60_000, 3_000, 30_000, 64_000])).step_s)
    free, four, most = steps
    assert four == pytest.approx(free, rel=1e-3)
    assert most < 1.05 * free  # gradients, whose rings send over all NICs of a node, have an eighth of them


@settings(max_examples=60)
@given(
    st.sampled_from([2, 4]),
    st.sampled_from(["in-order", "first-fit", "best-fit", "concatenate"]),
    st.booleans(),
    st.lists(st.integers(1, 2048), min_size=1, max_size=60),
)
def test_dualpipe_runs_or_is_refused_when_planned(
    pp: int, packing: Packing, padding: bool, lengths: list[int]
):
    layout = Layout(tp=4, pp=pp, schedule="dualpipe", cp=2)
    setup = small_setup(
        nodes=4, layout=layout, capacity=1024, context=2048, name="static", packing=packing, padding=padding
    )
    groups = setup.ranks // 2
    pieces = pack(np.array(lengths), 2048, packing)
    pairs = max(pp, -(-(int(pieces.micro_batch.max()) + 1) // (2 * groups)))
    if 2 * groups * pairs > len(pieces.tokens):
        with pytest.raises(InfeasibleError, match=r"layout\.schedule = dualpipe .* data\.batch"):
            plan_batch(setup, lengths)
        return
    plan, *_ = plan_batch(setup, lengths)
    validate_plan(plan, np.array(lengths), pp)
    assert (np.diff(plan.order_offsets) == 2 * pairs).all()
    simulate_step(setup, lengths)


def test_only_as_many_packs_are_split_as_dualpipe_needs():
    # Two groups of two ranks, 15 packs: the one of two sequences is taken apart, and every group has 8.
    layout = Layout(tp=2, pp=2, schedule="dualpipe", cp=2)
    setup = small_setup(layout=layout, capacity=1024, context=2048, name="static")
    lengths = [1500] * 6 + [1000, 1000] + [1500] * 8
    plan, *_ = plan_batch(setup, lengths)
    assert np.diff(plan.segment_offsets).tolist() == [1] * 16
    assert plan.segment_sequence.tolist() == list(range(16))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    tasks(),
    st.sampled_from(["static", "hdp-opt"]),
    st.booleans(),
    st.sampled_from(["shared", "redundant"]),
)
def test_a_degree_that_is_found_costs_what_it_costs_when_it_is_stated(
    task: Task, name: StrategyName, asynchronous: bool, loader: Loader
):
    setup = replace(
        task.setup,
        strategy=replace(task.setup.strategy, name=name, dynamic_groups=False),
        data_pipeline=DataPipeline(asynchronous=asynchronous, loader=loader),
    )
    found = simulate_step(setup, task.lengths)
    degree = int(found.plan.group_size.max())
    stated = simulate_step(replace(setup, layout=setup.layout.changed(cp=degree)), task.lengths)
    assert stated.step_s == found.step_s
    assert stated.memory == found.memory


def test_a_mesh_of_single_ranks_has_no_context_parallel_groups():
    """One communicator and no buffers of a ring less than a mesh that shares sequences."""
    alone, shared = (
        simulate_step(
            small_setup(name="static", context=1024, capacity=1024, layout=Layout(cp=cp)), [1024] * 64
        )
        for cp in (None, 2)
    )
    assert int(alone.plan.group_size.max()) == 1
    assert shared.memory.communication == 2 * alone.memory.communication


def test_a_mesh_that_only_fits_without_sharing_is_found():
    setup = small_setup(name="static", context=1024, capacity=1024, layout=Layout(cp=1))
    needed = simulate_step(setup, [1024] * 64).memory.total_bytes
    node = setup.cluster.node
    node = replace(node, gpu=replace(node.gpu, hbm_bytes=needed))
    tight = replace(setup, cluster=replace(setup.cluster, node=node), layout=setup.layout.changed(cp=None))
    assert simulate_step(tight, [1024] * 64).memory.fits
    later = simulate_step(tight, [512] * 64, mesh_degree=settled_degree(tight, [1024] * 64))
    assert later.memory.fits


@settings(max_examples=5, deadline=None)
@given(tasks(), st.floats(0.2, 1.0))
def test_no_mesh_of_a_degree_that_is_left_out_ends_in_time(task: Task, share: float):
    # The longest sequence alone, on a group that holds it, by the planner's times of the slowest stage.
    longest = int(task.lengths.max())
    setup = replace(
        task.setup, context_tokens=longest, strategy=StrategyOptions(name="static", padding=False)
    )
    problem = problem_of(setup, [longest])
    below_s = share * float(problem.sequence_s([longest], [1])[0]) * problem.stages
    for degree in set(likely_degrees(problem, np.inf)) - set(likely_degrees(problem, below_s)):
        mesh = replace(setup, layout=setup.layout.changed(cp=degree))
        with suppress(InfeasibleError):  # DualPipe wants more micro-batches
            assert simulate_step(mesh, [longest]).step_s >= below_s * (1.0 - 1e-9)


@settings(max_examples=4, deadline=None)
@given(tasks())
def test_a_mesh_whose_packs_are_padded_ends_no_earlier(task: Task):
    # So of packs that end too late as they are none is priced with padding.
    strategy = StrategyOptions(name="hdp-opt", padding=True)
    drafts = mesh_drafts(problem_of(replace(task.setup, strategy=strategy), task.lengths), np.inf)
    plain = [draft for draft in drafts if draft.packs.padding_tokens is None]
    for draft in drafts:
        for other in plain:
            same = np.array_equal(draft.packs.pieces.micro_batch, other.packs.pieces.micro_batch)
            if same and draft.degree == other.degree:
                assert draft.least_s >= other.least_s * (1.0 - 1e-9)


@pytest.mark.parametrize(
    ("lengths", "pipeline", "said"),
    [
        ([4096] * 6, {}, "6 micro-batches do not divide among 4 data-parallel groups; training programs refuse that; "
                         "4 or 8 micro-batches suit (data.batch)"),
        ([4096] * 8, {}, None),
        ([4096] * 5 + [4000], {}, None),
        ([4096] * 3, {}, "1 of 4 data-parallel groups have no micro-batch: the batch makes 3; training programs refuse "
                         "that; 4 micro-batches suit (data.batch)"),
        ([4096] * 6, {"pp": 2, "vpp": 2, "schedule": "interleaved"}, "interleaved: 3 micro-batches of a group are no "
         "multiple of pp = 2; training programs refuse that; 4 or 8 micro-batches suit (data.batch)"),
    ],
)  # fmt: skip
def test_batches_that_training_programs_refuse_are_named(
    lengths: list[int], pipeline: dict[str, object], said: str | None
):
    layout = Layout(cp=4, **pipeline)  # type: ignore[arg-type]
    notes = plan_static(problem(lengths, layout=layout)).notes
    assert [note for note in notes if "refuse" in note] == ([said] if said else [])
