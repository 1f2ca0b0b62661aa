"""Attention of a context-parallel group alone, as benchmarks of attention modules time it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.calibration.calibration import calibration as shipped
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Node
from hdpsim.cost_models.kernels.attention import ATTENTION_BACKWARD_FLOP_RATIO
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost
from hdpsim.cost_models.layer.micro_batches import MicroBatches
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.reading.units import TERA
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.records.longctx.rows import LongRow
from hdpsim.experiments.records.longctx.systems import Source

DIRECTIONS = {"fwd": (False,), "bwd": (True,), "fwd+bwd": (False, True)}


def predicted_attention(
    row: LongRow, source: Source, layout: Mapping[str, Any], own: Calibration | None
) -> float:
    """TFLOP/s of a GPU, or passes per second, of one causal sequence over all GPUs of a row.

    Raises:
        InfeasibleError: another mask, packs whose lengths are not known, a metric that is neither.
    """
    mask = row.text("dataset")
    if "varlen" in mask:
        raise InfeasibleError("the lengths of its documents are not published")
    if "causal" not in mask:
        raise InfeasibleError("attention without a mask is not modelled")
    _, direction, unit = row.text("metric").split("_", 2)
    if direction not in DIRECTIONS or unit not in ("tflops_per_gpu", "iter_per_s"):
        raise InfeasibleError(f"{row.text('metric')} is not predicted")
    shape = source.shape(row)
    total, gpus = row.needed_number("context_tokens"), row.needed_number("gpus")
    node = catalog.node(str(source.node(row)))
    cost = _cost(node, gpus, shape, layout, own)
    sides, tier = DIRECTIONS[direction], int(gpus > node.gpus)
    seconds = sum(_seconds(cost, [total] * source.sequences, gpus, tier, backward=side) for side in sides)
    if unit == "iter_per_s":
        return 1.0 / seconds
    share = sum(ATTENTION_BACKWARD_FLOP_RATIO if side else 1.0 for side in sides)
    flop = share * 4 * shape["heads"] * shape["head_dim"] * total**2 / 2 * source.sequences
    return float(flop / seconds / gpus / TERA)


def _seconds(cost: AttentionCost, lengths: list[int], gpus: int, tier: int, *, backward: bool) -> float:
    return float(cost.times(MicroBatches.one(lengths, gpus, tier), backward=backward).total[0])


def _cost(
    node: Node, gpus: int, shape: Mapping[str, int], layout: Mapping[str, Any], own: Calibration | None
) -> AttentionCost:
    cal = shipped(node.gpu.calibration)
    if own is not None and own.generation in ("", node.gpu.calibration):
        cal = own
    cal = cal.of_job(gpus)
    heads, head_dim = shape["heads"], shape["head_dim"]
    model = Model(
        name="attention", layers=1, hidden=heads * head_dim, heads=heads, kv_heads=shape.get("kv_heads", heads),
        head_dim=head_dim, ffn_hidden=heads * head_dim, vocab=1,
    )  # fmt: skip
    fabric = FabricModel(catalog.cluster_of(node, gpus), cal.network)
    return AttentionCost(model, Layout(**layout), node.gpu, cal, fabric)
