from __future__ import annotations

from collections import deque

import pytest

from hdpsim.cost_models.reliability.startup import (
    KINDS_OF_GROUPS,
    group_count,
    group_initialisation_s,
    store_requests,
)


def test_groups_of_megatron_by_hand() -> None:
    # 2,048 GPUs, tp = pp = 8: data 2 x 64, model 32, tensor 256, pipeline, embedding and positions 3 x 256
    assert group_count(2048, 8, 8) == 128 + 32 + 256 + 768


@pytest.mark.parametrize(
    ("method", "published_s"),
    [("tcp-store", 1047.0), ("redis", 361.0)],
)
def test_the_two_times_the_stores_are_fitted_on(method: str, published_s: float) -> None:
    assert group_initialisation_s(2048, 8, 8, method) == pytest.approx(published_s, rel=0.001)  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpus", "bound_s"), [(2048, 5.0), (12288, 30.0)])
def test_ordered_barriers_are_predicted_within_a_fifth_below_the_published_bounds(
    gpus: int, bound_s: float
) -> None:
    assert 0.8 * bound_s <= group_initialisation_s(gpus, 8, 8, "ordered") < bound_s


def test_ordering_turns_the_square_into_a_line() -> None:
    assert store_requests(8192, 8, 8, "ordered") == 4 * store_requests(2048, 8, 8, "ordered")
    assert store_requests(8192, 8, 8, "redis") == pytest.approx(
        16 * store_requests(2048, 8, 8, "redis"), rel=0.1
    )


def test_a_barrier_on_a_store_that_serves_one_by_one_takes_two_requests_a_process() -> None:
    processes, served, arrived = 50, 0, 0
    queue = deque(("add", rank) for rank in range(processes))
    while queue:
        kind, rank = queue.popleft()
        served += 1
        if kind == "add":
            arrived += 1
            queue.append(("read", rank))
        elif arrived < processes:
            queue.append(("read", rank))
    groups = group_count(processes, 1, 1)
    whole = store_requests(processes, 1, 1, "redis")
    assert whole == groups * served + 2 * processes * KINDS_OF_GROUPS
