"""Single steps in the settings of small figures: other machines, layouts and batches than the cells have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.experiments.papers.bytescale_steps import Machine
from hdpsim.experiments.scenario.references import cluster_of_size
from hdpsim.simulator.setup import MemoryOptions, Setup, StrategyOptions
from hdpsim.simulator.step import simulate_step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SingleStep:
    """What such a step takes.

    Attributes:
        account_s: account -> [ranks, stages] seconds.
        memory_bytes: bytes in use on the fullest GPU.
    """

    step_s: float
    account_s: Mapping[str, Floats]
    memory_bytes: float

    def share(self, name: str) -> float:
        """Mean share of the step that an account takes."""
        return float(self.account_s[name].mean()) / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleStepJob:
    """One step of a batch under a setup."""

    setup: Setup
    lengths: tuple[int, ...]

    def run(self) -> SingleStep:
        """Simulate it."""
        result = simulate_step(self.setup, np.array(self.lengths))
        accounts = dict(zip(result.accounts, result.account_s, strict=True))
        return SingleStep(step_s=result.step_s, account_s=accounts, memory_bytes=result.memory.total_bytes)


def static_setup(
    machine: Machine,
    *,
    model: str,
    gpus: int,
    context_tokens: int,
    offload: float = 0.0,
    **layout: Any,
) -> Setup:
    """A static mesh of full packs on so many GPUs of a *machine*; memory need not suffice."""
    return Setup(
        model=catalog.model(model),
        cluster=cluster_of_size(machine.cluster, gpus),
        layout=Layout(**layout),
        calibration=machine.calibration,
        context_tokens=context_tokens,
        strategy=StrategyOptions(name="static", packing="concatenate", activation_offload=offload),
        memory=MemoryOptions(must_fit=False),
    )
