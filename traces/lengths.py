"""What a sequence length may be, and how arrays of unknown origin become lengths.

Readers call these functions block by block. A value that is not a length raises `BadValueError` with its index in the
block; the reader knows the file and the rows before the block and turns that into a `TraceError`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.arrays import Ints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


LARGEST_LENGTH_TOKENS = 2**31
"""Longer sequences are taken for a damaged file: a thousand times today's longest contexts (2 Mi tokens)."""

_ALLOWED = f"a length is a whole number of tokens from 1 to {LARGEST_LENGTH_TOKENS}"
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_NUMBERS = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
_MISSING = {"", "na", "n/a", "null", "none"}


class BadValueError(ValueError):
    """A value that is not a sequence length.

    Attributes:
        index: 0-based position in the block that was converted.
        message: what is wrong and what is allowed.
    """

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index, self.message = index, message


def _complaint(value: object) -> str:
    """Say what is wrong with *value*, which is known not to be a length."""
    if value is None:
        return f"the value is missing; {_ALLOWED}"
    if isinstance(value, bool | np.bool_):
        return f"{value} is a truth value; {_ALLOWED}"
    if isinstance(value, int | float | np.integer | np.floating):
        if value != value:
            return f"the value is NaN; {_ALLOWED}"
        if value in (np.inf, -np.inf):
            return f"the value is infinite; {_ALLOWED}"
        if value == 0:
            return f"the length is zero; {_ALLOWED}"
        if value < 0:
            return f"{value} is negative; {_ALLOWED}"
        if value > LARGEST_LENGTH_TOKENS:
            return f"{value} is absurdly long; {_ALLOWED}"
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} is not an integer; {_ALLOWED}"


def length_from_value(value: object) -> int:
    """Return one parsed (JSON) value as a length; ValueError says what is wrong with it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(_complaint(value))
    if not 1 <= value <= LARGEST_LENGTH_TOKENS or value != int(value):
        raise ValueError(_complaint(value))
    return int(value)


def length_from_text(text: str) -> int:
    """Return the length written as *text* ("812", " 812 ", "812.0"); ValueError says what is wrong with it."""
    text = text.strip()
    if text.lower() in _MISSING:
        raise ValueError(_complaint(None))
    if text.lower() in _NOT_NUMBERS or _DECIMAL.fullmatch(text):
        # More digits than any length has need no exact integer (and Python refuses to parse thousands of them).
        exact = _WHOLE.fullmatch(text) and len(text) <= 20
        return length_from_value(int(text) if exact else float(text))
    raise ValueError(_complaint(text))


def good_ones(convert: Callable[[Any], Ints], values: Any) -> Iterator[Ints]:
    """The lengths of a block; when one is bad, those before it, and then its BadValueError."""
    try:
        lengths = convert(values)
    except BadValueError as error:
        if error.index:
            yield from good_ones(convert, values[: error.index])
        raise
    yield lengths


def lengths_from_array(values: NDArray[Any]) -> Ints:
    """Return a one-dimensional array of any numeric type as lengths.

    Integral floats (3.0) are lengths; NaN, infinities, fractions, truth values, texts and objects are not.
    """
    if values.size == 0:
        return np.empty(0, dtype=np.int64)
    if values.dtype.kind not in "iuf":
        raise BadValueError(0, _complaint(values[0].item() if values.dtype.kind in "bUSO" else values[0]))
    if values.dtype == np.float16:  # its largest value is below the largest length
        values = values.astype(np.float64)
    good = (values >= 1) & (values <= LARGEST_LENGTH_TOKENS)
    if values.dtype.kind == "f":
        good &= values == np.floor(values)
    if not good.all():
        index = int(np.argmin(good))
        raise BadValueError(index, _complaint(values[index].item()))
    return values.astype(np.int64)


def lengths_from_texts(texts: Iterable[bytes]) -> Ints:
    """Return lengths from their texts, one at a time: slow, but it finds the first bad one."""
    lengths = []
    for index, text in enumerate(texts):
        try:
            lengths.append(length_from_text(text.decode("utf-8", "replace")))
        except ValueError as error:
            raise BadValueError(index, str(error)) from None
    return np.array(lengths, dtype=np.int64)


def lengths_from_arrow(column: Any) -> Ints:
    """Return an Arrow array (integers, floats, or the raw bytes of a text column) as lengths."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_binary(kind):
        return _lengths_from_binary(column)
    if pa.types.is_dictionary(kind):
        return lengths_from_arrow(column.dictionary_decode())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise BadValueError(0, f"the column holds {kind} values; {_ALLOWED}")
    if column.null_count:
        missing = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        lengths_from_arrow(column.slice(0, missing))  # an earlier bad value is the one to report
        raise BadValueError(missing, _complaint(None))
    return lengths_from_array(column.to_numpy(zero_copy_only=False))


def _lengths_from_binary(column: Any) -> Ints:
    """Parse texts with Arrow's integer parser; whatever that does not like is parsed one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        texts = column.cast(pa.string())
        # Arrow would read 0x10 as 16; two plain searches take a third of one that ignores case
        if any(pc.any(pc.match_substring(texts, letter)).as_py() for letter in "xX"):
            return lengths_from_texts(column.to_pylist())
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return lengths_from_texts(column.fill_null(b"").to_pylist())
    return lengths_from_arrow(numbers)
