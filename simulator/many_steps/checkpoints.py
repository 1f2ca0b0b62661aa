"""Checkpoints of a run in two stages: training stands still while states are copied, then they travel beside it."""

from __future__ import annotations

from dataclasses import dataclass

from hdpsim.cost_models.reliability.checkpoint import blocking_s, checkpoint_size, sending_bytes_per_s
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What every checkpoint of a run takes.

    Attributes:
        every_steps: steps from one to the next.
        block_s: stage 1, copying to host memory, which holds up training.
        upload_bytes: stage 2, everything once.
        fastest_bytes_per_s: at which hosts send it, if the storage took as much.
        host_bytes: the copy in a node's host memory, until it has been written.
    """

    every_steps: int
    block_s: float
    upload_bytes: float
    fastest_bytes_per_s: float
    host_bytes: float


def checkpoints_of(setup: Setup, run: RunOptions) -> Checkpoints | None:
    """The checkpoints that a run takes; None where it takes none.

        stage 2: bytes / min(NICs of all nodes, fair share of the storage)

    Counted: every node writes its share; loaders read from the same storage meanwhile.
    Ignored: traffic of training on the NICs.  Source: MegaScale, arXiv 2402.15627 section 4.4.
    """
    if run.checkpoint_steps is None:
        return None
    cluster, node = setup.cluster, setup.cluster.node
    size = checkpoint_size(setup.model, setup.layout, setup.ranks, setup.memory.overheads)
    fastest = sending_bytes_per_s(cluster) or run.storage_bytes_per_s
    if run.checkpoint_upload_s is not None:
        fastest = size.unique_bytes / max(run.checkpoint_upload_s, 1e-9)
    return Checkpoints(
        every_steps=run.checkpoint_steps,
        block_s=blocking_s(size, cluster) if run.checkpoint_block_s is None else run.checkpoint_block_s,
        upload_bytes=size.unique_bytes,
        fastest_bytes_per_s=fastest,
        host_bytes=size.gpu_bytes * node.gpus,
    )
