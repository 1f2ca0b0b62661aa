"""The prediction of one measured kernel: which model it asks, and what the benchmark timed along."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.calibration.calibration import calibration as shipped
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Gpu, Node
from hdpsim.cost_models.kernels.attention import ATTENTION_BACKWARD_FLOP_RATIO, KernelRate, attention_s
from hdpsim.cost_models.kernels.gemm import BF16_BYTES, FP32_ACCUMULATE_BYTES, gemm_s, memory_bound_s
from hdpsim.cost_models.kernels.number_formats import CAST_BYTES, SCALING_BYTES
from hdpsim.cost_models.layout.switches import Fp8Scaling, ProductPrecision
from hdpsim.cost_models.network.collectives import CollectiveKind, Collectives, bus_bandwidth_factor
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.output.files.csv import as_number, stated_number
from hdpsim.experiments.validation.kernel_sources import Instrument, gpu_of, instrument_of
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES

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
_PRECISIONS: dict[str, ProductPrecision] = {
    "bf16": "bf16", "fp16": "bf16", "half": "bf16", "fp16/bf16": "bf16", "fp8": "fp8", "mxfp8": "mxfp8",
    "fp4": "nvfp4", "nvfp4": "nvfp4",
}  # fmt: skip
_NIC = re.compile(r"(\d+) ?Gb/s (?:IB )?per GPU")
LASTING_S = 0.1
"""Clocks have fallen to what the power limit allows (B200: kernels of 6, 9 and 13 ms, nine in a row)."""
COPIED_BYTES = 1e9  # rates of copies are compared as the time of this much


def number(record: Mapping[str, str], key: str) -> float | None:
    """A cell as a number; None when it is empty.

    Raises:
        InfeasibleError: something else stands there.
    """
    value = stated_number(key, (record.get(key) or "").strip())
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


def _precision(dtype: str) -> ProductPrecision:
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
    gpu = gpu_of(record["gpu"], instrument_of(record).tdp_w)
    fits = calibration is not None and calibration.generation in ("", gpu.calibration)
    cal = calibration if calibration is not None and fits else shipped(gpu.calibration)
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


def _judged(record: Mapping[str, str]) -> Instrument:
    """How a row was measured.

    Raises:
        InfeasibleError: so that it cannot be judged.
    """
    instrument = instrument_of(record)
    if instrument.refused:
        raise InfeasibleError(instrument.refused)
    return instrument


def _gemm(record: Mapping[str, str], gpu: Gpu, cal: Calibration) -> float:
    m, n, k = _need(record, "m", "n", "k")
    groups = number(record, "groups") or 1.0
    notes, instrument = record.get("notes") or "", _judged(record)
    precision = _precision(record.get("dtype") or "")
    grouped = record["kind"] == "grouped_gemm"
    weights = "layout NT" in notes or record.get("direction") == "bwd_grad_w"
    if grouped and weights:  # stated by the forward's shape
        m, n, k = k, n, m
    accumulates = "accumulate True" in notes
    halves = "out bf16" in notes or instrument.sums_of_16_bits
    fp32 = "out fp32" in notes or (grouped and weights and not halves)
    output_bytes = FP32_ACCUMULATE_BYTES if accumulates and fp32 else BF16_BYTES * (2 if accumulates else 1)
    quality = (cal.grouped_gemm_efficiency if grouped else 1.0) * (
        cal.weight_gradient_efficiency if weights else 1.0
    )
    if instrument.zeros_rate:
        quality *= instrument.zeros_rate.get(gpu.calibration, instrument.zeros_rate["other"])
    overlap = cal.grouped_gemm_overlap if grouped else 1.0
    if accumulates and fp32 and not grouped:
        overlap = cal.accumulate_overlap
    seconds = _clocked(instrument, lambda burst: float(gemm_s(
        m, n, k, gpu, cal, efficiency=quality, groups=groups, output_bytes=output_bytes, precision=precision,
        overlap=overlap, burst=burst, splits_k=instrument.splits_k,
    )))  # fmt: skip
    launches_s = instrument.launch_s + groups * instrument.launch_each_s
    return max(seconds + _casts_s(record, m * k, n * k, gpu, cal, precision), launches_s)


def _clocked(instrument: Instrument, price: Callable[[bool], float]) -> float:
    """What a kernel takes (*price*, of a burst or not) at the clocks that its benchmark sees."""
    seconds = price(instrument.burst)
    return price(False) if instrument.burst and instrument.loop * seconds >= LASTING_S else seconds


def _casts_s(
    record: Mapping[str, str],
    inputs: float,
    weights: float,
    gpu: Gpu,
    cal: Calibration,
    precision: ProductPrecision,
) -> float:
    """Casts that the benchmark timed along."""
    instrument = instrument_of(record)
    if instrument.cast_bytes:
        start_s = instrument.cast_s.get(gpu.calibration, instrument.cast_s["other"])
        return float(memory_bound_s(instrument.cast_bytes * inputs, gpu, cal)) + start_s
    if "includes quantisation" in (record.get("notes") or "") and precision != "bf16":
        scaling: Fp8Scaling = "tensor" if "current" in (record.get("dtype") or "") else "delayed"
        per_element = CAST_BYTES[precision] + SCALING_BYTES[scaling]
        return float(memory_bound_s(per_element * (inputs + weights), gpu, cal)) + 2 * cal.kernel_tail_s
    return 0.0


def _attention(record: Mapping[str, str], gpu: Gpu, cal: Calibration) -> float:
    instrument = _judged(record)
    shared = re.search(r"\bcp (\d+) \(balanced", record.get("notes") or "")
    ranks = int(shared[1]) if shared else 0  # each has a piece from either end, and all keys before them
    length, heads = _need(record, "seq_len", "heads")
    batch = number(record, "batch") or 1.0
    documents = max(1.0, instrument.call_tokens / length)  # of one call
    head_dim, causal = _head_dim(record), _causal(record)
    keys = 2.0 * (number(record, "kv_heads") or heads) * max(head_dim, instrument.least_head_width)
    keys *= ranks + 0.5 if ranks else 1.0
    elements = instrument.key_value_passes * keys + instrument.query_passes * heads * head_dim
    surrounding = documents * batch * length * (BF16_BYTES * elements + instrument.token_bytes)
    sides = {"flash_fwd": (False,), "flash_bwd": (True,)}.get(record["kind"], (False, True))
    all_s = _clocked(instrument, lambda burst: sum(
        float(
            attention_s(
                documents * batch, length, heads, head_dim, gpu, cal,
                backward=side, causal=causal, kernel=KernelRate.of(instrument.attention, cal, head_dim),
                surrounding_bytes=surrounding, burst=burst,
            )
        )
        for side in sides
    ))  # fmt: skip
    each_s = all_s / (documents * max(1, ranks))
    # where the host is timed along: a kernel for either piece, and its work for the first is before that
    return instrument.launch_s + max(each_s / 2, instrument.launch_s) + each_s / 2


@lru_cache(maxsize=256)
def _collectives(node: Node, nodes: int, cal: Calibration) -> Collectives:
    return Collectives(FabricModel(catalog.cluster_of(node, node.gpus * nodes), cal.network))


def _communication(record: Mapping[str, str], gpu: Gpu, cal: Calibration) -> float:
    if number(record, "size_bytes") is None:
        raise InfeasibleError("size_bytes not stated")
    size = _need(record, "size_bytes")[0]
    ranks, per_node, nodes = _need(record, "n_ranks", "ranks_per_node", "n_nodes", whole=True)
    notes, instrument = record.get("notes") or "", _judged(record)
    named = instrument.node
    node = catalog.node(named) if named else catalog.node_with(gpu.name, int(per_node))
    stated = _NIC.search(notes)
    if stated and not named:
        node = replace(node, nics=node.gpus, nic_bytes_per_s=float(stated[1]) * 1e9 / 8)
    spread = max(1, int(nodes))
    if instrument.network:
        cal = replace(cal, network=replace(cal.network, **instrument.network))
    collectives = _collectives(node, spread, cal)
    if record["kind"] == "p2p":
        return _as_printed(float(collectives.p2p_s(size, 1 if spread > 1 else 0)), instrument)
    stride = 1 if spread == 1 or ranks >= spread * node.gpus else max(1, int(node.gpus * spread // ranks))
    group = collectives.group(int(ranks), stride=stride)
    place = {"in_place": "in-place" in notes} if record["kind"] in ("allgather", "reducescatter") else {}
    if instrument.algorithm:
        time_s = float(collectives.all_reduce_options(size, group)[instrument.algorithm])
    else:
        time_s = float(getattr(collectives, f"{_COLLECTIVES[record['kind']]}_s")(size, group, **place))
    launches_s = instrument.launch_s + ranks * instrument.launch_each_s
    return _as_printed(max(time_s + instrument.lone_s, launches_s), instrument)


def _as_printed(time_s: float, instrument: Instrument) -> float:
    """What is left of a time in the mean where the source cuts off what is no whole unit."""
    return max(0.0, time_s - instrument.cut_s / 2)
