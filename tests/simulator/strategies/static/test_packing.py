import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.simulator.setup import Packing
from hdpsim.simulator.strategies.static.packing import (
    _first_fit_by_room,
    best_fit,
    in_chunks,
    pack,
    pack_chunked,
    pack_tightly,
)

METHODS: list[Packing] = ["in-order", "first-fit", "best-fit", "concatenate"]


def bins(lengths: list[int], capacity: int, method: Packing) -> list[int]:
    return pack(np.array(lengths), capacity, method).micro_batch.tolist()


def test_in_order_opens_a_pack_when_the_next_sequence_does_not_fit():
    # 6 + 3 = 9, 4 does not fit; 4 + 5 = 9, 2 does not fit; 2 + 1.
    assert bins([6, 3, 4, 5, 2, 1], 10, "in-order") == [0, 0, 1, 1, 2, 2]


def test_first_fit_takes_the_longest_first():
    # Longest first: 7 -> 0, 5 -> 1, 4 -> 1 (9), 3 -> 0 (10), 1 -> 1 (10).
    assert bins([3, 7, 1, 5, 4], 10, "first-fit") == [0, 0, 1, 1, 1]


def test_best_fit_takes_the_fullest_pack_with_room():
    # 6 -> 0; 8 -> 1; 2: pack 1 is the fullest with room -> 1 (10); 3 -> 0 (9).
    assert bins([6, 8, 2, 3], 10, "best-fit") == [0, 1, 1, 0]
    assert best_fit(np.array([6, 8, 2, 3]), 10).tolist() == [0, 1, 1, 0]


def test_concatenate_cuts_the_stream_every_capacity():
    pieces = pack(np.array([6, 9, 10]), 10, "concatenate")
    # Stream of 25 tokens: 0-6 | 6-10, 10-15 | 15-20, 20-25
    assert pieces.tokens.tolist() == [6, 4, 5, 5, 5]
    assert pieces.sequence.tolist() == [0, 1, 1, 2, 2]
    assert pieces.start.tolist() == [0, 0, 4, 0, 5]
    assert pieces.micro_batch.tolist() == [0, 0, 1, 1, 2]


def test_concatenate_cuts_a_sequence_longer_than_two_packs():
    pieces = pack(np.array([1, 9, 25]), 10, "concatenate")
    assert pieces.tokens.tolist() == [1, 9, 10, 10, 5]
    assert pieces.start.tolist() == [0, 0, 0, 10, 20]
    assert pieces.micro_batch.tolist() == [0, 0, 1, 2, 3]


def test_sequences_take_the_room_of_their_chunks():
    # 9, 4 and 1 tokens in 4 chunks take 12, 4 and 4 of 16; a stream takes what it has, and 15 no more than a pack.
    lengths = np.array([9, 4, 1, 15])
    pieces = pack_chunked(lengths, 16, "in-order", 4)
    assert pieces.micro_batch.tolist() == [0, 0, 1, 2]
    assert pieces.tokens.tolist() == [9, 4, 1, 15]
    assert in_chunks(lengths, 15, "in-order", 4).tolist() == [12, 4, 4, 15]
    assert in_chunks(lengths, 16, "concatenate", 4) is lengths


@pytest.mark.parametrize("method", METHODS)
def test_full_sequences_fill_a_pack_each(method: Packing):
    assert bins([8] * 5, 8, method) == [0, 1, 2, 3, 4]


batches = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(1, capacity), min_size=1, max_size=80))
)


@pytest.mark.parametrize("method", METHODS)
@given(batch=batches)
def test_packs_hold_at_most_the_capacity_and_every_token_once(method: Packing, batch: tuple[int, list[int]]):
    capacity, lengths = batch
    pieces = pack(np.array(lengths), capacity, method)
    held = np.bincount(pieces.micro_batch, weights=pieces.tokens)
    assert held.max() <= capacity
    assert held.min() > 0  # packs are numbered without gaps
    placed = np.zeros(len(lengths), dtype=np.int64)
    for sequence, start, tokens in zip(
        pieces.sequence.tolist(), pieces.start.tolist(), pieces.tokens.tolist(), strict=True
    ):
        assert start == placed[sequence]  # pieces of a sequence follow each other
        placed[sequence] += tokens
    assert placed.tolist() == lengths


