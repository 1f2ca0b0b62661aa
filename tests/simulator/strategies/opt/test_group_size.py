from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_setups import CONGESTED, HOPPER, MODEL, problem_of, small_cluster, small_setup, tasks

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.strategies.hdp import groups as group_size
from hdpsim.simulator.strategies.hdp.groups import (
    choose_groups,
    least_group,
    needed_ratio,
    size_grid,
    smallest_group,
)
from hdpsim.simulator.strategies.problem import PlanningProblem

DEEP = replace(MODEL, name="deep", layers=32)


def problem(*, capacity: int = 1024, model: object = DEEP, **changes: object) -> PlanningProblem:
    return problem_of(
        small_setup(nodes=4, capacity=capacity, context=32 * capacity, model=model, **changes), [1]
    )


def test_needed_ratio_by_hand():
    # 32 layers, 2 stay: d ranks hold C d tokens as they are, C d l / (2 + (1 - r) (l - 2)) with ratio r.
    one = problem()
    lengths, sizes = np.array([4096, 4096, 4096, 16384]), np.array([4, 2, 1, 1])
    # Room d C / s = 1: nothing. 1/2: 16 of 32 layers fit, 14 of the 30 others stay: r = 16/30. 1/4: 8 fit, 6 of 30
    # stay: r = 24/30. 1/16: just the two.
    assert needed_ratio(one, lengths, sizes) == pytest.approx([0.0, 16 / 30, 24 / 30, 1.0])


def test_what_fits_with_no_ratio_is_infeasible():
    with pytest.raises(
        InfeasibleError,
        match="16385 tokens does not fit on 1 ranks of 1024 tokens, even with its activations off",
    ):
        needed_ratio(problem(), np.array([100, 16385]), np.array([1, 1]))


def test_without_offloading_a_group_needs_room_for_all():
    one = problem(selective_offloading=False)
    assert least_group(one, np.array([1, 1024, 1025, 4096])).tolist() == [1, 1, 2, 4]
    assert needed_ratio(one, np.array([4096]), np.array([4])).tolist() == [0.0]
    with pytest.raises(InfeasibleError, match=r"1025 tokens does not fit on 1 ranks of 1024 tokens \(layout"):
        needed_ratio(one, np.array([1025]), np.array([1]))


def host_link(one: PlanningProblem, factor: float) -> PlanningProblem:
    """The same problem with another host link."""
    node = one.cost.cluster.node
    gpu = replace(node.gpu, host_link_bytes_per_s=factor * node.gpu.host_link_bytes_per_s)
    cluster = replace(one.cost.cluster, node=replace(node, gpu=gpu))
    roomy = replace(one.cost.cal, host_memory_bytes_per_s=1e18)
    setup = small_setup(
        cluster=cluster,
        capacity=one.capacity_tokens,
        context=one.context_tokens,
        model=one.cost.model,
        cal=roomy,
    )
    return problem_of(setup, one.lengths)


def test_equation_3_with_a_slow_host_link_is_the_plain_group():
    # r = 0: d = ceil(s / C)
    assert least_group(host_link(problem(), 1e-7), np.array([1025, 5000, 32768])).tolist() == [2, 5, 32]


def test_equation_3_with_a_fast_host_link_keeps_two_layers():
    # r = 1: d = ceil(s / C * 2 / 32)
    assert least_group(host_link(problem(), 1e7), np.array([1025, 16384, 16385, 32768])).tolist() == [
        1, 1, 2, 2
    ]  # fmt: skip


def test_equation_3_in_between():
    one = problem()
    length = 8192
    offloading = one.cost.offloading
    # Overlap: r act / B = t_forward of a layer, taken as 0.3 of its forward and backward.
    forward_s = 0.3 * float(one.piece_s(length)) / 32
    rate = host_link(one, 1.0).cost.offloading.bytes_per_s
    wanted = 0.5 * offloading.activation_bytes_per_token * length / forward_s  # the rate at which r = 1/2
    half = host_link(one, wanted / rate)
    # d = 8 * (2 + 15) / 32 = 4.25
    assert least_group(half, np.array([length])).tolist() == [5]


@pytest.mark.parametrize("layers", [1, 2])
def test_two_layers_or_fewer_are_never_offloaded(layers: int):
    one = problem(model=replace(MODEL, layers=layers))
    assert least_group(one, np.array([1024, 1025, 4096])).tolist() == [1, 2, 4]
    assert needed_ratio(one, np.array([4096]), np.array([4])).tolist() == [0.0]
    with pytest.raises(InfeasibleError):
        needed_ratio(one, np.array([4096]), np.array([3]))


def test_a_group_never_exceeds_the_ranks():
    assert least_group(problem(selective_offloading=False), np.array([40 * 1024])).tolist() == [32]


@settings(max_examples=60)
@given(tasks(), st.integers(1, 6), st.floats(0.0, 1.2))
def test_smallest_group_is_the_smallest(task: object, least: int, share: float):
    one = problem_of(task.setup, task.lengths)  # type: ignore[attr-defined]
    least = min(least, one.ranks)
    sizes = np.arange(least, one.ranks + 1)
    longest = int(one.lengths.max())
    limit_s = share * float(one.sequence_s([longest], [least])[0])
    found = smallest_group(one, one.lengths, limit_s, np.full(len(one.lengths), least))
    for length, size in zip(one.lengths.tolist(), found.tolist(), strict=True):
        times = one.sequence_s(np.full_like(sizes, length), sizes)
        within = np.flatnonzero(times <= limit_s)
        if len(within):
            assert size == sizes[within[0]]
        else:
            assert one.sequence_s([length], [size])[0] == times.min()


