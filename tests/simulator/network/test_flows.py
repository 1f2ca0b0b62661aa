"""Activities on shared links: hand cases of networks, one clock."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster, CongestionControl, Fabric, Gpu, Node
from hdpsim.cost_models.network.congestion import blocked_share, busiest_load
from hdpsim.cost_models.network.links import Links, Pattern
from hdpsim.simulator.network import fair_share, link_demand
from hdpsim.simulator.network.activity import Activity
from hdpsim.simulator.network.flows import FlowNetwork
from hdpsim.simulator.network.link_demand import LinkUse

GPU = Gpu(
    name="H100", bf16_flop_per_s=989e12, fp8_flop_per_s=1979e12, hbm_bytes=80 * 2**30, hbm_bytes_per_s=3.35e12,
    sm_count=132, nvlink_bytes_per_s=450e9, host_link_bytes_per_s=55e9, host_link_duplex_bytes_per_s=40e9,
    tdp_w=700, calibration="h100",
)  # fmt: skip
EXACT = NetworkCalibration(nic_efficiency=1.0, p2p_nvlink_efficiency=1.0)


def links_of(nodes: int, fabric: Fabric | None = None, *, gpus: int = 4, nics: int = 4) -> Links:
    node = Node(name="server", gpu=GPU, gpus=gpus, nics=nics, nic_bytes_per_s=50e9, host_memory_bytes=2e12)
    return Links.of(Cluster(name="test", node=node, nodes=nodes, fabric=fabric or Fabric()), EXACT)


def play(
    links: Links,
    activities: Sequence[tuple[float, Activity]],
    control: CongestionControl | None = None,
    changes: Sequence[tuple[float, int, float]] = (),
) -> list[float]:
    """When each of *activities*, which start at given times, ends; *changes*: when, which link, its factor."""
    env = simpy.Environment()
    network = FlowNetwork(env, links, control)
    ends = [0.0] * len(activities)

    def process(number: int, start_s: float, activity: Activity) -> simpy.events.ProcessGenerator:
        yield env.timeout(start_s)
        took_s = yield network.start(activity)
        assert env.now == pytest.approx(start_s + took_s)
        ends[number] = env.now

    def change(at_s: float, link: int, factor: float) -> simpy.events.ProcessGenerator:
        yield env.timeout(at_s)
        network.set_capacity(link, factor)

    for what in sorted(changes, key=lambda change: change[0]):
        env.process(change(*what))
    processes = [env.process(process(number, *what)) for number, what in enumerate(activities)]
    env.run(until=env.all_of(processes))
    return ends


def left_while_paused(links: Links, capacity: Floats, demand: Floats, control: CongestionControl) -> Floats:
    """What congestion control leaves of every up-link, switch by switch."""
    left, blocked = capacity.copy(), blocked_share(control)
    for kind, bins in (("leaf-up", links.leaf.bins), ("spine-up", links.spine.bins)):
        start, count = links.first[kind], links.count[kind]  # type: ignore[index]
        for first in range(start, start + count, bins):
            switch = slice(first, first + bins)
            load = np.maximum(1.0, demand[switch] / capacity[switch])
            if load.max() > 1.0 + 1e-9:
                share = 1.0 - blocked + blocked * load / load.max()
                left[switch] = np.minimum(capacity[switch], demand[switch]) * share
    return np.where(left > 0, left, 1e-300)


def transfer(
    links: Links, source: object, target: object, volume_bytes: float = 50e9, **times: float
) -> Activity:
    """By default what a NIC moves in a second."""
    return Activity.of(links, links.routes(source, target).pattern(), volume_bytes, **times)  # type: ignore[arg-type]


def test_two_flows_on_a_link() -> None:
    links = links_of(2)
    one = transfer(links, 0, 4)
    assert play(links, [(0, one)]) == [1.0]
    assert play(links, [(0, one), (0, one)]) == [2.0, 2.0]
    # the second comes when half of the first is done: from then on each has half a NIC
    assert play(links, [(0, one), (0.5, one)]) == pytest.approx([1.5, 2.0])


def test_who_computes_meanwhile_leaves_the_rest_of_the_link_to_others() -> None:
    links = links_of(2)
    slow = transfer(links, 0, 4, hidden_s=4.0)  # a quarter of the NIC
    fast = transfer(links, 0, 4)
    assert play(links, [(0, slow), (0, fast)]) == pytest.approx([4.0 + 0.0, 1 / 0.75])


def test_time_alone_is_rest_and_the_longer_of_compute_and_wire() -> None:
    links = links_of(2)
    assert play(links, [(0, transfer(links, 0, 4, rest_s=0.25))]) == [1.25]
    assert play(links, [(0, transfer(links, 0, 4, rest_s=0.25, hidden_s=3.0))]) == [3.25]
    nothing = Pattern(links=np.zeros(0, dtype=np.int64), flows=np.zeros(0))
    assert play(links, [(1, Activity(pattern=nothing, volume_bytes=0.0, alone_s=2.0))]) == [3.0]
    assert play(links, [(1, Activity(pattern=nothing, volume_bytes=0.0, alone_s=0.0))]) == [1.0]


def test_incast() -> None:
    links = links_of(9)
    assert play(links, [(0, transfer(links, 4 * node, 0)) for node in range(1, 9)]) == pytest.approx(
        [8.0] * 8
    )


def test_a_nic_of_two_gpus() -> None:
    links = links_of(2, gpus=8, nics=4)
    both = [transfer(links, 0, 8), transfer(links, 1, 9)]
    assert play(links, [(0, both[0])]) == [1.0]  # alone a GPU has all of it
    assert play(links, [(0, both[0]), (0, both[1])]) == [2.0, 2.0]
    assert play(links, [(0, both[0]), (0, transfer(links, 2, 10))]) == [1.0, 1.0]
    # as one ring the two hops share the NIC by themselves
    assert play(links, [(0, transfer(links, [0, 1], [8, 9]))]) == [2.0]


def test_ring_over_oversubscribed_blocks() -> None:
    fabric = Fabric(nodes_per_block=4, leaf_oversubscription=4.0)
    links = links_of(8, fabric)
    ring = np.arange(8) * 4  # one rail: 8 nodes, two hops leave a block; a leaf has one NIC's rate up
    assert play(links, [(0, transfer(links, ring, np.roll(ring, -1)))]) == [1.0]
    zigzag = ring.reshape(2, 4).T.reshape(-1)  # every hop leaves its block: four flows on one NIC's rate
    assert play(links, [(0, transfer(links, zigzag, np.roll(zigzag, -1)))]) == [4.0]


@pytest.mark.parametrize(("oversubscription", "seconds"), [(1.0, 6.0), (7.0, 4 * 7.0)])
def test_all_to_all_on_full_and_oversubscribed_leaves(oversubscription: float, seconds: float) -> None:
    links = links_of(8, Fabric(nodes_per_block=4, leaf_oversubscription=oversubscription), gpus=1, nics=1)
    source, target = np.divmod(np.arange(64), 8)
    # of a NIC's 7 flows 4 leave the block; the whole NIC takes 7 s
    seconds = max(seconds, 7.0)
    assert play(links, [(0, transfer(links, source, target))]) == pytest.approx([seconds])
    alone = [(0.0, transfer(links, a, b)) for a, b in zip(source, target, strict=True) if a != b]
    assert max(play(links, alone)) == pytest.approx(seconds)


def test_a_permutation_over_hashed_links_ends_with_the_busiest() -> None:
    fabric = Fabric(nodes_per_block=32, blocks_per_pod=32, routing="ecmp")
    links = links_of(32 * 32, fabric, gpus=1, nics=1)
    nodes = np.arange(len(links.place_of_node))
    targets = np.roll(nodes, 32 * 5)
    ring_s = play(links, [(0, transfer(links, nodes, targets))])[0]
    routes = links.routes(nodes, targets)
    up = routes.link[(routes.link >= links.first["leaf-up"]) & (routes.link < links.first["spine-up"])]
    assert ring_s == np.bincount(up).max()
    assert ring_s >= busiest_load(32, 32) - 0.5  # and it is that of all leaves, both ways
    single = play(links, [(0.0, transfer(links, a, b)) for a, b in zip(nodes, targets, strict=True)])
    assert max(single) <= ring_s + 1e-9  # nobody waits for the slowest


def test_congestion_control_costs_those_behind_a_collision() -> None:
    fabric = Fabric(nodes_per_block=4, routing="ecmp")
    links = links_of(8, fabric, gpus=1, nics=1)
    seed = next(seed for seed in range(1000) if _two_of_three_meet(links, seed))
    flows = [Activity.of(links, links.routes(a, a + 4, seed=seed).pattern(), 50e9) for a in range(3)]
    # the two that collide take 2 s in any case; the third is paused half of the blocked time
    for control, blocked in (
        ("ideal", 0.0),
        ("hybrid", 0.11 / 1.11),
        ("dcqcn", 0.275 / 1.275),
        ("none", 1.0),
    ):
        ends = play(links, [(0, flow) for flow in flows], control=control)
        assert ends == pytest.approx([2.0, 2.0, 1.0 / (1.0 - blocked / 2)])


def _two_of_three_meet(links: Links, seed: int) -> bool:
    """The first two share their up-link, the third shares nothing."""
    numbers = links.routes([0, 1, 2], [4, 5, 6], seed=seed).link.tolist()
    up, down = ([n for n in numbers if links.name(n).startswith(kind)] for kind in ("leaf-up", "leaf-down"))
    return up[0] == up[1] != up[2] and down[2] not in down[:2]


def test_a_link_that_is_down_for_a_while_stops_its_flows() -> None:
    links = links_of(2)
    env = simpy.Environment()
    network = FlowNetwork(env, links)
    done = [network.start(transfer(links, gpu, gpu + 4)) for gpu in (0, 1)]
    nic = links.names().index("nic-in:1.0")

    def flap() -> simpy.events.ProcessGenerator:
        yield env.timeout(0.25)
        network.set_capacity(nic, 0.0)
        yield env.timeout(3.0)
        network.set_capacity(nic, 1.0)

    env.process(flap())
    env.run(until=env.all_of(done))
    assert [event.value for event in done] == pytest.approx([4.0, 1.0])


def test_equal_activities_end_at_one_instant() -> None:
    links = links_of(64)
    gpus = np.arange(256)
    activities = [(0.1, transfer(links, gpu, (gpu + 4) % 256, 7e9 / 3)) for gpu in gpus.tolist()]
    ends = play(links, activities * 3)
    assert len(set(ends)) == 1


def test_who_has_links_to_itself_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    links, solved = links_of(4), []
    find = LinkUse.find_short
    monkeypatch.setattr(LinkUse, "find_short", lambda use, touched: solved.append(1) or find(use, touched))
    alone = [(0.1 * gpu, transfer(links, gpu, gpu + 4)) for gpu in range(8)]
    assert play(links, alone) == pytest.approx([1.0 + 0.1 * gpu for gpu in range(8)])
    assert not solved
    play(links, alone[:1] * 2)
    assert solved


@pytest.mark.parametrize(
    ("module", "limit", "value"),
    [
        (fair_share, "TRIES", 0),  # everybody around from the first try on
        (fair_share, "TRIES", 1000),
        (fair_share, "RECOUNT_AFTER", 1),
        (fair_share, "RECOUNT_AFTER", 3),
        (fair_share, "FEW", 0),  # all in arrays
        (fair_share, "FEW", 10**9),  # all in plain Python
        (link_demand, "MANY", 0),  # no pattern is listed by link
        (link_demand, "MANY", 4),
        (link_demand, "KEPT", 0),  # patterns that nobody uses are soon forgotten
    ],
)
def test_how_the_changed_are_found_and_counted_changes_no_time(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str, value: int
) -> None:
    links = links_of(64, Fabric(nodes_per_block=8, blocks_per_pod=4, routing="ecmp"), gpus=1, nics=1)
    draw = np.random.default_rng(0)
    activities = [
        (start, transfer(links, source, target, volume * 1e10))
        for start, source, target, volume in zip(
            draw.uniform(0, 1, 150),
            draw.permutation(np.arange(150) % 64),
            draw.permutation(np.arange(150) % 64),
            draw.uniform(1, 5, 150),
            strict=True,
        )
        if source != target
    ]
    usual = play(links, activities, control="dcqcn")
    monkeypatch.setattr(module, limit, value)
    assert play(links, activities, control="dcqcn") == pytest.approx(usual, rel=1e-9)
    assert max(usual) > 1.5 * max(start + one.alone_s for start, one in activities)


small_sets = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(0, 31), st.integers(0, 31), st.integers(1, 5), st.integers(0, 3)
    ),
    min_size=1,
    max_size=14,
)


@given(flows=small_sets, nics=st.sampled_from([2, 4]), leaf=st.sampled_from([1.0, 4.0]))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_never_faster_than_alone_and_as_a_solution_of_everything_at_every_event(
    flows: list[tuple[int, int, int, int, int]], nics: int, leaf: float
) -> None:
    links = links_of(8, Fabric(nodes_per_block=2, blocks_per_pod=2, leaf_oversubscription=leaf), nics=nics)
    activities = [
        (start / 8, transfer(links, a, b, size * 10e9, hidden_s=hidden / 4))
        for start, a, b, size, hidden in flows
        if a != b
    ]
    if not activities:
        return
    ends = play(links, activities)
    for (start, activity), end in zip(activities, ends, strict=True):
        assert end >= start + activity.alone_s * (1 - 1e-12)
    assert ends == pytest.approx(play_everything(links, activities), rel=1e-9)


coupled = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.lists(st.tuples(st.integers(0, 31), st.integers(0, 31)), min_size=1, max_size=4),
        st.integers(1, 5),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=12,
)
changes = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 400), st.sampled_from([0.25, 0.5, 1.0])), max_size=3
)


@given(
    drawn=coupled,
    changed=changes,
    control=st.sampled_from(["ideal", "dcqcn", "none"]),
    seed=st.integers(0, 3),
)
@settings(max_examples=80, derandomize=True, deadline=None)
def test_hashed_coupled_flows_on_changing_links_are_as_if_all_were_solved_at_every_event(
    drawn: list[tuple[int, list[tuple[int, int]], int, int]],
    changed: list[tuple[int, int, float]],
    control: CongestionControl,
    seed: int,
) -> None:
    links = links_of(
        32, Fabric(nodes_per_block=4, blocks_per_pod=4, routing="ecmp", uplinks=4), gpus=1, nics=1
    )
    activities = []
    for start, pairs, size, hidden in drawn:
        source, target = np.array(pairs).T
        pattern = links.routes(source, target, seed=seed).pattern()
        if len(pattern.links):
            activities.append((start / 8, Activity.of(links, pattern, size * 10e9, hidden_s=hidden / 4)))
    steps = [(at / 8 + 1 / 16, number % len(links), factor) for at, number, factor in changed]
    if not activities:
        return
    ends = play(links, activities, control=control, changes=steps)
    assert ends == pytest.approx(play_everything(links, activities, control, steps), rel=1e-9)


def play_everything(
    links: Links,
    activities: Sequence[tuple[float, Activity]],
    control: CongestionControl = "ideal",
    changes: Sequence[tuple[float, int, float]] = (),
) -> list[float]:
    """The same without any shortcut: all rates anew at every event, by progressive filling over dense arrays."""
    weights = np.zeros((len(activities), len(links)))
    for row, (_, activity) in zip(weights, activities, strict=True):
        row[activity.pattern.links] = activity.pattern.flows
    limit = np.array([activity.volume_bytes / activity.alone_s for _, activity in activities])
    left = np.array([activity.volume_bytes for _, activity in activities])
    starts = np.array([start for start, _ in activities])
    ends, now, capacity = np.full(len(activities), np.inf), 0.0, links.capacity_bytes_per_s.copy()
    times = np.array([*starts, *(at for at, _, _ in changes)])
    while np.isinf(ends).any():
        for at, number, factor in sorted(changes, key=lambda change: change[0]):
            if at <= now:
                capacity[number] = links.capacity_bytes_per_s[number] * factor
        running = (starts <= now) & np.isinf(ends)
        have = left_while_paused(links, capacity, (weights * limit[:, None])[running].sum(axis=0), control)
        rate, rising, room = np.zeros(len(left)), running.copy(), have.copy()
        while rising.any():
            slope = weights[rising].sum(axis=0)
            used = slope > 0
            steps = np.concatenate([room[used] / slope[used], (limit - rate)[rising]])
            rate[rising] += steps.min()
            room -= steps.min() * slope
            full = room <= have * 1e-12
            rising &= (rate < limit * (1 - 1e-12)) & ~(weights[:, full] > 0).any(axis=1)
        finish = np.full(len(left), np.inf)
        finish[running] = now + left[running] / rate[running]
        soonest = min(finish.min(), times[times > now].min(initial=np.inf))
        left[running] -= rate[running] * (soonest - now)
        ends[running & (finish <= soonest * (1 + 1e-12))] = soonest
        now = float(soonest)
    return [float(end) for end in ends]
