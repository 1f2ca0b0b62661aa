from __future__ import annotations

import pytest

from hdpsim.cost_models.reading.fields import Fields, Problems


@pytest.mark.parametrize("given", [None, {}, {"rate": None}])
def test_a_quantity_that_is_absent_is_its_default_and_no_number(given: dict[str, object] | None) -> None:
    fields = Fields(given or {}, problems := Problems("file"))
    assert fields.quantity("rate", "bandwidth", default=None) is None
    assert fields.quantity("rate", "bandwidth", default=5.0) == 5.0
    assert problems.found == []
    fields.quantity("rate", "bandwidth")
    assert problems.found == [("rate", "is required")]


def test_a_value_that_equals_the_default_is_read_like_any_other() -> None:
    default = 3.0
    fields = Fields({"rate": default}, problems := Problems("file"))
    fields.quantity("rate", "bandwidth", default=default)
    assert [key for key, _ in problems.found] == ["rate"]  # a bare number has no unit
