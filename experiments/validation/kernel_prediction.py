"""The prediction of one measured kernel: which model it asks, and what the benchmark timed along."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.calibration.calibration import calibration as shipped
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Gpu, Node
from hdpsim.cost_models.kernels.formats import CAST_BYTES
from hdpsim.cost_models.kernels.products import (
    ATTENTION_BACKWARD_FLOP_RATIO,
    BF16_BYTES,
    FP32_ACCUMULATE_BYTES,
    KernelRate,
    attention_s,
    gemm_s,
    memory_bound_s,
)
from hdpsim.cost_models.layout.layout import Precision
from hdpsim.cost_models.network.collectives import CollectiveKind, Collectives, bus_bandwidth_factor
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.csv_files import as_number
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES

# Boards that no node of the catalog carries: (GPU of the catalog, what differs). Datasheets.
_BOARDS: dict[str, tuple[str, dict[str, float]]] = {
    "A100-PCIE": ("a100-80gb", {"tdp_w": 300.0, "hbm_bytes_per_s": 1.935e12}),
    "A100-SXM": ("a100-80gb", {}),
    "H800-SXM-80G": ("h800-80gb", {}),
}
_KINDS = {
    "time_us": "kernel_us",
    "tflops": "kernel_tflops",
    "busbw_gbs": "kernel_gbps",
    "value": "kernel_gbps",
}
"""The ranges of columns that are no dimension."""
_COLLECTIVES: dict[str, CollectiveKind] = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}  # fmt: skip
_PRECISIONS: dict[str, Precision] = {
    "bf16": "bf16", "fp16": "bf16", "half": "bf16", "fp16/bf16": "bf16", "fp8": "fp8", "mxfp8": "mxfp8",
    "fp4": "nvfp4", "nvfp4": "nvfp4",
}  # fmt: skip
# A sweep of short runs, or the best of many shapes, sees clocks that do not last.
_BURST = re.compile(r"short burst|BEST shape")
_SWEEP = re.compile(r"aiconfigurator|TransformerEngine|LLMCompass")
# Inference engines time the key-value cache and the rotary embedding along with attention: passes over keys and
# values, passes over queries (fitted per engine, docs/explanation/calibration.md).
_ENGINE_PASSES = (("/sglang/", 2.5, 0.0), ("/vllm/", 5.0, 1.0), ("/trtllm/", 2.7, 9.0))
_OTHER_ATTENTION = re.compile(r"FlashAttention-2|FA2")
_NIC = re.compile(r"(\d+) ?Gb/s (?:IB )?per GPU")
# Nodes of the catalog that a source names; what the first A100 cloud's network reaches (docs/explanation/fabric.md).
_NODES = ((re.compile(r"p4de\.24xlarge"), "p4de"), (re.compile(r"nanotron Ultra-Scale"), "p5-h100-80gb"))
_OLD_CLOUD = re.compile(r"Azure ND A100 v4")
# One process that drives all GPUs of a node launches on one after the other: 2 GPUs take 8.7 us, 8 take 31.
_ONE_PROCESS = re.compile(r"nccl-test-log/nccl_[248]\.log")
LAUNCH_OF_A_GPU_S = 3.9e-6
_UNCLEAR = re.compile(r"single-shot|is not stated, so no bandwidth")
# A loop of products launched one by one: the smallest take 7.4 us on H200 and on GB200, in 8 and in 4 bit.
_LAUNCH_LOOP = re.compile(r"AI-benchmarking-guide")
LAUNCH_OF_A_PRODUCT_S = 7.4e-6
AMAX_BYTES = 2.0  # current scaling reads a BF16 tensor once more than delayed scaling
COPIED_BYTES = 1e9  # rates of copies are compared as the time of this much
# An inference engine that casts its input by a scale it first has to find: unfused passes of 7.5 B per element
# (fitted on six GPUs with efficiency and start-up free: 6.8-8.6 B) in five kernels, whose start and end cost 7.9 and
# 8.2 us on H200 and H100, 12.8 to 13.5 us on B200, B300, GB200 and GB300.
DYNAMIC_CAST_BYTES = 7.5
DYNAMIC_CAST_S = {"hopper": 8e-6, "blackwell": 13e-6}
USUAL_DYNAMIC_CAST_S = 10e-6


def number(record: Mapping[str, str], key: str) -> float | None:
    """A cell as a number; None when it is empty.

    Raises:
        InfeasibleError: something else stands there.
    """
    text = (record.get(key) or "").strip()
    if not text:
        return None
    value = as_number(text)
    if not 0.0 <= value < math.inf:
        raise InfeasibleError(f"{key}: expected a number of at least 0 or nothing, got {quoted(text)}")
    allowed = RANGES[_KINDS.get(key, "kernel_dimension")]
    if value and not allowed.low <= value <= allowed.high:
        raise InfeasibleError(f"{key}: {allowed.complaint(value)}")
    return value


def _need(record: Mapping[str, str], *keys: str, whole: bool = False) -> list[float]:
    values = [number(record, key) for key in keys]
    missing = [key for key, value in zip(keys, values, strict=True) if value is None]
    if missing:
        raise InfeasibleError(f"{', '.join(missing)} not stated")
    stated = [float(value) for value in values if value is not None]
    for key, value in zip(keys, stated, strict=True):
        if value <= 0.0 or (whole and value != int(value)):
            raise InfeasibleError(
                f"{key}: expected a {'whole' if whole else 'positive'} number, got {quoted(record[key])}"
            )
    return stated


def _causal(record: Mapping[str, str]) -> bool:
    """Whether attention is masked: a number or a word; nothing means that it is not."""
    word = (record.get("causal") or "").strip().lower()
    return word == "true" or (word != "false" and bool(number(record, "causal")))


def gpu_of(name: str) -> Gpu:
    """The catalog's GPU, or a board that no node of the catalog carries."""
    if name in _BOARDS:
        base, changes = _BOARDS[name]
        return replace(catalog.gpu(base), **changes)  # type: ignore[arg-type]
    return catalog.gpu(name)


