"""Checkpoints: how large, how long they block, how often to take them, and what a run with failures can reach."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layer.adapters import trained_per_gpu
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import LEAN, MemoryOverheads
from hdpsim.cost_models.memory.states import WEIGHT_BYTES, state_bytes
from hdpsim.cost_models.transformer.model import Model
from hdpsim.cost_models.transformer.parameters import parameters_per_gpu

Readers = Literal["one-per-group", "every-rank"]

PAUSE_S = 2.0  # device sync, collecting the state on the host, closing barrier: assumed; MegaScale: "several seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSize:
    """Bytes of one checkpoint.

    Attributes:
        gpu_bytes: what the fullest GPU copies to its host.
        held_bytes: what belongs to the fullest GPU, with optimizer states that its host keeps.
        replicated_bytes: the part of it that every rank holds alike (weights that are not sharded).
        unique_bytes: what the remote storage keeps: everything once.
        all_ranks_bytes: what is read when every GPU reads its own states.
    """

    gpu_bytes: float
    held_bytes: float
    replicated_bytes: float
    unique_bytes: float
    all_ranks_bytes: float


def checkpoint_size(
    model: Model, layout: Layout, ranks: int, overheads: MemoryOverheads = LEAN
) -> CheckpointSize:
    """Bytes of a checkpoint that resumes training exactly.

        stored once: 2 + optimizer_bytes (14) per parameter; on each GPU: weights and optimizer as sharded by the layout
        frozen weights 2, adapters beside them 2 + optimizer_bytes; optimizer_bytes (12) where shards have 32 bits alone

    Counted: bf16 weights 2, fp32 master weights 4, both Adam moments 8; layers of multi-token prediction. Optimizer
        states that are in host memory are stored and read, but no GPU copies them.
    Ignored: gradients, 8-bit copies, random states and the data loader's position (kilobytes).
    Source: state_bytes; BLOOM's checkpoints (2.3 TB for 176 G parameters, arXiv 2211.05100) have 13.1 B.
    """
    plain = layout.changed(precision="bf16")  # 8-bit copies are made again from the weights
    stages = [state_bytes(model, plain, ranks, stage, overheads) for stage in range(layout.parallel.pp)]
    held = [stage.weights + stage.optimizer + stage.on_host for stage in stages]
    whole = Layout(adapter_kernels=layout.kernels.adapters)  # one GPU that holds everything once
    trained = trained_per_gpu(model, whole, 0).total
    weights = parameters_per_gpu(model, whole, 0).total + trained * model.frozen
    in_optimizer = not any(stage.weights for stage in stages)  # the only weights are the optimizer's
    return CheckpointSize(
        gpu_bytes=max(stage.weights + stage.optimizer for stage in stages),
        held_bytes=max(held),
        replicated_bytes=0.0 if layout.sharding.kind == "zero3" else max(stage.weights for stage in stages),
        unique_bytes=WEIGHT_BYTES * weights * (not in_optimizer) + layout.precision.optimizer_bytes * trained,
        all_ranks_bytes=sum(held) * layout.parallel.tp * ranks,
    )


def blocking_s(size: CheckpointSize, cluster: Cluster) -> float:
    """Stage 1: training stands still while every GPU copies its states to pinned host memory.

        t = pause + gpu_bytes / host link

    Counted: all GPUs of a node copy at once in one direction, those behind one link share it.
    Ignored: overlap with the forward pass; serialisation (left to stage 2).
    Source: MegaScale, arXiv 2402.15627 section 4.4 ("several seconds").
    """
    return PAUSE_S + size.gpu_bytes / cluster.node.host_link_bytes_per_s_per_gpu


def sending_bytes_per_s(cluster: Cluster) -> float:
    """At which the hosts send a checkpoint of which every node writes its share: the NICs of all nodes."""
    node = cluster.node
    return cluster.nodes * node.nics * node.nic_bytes_per_s


def upload_s(size: CheckpointSize, cluster: Cluster, storage_bytes_per_s: float) -> float:
    """Stage 2: host to remote storage while training goes on.

        t = unique_bytes / min(NICs of all nodes, bandwidth of the storage)

    Counted: everything is written once, every node writes its share. A node without NICs has its storage inside.
    Ignored: contention with training traffic, metadata operations.
    Source: MegaScale, arXiv 2402.15627 section 4.4.
    """
    sending = sending_bytes_per_s(cluster) or storage_bytes_per_s
    return size.unique_bytes / min(sending, storage_bytes_per_s)


def load_s(
    size: CheckpointSize, cluster: Cluster, ranks: int, storage_bytes_per_s: float, readers: Readers
) -> float:
    """Time until every GPU holds its states again.

        one-per-group: max(unique / storage, held / nic) + replicated / nic (broadcast) + gpu / host link
        every-rank:    max(all_ranks / storage, held / nic) + gpu / host link

    Counted: a pipelined broadcast moves its bytes once over each NIC.
    Ignored: latency of the storage, imbalance between files.
    Source: MegaScale, arXiv 2402.15627 section 4.4 (one worker of a data-parallel group reads and broadcasts).
    """
    nic = cluster.node.nic_bytes_per_s_per_gpu
    client = size.held_bytes / nic
    to_gpu = size.gpu_bytes / cluster.node.host_link_bytes_per_s_per_gpu
    if readers == "every-rank":
        return max(size.all_ranks_bytes / storage_bytes_per_s, client) + to_gpu
    broadcast = size.replicated_bytes / nic if ranks > 1 else 0.0
    return max(size.unique_bytes / storage_bytes_per_s, client) + broadcast + to_gpu


def young_interval_s(block_s: float, mtbf_s: float) -> float:
    """Best work between two checkpoints, first order.

        tau = sqrt(2 delta M)

    The same is Meta's optimum sqrt(2 w / (N r_f)).
    Ignored: failures during checkpoints and restarts; good while delta << M.
    Source: Young, CACM 17(9), 1974; Meta, arXiv 2410.21680.
    """
    return math.sqrt(2.0 * block_s * mtbf_s)


def daly_interval_s(block_s: float, mtbf_s: float) -> float:
    """Best work between two checkpoints, higher order.

        tau = sqrt(2 delta M) (1 + 1/3 sqrt(delta / 2M) + 1/9 (delta / 2M)) - delta   for delta < 2M, else M

    Counted: failures during checkpoints and restarts.  Ignored: any other distribution than the exponential.
    Source: Daly, Future Generation Computer Systems 22(3), 2006.
    """
    if block_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = block_s / (2.0 * mtbf_s)
    return young_interval_s(block_s, mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - block_s


def expected_ettr(failures_per_s: float, restart_s: float, block_s: float, interval_s: float) -> float:
    """Expected effective-training-time ratio, first order.

        (1 - N r_f (u0 + Delta / 2)) / (1 + w / Delta)

    Counted: restarts, half an interval lost per failure, blocking checkpoints.
    Ignored: failures during restarts; invalid when N r_f (u0 + Delta/2) is not small (keep below 0.25).
    Source: Meta, arXiv 2410.21680.
    """
    return (1.0 - failures_per_s * (restart_s + interval_s / 2.0)) / (1.0 + block_s / interval_s)
