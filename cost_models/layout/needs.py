"""What switches of a layout need of other switches to have an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdpsim.cost_models.layout.about_switches import Need

if TYPE_CHECKING:
    from hdpsim.cost_models.layout.layout import Layout


def _zero(layout: Layout) -> bool:
    return layout.sharding.kind in ("zero1", "zero2")


def delayed_scales(layout: Layout) -> bool:
    """Whether scales of 8-bit tensors follow from the maxima of earlier passes."""
    return layout.precision.products == "fp8" and layout.precision.fp8_scaling == "delayed"


SEVERAL_STAGES = Need("pp > 1", "pp is 1", lambda layout: layout.parallel.pp > 1)
DRAIN = Need(
    "pp > 1 and 1f1b or interleaved",
    "pp is {pp}, schedule is {schedule}",
    lambda layout: layout.parallel.pp > 1 and layout.pipeline.schedule in ("1f1b", "interleaved"),
)
CUT_LAYERS = Need("tp > 1", "tp is 1", lambda layout: layout.parallel.tp > 1)
SEQUENCE_PARALLEL = Need(
    "sequence_parallel", "sequence_parallel is false", lambda layout: layout.tensor.sequence_parallel
)
CHUNKS = Need("tp_overlap", "tp_overlap is false", lambda layout: layout.tensor.overlap)
NO_CHUNKS = Need("tp_overlap: false", "tp_overlap is true", lambda layout: not layout.tensor.overlap)
SHARED = Need("some sharding", "sharding is {sharding}", lambda layout: layout.sharding.kind != "none")
ZERO_1_OR_2 = Need("zero1 or zero2", "sharding is {sharding}, neither zero1 nor zero2", _zero)
ZERO_3 = Need("zero3", "sharding is {sharding}, not zero3", lambda layout: layout.sharding.kind == "zero3")
SUMS_OF_ALL = Need(
    "no zero3", "sharding is {sharding}, which sums shards", lambda layout: layout.sharding.kind != "zero3"
)
BESIDE_COMPUTE = Need("dp_overlap", "dp_overlap is false", lambda layout: layout.sharding.overlap)
SELECTIVE = Need(
    "recompute: selective",
    "recompute is {recompute}, not selective",
    lambda layout: layout.recompute.kind == "selective",
)
RECOMPUTED = Need("recomputation", "recompute is none", lambda layout: layout.recompute.kind != "none")
FP8 = Need("fp8", "precision is {precision}, not fp8", lambda layout: layout.precision.products == "fp8")
DELAYED_SCALES = Need(
    "fp8 with delayed scales",
    "it needs fp8 with delayed scales; precision is {precision}, fp8_scaling {fp8_scaling}",
    delayed_scales,
)
NARROW = Need("8 or 4 bits", "precision is bf16", lambda layout: layout.precision.products != "bf16")
BUSIEST = Need("ep > 1", "ep is 1, every GPU meets all tokens", lambda layout: layout.parallel.ep > 1)
NO_IMBALANCE = Need(
    "expert_imbalance: auto",
    "expert_imbalance is {expert_imbalance}",
    lambda layout: layout.experts.imbalance is None,
)
ALL_TO_ALL = Need("ep > 1", "ep is 1, there is no all-to-all", lambda layout: layout.parallel.ep > 1)
GATHERED = Need(
    "cp_kind: all-gather",
    "cp_kind is {cp_kind}, not all-gather",
    lambda layout: layout.context.kind == "all-gather",
)
DEALT = Need(
    "cp_kind: disaggregated",
    "cp_kind is {cp_kind}, not disaggregated",
    lambda layout: layout.context.kind == "disaggregated",
)
GRAPHS = Need("cuda_graphs", "cuda_graphs is false", lambda layout: layout.host.cuda_graphs)