def _precision(dtype: str) -> Precision:
    kind = dtype.split()[0].lower() if dtype.strip() else "bf16"
    if kind not in _PRECISIONS:
        raise InfeasibleError(f"matrix products in {kind} are not modelled")
    return _PRECISIONS[kind]


def _head_dim(record: Mapping[str, str]) -> float:
    """Mean of the query and value dimensions ('192/128' in latent attention)."""
    text = record.get("head_dim") or ""
    if not text:
        raise InfeasibleError("head_dim not stated")
    dims = [as_number(part) for part in text.split("/")]
    if not all(0.0 < dim <= RANGES["head_dim"].high for dim in dims):
        raise InfeasibleError(
            f"head_dim: expected a positive number, or two as in 192/128, got {quoted(text)}"
        )
    return float(np.mean(dims))


def flop_of(record: Mapping[str, str]) -> float | None:
    """FLOP as the tables count them: 2 m n k per group; 4 b h s^2 d, half if causal, backward x 2.5."""
    if record["kind"] in ("gemm", "grouped_gemm"):
        m, n, k = _need(record, "m", "n", "k")
        return 2.0 * m * n * k * (number(record, "groups") or 1.0)
    if record["kind"].startswith("flash"):
        length, heads = _need(record, "seq_len", "heads")
        batch = number(record, "batch") or 1.0
        share = {
            "flash_bwd": ATTENTION_BACKWARD_FLOP_RATIO,
            "flash_fwd_bwd": 1 + ATTENTION_BACKWARD_FLOP_RATIO,
        }
        causal = 0.5 if _causal(record) else 1.0
        return 4.0 * batch * heads * length**2 * _head_dim(record) * causal * share.get(record["kind"], 1.0)
    return None


def bus_factor(record: Mapping[str, str]) -> float:
    """Bus bandwidth over size per time."""
    kind = _COLLECTIVES.get(record["kind"])
    return bus_bandwidth_factor(kind, int(_need(record, "n_ranks", whole=True)[0])) if kind else 1.0


