"""What is shown of texts of others: no control character, and no more of it than can be read."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.quoting import LONGEST_MESSAGE, LONGEST_QUOTE, message, printable, quoted, shortened

ANYTHING = st.text(alphabet=st.characters(), max_size=300)
OBEYED = ("\x1b]0;title\x07", "\x9b31m", "\r", "\x00", "\u202e", "\u200b", "\ud800", "\u2028", "\x7f")


@pytest.mark.parametrize("text", OBEYED)
def test_a_terminal_obeys_nothing(text: str) -> None:
    shown = printable(f"name{text}end")
    assert shown.isprintable()
    assert shown.startswith("name\\")
    shown.encode("utf-8")


def test_lines_and_tabs_stay_where_there_may_be_lines() -> None:
    assert printable("a\n\tb") == "a\n\tb"
    assert printable("a\n\tb", lines=False) == r"a\n\tb"


def test_letters_of_every_script_stay() -> None:
    for text in ("Grüße, 你好, שלום, µ × − ≤", "a\xa0b"):
        assert printable(text) == text


@given(ANYTHING)
def test_what_is_printable_stays_so(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in shown if c not in "\n\t")


@given(
    st.one_of(ANYTHING, st.integers(), st.floats(), st.none(), st.lists(st.integers())), st.integers(20, 90)
)
def test_what_is_quoted_is_short(value: object, limit: int) -> None:
    assert quoted(value, limit).isprintable() or " " in quoted(value, limit)
    assert len(quoted(value, limit)) <= max(6 * limit, 30)  # an escape takes up to ten characters


def test_long_texts_and_numbers_are_cut() -> None:
    assert len(quoted("x" * 10**6)) <= LONGEST_QUOTE + 2
    assert len(quoted(b"x" * 10**6)) <= LONGEST_QUOTE
    assert quoted(16**5000) == "a number of thousands of digits"
    assert quoted(["x" * 10**6] * 3) == "a list of 3"
    assert quoted({}) == "a mapping with nothing in it"
    assert len(message("x" * 10**6)) <= LONGEST_MESSAGE
    assert len(message("line\n" * 10**6)) <= LONGEST_MESSAGE
    assert len(message("\x1b" * 10**6)) <= LONGEST_MESSAGE


@given(ANYTHING, st.integers(10, 400))
def test_short_texts_stay_whole(text: str, limit: int) -> None:
    assert len(shortened(text, limit)) == min(len(text), limit)
    if len(text) <= limit:
        assert shortened(text, limit) == text
