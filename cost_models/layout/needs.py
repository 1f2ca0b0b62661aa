"""What switches of a layout need of other switches to have an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdpsim.cost_models.layout.switch_metadata import Need

if TYPE_CHECKING:
    from hdpsim.cost_models.layout.layout import Layout


def delayed_scales(layout: Layout) -> bool:
    """Whether scales of 8-bit tensors follow from the maxima of earlier passes."""
    return layout.precision.products == "fp8" and layout.precision.fp8_scaling == "delayed"


def _several(degree: str, otherwise: str) -> Need:
    return Need(f"{degree} > 1", otherwise, lambda layout: layout.switch(degree) > 1)


def _on(name: str) -> Need:
    return Need(name, f"{name} is false", lambda layout: layout.switch(name) is True)


def _is(name: str, value: str, words: str = "") -> Need:
    """*words*: where the value alone says enough."""
    otherwise = f"{name} is {{{name}}}, not {value}"
    return Need(words or f"{name}: {value}", otherwise, lambda layout: layout.switch(name) == value)


SEVERAL_STAGES = _several("pp", "pp is 1")
DRAIN = Need(
    "pp > 1 and 1f1b or interleaved",
    "pp is {pp}, schedule is {schedule}",
    lambda layout: layout.parallel.pp > 1 and layout.pipeline.schedule in ("1f1b", "interleaved"),
)
ONE_WAY = Need("no dualpipe", "schedule is dualpipe", lambda layout: layout.pipeline.schedule != "dualpipe")
CUT_LAYERS = _several("tp", "tp is 1")
SEQUENCE_PARALLEL = _on("sequence_parallel")
CHUNKS = _on("tp_overlap")
FUSED = _on("fused_kernels")
SEPARATE_KERNELS = Need(
    "fused_kernels: false", "fused_kernels is true", lambda layout: not layout.kernels.fused
)
LOSS_BY_KERNELS = Need(
    "loss_bytes: auto", "loss_bytes is {loss_bytes}", lambda layout: layout.kernels.loss_bytes is None
)
NO_CHUNKS = Need("tp_overlap: false", "tp_overlap is true", lambda layout: not layout.tensor.overlap)
SHARED = Need("some sharding", "sharding is {sharding}", lambda layout: layout.sharding.kind != "none")
ZERO_1_OR_2 = Need(
    "zero1 or zero2",
    "sharding is {sharding}, neither zero1 nor zero2",
    lambda layout: layout.sharding.kind in ("zero1", "zero2"),
)
ZERO_2 = _is("sharding", "zero2", "zero2")
ZERO_3 = _is("sharding", "zero3", "zero3")
SUMS_OF_ALL = Need(
    "no zero3, or whole_gradients",
    "sharding is {sharding}, which sums shards",
    lambda layout: layout.sharding.kind != "zero3" or layout.sharding.whole_gradients,
)
BUCKETS = Need(
    "no zero3", "sharding is {sharding}, which sums layers", lambda layout: layout.sharding.kind != "zero3"
)
BESIDE_COMPUTE = _on("dp_overlap")
SELECTIVE = _is("recompute", "selective")
REPEATED_WHOLE = _is("recompute", "full")
RECOMPUTED = Need("recomputation", "recompute is none", lambda layout: layout.recompute.kind != "none")
FP8 = _is("precision", "fp8", "fp8")
DELAYED_SCALES = Need(
    "fp8 with delayed scales",
    "it needs fp8 with delayed scales; precision is {precision}, fp8_scaling {fp8_scaling}",
    delayed_scales,
)
NARROW = Need("8 or 4 bits", "precision is bf16", lambda layout: layout.precision.products != "bf16")
BUSIEST = _several("ep", "ep is 1, every GPU meets all tokens")
NO_IMBALANCE = Need(
    "expert_imbalance: auto",
    "expert_imbalance is {expert_imbalance}",
    lambda layout: layout.experts.imbalance is None,
)
ALL_TO_ALL = _several("ep", "ep is 1, there is no all-to-all")
GATHERED = _is("cp_kind", "all-gather")
DEALT = _is("cp_kind", "disaggregated")
GRAPHS = _on("cuda_graphs")
