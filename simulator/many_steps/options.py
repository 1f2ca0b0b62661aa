"""What a run of many steps has beside what each of its steps has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hdpsim.cost_models.reading.checked import Amount, Bandwidth, Checked, Count
from hdpsim.ranges import RANGES

PlannerLaw = Literal["calibration", "measured"]
StorageNics = Literal["own", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Checked):
    """A run of many steps on one clock (`simulate --steps`, `replay`)."""

    planner: PlannerLaw = "calibration"
    """How long planning takes: the calibration's time per sequence, or as hdpsim's own planner was measured, by
    sequences and ranks."""
    planning_s: Amount | None = None
    """Planning one batch, without metadata and plan on their way; None = by run.planner."""
    token_bytes: Annotated[float, RANGES["token_bytes"]] = 4.0
    """What loaders read from the storage for a token: 4 of tokenised text, more of raw text, far more of images."""
    storage_nics: StorageNics = "own"
    """Whether nodes reach the storage over NICs of their own, or over those of training (execution.network: flows)."""
    checkpoint_steps: Count | None = None
    """Steps from one checkpoint to the next; None = none is taken."""
    storage_bytes_per_s: Bandwidth = 100e9
    """Of the storage that loaders and checkpoints share, reading and writing."""
    checkpoint_block_s: Amount | None = None
    """How long a checkpoint holds up training; None = from states and host link."""
    checkpoint_upload_s: Amount | None = None
    """Writing a checkpoint with the storage to itself; None = from states, NICs and storage."""
