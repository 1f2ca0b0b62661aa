"""Types of numpy arrays, as annotations name them, and lists of lists in one flat array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def offsets_of(lengths: Ints) -> Ints:
    """Return where each of several lists starts when they follow each other, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return the numbers starts[i] .. starts[i] + lengths[i] - 1 for every i, one after the other."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    before: Ints = (starts - ends + lengths).repeat(lengths)
    return np.arange(total, dtype=np.int64) + before
