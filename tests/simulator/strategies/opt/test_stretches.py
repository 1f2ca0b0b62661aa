from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import FLOOR, problem_of, small_cluster, small_setup

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.simulator.strategies.opt.gangs import Neighbourhood
from hdpsim.simulator.strategies.opt.stretches import GANGS_TOGETHER, SMALL, SMALL_REST, Stretches
from hdpsim.simulator.strategies.problem import PlanningProblem


def problem(nodes: int, tp: int) -> PlanningProblem:
    """Two stages, two nodes a block; nodes * 4 / tp ranks."""
    setup = small_setup(
        cluster=small_cluster(nodes, nodes_per_block=2), layout=Layout(tp=tp, pp=2), cal=replace(FLOOR)
    )
    return problem_of(setup, [1])


def placed(one: PlanningProblem, step_s: float, sizes: list[int], time_s: float) -> list[object]:
    """Slot and ranks of gangs of one length; short micro-batches take a second."""
    places = Stretches(one, step_s, 1.0).place(sizes, [time_s] * len(sizes))
    return [place and (place[0], place[1].tolist()) for place in places]


def test_gangs_keep_to_a_node_or_a_block():
    # 21 s less a bubble of 1 s: one gang of 10 s and its bubble a rank.
    found = placed(problem(8, 2), 21.0, [3, 3, 2, 5, 1], 10.0)  # 16 ranks: 4 a node, 8 a block
    # Ranks 0-2; not 3-5, which are on two nodes, but 4-6; no two are left of the first block, nor five.
    assert found == [(0, [0, 1, 2]), (0, [4, 5, 6]), (0, [8, 9]), (0, [10, 11, 12, 13, 14]), (0, [3])]


def test_long_ones_gather_where_the_bubble_is_paid():
    assert placed(problem(8, 2), 50.0, [2, 2, 2], 10.0) == [(slot, [0, 1]) for slot in range(3)]


def test_a_gang_without_neighbours_has_no_place():
    # 20 s less 1 s: a gang of 9 s adds 8 s to the bubble and leaves 2 s. Two ranks of each block are left.
    found = placed(problem(8, 2), 20.0, [6, 6, 4, 2], 9.0)
    assert found == [(0, [*range(6)]), (0, [*range(8, 14)]), None, (0, [6, 7])]


def test_a_gang_without_neighbours_is_gathered_in_one_block():
    # 29 s: two gangs of 9 s on a rank. At last 12 s are left on ranks 0-3, all on 4-7: they meet at the second slot.
    found = placed(problem(8, 2), 30.0, [4, 8, 8, 8], 9.0)
    assert found == [(0, [*range(4)]), (0, [*range(8, 16)]), (1, [*range(8, 16)]), (1, [*range(8)])]


def one_by_one(problem: PlanningProblem, step_s: float, unit_s: float, gangs: list[tuple[int, float]]):
    """The same rule without tables: slot and first rank of every gang up to the first without neighbours."""
    near, weight = Neighbourhood.of(problem), problem.bubble_weight
    stretches = [(0, problem.ranks, 0, step_s - weight * unit_s, unit_s)]
    for size, time_s in gangs:
        best = None
        for at, (first, last, _, left_s, longest_s) in enumerate(stretches):
            span = next((span for span in (near.node, near.block) if size <= span), problem.ranks)
            edge = (first // span + 1) * span
            start = first if first + size <= edge or span == problem.ranks else edge
            after_s = left_s - time_s - weight * max(0.0, time_s - longest_s)
            if start + size > last or after_s < -SMALL * time_s:
                continue
            units = np.floor(after_s / unit_s + SMALL)
            loss = np.floor(left_s / unit_s + SMALL) - units + SMALL_REST * (after_s / unit_s - units)
            if best is None or loss < best[0]:
                best = loss, at, start, after_s
        if best is None:
            return
        _, at, start, after_s = best
        first, last, slot, left_s, longest_s = stretches[at]
        yield slot, start
        for part in ((first, start), (start + size, last)):
            if part[0] < part[1]:
                stretches.append((*part, slot, left_s, longest_s))
        stretches[at] = start, start + size, slot + 1, after_s, max(longest_s, time_s)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.sampled_from([1, 2, 4]),
    st.floats(20.0, 200.0),
    st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 3, 5, 9]), st.sampled_from([1.0, 1.5, 1.7, 2.0, 3.3, 8.0])),
        max_size=5 * GANGS_TOGETHER,
    ),
)
def test_looking_at_many_gangs_together_changes_nothing(
    blocks: int, tp: int, step_s: float, gangs: list[tuple[int, float]]
):
    one = problem(4 * blocks, tp)
    expected = list(one_by_one(one, step_s, 1.0, gangs))
    places = Stretches(one, step_s, 1.0).place([size for size, _ in gangs], [time_s for _, time_s in gangs])
    for (slot, start), (size, _), place in zip(expected, gangs, places, strict=False):
        assert place is not None
        assert place[0] == slot
        assert place[1].tolist() == list(range(start, start + size))
