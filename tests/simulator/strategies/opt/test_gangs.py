import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_plans import make_plan
from simulator_setups import FLOOR, HOPPER, problem_of, small_cluster, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.plan import HOLE
from hdpsim.simulator.strategies.opt import gangs as gangs_module
from hdpsim.simulator.strategies.opt.gangs import RankLoads, place_gangs, window_max
from hdpsim.simulator.strategies.opt.hdp_opt import rehearsed_s
from hdpsim.simulator.strategies.opt.long_sequences import LongSequences, ideal_step_s
from hdpsim.simulator.strategies.problem import PlanningProblem


def problem(
    *, nodes: int = 4, tp: int = 2, pp: int = 1, lengths: list[int] | None = None, cal: object = HOPPER
) -> PlanningProblem:
    """By default 4 ranks a node, 2 nodes a block."""
    setup = small_setup(cluster=small_cluster(nodes), layout=Layout(tp=tp, pp=pp), context=16 * 1024, cal=cal)
    return problem_of(setup, lengths or [1])


def place(
    one: PlanningProblem,
    sizes: list[int],
    times: list[float],
    free: list[float] | None = None,
    deadline: float = 10.0,
) -> tuple[list[list[int]], list[int], RankLoads]:
    free_s = np.zeros(one.ranks) if free is None else np.array(free)
    loads = RankLoads(free_s, np.zeros(one.ranks, dtype=np.int64), np.zeros(one.ranks))
    members, slots, _ = place_gangs(
        one, loads, np.array(sizes), np.array(times), 2 * np.array(times), deadline
    )
    return [ranks.tolist() for ranks in members], slots.tolist(), loads


