"""Integer programmes by HiGHS, without what it prints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hdpsim.arrays import Bools, Floats


def least(
    objective: Floats,
    whole: Bools,
    most: Floats,
    rows: Sequence[tuple[Any, Floats | float, Floats | float]],
    **options: float,
) -> Floats | None:
    """The x with the least objective @ x for which low <= A x <= high in all *rows* (A, low, high), 0 <= x <= most.

    *whole*: columns that are whole numbers; *options*: of HiGHS. None: there is none, or none was found.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    with _quiet():
        answer = milp(
            objective,
            integrality=whole,
            bounds=Bounds(0.0, most),
            constraints=[LinearConstraint(*row) for row in rows],
            options=options,
        )
    solution: Floats | None = answer.x
    return solution


@contextmanager
def _quiet() -> Iterator[None]:
    """HiGHS writes a line to the process's own standard output where it repairs a solution: it would break --json."""
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
