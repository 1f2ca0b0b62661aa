"""What a search expects: corrections by hand, and nothing in them hangs on the order in which they were learned."""

from itertools import product
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.experiments.planning.search.estimates import Estimates

FAMILIES, KINDS = (("f",), ("g",), ("h",)), (("a",), ("b",), ("c",))
CELLS = list(product(FAMILIES, KINDS))


def learned(*seen):
    estimates = Estimates()
    for family, kind, times in seen:
        estimates.learn(family, kind, 1.0, times)
    return estimates


def test_what_was_not_seen_counts_as_the_best_that_was():
    estimates = learned((("f",), ("a",), 2.0), (("f",), ("b",), 8.0))
    assert estimates.correction(("f",), ("b",)) - estimates.correction(("f",), ("a",)) == pytest.approx(
        log(4.0)
    )
    assert estimates.correction(("f",), ("new",)) == estimates.correction(("f",), ("a",))
    assert estimates.correction(("new",), ("a",)) == pytest.approx(log(2.0))
    estimates.opened(("f",), rough_s=1.0, guess_s=3.0)
    # one layout of the family was seen, and counts as much as all of them do together
    assert estimates.correction(("f",), None) == pytest.approx(log(2.0) + log(3.0))


def test_a_bad_family_takes_the_blame_from_its_kinds():
    estimates = learned((("bad",), ("a",), 9.0), (("bad",), ("b",), 9.0), (("good",), ("a",), 1.2))
    assert estimates.correction(("good",), ("b",)) < log(1.5) < estimates.correction(("bad",), ("a",))


@given(st.lists(st.floats(0.5, 8.0), min_size=9, max_size=9), st.permutations(range(9)))
def test_the_order_of_learning_does_not_matter(times, order):
    seen = [(*cell, took) for cell, took in zip(CELLS, times, strict=True)]
    one, other = learned(*seen), learned(*(seen[place] for place in order))
    for cell in CELLS:
        assert one.correction(*cell) == pytest.approx(other.correction(*cell), abs=1e-9)