def test_a_gang_that_fits_a_node_stays_in_one():
    members, slots, loads = place(problem(), [3, 3, 1], [10.0, 10.0, 10.0])
    # The second one does not fit beside the first; the single rank goes to the node in use.
    assert [sorted({rank // 4 for rank in ranks}) for ranks in members] == [[0], [1], [0]] or len(
        {rank // 4 for rank in members[0]}
    ) == 1
    assert slots == [0, 0, 0]
    assert loads.free_s.sum() == 70.0


def test_a_gang_that_would_be_late_in_a_node_is_spread():
    # Two nodes of 4 ranks, in each 3 ranks are busy until 2.5 s: only one rank of either is free.
    one, free = problem(nodes=2), [2.5, 2.5, 2.5, 0.0] * 2
    members, _, loads = place(one, [2], [1.0], free, deadline=3.0)
    assert members == [[3, 7]]
    assert loads.free_s[[3, 7]].tolist() == [2.0, 2.0]  # spread over two nodes it takes twice as long
    # With time for it the gang follows in a node, where it is quicker.
    members, _, loads = place(one, [2], [1.0], free, deadline=3.5)
    assert {rank // 4 for rank in members[0]} in ({0}, {1})
    assert loads.free_s[members[0]].tolist() == [3.5, 3.5]


def test_a_wide_gang_takes_whole_nodes_of_one_block():
    # Node 0 has work, so block 0 has one free node only: two whole nodes are free in block 1.
    free = [5.0] * 4 + [0.0] * 12
    members, _, _ = place(problem(), [8], [10.0], free)
    assert members == [list(range(8, 16))]


def test_a_gang_wider_than_a_block_takes_whole_nodes_anywhere():
    free = [0.0] * 4 + [5.0] * 4 + [0.0] * 8
    members, _, _ = place(problem(), [12], [10.0], free)
    assert members == [[0, 1, 2, 3, *range(8, 16)]]


def test_the_rest_of_a_gang_shares_a_node():
    # 6 = a node and 2 ranks, which go to the node of the same block that is in use.
    members, _, _ = place(problem(nodes=2), [6], [10.0], [5.0, 5.0, 0.0, 0.0] + [0.0] * 4)
    assert members == [[2, 3, 4, 5, 6, 7]]


def test_a_gang_of_all_ranks():
    members, slots, loads = place(problem(), [16, 16], [1.0, 2.0])
    assert members == [list(range(16))] * 2
    assert slots == [0, 1]
    assert loads.free_s.tolist() == [3.0] * 16


def test_a_gang_starts_when_its_last_member_is_free():
    free = [0.0, 1.0, 2.0, 3.0] + [20.0] * 12
    members, _, loads = place(problem(), [3], [1.0], free)
    # Waiting: ranks 0-2 wait 2 + 1 s, ranks 1-3 wait 2 + 1 s as well; the busier ones are taken.
    assert members == [[1, 2, 3]]
    assert loads.free_s[:4].tolist() == [0.0, 4.0, 4.0, 4.0]


def test_of_equals_the_busiest_that_are_ready_in_time():
    free = [4.0] * 4 + [6.0] * 4 + [0.0] * 8
    assert place(problem(), [4], [5.0], free)[0] == [[0, 1, 2, 3]]  # 6 + 5 is past the deadline of 10
    assert place(problem(), [4], [4.0], free)[0] == [[4, 5, 6, 7]]
    assert place(problem(), [4], [11.0], free)[0][0][0] >= 8  # none is in time: the earliest


def test_slots_are_common_to_the_gang():
    members, slots, loads = place(problem(nodes=1), [2, 2, 4], [1.0, 2.0, 1.0])
    assert len(members) == 3
    assert slots[2] == int(max(slots[:2])) + 1
    assert loads.slot.tolist() == [slots[2] + 1] * 4


def test_long_micro_batches_gather_in_a_pipeline():
    # A first long micro-batch costs a rank (p - 1) of its length in bubbles, further ones cost none.
    one = problem(nodes=4, pp=4)
    assert one.ranks == 4
    members, _, loads = place(one, [1, 1, 1], [2.0, 2.0, 2.0], deadline=20.0)
    assert members[0] == members[1] == members[2]
    assert loads.free_s.max() == 3 * 2.0 + 3 * 2.0
    # Without a pipeline there is nothing to gain: but they still fill a rank up to the deadline.
    members, _, _ = place(problem(nodes=1), [1, 1, 1], [2.0, 2.0, 2.0], deadline=5.0)
    assert members[0] == members[1] != members[2]


def in_pipeline(free: list[float], slots: list[int], size: int) -> tuple[list[int], RankLoads]:
    """A gang of 1 s on ranks of two stages that ran micro-batches as long in *slots* slots."""
    one = problem(pp=2, tp=8, nodes=2 * len(free))
    assert (one.ranks, one.bubble_weight) == (len(free), 1.0)
    loads = RankLoads(np.array(free), np.array(slots), np.ones(one.ranks))
    members, _, _ = place_gangs(one, loads, np.array([size]), np.ones(1), 2 * np.ones(1), 100.0)
    return members[0].tolist(), loads


def test_a_gang_takes_ranks_that_leave_no_slot_out():
    # All are free at 4 s. Ranks 0 and 1 would run it in slot 2, so that rank 1 leaves out slot 1.
    members, loads = in_pipeline([4.0, 4.0, 4.0, 4.0], [2, 1, 1, 1], 2)
    assert members == [2, 3]
    assert loads.free_s.tolist() == [4.0, 4.0, 5.0, 5.0]


def test_a_slot_that_is_left_out_costs_a_micro_batch_and_several_cost_no_more_than_the_bubble():
    for slots in ([2, 2, 2, 1], [5, 5, 5, 1]):
        _, loads = in_pipeline([4.0, 4.0, 4.0, 4.0], slots, 4)
        assert loads.free_s.tolist() == [6.0] * 4  # 4 + 1 for the slot + 1
    # A rank without work leaves none out between two; nor does it matter to one that would wait as long.
    assert in_pipeline([4.0, 4.0, 4.0, 1.0], [2, 2, 2, 0], 4)[1].free_s.tolist() == [5.0] * 4
    assert in_pipeline([4.0, 4.0, 4.0, 3.0], [2, 2, 2, 1], 4)[1].free_s.tolist() == [5.0] * 4


def played_s(slots: list[int], stages: int) -> float:
    """When a rank ends that runs micro-batches of 1 s in these slots."""
    order = [HOLE] * (slots[-1] + 1)
    for number, slot in enumerate(slots):
        order[slot] = number
    return float(rehearsed_s(make_plan([order]), np.ones(len(slots)), stages=stages, chunks=1).max())


@given(stages=st.integers(2, 9), before=st.integers(1, 6), holes=st.integers(0, 12), after=st.integers(1, 6))
def test_what_slots_cost_that_are_left_out_is_what_the_replay_takes(
    stages: int, before: int, holes: int, after: int
):
    slots = [*range(before), *range(before + holes, before + holes + after)]
    bubbles = stages - 1
    assert played_s(slots, stages) == pytest.approx(before + after + bubbles + min(holes, bubbles))


def test_a_rehearsal_says_when_each_rank_ends():
    plan = make_plan([[0, 1], [2]])
    # Of 1 s on each of two stages 0.3 s are the forward; one after the other, and one more micro-batch for rank 0.
    assert rehearsed_s(plan, np.ones(3), stages=2, chunks=1).tolist() == pytest.approx([3.0, 2.0])


@given(
    st.lists(st.lists(st.floats(-9.0, 9.0), min_size=9, max_size=9), min_size=1, max_size=3),
    st.integers(1, 9),
)
def test_the_largest_of_neighbours(rows: list[list[float]], items: int):
    largest = [[max(row[at : at + items]) for at in range(9 - items + 1)] for row in rows]
    assert window_max(np.array(rows), items).tolist() == largest


def test_neighbours_are_of_one_row():
    # Rows of three items and the place before them; by the last of two neighbours: places 2 to 7.
    assert gangs_module._across_rows(2, 4, 6).tolist() == [0.0, 0.0, np.inf, np.inf, 0.0, 0.0]


def test_ranks_larger_than_a_node_need_no_node():
    one = problem(tp=8, nodes=4)
    members, _, _ = place(one, [3], [1.0], [0.0, 5.0, 0.0, 0.0])
    assert members == [[0, 2, 3]]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.tuples(st.integers(1, 24), st.sampled_from([1.0, 1.5, 2.0, 4.0])), max_size=40),
    st.floats(2.0, 20.0),
)
def test_rows_that_are_alike_need_not_all_be_looked_at(
    nodes: int, tp: int, gangs: list[tuple[int, float]], deadline: float
):
    one = problem(nodes=nodes, tp=tp)
    sizes, times = np.array([min(size, one.ranks) for size, _ in gangs]), np.array([t for _, t in gangs])
    found = []
    # Without a pipeline it does not matter how long micro-batches were; but ranks that differ are not alike.
    for longest_s in (np.zeros(one.ranks), np.arange(one.ranks) / 10.0):
        loads = RankLoads(np.zeros(one.ranks), np.zeros(one.ranks, dtype=np.int64), longest_s)
        members, slots, taken = place_gangs(one, loads, sizes, times, 2 * times, deadline)
        found.append(([ranks.tolist() for ranks in members], slots.tolist(), taken.tolist()))
    assert found[0] == found[1]


def wasted_s(loads: RankLoads, ranks: list[int], weight: float, time_s: float) -> tuple[float, float]:
    """What a group of ranks wastes on a gang, and when it can start: the definition, rank by rank."""
    free, longest, slot = (each[ranks] for each in (loads.free_s, loads.longest_s, loads.slot))
    bubble_s = weight * np.maximum(0.0, time_s - longest)
    left_out = np.where(slot > 0, time_s * (slot.max() - slot), 0.0)
    left_out_s = min(float((free + left_out).max()), float(free.max()) + weight * time_s)
    start_s = max(float((free + bubble_s).max()), left_out_s)
    return len(ranks) * start_s - float(free.sum()), start_s


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0, 4.0])), min_size=1, max_size=12),
    st.floats(2.0, 20.0),
    st.randoms(use_true_random=False),
)
def test_a_pipeline_wastes_least_however_its_rows_are_looked_at(
    blocks: int, gangs: list[tuple[int, float]], deadline: float, random: object
):
    one = problem(nodes=8 * blocks, tp=8, pp=2)  # 2 nodes a block: rows of one or two ranks would say little
    near = gangs_module.Neighbourhood(node=1, block=min(one.ranks, 4))
    assert one.bubble_weight == 1.0
    draw = random.random  # type: ignore[attr-defined]
    sizes = np.array([min(size, near.block) for size, _ in gangs])
    times = np.array([time_s for _, time_s in gangs])
    free, longest = (np.array([round(8.0 * draw()) / 2.0 for _ in range(one.ranks)]) for _ in range(2))
    slot = np.array([int(4 * draw()) for _ in range(one.ranks)])
    found = []
    for few in (0, 4):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(gangs_module, "FEW_ROWS", few)
            loads = RankLoads(free.copy(), slot.copy(), longest.copy())
            placed = gangs_module._place_in_turn(near, 1.0, loads, sizes, times, 2 * times, deadline)
        found.append(([ranks.tolist() for ranks in placed[0]], placed[1].tolist(), placed[2].tolist()))
    assert found[0] == found[1]
    size, time_s = int(sizes[0]), float(times[0])
    groups = []
    for begin in range(0, one.ranks, near.block):
        row = sorted(range(begin, min(begin + near.block, one.ranks)), key=lambda rank: free[rank])
        groups += [sorted(row[at : at + size]) for at in range(len(row) - size + 1)]
    loads = RankLoads(free, slot, longest)
    first = found[0][0][0]
    waste_s, start_s = wasted_s(loads, first, 1.0, time_s)
    in_time = [group for group in groups if wasted_s(loads, group, 1.0, time_s)[1] <= deadline - time_s]
    if size > 1 and in_time:
        least_s = min(wasted_s(loads, group, 1.0, time_s)[0] for group in in_time)
        assert waste_s <= least_s + 1e-6
        assert start_s <= deadline - time_s + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 4), min_size=2, max_size=10), st.floats(2.0, 20.0))
