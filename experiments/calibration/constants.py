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
from hdpsim.errors import UserInputError
from hdpsim.quoting import did_you_mean, quoted

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


# Power is not among them: energies come from lasting kernels of one site each, which short ones of many would outvote.
KERNEL_CONSTANTS = (
    Constant(name="gemm_efficiency", low=0.35, high=0.98, decided_by="16-bit products of thousands of rows"),
    Constant(name="fp8_gemm_efficiency", low=0.25, high=0.98, decided_by="8-bit products of thousands of rows"),
    Constant(name="gemm_half_k", low=0.0, high=256.0, decided_by="products with inner dimensions of 128 to 4,096"),
    Constant(name="weight_gradient_efficiency", low=0.7, high=1.0,
             decided_by="weight gradients beside forward products of the same site"),
    Constant(name="attention_forward_efficiency", low=0.2, high=0.95,
             decided_by="flash attention forwards of 16K tokens"),
    Constant(name="attention_backward_efficiency", low=0.2, high=0.95,
             decided_by="flash attention backwards of 16K tokens"),
)  # fmt: skip
# Doubts. Rates: benchmarks against training (cold caches, other numbers in the matrices, clocks of a warm rack) differ
# by 2 to 3 %, beside what sites differ by, which the kernels' own error holds. Host times: processors of these servers
# differ by a tenth to a quarter in single-thread speed; steps, by what their loops log and check. Networks: what sites
# measure on the same hardware.
RUN_CONSTANTS = (
    Constant(name="gemm_efficiency", low=0.35, high=0.98, doubt=0.015,
             decided_by="bf16 runs of models of several billion parameters with large micro-batches"),
    Constant(name="fp8_gemm_efficiency", low=0.25, high=0.98, doubt=0.02,
             decided_by="fp8 runs of models of several billion parameters with large micro-batches"),
    Constant(name="attention_forward_efficiency", low=0.2, high=0.95, doubt=0.02,
             decided_by="runs of the same model with short (4K) and long (32K and more) sequences",
             tied=("attention_backward_efficiency",)),
    Constant(name="grouped_gemm_efficiency", low=0.3, high=1.0, doubt=0.1,
             decided_by="mixture-of-experts runs beside dense ones"),
    Constant(name="small_kernel_passes", low=0.5, high=6.0, doubt=0.5,
             decided_by="runs of small models (hidden 4,096 and less) beside large ones"),
    Constant(name="launch_s", low=0.0, high=1e-4, doubt=4e-06,
             decided_by="runs with tiny micro-batches (a few hundred tokens a GPU)"),
    Constant(name="overlap_slowdown", low=0.0, high=0.5, doubt=0.05,
             decided_by="data-parallel and sharded (FSDP, ZeRO-3) runs on one and on many nodes"),
    Constant(name="step_fixed_s", low=0.0, high=1.0, doubt=0.02,
             decided_by="steps shorter than 2 s beside long ones"),
    Constant(name="step_layer_s", low=0.0, high=0.01, doubt=0.0005,
             decided_by="steps shorter than 2 s of models with few and with many layers a GPU"),
    Constant(name="micro_batch_fixed_s", low=0.0, high=0.02, doubt=0.001,
             decided_by="the same model with small and with large micro-batches"),
    Constant(name="network.nvlink_efficiency", low=0.3, high=1.0, doubt=0.03,
             decided_by="the same model with several tensor-parallel degrees inside a node"),
    Constant(name="network.nic_efficiency", low=0.2, high=1.0, doubt=0.05,
             decided_by="the same model on one and on many nodes, with sharded parameters"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of some constants before: value and standard deviation of each."""

    centre: NDArray[np.float64]
    doubt: NDArray[np.float64]

    def of(self, places: Sequence[int]) -> Prior:
        """Of some of them."""
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
