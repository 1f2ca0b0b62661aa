"""The table of ranges: what is shipped lies inside, and every constant of a calibration has one."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration, calibration_names
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.errors import UserInputError
from hdpsim.ranges import LIMITS, RANGES, Range, check, constant_range

NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.none())


@given(NUMBERS, st.sampled_from(sorted(RANGES)))
def test_what_a_range_holds_is_a_finite_number_between_its_ends(value: object, name: str) -> None:
    allowed = RANGES[name]
    if allowed.holds(value):
        assert isinstance(value, int | float)
        assert math.isfinite(value)
        assert allowed.low <= value <= allowed.high
        check(name, value)
    else:
        with pytest.raises(UserInputError, match=str(allowed).replace("+", r"\+")):
            check(name, value)


@pytest.mark.parametrize("name", sorted(RANGES))
def test_ends_are_finite_and_in_order(name: str) -> None:
    allowed = RANGES[name]
    assert -1.0 < allowed.low < allowed.high < math.inf
    assert allowed.holds(allowed.low)
    assert allowed.holds(allowed.high)
    assert not allowed.holds(allowed.high * 2 + 1)
    assert not allowed.holds(True)
    assert not allowed.holds(math.nan)
    assert type(allowed.low) is type(allowed.high)


def test_whole_numbers_are_no_fractions() -> None:
    assert not Range(1, 10).holds(2.5)
    assert Range(1.0, 10.0).holds(2)
    assert Range(0, 10).from_least(1) == Range(1, 10)


def test_the_reason_of_a_limit_is_given_to_whom_it_stops() -> None:
    allowed = Range(1, 10, "tokens", "ten is a lot")
    assert allowed.complaint(11) == "must be a whole number from 1 to 10 tokens, got 11 (ten is a lot)"
    assert allowed.complaint(2.0) == "must be a whole number from 1 to 10 tokens, got 2.0"
    assert allowed.complaint("two").endswith("(ten is a lot)")


def test_every_shipped_constant_lies_well_inside_its_range() -> None:
    for name in calibration_names():
        for key, entry in calibration(name).entries:
            if not isinstance(entry.value, bool):
                allowed = constant_range(key)
                assert allowed.holds(entry.value), key
                assert entry.value in (0, 1) or allowed.low < entry.value < allowed.high, key


def test_every_constant_of_a_network_has_a_range() -> None:
    for field in dataclasses.fields(NetworkCalibration):
        if not isinstance(field.default, bool):
            assert constant_range(field.name).holds(field.default)


def test_limits_have_reasons() -> None:
    for most, why in LIMITS.values():
        assert most > 0
        assert why
