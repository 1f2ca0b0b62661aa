"""The optimizer update: Adam on the GPU, or on the host with gradients and parameters over the host link."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, memory_bound_s
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.states import MOMENTS_ALONE
from hdpsim.cost_models.tracing import priced

GRADIENT_READS = 2  # by Adam, and by the gradient norm before it
ZEROING_PASSES = 1  # written
SCALING_PASSES = 2  # read and written


def state_traffic_bytes(optimizer_bytes: float) -> float:
    """Bytes that the update of a parameter moves beside its gradient.

        2 x states + 2 (the new 16-bit weight) + 2 (the old one, read where states hold no weights) B

    Adam in fp32: weight 4 and moments 8, read and written, 26 with the 16-bit weight. All in 16 bits: 12.
    """
    return 2 * optimizer_bytes + BF16_BYTES * (1 if optimizer_bytes > MOMENTS_ALONE else 2)


@priced("optimizer")
def optimizer_s(parameters: Floats, layout: Layout, cluster: Cluster, cal: Calibration) -> Floats:
    """Update of the *parameters* whose optimizer states belong to this GPU.

        on the GPU:  parameters x (states + 2 x gradient) / HBM
        on the host: parameters x gradient / link + parameters x (states + gradient) / host memory of one GPU
                     + parameters x 2 B / link          states: state_traffic_bytes, 26 B for Adam in fp32

    Counted: the memory traffic of a fused Adam; with optimizer_offload the copies one after the other, and the host's
    memory shared by the GPUs of a node.
    Ignored: gradients that travel while the backward runs, parameters that travel while others are updated.
    Source: ZeRO-Offload, arXiv 2101.06840, sections 4 and 5 (states and update on the host).
    """
    traffic = (
        state_traffic_bytes(layout.precision.optimizer_bytes)
        + GRADIENT_READS * layout.precision.gradient_bytes
    )
    if not layout.sharding.optimizer_offload:
        return memory_bound_s(traffic * parameters, cluster.gpu, cal)
    link = cluster.node.host_link_bytes_per_s_per_gpu * cal.host_link_efficiency
    host = cal.host_memory_bytes_per_s / cluster.node.gpus
    # The norm is taken before the gradients leave the GPU
    update = (traffic - layout.precision.gradient_bytes) / host
    norm = memory_bound_s(layout.precision.gradient_bytes * parameters, cluster.gpu, cal)
    return np.asarray(norm + parameters * ((layout.precision.gradient_bytes + BF16_BYTES) / link + update))


@priced("optimizer")
def gradient_buffer_s(
    parameters: Floats, copies: int, layout: Layout, cluster: Cluster, cal: Calibration
) -> Floats:
    """Zeroing the gradient sums of the *parameters* a GPU holds, and dividing them by the number of their *copies*.

        t = parameters x gradient x (1 write + 2 for the division [more than one copy]) / HBM

    Counted: once a step, on the whole buffer; none where every backward sums shards, nor with zero3, whose gradients
    PyTorch sets to None (torch/optim/optimizer.py, zero_grad) and NCCL divides (fully_shard, ReduceOp.AVG).
    Ignored: collectives that divide by themselves.
    Source: Megatron-LM, param_and_grad_buffer.py (zeroed every step, scaled by 1 / data-parallel size before the sum).
    """
    if layout.sharding.sums_layers or layout.sharding.kind == "zero3":
        return np.zeros_like(parameters)
    passes = ZEROING_PASSES + (SCALING_PASSES if copies > 1 else 0)
    return memory_bound_s(passes * layout.precision.gradient_bytes * parameters, cluster.gpu, cal)
