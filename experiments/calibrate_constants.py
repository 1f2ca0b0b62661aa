"""The constants that records of whole training runs can decide, their bounds, and what kind of run decides them.

Kernel shapes (ramps, tiles, half lengths) are not among them: those are measured on kernels. What is left is few and
has a meaning: sustained rates, memory passes, fixed host work, what overlaps, what the network reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from cost_models.calibration import Calibration
from cost_models.schema import did_you_mean
from hdpsim.errors import UserInputError

__all__ = ["CONSTANTS", "Constant", "apply", "chosen", "value_of"]

NETWORK = "network."


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One constant that may be fitted.

    Attributes:
        name: of Calibration, or "network." and a name of NetworkCalibration.
        low: no smaller value makes sense.
        high: no larger one does.
        doubt: standard deviation of what is known of it without runs, from kernel measurements or by assumption.
        decided_by: the records that tell its value.
        tied: other constants that keep their ratio to this one.
    """

    name: str
    low: float
    high: float
    doubt: float
    decided_by: str
    tied: tuple[str, ...] = ()


CONSTANTS = (
    Constant(
        name="gemm_efficiency",
        low=0.35,
        high=0.98,
        doubt=0.1,
        decided_by="bf16 runs of models of several billion parameters with large micro-batches",
    ),
    Constant(
        name="fp8_gemm_efficiency",
        low=0.25,
        high=0.98,
        doubt=0.12,
        decided_by="fp8 runs of models of several billion parameters with large micro-batches",
    ),
    Constant(
        name="attention_forward_efficiency",
        low=0.2,
        high=0.95,
        doubt=0.12,
        decided_by="runs of the same model with short (4K) and long (32K and more) sequences",
        tied=("attention_backward_efficiency",),
    ),
    Constant(
        name="grouped_gemm_efficiency",
        low=0.3,
        high=1.0,
        doubt=0.12,
        decided_by="mixture-of-experts runs beside dense ones",
    ),
    Constant(
        name="small_kernel_passes",
        low=0.5,
        high=6.0,
        doubt=0.7,
        decided_by="runs of small models (hidden 4,096 and less) beside large ones",
    ),
    Constant(
        name="launch_s",
        low=0.0,
        high=1e-4,
        doubt=1e-5,
        decided_by="runs with tiny micro-batches (a few hundred tokens a GPU)",
    ),
    Constant(
        name="overlap_slowdown",
        low=0.0,
        high=0.5,
        doubt=0.1,
        decided_by="data-parallel and sharded (FSDP, ZeRO-3) runs on one and on many nodes",
    ),
    Constant(
        name="step_fixed_s",
        low=0.0,
        high=1.0,
        doubt=0.1,
        decided_by="steps shorter than 2 s beside long ones",
    ),
    Constant(
        name="micro_batch_fixed_s",
        low=0.0,
        high=0.02,
        doubt=0.002,
        decided_by="the same model with small and with large micro-batches",
    ),
    Constant(
        name="network.nvlink_efficiency",
        low=0.3,
        high=1.0,
        doubt=0.08,
        decided_by="the same model with several tensor-parallel degrees inside a node",
    ),
    Constant(
        name="network.nic_efficiency",
        low=0.2,
        high=1.0,
        doubt=0.15,
        decided_by="the same model on one and on many nodes, with sharded parameters",
    ),
)  # fmt: skip


def chosen(names: Sequence[str] | None) -> tuple[Constant, ...]:
    """The constants of those names, in the order of the table; None: all that calibrations have.

    Raises:
        UserInputError: a name that cannot be fitted.
    """
    scalars = {field.name for field in fields(Calibration)}
    known = [
        constant for constant in CONSTANTS if constant.name.startswith(NETWORK) or constant.name in scalars
    ]
    if names is None:
        return tuple(known)
    by_name = {constant.name: constant for constant in known}
    for name in names:
        if name not in by_name:
            raise UserInputError(
                f"--constants: {name!r} cannot be fitted on runs{did_you_mean(name, tuple(by_name))}; "
                f"known: {', '.join(by_name)}"
            )
    return tuple(constant for constant in known if constant.name in names)


def value_of(cal: Calibration, name: str) -> float:
    """The value of a constant."""
    if name.startswith(NETWORK):
        return float(getattr(cal.network, name.removeprefix(NETWORK)))
    return float(getattr(cal, name))


def apply(cal: Calibration, base: Calibration, values: Mapping[Constant, float]) -> Calibration:
    """*cal* with other values; tied constants keep the ratio that they have in *base*."""
    own: dict[str, Any] = {}
    network: dict[str, Any] = {}
    for constant, value in values.items():
        start = value_of(base, constant.name)
        if constant.name.startswith(NETWORK):
            network[constant.name.removeprefix(NETWORK)] = value
        else:
            own[constant.name] = value
        for name in constant.tied:
            ratio = value_of(base, name) / start if start else 1.0
            own[name] = value * ratio
    if network:
        own["network"] = replace(cal.network, **network)
    return replace(cal, **own)
