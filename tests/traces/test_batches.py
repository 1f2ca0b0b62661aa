from __future__ import annotations

from itertools import islice
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim import traces
from hdpsim.errors import TraceError, UserInputError

Policy = Literal["chunk", "truncate", "drop"]
POLICIES: tuple[Policy, ...] = ("chunk", "truncate", "drop")
lengths_lists = st.lists(st.integers(1, 40), min_size=1, max_size=60)
policies = st.sampled_from(POLICIES)


def make(lengths: list[int]) -> traces.Trace:
    return traces.Trace(np.array(lengths), "t")


def batch_lengths(batches: list[traces.GlobalBatch]) -> list[list[int]]:
    return [batch.lengths.tolist() for batch in batches]


def naive(
    lengths: list[int], context: int, policy: Policy, budget: int | None, count: int | None
) -> list[list[int]]:
    """The same batches, one sequence at a time."""
    batches: list[list[int]] = [[]]
    sequences = 0
    for length in lengths:
        if policy == "drop" and length > context:
            continue
        pieces = [length]
        if policy == "truncate":
            pieces = [min(length, context)]
        elif policy == "chunk":
            pieces = [context] * ((length - 1) // context)
            pieces.append(length - context * len(pieces))
        if count is not None and sequences == count:
            batches.append([])
            sequences = 0
        for piece in pieces:
            while budget is not None and sum(batches[-1]) + piece > budget:
                room = budget - sum(batches[-1])
                if room:
                    batches[-1].append(room)
                    piece -= room
                batches.append([])
            batches[-1].append(piece)
        sequences += 1
    return [batch for batch in batches if batch]


def test_chunking_by_hand() -> None:
    # Context 4: 10 -> 4 4 2; 3 -> 3; 4 -> 4. Budget 8: [4 4] [2 3 3 of 4] [1 of 4].
    batches = list(traces.global_batches(make([10, 3, 4]), context_tokens=4, budget_tokens=8, wrap=False))
    assert batch_lengths(batches) == [[4, 4], [2, 3, 3], [1]]
    assert [batch.chunked_sequences for batch in batches] == [1, 0, 0]
    assert [batch.split_tokens for batch in batches] == [0, 1, 0]
    assert [batch.complete for batch in batches] == [True, True, False]
    assert [batch.index for batch in batches] == [0, 1, 2]


def test_truncating_by_hand() -> None:
    batches = list(
        traces.global_batches(make([10, 3, 9]), context_tokens=4, policy="truncate", sequences=2, wrap=False)
    )
    assert batch_lengths(batches) == [[4, 3], [4]]
    assert [batch.truncated_tokens for batch in batches] == [6, 5]
    assert [batch.truncated_sequences for batch in batches] == [1, 1]


def test_dropping_by_hand() -> None:
    # 10 goes before 3, 9 before 2, and 8 after the last one: booked on the last batch.
    source = make([10, 3, 9, 2, 8])
    batches = list(traces.global_batches(source, context_tokens=4, policy="drop", sequences=1, wrap=False))
    assert batch_lengths(batches) == [[3], [2]]
    assert [batch.dropped_tokens for batch in batches] == [10, 17]
    assert [batch.dropped_sequences for batch in batches] == [1, 2]


@settings(deadline=None)
@given(lengths_lists, st.integers(1, 50), policies, st.integers(1, 90), st.booleans(), st.integers(1, 7))
def test_batches_equal_the_naive_ones(
    lengths: list[int], context: int, policy: Policy, size: int, by_tokens: bool, block: int
) -> None:
    if policy == "drop" and min(lengths) > context:
        return
    budget, count = (size, None) if by_tokens else (None, size)
    expected = naive(lengths, context, policy, budget, count)
    blocks = [np.array(lengths[at : at + block]) for at in range(0, len(lengths), block)]
    for source in (make(lengths), iter(blocks)):
        batches = list(
            traces.global_batches(
                source,
                context_tokens=context,
                policy=policy,
                budget_tokens=budget,
                sequences=count,
                wrap=False,
            )
        )
        assert batch_lengths(batches) == expected
        accounted = sum(batch.tokens + batch.dropped_tokens + batch.truncated_tokens for batch in batches)
        assert accounted == sum(lengths)
        too_long = sum(length > context for length in lengths)
        counted = sum(b.dropped_sequences + b.truncated_sequences + b.chunked_sequences for b in batches)
        assert counted == too_long
        of_long = sum(length for length in lengths if length > context)
        lost = sum(batch.dropped_tokens + batch.truncated_tokens for batch in batches)
        assert sum(batch.long_tokens for batch in batches) == of_long - lost
        assert all(0 <= batch.long_tokens <= batch.tokens for batch in batches)
        assert all(batch.complete for batch in batches[:-1])
        if budget:
            assert all(batch.tokens == budget for batch in batches[:-1])
        assert max(batch.lengths.max() for batch in batches) <= context


@settings(deadline=None, max_examples=30)
@given(lengths_lists, st.integers(1, 50), policies, st.integers(0, 5))
def test_a_shuffled_round_holds_the_same_sequences(
    lengths: list[int], context: int, policy: Policy, seed: int
) -> None:
    if policy == "drop" and min(lengths) > context:
        return
    rounds = [
        list(
            traces.global_batches(
                make(lengths), context_tokens=context, policy=policy, sequences=3, seed=order, wrap=False
            )
        )
        for order in (None, seed, seed)
    ]
    plain, shuffled, again = (np.concatenate([b.lengths for b in batches]).tolist() for batches in rounds)
    assert sorted(plain) == sorted(shuffled)
    assert shuffled == again


def test_a_trace_starts_again_when_it_ends() -> None:
    batches = list(islice(traces.global_batches(make([1, 2, 3]), context_tokens=9, budget_tokens=4), 4))
    assert batch_lengths(batches) == [[1, 2, 1], [2, 1, 1], [1, 3], [1, 2, 1]]
    assert all(batch.complete for batch in batches)


def test_every_round_is_shuffled_anew() -> None:
    stream = traces.global_batches(make(list(range(1, 101))), context_tokens=200, sequences=100, seed=1)
    first, second = (batch.lengths.tolist() for batch in islice(stream, 2))
    assert sorted(first) == sorted(second) == list(range(1, 101))
    assert first != second


def test_a_batch_larger_than_the_trace_and_a_trace_larger_than_a_block() -> None:
    (batch,) = islice(traces.global_batches(make([5, 6]), context_tokens=9, budget_tokens=10_000), 1)
    assert batch.tokens == 10_000
    long = traces.Trace(np.arange(1, 100_001), "t")
    batches = list(traces.global_batches(long, context_tokens=2**20, sequences=40_000, wrap=False))
    assert [len(batch.lengths) for batch in batches] == [40_000, 40_000, 20_000]
    assert sum(batch.tokens for batch in batches) == 100_000 * 100_001 // 2


def test_a_distribution_never_ends_and_depends_on_its_seed() -> None:
    github = traces.load_distribution("bytescale-github")

    def first_two(seed: int) -> list[list[int]]:
        stream = traces.global_batches(github, context_tokens=2**18, budget_tokens=2**25, seed=seed)
        return batch_lengths(list(islice(stream, 2)))

    assert first_two(1) == first_two(1) != first_two(2)
    assert [sum(lengths) for lengths in first_two(1)] == [2**25, 2**25]


@given(st.integers(1, 300_000), st.integers(1, 9), policies)
def test_packed_sequences_are_full_whatever_the_context(context: int, count: int, policy: Policy) -> None:
    packed = traces.load_distribution("packed")
    by_count = traces.global_batches(packed, context_tokens=context, policy=policy, sequences=count, seed=0)
    budget = count * context
    by_tokens = traces.global_batches(
        packed, context_tokens=context, policy=policy, budget_tokens=budget, seed=0
    )
    for batch in (next(by_count), next(by_tokens)):
        assert batch.lengths.tolist() == [context] * count
        assert batch.chunked_sequences == batch.truncated_sequences == batch.dropped_sequences == 0


def test_lengths_of_a_batch_are_read_only() -> None:
    (batch,) = traces.global_batches(make([5]), context_tokens=9, sequences=1, wrap=False)
    with pytest.raises(ValueError, match="read-only"):
        batch.lengths[0] = 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policy": "wrap"}, "policy must be one of chunk, truncate, drop"),
        ({"sequences": 3}, "either in tokens or in sequences"),
        ({"budget_tokens": None}, "either in tokens or in sequences"),
        ({"budget_tokens": 0}, "budget_tokens must be at least 1"),
        ({"context_tokens": 0}, "context_tokens must be at least 1"),
        (
            {"policy": "drop", "context_tokens": 4},
            "no sequence fits the context of 4 tokens .the shortest has 5",
        ),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UserInputError, match=words):
        traces.global_batches(make([5, 6]), **{"context_tokens": 9, "budget_tokens": 9, **arguments})  # type: ignore[arg-type]


def test_seeds_where_they_are_needed_and_where_not() -> None:
    with pytest.raises(UserInputError, match="needs a seed"):
        traces.global_batches(traces.load_distribution("bytescale-byted"), context_tokens=9, budget_tokens=9)
    with pytest.raises(UserInputError, match="seed must be None"):
        traces.global_batches([np.array([1])], context_tokens=9, budget_tokens=9, seed=1)


def test_streams_without_sequences() -> None:
    with pytest.raises(UserInputError, match="holds no sequence that fits"):
        next(traces.global_batches([np.array([10, 11])], context_tokens=9, policy="drop", sequences=1))
    with pytest.raises(UserInputError, match="holds no sequence that fits"):
        next(traces.global_batches([], context_tokens=9, sequences=1))
    with pytest.raises(TraceError, match="row 3: the length is zero"):
        list(traces.global_batches([np.array([1, 2]), np.array([0])], context_tokens=9, sequences=1))
