import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.reading.units import _SCALE, format_quantity, parse_quantity, unit_names
from hdpsim.errors import QuantityError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400Gbps", "bandwidth", 50e9),  # 400e9 bits / 8
        ("50GB/s", "bandwidth", 50e9),
        ("3.35TB/s", "bandwidth", 3.35e12),
        ("1GiB/s", "bandwidth", 2.0**30),
        ("80GiB", "bytes", 80 * 2.0**30),
        ("80GB", "bytes", 80e9),
        ("512 MiB", "bytes", 512 * 2.0**20),
        ("989TFLOP/s", "flop_rate", 989e12),
        ("1.2PFLOP/s", "flop_rate", 1.2e15),
        ("5us", "time", 5e-6),  # 5 * 1e-6 would be 4.9999999999999996e-06
        ("3ms", "time", 3e-3),
        ("2s", "time", 2.0),
        ("5min", "time", 300.0),
        ("1h", "time", 3600.0),
        ("30d", "time", 2_592_000.0),
        ("8K", "tokens", 8192.0),
        ("8Ki", "tokens", 8192.0),
        ("2M", "tokens", 2_097_152.0),
        ("1.5K", "tokens", 1536.0),
        ("4096", "tokens", 4096.0),
        (4096, "tokens", 4096.0),
        (32e6, "tokens", 32_000_000.0),
        ("12_288", "count", 12288.0),
        ("700W", "power", 700.0),
        ("1.2MW", "power", 1.2e6),
        ("2.5USD/h", "money", 2.5),
        ("1e3GB/s", "bandwidth", 1e12),
    ],
)
def test_quantities_are_scaled_exactly(text: str | float, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("400Gb/s", "bandwidth"),  # bits or bytes? refused
        ("400", "bandwidth"),
        (400, "bandwidth"),
        ("989TFLOPS", "flop_rate"),
        ("80", "bytes"),
        ("80G", "bytes"),
        ("5", "time"),
        ("-5us", "time"),
        ("5 us us", "time"),
        ("0.3", "tokens"),
        ("1e-3K", "tokens"),
        (True, "tokens"),
        ("nan", "count"),
        (float("inf"), "count"),
        ("1e999GB", "bytes"),
        ("1e999999999GB", "bytes"),
        ("", "bytes"),
        ("GB", "bytes"),
    ],
)
def test_anything_ambiguous_is_refused_with_the_known_units(text: str | float, dimension: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text, dimension)
    assert unit_names(dimension)[0] in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_error_says_loudly_that_k_of_tokens_is_1024() -> None:
    with pytest.raises(QuantityError, match=r"K or Ki \(= 1024 tokens\)"):
        parse_quantity("8k", "tokens")


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (73.1 * 2**30, "bytes", "73.1 GiB"),
        (412.3e12, "flop_rate", "412.3 TFLOP/s"),
        (50e9, "bandwidth", "50 GB/s"),
        (62e12, "flop", "62 TFLOP"),
        (2_097_152, "tokens", "2M"),
        (8192, "tokens", "8K"),
        (33_554_433, "tokens", "33,554,433"),
        (12288, "count", "12,288"),
        (5.08, "time", "5.08 s"),
        (3.2e-6, "time", "3.2 us"),
        (520.0, "time", "8 min 40 s"),
        (30 * 86400.0, "time", "30 d"),
        (0.0, "time", "0 ns"),
        (700.0, "power", "700 W"),
        (2.5, "money", "2.50 USD/h"),
    ],
)
def test_values_print_with_a_fitting_unit(value: float, dimension: str, text: str) -> None:
    assert format_quantity(value, dimension) == text


@given(st.sampled_from(tuple(_SCALE)), st.floats(0, 1e18))
def test_every_value_of_every_dimension_can_be_printed(dimension: str, value: float) -> None:
    assert format_quantity(value, dimension)


@given(st.integers(0, 10**15))
def test_tokens_survive_printing_and_reading(tokens: int) -> None:
    assert parse_quantity(format_quantity(tokens, "tokens").replace(",", ""), "tokens") == tokens


@given(st.text(max_size=12), st.sampled_from(tuple(_SCALE)))
def test_no_text_ever_breaks_the_parser(text: str, dimension: str) -> None:
    with contextlib.suppress(QuantityError):
        assert parse_quantity(text, dimension) >= 0