def test_what_is_remembered_of_a_pipeline_is_what_a_new_look_finds(sizes: list[int], deadline: float):
    near = gangs_module.Neighbourhood(node=1, block=4)
    times = np.arange(1.0, 1.0 + len(sizes))  # each longer than those before: none follows on the same ranks

    def place_in(steps: list[slice]) -> list[list[int]]:
        loads = RankLoads(np.zeros(8), np.zeros(8, dtype=np.int64), np.zeros(8))
        found: list[list[int]] = []
        for step in steps:
            some = np.array(sizes)[step], times[step], 2 * times[step]
            found += [
                ranks.tolist() for ranks in gangs_module._place_in_turn(near, 1.0, loads, *some, deadline)[0]
            ]
        return found

    assert place_in([slice(None)]) == place_in([slice(at, at + 1) for at in range(len(sizes))])


def test_long_sequences_meet_a_limit_or_are_as_quick_as_can_be():
    one = problem(lengths=[100, 5000, 1025, 16384, 1024])
    long = LongSequences(one)
    assert long.sequence.tolist() == [3, 1, 2]
    assert long.tokens.tolist() == [16384, 5000, 1025]
    (relaxed, relaxed_s), (_, quickest_s) = long.within([np.inf, 0.0])
    assert relaxed_s == pytest.approx(one.sequence_s(long.tokens, relaxed))
    assert np.all(quickest_s <= relaxed_s)
    limit_s = float(np.sort(relaxed_s)[1])
    size, time_s = next(long.within([limit_s]))
    assert np.all((time_s <= limit_s) | (time_s == quickest_s))
    assert np.all(size >= relaxed)


