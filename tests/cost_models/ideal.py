"""Hardware without losses or latencies, and shapes with round numbers: every cost can be computed by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.step.micro_batch_cost import MicroBatchCost
from hdpsim.cost_models.transformer.model import Model

PEAK = 1e15  # FLOP/s
NVLINK, NIC, HBM, HOST = 100e9, 10e9, 1e12, 1e10  # bytes/s

IDEAL_NETWORK = NetworkCalibration(
    **{field.name: 0.0 for field in fields(NetworkCalibration) if field.name.endswith(("_s", "_factor"))}
    | {field.name: 1.0 for field in fields(NetworkCalibration) if field.name.endswith("_efficiency")}
    | {"copy_bytes_per_s": 1e30, "all_to_all_copy_bytes_per_s": 1e30, "nvls": False, "nccl_picks": False}
)

IDEAL = Calibration(
    name="ideal",
    gemm_efficiency=1.0,
    fp8_gemm_efficiency=1.0,
    fp4_gemm_efficiency=1.0,
    static_w=0.0,
    tensor_boost_w=0.0,
    power_exponent=1.0,
    bf16_joule_per_flop=0.0,
    fp8_joule_per_flop=0.0,
    fp4_joule_per_flop=0.0,
    burst_power_share=0.0,
    gemm_half_k=0.0,
    tile_sides=0.0,
    tile_operand_share=0.3,
    stream_k_fixup=800.0,
    roofline_power=3.0,
    grouped_gemm_efficiency=1.0,
    grouped_gemm_overlap=1.0,
    weight_gradient_efficiency=1.0,
    fp8_gradient_efficiency=1.0,
    accumulate_overlap=1.0,
    attention_forward_efficiency=1.0,
    attention_backward_efficiency=1.0,
    attention_half_tokens=0.0,
    attention_block_half_tokens=0.0,
    attention_backward_ramp=1.0,
    attention_forward_tail=0.0,
    attention_backward_tail=0.0,
    attention_backward_tail_factor=1.0,
    empty_block_forward_s=0.0,
    empty_block_backward_s=0.0,
    attention_half_head_dim=0.0,
    flash1_rate=1.0,
    flash2_rate=1.0,
    mxfp8_attention_rate=1.0,
    mxfp8_attention_backward_rate=1.0,
    cudnn2025_rate=1.0,
    attention_tile_tokens=1.0,
    hbm_efficiency=1.0,
    cast_factor=1.0,
    scan_flop_per_sm=1e18,
    convolution_sm_s=0.0,
    convolution_backward_sm_s=0.0,
    gated_norm_backward_sm_s=0.0,
    merge_bytes_per_element=0.0,
    ring_delay_s=0.0,
    ring_overlap=1.0,
    small_kernel_passes=0.0,
    kernel_tail_s=0.0,
    launch_s=0.0,
    expert_launch_s=0.0,
    expert_loop_s=0.0,
    module_hook_s=0.0,
    arm_host_factor=1.3,
    arm_untuned_factor=1.84,
    overlap_launches=0.0,
    expert_load_spread=0.0,
    gpu_spread=0.0,
    overlap_slowdown=0.0,
    step_fixed_s=0.0,
    step_layer_s=0.0,
    micro_batch_fixed_s=0.0,
    planner_s_per_sequence=0.0,
    metadata_bytes_per_s=1e18,
    loader_tokens_per_s=1e6,
    host_memory_bytes_per_s=1e12,
    allocator_bytes_per_s=1e9,
    host_link_efficiency=1.0,
    network=IDEAL_NETWORK,
)

GPU = Gpu(
    name="ideal", bf16_flop_per_s=PEAK, fp8_flop_per_s=None, hbm_bytes=80e9, hbm_bytes_per_s=HBM, sm_count=64,
    nvlink_bytes_per_s=NVLINK, host_link_bytes_per_s=2 * HOST, host_link_duplex_bytes_per_s=HOST, tdp_w=700,
    calibration="hopper",
)  # fmt: skip
FAST_MEMORY_GPU = replace(GPU, hbm_bytes_per_s=1e18)

HIDDEN, HEADS, KV_HEADS, FFN = 4096, 32, 8, 11008
MODEL: Model = catalog.model("llama-7b")  # 32 layers; hidden, heads, 8 key/value heads and FFN width as above


def ideal_cluster(
    *, gpu: Gpu = FAST_MEMORY_GPU, nodes: int = 16, nvlink: float = NVLINK, nic: float = NIC
) -> Cluster:
    """Nodes of 8 GPUs with 8 NICs on a fabric without latency."""
    node = Node(
        name="server", gpu=replace(gpu, nvlink_bytes_per_s=nvlink), gpus=8, nics=8, nic_bytes_per_s=nic,
        host_memory_bytes=1e12,
    )  # fmt: skip
    return Cluster(name="ideal", node=node, nodes=nodes, fabric=Fabric(hop_latency_s=0.0))


def ideal_cost(
    model: Model = MODEL,
    layout: Layout | None = None,
    *,
    cluster: Cluster | None = None,
    calibration: Calibration = IDEAL,
) -> MicroBatchCost:
    """The cost model with ideal parts where nothing else is given."""
    return MicroBatchCost(model, layout or Layout(), cluster or ideal_cluster(), calibration)


def micro_batches(
    segments: list[list[int]],
    *,
    group_size: list[int] | None = None,
    tier: list[int] | None = None,
    offload: list[float] | None = None,
) -> MicroBatches:
    """Micro-batches from lists of segment lengths."""
    count = len(segments)
    return MicroBatches(
        segment_tokens=np.array([tokens for pack in segments for tokens in pack], dtype=np.int64),
        segment_offsets=np.cumsum([0, *(len(pack) for pack in segments)], dtype=np.int64),
        group_size=np.array(group_size or [1] * count, dtype=np.int64),
        tier=np.array(tier or [0] * count, dtype=np.int64),
        offload_ratio=np.array(offload or [0.0] * count),
    )


shipped_calibrations = st.sampled_from(["ampere", "hopper", "blackwell", "bytescale-h20"])