@given(batches)
def test_packers_are_no_worse_than_their_guarantees(batch: tuple[int, list[int]]):
    # Any two neighbouring packs of next fit hold more than one capacity together; so do any two packs of best fit.
    capacity, lengths = batch
    held = np.bincount(bins(lengths, capacity, "in-order"), weights=lengths)
    assert np.all(held[1:] + held[:-1] > capacity)
    held = np.sort(np.bincount(bins(lengths, capacity, "best-fit"), weights=lengths))
    assert len(held) < 2 or held[0] + held[1] > capacity


@given(batches)
def test_tight_packs(batch: tuple[int, list[int]]):
    capacity, lengths = batch
    where = pack_tightly(np.array(lengths), capacity)
    held = np.bincount(where, weights=lengths)
    assert held.max() <= capacity
    assert held.min() > 0
    # As with any packer that leaves no pack while something fits, no two packs fit into one.
    assert len(held) < 2 or np.sort(held)[:2].sum() > capacity


def test_tight_packs_by_hand():
    # 6 leaves 4: 4 fills it. 5 leaves 5, room for three of 1 or more: the middle one of those up to 3, a 2; 3 fills it.
    assert pack_tightly(np.array([3, 1, 6, 2, 4, 5, 2]), 10).tolist() == [1, 2, 0, 1, 0, 1, 2]


def test_tight_packs_waste_less_than_best_fit():
    lengths = np.sort(np.random.default_rng(0).integers(1000, 2000, 4000))[::-1]
    ideal = -(-int(lengths.sum()) // 8192)
    assert pack_tightly(lengths, 8192).max() + 1 <= 1.01 * ideal
    assert best_fit(lengths, 8192).max() + 1 > 1.03 * ideal


def test_tight_packs_of_many_sequences_are_packed_in_parts():
    lengths = np.random.default_rng(0).integers(1, 3000, 20_000)
    held = np.bincount(pack_tightly(lengths, 8192), weights=lengths)
    assert held.max() <= 8192
    assert len(held) <= 1.01 * lengths.sum() / 8192 + 3


def test_nothing_to_pack_tightly():
    assert pack_tightly(np.zeros(0, dtype=np.int64), 10).tolist() == []


@given(
    st.one_of(
        st.lists(st.integers(1, 20), min_size=1, max_size=40),
        st.tuples(st.integers(1, 20), st.integers(1, 40)).map(lambda equal: [equal[0]] * equal[1]),
    ),
    st.integers(20, 60),
)
def test_in_order_is_next_fit(lengths: list[int], capacity: int):
    expected, room, opened = [], 0, -1
    for length in lengths:
        if length > room:
            room, opened = capacity, opened + 1
        room -= length
        expected.append(opened)
    assert bins(lengths, capacity, "in-order") == expected


@given(
    st.integers(1, 60).flatmap(
        lambda most: st.tuples(st.just(most), st.lists(st.integers(1, most), min_size=1))
    )
)
def test_first_fit_is_first_fit(batch: tuple[int, list[int]]):
    capacity, lengths = batch
    room: list[int] = []
    expected = [0] * len(lengths)
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = next((at for at, left in enumerate(room) if left >= lengths[number]), len(room))
        room += [capacity] * (place == len(room))
        room[place] -= lengths[number]
        expected[number] = place
    assert bins(lengths, capacity, "first-fit") == expected
    assert _first_fit_by_room(np.array(lengths), capacity).tolist() == expected  # as of many sequences


@pytest.mark.parametrize("method", METHODS[:3])
@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=80), chunks=st.sampled_from([1, 2, 8, 64]))
def test_padded_sequences_fit_their_packs(method: Packing, lengths: list[int], chunks: int):
    capacity, whole = 512, np.array(lengths)
    filled = in_chunks(whole, capacity, method, chunks)
    assert not (filled % chunks).any()
    assert (filled >= whole).all()
    assert (filled < whole + chunks).all()
    packs = pack_chunked(whole, capacity, method, chunks)
    assert packs.tokens.tolist() == lengths
    assert np.bincount(packs.micro_batch, weights=filled).max() <= capacity
