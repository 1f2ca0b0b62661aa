"""WLB-LLM's queues from batch to batch: by hand, and what they keep."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.simulator.strategies.static.outlier_queues import delayed_batches


def delayed(batches: list[list[int]], queues: int) -> list[list[int]]:
    return [one.tolist() for one in delayed_batches([np.array(b) for b in batches], queues, 100)]


def test_a_queue_gives_one_document_to_each_micro_batch_of_the_batch_that_fills_it() -> None:
    # Batches of 200 tokens are two micro-batches; documents of 50 tokens or more wait for a second one.
    assert delayed([[60, 20, 40, 40, 40], [80, 30, 45, 45], [90, 30, 30, 50], [10] * 20], 1) == [
        [20, 40, 40, 40],
        [30, 45, 45, 60, 80],
        [30, 30, 90, 50],
        [10] * 20,
    ]


def test_more_queues_keep_lengths_apart() -> None:
    # Two queues: from 25 and from 50 tokens.
    assert delayed([[60, 30, 10, 100], [30, 70, 10, 90]], 2) == [[10, 60, 100], [10, 30, 30, 70, 90]]


def test_a_batch_of_long_documents_alone_is_not_empty() -> None:
    assert delayed([[90]], 1) == [[90]]
    assert delayed([[60, 70, 60], [10]], 1) == [[60, 70], [10, 60]]  # one micro-batch: one is enough


@given(
    st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=12), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_no_document_is_trained_twice_or_before_it_came(batches: list[list[int]], queues: int) -> None:
    trained = delayed(batches, queues)
    assert len(trained) == len(batches)
    assert sorted(chain(*trained)) == sorted(chain(*batches))
    assert all(trained)
    for until in range(len(batches)):
        came, seen = (sorted(chain(*some[: until + 1])) for some in (batches, trained))
        for length in set(seen):
            assert seen.count(length) <= came.count(length)


def test_a_comparison_trains_on_delayed_batches() -> None:
    scenario = load_scenario(
        "quickstart-8gpu", ("strategy.name=wlb-llm", "layout.cp_kind=all-gather", "execution.batches=3")
    )
    batches = scenario.batches()
    waiting = load_scenario(
        "quickstart-8gpu",
        (
            "strategy.name=wlb-llm",
            "layout.cp_kind=all-gather",
            "execution.batches=3",
            "strategy.outlier_queues=2",
        ),
    )
    usual, delayed_run = run_batches(scenario, batches), run_batches(waiting, batches)
    assert [result.tokens for result in usual.results] == [int(b.sum()) for b in batches]
    tokens = [result.tokens for result in delayed_run.results]
    assert sum(tokens) == sum(int(b.sum()) for b in batches)
    assert [int(b.sum()) for b in delayed_run.lengths] == tokens
    assert tokens != [result.tokens for result in usual.results]