def predicted_s(record: Mapping[str, str], calibration: Calibration | None) -> float:
    """Seconds of a row's kernel; *calibration* is taken for GPUs of its generation (of any, where it names none).

    Raises:
        InfeasibleError: the row lacks something, or is of a kind that is not modelled.
        CatalogError: the catalog has no such GPU.
    """
    kind = record["kind"]
    gpu = gpu_of(record["gpu"])
    own = calibration is not None and calibration.generation in ("", gpu.calibration)
    cal = calibration if calibration is not None and own else shipped(gpu.calibration)
    if kind in ("gemm", "grouped_gemm"):
        return _gemm(record, gpu, cal)
    if kind in ("flash_fwd", "flash_bwd", "flash_fwd_bwd"):
        return _attention(record, gpu, cal)
    if kind in _COLLECTIVES or kind == "p2p":
        return _communication(record, gpu, cal)
    if kind == "hbm_stream":
        return float(memory_bound_s(COPIED_BYTES, gpu, cal))
    if kind == "pcie_copy":
        return COPIED_BYTES / gpu.host_link_bytes_per_s
    raise InfeasibleError(f"kernels of kind {kind} are not modelled one by one")


def _burst(record: Mapping[str, str]) -> bool:
    return bool(_BURST.search(record.get("notes") or "") or _SWEEP.search(record.get("source") or ""))


def _gemm(record: Mapping[str, str], gpu: Gpu, cal: Calibration) -> float:
    m, n, k = _need(record, "m", "n", "k")
    groups = number(record, "groups") or 1.0
    notes, dtype = record.get("notes") or "", record.get("dtype") or ""
    precision = _precision(dtype)
    grouped = record["kind"] == "grouped_gemm"
    weights = "layout NT" in notes or record.get("direction") == "bwd_grad_w"
    if grouped and weights:  # stated by the forward's shape
        m, n, k = k, n, m
    accumulates = "accumulate True" in notes
    fp32 = "out fp32" in notes or (grouped and weights)
    output_bytes = FP32_ACCUMULATE_BYTES if accumulates and fp32 else BF16_BYTES * (2 if accumulates else 1)
    quality = (cal.grouped_gemm_efficiency if grouped else 1.0) * (
        cal.weight_gradient_efficiency if weights else 1.0
    )
    overlap = cal.grouped_gemm_overlap if grouped else 1.0
    if accumulates and fp32 and not grouped:
        overlap = cal.accumulate_overlap
    seconds = gemm_s(
        m,
        n,
        k,
        gpu,
        cal,
        efficiency=quality,
        groups=groups,
        output_bytes=output_bytes,
        precision=precision,
        overlap=overlap,
        burst=_burst(record),
    )
    launch_s = LAUNCH_OF_A_PRODUCT_S if _LAUNCH_LOOP.search(record.get("source") or "") else 0.0
    return max(float(seconds) + _casts_s(record, m * k, n * k, gpu, cal, precision), launch_s)


def _casts_s(
    record: Mapping[str, str], inputs: float, weights: float, gpu: Gpu, cal: Calibration, precision: Precision
) -> float:
    """Casts that the benchmark timed along."""
    notes, dtype = record.get("notes") or "", record.get("dtype") or ""
    per_element = CAST_BYTES[precision] + (AMAX_BYTES if "current" in dtype else 0.0)
    if "dynamic activation quantisation" in notes or "per-tensor" in dtype:
        seconds = memory_bound_s(DYNAMIC_CAST_BYTES * inputs, gpu, cal)
        return float(seconds) + DYNAMIC_CAST_S.get(gpu.calibration, USUAL_DYNAMIC_CAST_S)
    if "includes quantisation" in notes and precision != "bf16":
        return float(memory_bound_s(per_element * (inputs + weights), gpu, cal)) + 2 * cal.kernel_tail_s
    return 0.0


