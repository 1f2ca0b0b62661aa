"""Single kernels: attention and MLP of a layer by length (Figure 6a), the loss (Figure 16)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Gpu
from hdpsim.cost_models.kernels.gemm import gemm_s
from hdpsim.cost_models.layer.attention.ring_attention import AttentionCost
from hdpsim.cost_models.layer.output_head import OutputHead
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.network.fabric import FabricModel
from hdpsim.cost_models.transformer.layers import Block, layer_shards, vocabulary_matrix
from hdpsim.cost_models.transformer.model import Model
from hdpsim.experiments.papers.bytescale_steps import FOLDER, OWN, SETUP, Machine, tokens
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.paper import Results
from hdpsim.experiments.papers.report import FigureRow, Part, rows_part

LAYER, LAYER_PAPER = SETUP["figure_6"]["layer"], FOLDER.published["figure_6"]["layer"]
LOSS, LOSS_PAPER = SETUP["figure_16"], FOLDER.published["figure_16"]
FP32_BYTES = 4


def products_s(
    model: Model, layout: Layout, block: Block, length_tokens: float, gpu: Gpu, cal: Calibration
) -> float:
    """Forward of a layer's products of one block on a rank of so many tokens."""
    shards = [shard for shard in layer_shards(model, layout, moe=False) if shard.matrix.block == block]
    return float(sum(gemm_s(length_tokens, one.outputs, one.inputs, gpu, cal) for one in shards))


def layer_by_length(results: Results, machine: Machine = OWN, tp: int = LAYER["tp"]) -> Part:
    """Forward of attention (with its projections) and of the MLP's products, one layer, one sequence."""
    model, layout = catalog.model(LAYER["model"]), Layout(tp=tp)
    gpu, cal = machine.cluster.gpu, machine.calibration
    attention = AttentionCost(model, layout, gpu, cal, FabricModel(machine.cluster, cal.network))
    rows: list[FigureRow] = []
    values: list[FigureRow] = []
    for entry in LAYER_PAPER:
        length = tokens(entry["tokens"])
        parts_s = {
            "attention": products_s(model, layout, "attention", length, gpu, cal)
            + float(attention.segments.alone_s([length], backward=False)[0]),
            "mlp": products_s(model, layout, "mlp", length, gpu, cal),
        }
        row: dict[str, object] = {"tokens": length, "length": entry["tokens"]}
        for part, seconds in parts_s.items():
            value = compared(6, f"6a, {part}, {entry['tokens']}", "ms", entry[f"{part}_ms"], 1e3 * seconds)
            values.append(value)
            row |= {
                f"{part}_ms": value["predicted"],
                f"paper_{part}_ms": value["paper"],
                f"{part}_error": value["error"],
            }
        rows.append(row)
    return rows_part(FOLDER, "layer_by_length", rows, compared=values)


def loss(results: Results, machine: Machine = OWN, tp: int = LOSS["tp"]) -> Part:
    """Cross-entropy and its gradient, fused and as separate operations, and the logits' memory."""
    model = replace(catalog.model(LOSS["model"]), vocab=tokens(LOSS["vocabulary"]))
    held = np.array([tokens(LOSS["tokens"])], dtype=np.float64)
    rates = machine.cluster.gpu, machine.calibration
    predicted = {
        kind: 1e3 * float(OutputHead(model, Layout(tp=tp, fused_loss=fused), *rates).loss_s(held)[0])
        for kind, fused in (("fused", True), ("separate", False))
    }
    of_memory = LOSS["memory"]
    columns = vocabulary_matrix(model).shard(of_memory["tp"])[1]
    logits_gib = FP32_BYTES * columns * tokens(of_memory["tokens"]) / 2**30
    paper = {kind: LOSS_PAPER[kind]["forward_ms"] + LOSS_PAPER[kind]["backward_ms"] for kind in predicted}
    ratios = paper["separate"] / paper["fused"], predicted["separate"] / predicted["fused"]
    rows = [
        *(
            compared(16, f"{kind}: forward and backward", "ms", paper[kind], predicted[kind])
            for kind in predicted
        ),
        compared(16, "separate over fused", "×", *ratios),
        compared(
            16,
            "fp32 logits of 256K tokens, vocabulary 128K, TP 8",
            "GiB",
            LOSS_PAPER["logits_gib"],
            logits_gib,
        ),
    ]
    return rows_part(FOLDER, "loss", rows, compared=rows)
