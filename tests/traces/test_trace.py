from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from hdpsim import traces
from hdpsim.errors import TraceError


def test_lengths_are_read_only_and_as_small_as_they_can_be() -> None:
    given = np.array([3, 1, 2], dtype=np.int64)
    trace = traces.Trace(given, "t", "made up")
    given[0] = 99
    assert trace.lengths.tolist() == [3, 1, 2]
    assert trace.lengths.dtype == np.int32
    assert traces.Trace(np.array([2**31]), "t").lengths.dtype == np.int64
    assert (len(trace), trace.tokens) == (3, 6)
    with pytest.raises(ValueError, match="read-only"):
        trace.lengths[0] = 1


def test_tokens_do_not_overflow_int32() -> None:
    assert traces.Trace(np.full(4, 2**30), "t").tokens == 2**32


@pytest.mark.parametrize(
    ("values", "words", "row"),
    [
        ([], "holds no lengths", None),
        ([[1]], "2 dimensions", None),
        ([1, 0], "zero", 2),
        ([1, 2, -1], "negative", 3),
        ([2**31 + 1], "absurdly long", 1),
        ([1.0, 1.5], "not an integer", 2),
    ],
)
def test_what_is_no_trace(values: list[object], words: str, row: int | None) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        traces.Trace(np.array(values), "mine")
    assert (caught.value.path, caught.value.row) == ("mine", row)


def test_traces_travel_to_worker_processes() -> None:
    trace = pickle.loads(pickle.dumps(traces.Trace(np.array([1, 2]), "t", "p")))
    assert (trace.lengths.tolist(), trace.name, trace.provenance) == ([1, 2], "t", "p")


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "pandas pyarrow matplotlib yaml scipy"
    code = f"import sys, traces; print([name for name in {heavy!r}.split() if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