def _attention(record: Mapping[str, str], gpu: Gpu, cal: Calibration) -> float:
    notes, source = record.get("notes") or "", record.get("source") or ""
    kernel = _kernel(notes, cal)
    slowdown = 1.0
    shared = re.search(r"\bcp (\d+) \(balanced", notes)
    if shared:  # a rank's share of the pairs of a document
        slowdown /= int(shared[1])
    length, heads = _need(record, "seq_len", "heads")
    batch = number(record, "batch") or 1.0
    head_dim, causal = _head_dim(record), _causal(record)
    passes = next((p for p in _ENGINE_PASSES if p[0] in source), ("", 0.0, 0.0))
    keys = 2.0 * (number(record, "kv_heads") or heads)
    surrounding = BF16_BYTES * batch * length * head_dim * (passes[1] * keys + passes[2] * heads)
    sides = {"flash_fwd": (False,), "flash_bwd": (True,)}.get(record["kind"], (False, True))
    return slowdown * sum(
        float(
            attention_s(
                batch, length, heads, head_dim, gpu, cal,
                backward=side, causal=causal, kernel=kernel, surrounding_bytes=surrounding, burst=_burst(record),
            )
        )
        for side in sides
    )  # fmt: skip


def _kernel(notes: str, cal: Calibration) -> KernelRate:
    """The attention kernel that the notes name."""
    plotted = notes.partition(";")[0] if "FLOPs 4*S^2*H*D" in notes else ""
    if plotted not in ("", "FlashAttention-1", "FlashAttention-2", "FlashAttention-3"):
        raise InfeasibleError(f"attention by {plotted} is not calibrated")
    if plotted == "FlashAttention-1":
        return KernelRate.of("flash1", cal)
    return KernelRate.of("flash2" if _OTHER_ATTENTION.search(notes) else "flash", cal)


@cache
def _node(gpu: str, domain: int) -> Node:
    """The catalog's node with that GPU and NVLink domain."""
    nodes = [catalog.node(name) for name in catalog.names("node")]
    of_gpu = [node for node in nodes if node.gpu.name == gpu]
    if not of_gpu:
        raise InfeasibleError(f"no node of the catalog carries the GPU {gpu}")
    return min(of_gpu, key=lambda node: (node.gpus != domain, not node.name.startswith(("hgx-", "nvl72-"))))


@lru_cache(maxsize=256)
def _collectives(node: Node, nodes: int, cal: Calibration) -> Collectives:
    return Collectives(FabricModel(catalog.cluster_of(node, node.gpus * nodes), cal.network))


def _communication(record: Mapping[str, str], gpu: Gpu, cal: Calibration) -> float:
    if number(record, "size_bytes") is None:
        raise InfeasibleError("size_bytes not stated")
    size = _need(record, "size_bytes")[0]
    ranks, per_node, nodes = _need(record, "n_ranks", "ranks_per_node", "n_nodes", whole=True)
    notes = record.get("notes") or ""
    if _UNCLEAR.search(notes):
        raise InfeasibleError("timed once, or of an unclear size")
    source = record.get("source") or ""
    named = next((name for pattern, name in _NODES if pattern.search(f"{source} {notes}")), None)
    node = catalog.node(named) if named else _node(gpu.name, int(per_node))
    stated = _NIC.search(notes)
    if stated and not named:
        node = replace(node, nics=node.gpus, nic_bytes_per_s=float(stated[1]) * 1e9 / 8)
    spread = max(1, int(nodes))
    if _OLD_CLOUD.search(notes):
        cal = replace(cal, network=replace(cal.network, nic_efficiency=0.64, inter_latency_factor=2.0))
    collectives = _collectives(node, spread, cal)
    if record["kind"] == "p2p":
        return float(collectives.p2p_s(size, 1 if spread > 1 else 0))
    stride = 1 if spread == 1 or ranks >= spread * node.gpus else max(1, int(node.gpus * spread // ranks))
    group = collectives.group(int(ranks), stride=stride)
    place = {"in_place": "in-place" in notes} if record["kind"] in ("allgather", "reducescatter") else {}
    call = {
        "allreduce": collectives.all_reduce_s,
        "allgather": collectives.all_gather_s,
        "reducescatter": collectives.reduce_scatter_s,
        "alltoall": collectives.all_to_all_s,
    }[record["kind"]]
    launches_s = ranks * LAUNCH_OF_A_GPU_S if _ONE_PROCESS.search(source) else 0.0
    return max(float(call(size, group, **place)), launches_s)