@settings(max_examples=60, deadline=None)
@given(tasks(), st.floats(0.0, 1.2))
def test_sizes_beyond_those_looked_at_first_change_nothing(task: object, share: float):
    one = problem_of(task.setup, task.lengths)  # type: ignore[attr-defined]
    least = least_group(one, one.lengths)
    limit_s = share * float(one.sequence_s(one.lengths, least).max())
    found = []
    for sizes in (1, 2, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_size, "FIRST_SIZES", sizes)
            found.append(smallest_group(one, one.lengths, limit_s, least).tolist())
    assert found[0] == found[1] == found[2]


def test_a_step_between_tiers_is_no_obstacle():
    # With congestion a ring that leaves the node is slower than one that does not, however many ranks it has.
    one = problem(cal=replace(CONGESTED, launch_s=0.0))  # launches bound rings of so short sequences
    times = one.sequence_s(np.full(12, 4096), np.arange(1, 13))
    assert times[8] > times[7]
    limit_s = float(times[5])
    assert smallest_group(one, np.array([4096]), limit_s, np.array([1])).tolist() == [6]


def test_a_limit_widens_groups_and_nothing_else_does():
    one = problem(capacity=8192, selective_offloading=False)
    lengths = np.array([16000, 24000, 40000])
    relaxed, _ = choose_groups(one, lengths, np.inf, np.inf)
    assert relaxed.tolist() == [2, 3, 5]
    limit_s = float(one.sequence_s([40000], [5])[0]) * 0.999
    tight, _ = choose_groups(one, lengths, limit_s, limit_s)
    assert tight.tolist() == [2, 3, 6]


def test_offloading_stops_where_a_sequence_would_become_the_critical_path():
    one = host_link(problem(), 1e7)
    lengths = np.array([16384])
    assert choose_groups(one, lengths, np.inf, np.inf)[0].tolist() == [1]
    # Half of its time alone allowed: a group of at least two, which still offloads.
    limit_s = 0.5 * float(one.sequence_s(lengths, [1])[0])
    size, ratio = choose_groups(one, lengths, np.inf, limit_s)
    assert 2 <= size[0] <= 3
    assert 0 < ratio[0] < 1


def test_size_grid(monkeypatch: pytest.MonkeyPatch):
    for ranks, exact, growth, sizes in (
        (5, 8, 2.0, [1, 2, 3, 4, 5]),
        (20, 3, 2.0, [1, 2, 3, 6, 12, 20]),
        (6, 2, 1.1, [1, 2, 3, 4, 5, 6]),
        (1, 8, 2.0, [1]),
    ):
        monkeypatch.setattr(group_size, "EXACT_SIZES", exact)
        monkeypatch.setattr(group_size, "SIZE_GROWTH", growth)
        assert size_grid(ranks).tolist() == sizes


def test_recomputed_attention_counts_by_sequence():
    # Full recomputation runs the forward twice, attention of a sequence included, and its linear work per token.
    plain, again = (
        problem(layout=Layout(recompute=mode), cal=HOPPER, cluster=small_cluster(4))  # type: ignore[arg-type]
        for mode in ("none", "full")
    )
    attention = plain.cost.attention
    forward_s, backward_s = (
        32 * float(attention.segments.alone_s(16384, backward=side)) for side in (False, True)
    )
    assert float(plain.cost.sequence_s(16384, 1, 0)) == pytest.approx(forward_s + backward_s)
    assert float(again.cost.sequence_s(16384, 1, 0)) == pytest.approx(2 * forward_s + backward_s)
    # ... and no attention at all in the work per token: three passes become four, the head is not repeated.
    assert plain.token_s < again.token_s < plain.token_s * 4 / 3


def test_a_given_ratio_decides_the_group():
    # d = ceil(s / C * (2 + 0.5 * 30) / 32): 8 * 17 / 32 = 4.25; the ratio that 5 ranks need is a little less
    one = replace(problem(), options=replace(problem().options, offload_ratio=0.5))
    size, ratio = choose_groups(one, np.array([8192]), np.inf, 1e-9)
    assert size.tolist() == [5]
    assert ratio == pytest.approx([1.0 - (5 * 32 / 8 - 2) / 30])
    assert 0.0 < ratio[0] <= 0.5


def test_hosts_that_are_full_take_more_ranks():
    fast = host_link(problem(), 1e7)
    lengths = np.array([1024, 16384, 32768])
    assert least_group(fast, lengths).tolist() == [1, 1, 2]
    # A rank can hold 4,096 tokens: 1,024 on its GPUs, the rest on its host.
    assert least_group(replace(fast, hosted_tokens=4096.0), lengths).tolist() == [1, 4, 8]
    assert least_group(replace(fast, hosted_tokens=1024.0), lengths).tolist() == [1, 16, 32]
