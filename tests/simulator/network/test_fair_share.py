"""Max-min fair rates against hand cases and an independent exact solver."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.arrays import Floats, Ints
from hdpsim.simulator.network.fair_share import fair_rates, fair_rates_of_few


def solve(
    flows: dict[tuple[int, int], float], capacity: list[float], limit: list[float]
) -> tuple[Floats, Ints]:
    """*flows*: by (activity, link). In arrays and in plain Python, which give the same."""
    entries = sorted(flows)
    rates, links = fair_rates(
        np.array([a for a, _ in entries], dtype=np.int64),
        np.array([link for _, link in entries], dtype=np.int64),
        np.array([flows[entry] for entry in entries], dtype=np.float64),
        np.array(capacity, dtype=np.float64),
        np.array(limit, dtype=np.float64),
    )
    users: dict[int, list[tuple[int, float]]] = {}
    for one, link in entries:
        users.setdefault(link, []).append((one, flows[one, link]))
    rate, bottleneck = fair_rates_of_few(users, dict(enumerate(capacity)), limit)
    assert rate == rates.tolist()
    assert bottleneck == links.tolist()
    return rates, links


def exact(
    flows: dict[tuple[int, int], Fraction], capacity: list[Fraction], limit: list[Fraction]
) -> list[Fraction]:
    """Progressive filling, one event after the other, in fractions."""
    rates: dict[int, Fraction] = {}
    left = list(capacity)
    level = Fraction(0)
    rising = set(range(len(limit)))
    while rising:
        slope = [
            sum((flows.get((a, link), Fraction(0)) for a in rising), Fraction(0)) for link in range(len(left))
        ]
        steps = [left[link] / slope[link] for link in range(len(left)) if slope[link]]
        steps += [limit[a] - level for a in rising]
        step = min(steps)
        level += step
        left = [have - step * used for have, used in zip(left, slope, strict=True)]
        stop = {a for a in rising if limit[a] == level}
        stop |= {a for a in rising for link in range(len(left)) if (a, link) in flows and left[link] == 0}
        rates |= dict.fromkeys(stop, level)
        rising -= stop
    return [rates[a] for a in range(len(limit))]


def test_two_flows_share_a_link() -> None:
    shares = solve({(0, 0): 1, (1, 0): 1}, [10.0], [100.0, 100.0])
    assert shares[0].tolist() == [5.0, 5.0]
    assert shares[1].tolist() == [0, 0]


def test_who_wants_less_leaves_the_rest_to_others() -> None:
    shares = solve({(0, 0): 1, (1, 0): 1, (2, 0): 1}, [10.0], [1.0, 100.0, 100.0])
    assert shares[0].tolist() == [1.0, 4.5, 4.5]
    assert shares[1].tolist() == [-1, 0, 0]


def test_parking_lot() -> None:
    # one flow over all three links, one on each: the long one gets the least of its fair shares
    flows = {(0, 0): 1, (0, 1): 1, (0, 2): 1, (1, 0): 1, (2, 1): 1, (3, 2): 1}
    assert solve(flows, [10.0, 6.0, 10.0], [100.0] * 4)[0].tolist() == [3.0, 7.0, 3.0, 7.0]


def test_several_flows_of_one_activity_count_as_many() -> None:
    assert solve({(0, 0): 3, (1, 0): 1}, [8.0], [100.0, 100.0])[0].tolist() == [2.0, 2.0]


def test_a_dead_link_stops_its_flows_only() -> None:
    assert solve({(0, 0): 1, (1, 1): 1}, [0.0, 4.0], [9.0, 9.0])[0].tolist() == [0.0, 4.0]


small = st.integers(1, 12).map(Fraction)
networks = st.tuples(st.integers(1, 7), st.integers(1, 6)).flatmap(
    lambda shape: st.tuples(
        st.dictionaries(
            st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1)),
            st.integers(1, 4).map(Fraction),
            min_size=1,
        ),
        st.lists(small, min_size=shape[1], max_size=shape[1]),
        st.lists(small, min_size=shape[0], max_size=shape[0]),
    )
)


@given(networks)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_rates_are_those_of_progressive_filling(
    network: tuple[dict[tuple[int, int], Fraction], list[Fraction], list[Fraction]],
) -> None:
    flows, capacity, limit = network
    shares = solve(
        {entry: float(n) for entry, n in flows.items()},
        [float(c) for c in capacity],
        [float(x) for x in limit],
    )
    assert shares[0] == pytest.approx([float(rate) for rate in exact(flows, capacity, limit)], rel=1e-12)
