"""The constants that measurements can decide, their bounds, and which measurements decide them.

Kernel shapes (ramps, half lengths) and rates are measured on kernels. Whole runs tell few things, all with a meaning:
sustained rates, memory passes, host work, what overlaps, what the network reaches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import Calibration, CalibrationEntry
from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.errors import UserInputError
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.yaml_loader import load_yaml

NETWORK = "network."


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One constant that may be fitted.

    Attributes:
        name: of Calibration, or "network." and a name of NetworkCalibration.
        low: no smaller value makes sense.
        high: no larger one does.
        doubt: standard deviation of what is known of it without runs; infinity: kernels alone decide.
        decided_by: the measurements that tell its value.
        tied: other constants that keep their ratio to this one.
    """

    name: str
    low: float
    high: float
    doubt: float = math.inf
    decided_by: str
    tied: tuple[str, ...] = ()

    @property
    def span(self) -> float:
        """The distance of its bounds."""
        return self.high - self.low


def _constants(kind: str) -> tuple[Constant, ...]:
    rows = load_yaml(shipped("experiments/calibration/data/constants.yaml"))[kind]
    return tuple(Constant(**{**row, "tied": tuple(row.get("tied", ()))}) for row in rows)


KERNEL_CONSTANTS, RUN_CONSTANTS = _constants("kernels"), _constants("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of some constants before: value and standard deviation of each."""

    centre: NDArray[np.float64]
    doubt: NDArray[np.float64]

    def of(self, places: Sequence[int]) -> Prior:
        """What is known of some of the constants."""
        return Prior(centre=self.centre[list(places)], doubt=self.doubt[list(places)])


def prior_of(base: Calibration, constants: Sequence[Constant]) -> Prior:
    """The prior that entries of *base* state; where they state none, their value with the constant's own doubt.

    A calibration that was fitted carries what was known before it: fitting it again on the same records leaves it.
    """
    entries = dict(base.entries)
    stated: list[tuple[float, float]] = []
    for constant in constants:
        entry = entries.get(constant.name) or CalibrationEntry(value=0.0, meaning="", source="")
        centre = value_of(base, constant.name) if entry.prior is None else entry.prior
        doubt = constant.doubt if entry.doubt is None or math.isinf(constant.doubt) else entry.doubt
        stated.append((min(max(centre, constant.low), constant.high), doubt))
    centres, doubts = zip(*stated, strict=True) if stated else ((), ())
    return Prior(centre=np.array(centres, dtype=np.float64), doubt=np.array(doubts, dtype=np.float64))


def chosen(names: Sequence[str] | None, table: Sequence[Constant]) -> tuple[Constant, ...]:
    """The constants of those names that the table has, in its order; None: all of them."""
    return tuple(constant for constant in table if names is None or constant.name in names)


def check_names(names: Sequence[str] | None) -> None:
    """Raise UserInputError when there is a name that cannot be fitted."""
    known = tuple(dict.fromkeys(constant.name for constant in (*KERNEL_CONSTANTS, *RUN_CONSTANTS)))
    for name in names or ():
        if name not in known:
            raise UserInputError(
                f"--constants: {quoted(name)} cannot be fitted{did_you_mean(name, known)}; known: {', '.join(known)}"
            )


def value_of(cal: Calibration, name: str) -> float:
    """The value of a constant."""
    owner = cal.network if name.startswith(NETWORK) else cal
    return float(getattr(owner, name.removeprefix(NETWORK)))


def apply(cal: Calibration, base: Calibration, values: Mapping[Constant, float]) -> Calibration:
    """*cal* with other values; tied constants keep the ratio that they have in *base*."""
    named: dict[str, Any] = {}
    for constant, value in values.items():
        start = value_of(base, constant.name)
        named[constant.name] = value
        for name in constant.tied:
            named[name] = value * (value_of(base, name) / start if start else 1.0)
    network = {
        name.removeprefix(NETWORK): named.pop(name) for name in list(named) if name.startswith(NETWORK)
    }
    return replace(cal, network=replace(cal.network, **network), **named)