def test_the_least_cost_of_all_is_that_of_the_cheapest_sizes():
    kinds = LongSequences(problem(lengths=[5000, 5000, 16384])).kinds
    cost = kinds.sizes * kinds.times_s
    entry = kinds.cheapest(cost)
    assert kinds.count.tolist() == [1, 2]
    assert kinds.least(cost) == float(cost[entry[0]] + 2 * cost[entry[1]])
    assert kinds.least(np.full_like(cost, np.inf)) == np.inf


def test_limits_are_met_whatever_the_floor():
    one = problem(lengths=[16384], cal=FLOOR)
    size, time_s = next(LongSequences(one).within([0.0]))
    assert time_s[0] >= one.floor_s
    assert size[0] <= one.ranks


def test_spread_gangs_report_the_time_they_take():
    one = problem(nodes=2)
    loads = RankLoads(np.array([2.5, 2.5, 2.5, 0.0] * 2), np.zeros(8, dtype=np.int64), np.zeros(8))
    _, _, taken = place_gangs(one, loads, np.array([2]), np.array([1.0]), np.array([2.0]), 3.0)
    assert taken.tolist() == [2.0]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=60),
    seconds=st.lists(st.floats(0.1, 5.0), min_size=60, max_size=60),
    pp=st.sampled_from([1, 2]),
    busy=st.booleans(),
)
def test_regions_keep_every_promise_and_bound_what_is_looked_at(
    sizes: list[int], seconds: list[float], pp: int, busy: bool
):
    one = problem(nodes=32, pp=pp)
    times = np.sort(np.array(seconds[: len(sizes)]))[::-1].copy()
    looks: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gangs_module, "MOST_LOOKS", 500)
        real = gangs_module._place_in_turn

        def counted(near: object, weight: float, loads: RankLoads, *rest: object) -> object:
            looks.append(len(loads.free_s) * len(rest[0]))  # type: ignore[arg-type]
            return real(near, weight, loads, *rest)  # type: ignore[arg-type]

        patched.setattr(gangs_module, "_place_in_turn", counted)
        free = np.linspace(0.0, 1.0, one.ranks) if busy else np.zeros(one.ranks)
        loads = RankLoads(free.copy(), np.zeros(one.ranks, dtype=np.int64), np.zeros(one.ranks))
        members, slots, taken = place_gangs(one, loads, np.array(sizes), times, 2 * times, 20.0)
    asked = np.zeros(one.ranks)
    last = np.full(one.ranks, -1)
    for ranks, size, slot, time_s in zip(members, sizes, slots, taken, strict=True):
        assert len(set(ranks.tolist())) == size
        assert (np.diff(ranks) > 0).all()
        assert (slot > last[ranks]).all()
        last[ranks] = slot
        asked[ranks] += time_s
    assert (loads.free_s >= asked + free - 1e-9).all()
    widest = gangs_module.ROOM * max(sizes)
    assert sum(looks) <= max(2 * 500, 2 * len(sizes) * (widest + 8)) + one.ranks


def test_a_step_that_the_bubble_of_a_group_fills_has_no_room_for_it_and_warns_of_nothing() -> None:
    problem = problem_of(small_setup(layout=Layout(pp=2), context=4096), [4096])
    long = LongSequences(problem)
    least_s = float(problem.bubble_weight * long.kinds.times_s.max())
    assert ideal_step_s(problem, long, 0.0, 0.0, least_s)[0] >= least_s
