"""The survey of a search: every corner shows a layout that fits, and no layout is lost."""

from hypothesis import given
from hypothesis import strategies as st

from hdpsim.experiments.planning.search.race import Entry
from hdpsim.experiments.planning.search.survey import Survey

DEGREES = st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 4]), st.sampled_from([1, 8]), st.booleans())


def entry(number, tp, pp, ep, fits):
    layout = (("layout.tp", tp), ("layout.pp", pp), ("layout.ep", ep), ("layout.vpp", number))
    return Entry(site=(), layout=layout, rough_s=1.0 + number), fits


@given(st.lists(DEGREES, max_size=30), st.integers(0, 40))
def test_corners_end_with_their_first_layout_that_fits_and_the_rest_is_all_that_was_not_opened(degrees, most):
    entries = dict(entry(number, *each) for number, each in enumerate(degrees))
    survey, opened = Survey(list(entries)), []
    while len(opened) < most and (taken := survey.take()):
        opened.append(taken)
        survey.glanced(taken, fits=entries[taken])
    rest = list(survey.rest())
    assert len({id(one) for one in (*opened, *rest)}) == len(opened) + len(rest) == len(entries)
    for corner in {one.corner for one in entries}:
        mine = [one for one in opened if one.corner == corner]
        assert mine == [one for one in entries if one.corner == corner][: len(mine)]
        assert not any(entries[one] for one in mine[:-1])
    if len(opened) < most:
        left = {one.corner for one in rest} | {one.corner for one in opened}
        assert all(any(entries[one] for one in opened if one.corner == corner) for corner in left
                   if any(fits for one, fits in entries.items() if one.corner == corner))  # fmt: skip


def test_several_at_once_leave_their_corners_until_it_is_known_whether_they_fit():
    first, other, second = (entry(number, tp, 1, 1, False)[0] for number, tp in enumerate((1, 2, 1)))
    survey = Survey([first, other, second])
    assert not survey.waits
    assert (survey.take(), survey.take(), survey.take()) == (first, other, None)
    assert survey.waits
    survey.glanced(first, fits=False)
    survey.glanced(other, fits=True)
    assert not survey.waits
    assert survey.take() is second
    assert list(survey.rest()) == []
