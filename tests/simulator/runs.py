"""Runs whose steps are made by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.simulator.many_steps.checkpoints import Checkpoints
from hdpsim.simulator.many_steps.clock import Run, RunStep
from hdpsim.simulator.many_steps.offload import Offload
from hdpsim.simulator.many_steps.prepared_step import BatchPath, PreparedStep
from hdpsim.simulator.play.execution import WAITS


def a_step(
    step_s: float,
    *,
    loading_s: float = 0.0,
    plan_s: float = 0.0,
    ahead: int = 1,
    read_bytes: float = 0.0,
    batch_bytes: float = 0.0,
    offload_bytes: float = 0.0,
    longest_s: Floats | None = None,
    tokens: int = 100,
    stages: int = 1,
) -> PreparedStep:
    """A step that takes so long, whose batch is so long on its way."""
    none = np.zeros((0, 2))
    return PreparedStep(
        tokens=tokens,
        sequences=1,
        longest_tokens=tokens,
        model_flop=1.0,
        model_flop_full=1.0,
        peak_flop_per_s=1.0,
        micro_batches=1,
        largest_group=1,
        notes=(),
        path=BatchPath(
            read_bytes=read_bytes,
            loading_s=loading_s,
            gather_s=0.0,
            plan_s=plan_s,
            send_s=0.0,
            ahead_steps=ahead,
            host_bytes=batch_bytes,
        ),
        step_s=step_s,
        account_s={"attention": step_s, **dict.fromkeys(WAITS, 0.0)},
        phases_s=np.full((stages, 4), step_s),
        longest_s=longest_s,
        offload=Offload(peak_bytes=offload_bytes, held=none, to_host_s=none, from_host_s=none)
        if offload_bytes
        else None,
        program=None,
        flowing=None,
        hosted=None,
        allocator_wait_s=0.0,
    )


def run_by_hand(
    steps: Iterable[PreparedStep],
    *,
    storage: float = 1e12,
    room: float | None = None,
    checkpoints: Checkpoints | None = None,
    record: bool = False,
) -> Run:
    """Those steps on one clock."""
    return Run(
        steps, storage_bytes_per_s=storage, host_room_bytes=room, checkpoints=checkpoints, record=record
    )


def played(steps: Iterable[PreparedStep], **options: object) -> list[RunStep]:
    """The rows of a run; the options are those of run_by_hand."""
    return list(run_by_hand(steps, **options))  # type: ignore[arg-type]


def checkpoints(
    every: int, block_s: float, upload_bytes: float, *, fastest: float = 1e12, host_bytes: float = 0.0
) -> Checkpoints:
    """Checkpoints every so many steps."""
    return Checkpoints(
        every_steps=every,
        block_s=block_s,
        upload_bytes=upload_bytes,
        fastest_bytes_per_s=fastest,
        host_bytes=host_bytes,
    )
