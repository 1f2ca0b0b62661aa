"""Figure 4, how lengths are spread, and the packs of Figure 6b, whose work is as uneven as their lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hdpsim.arrays import Floats
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.kernels.attention import ATTENTION_BACKWARD_FLOP_RATIO
from hdpsim.cost_models.transformer.model import Model
from hdpsim.experiments.papers.bytescale_steps import FOLDER, SETUP, batches_of, tokens
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.paper import Results
from hdpsim.experiments.papers.report import FigureRow, Part, rows_part
from hdpsim.simulator.strategies.static.packing import pack

SHARES, PACKS = FOLDER.published["figure_4"], FOLDER.published["figure_6"]["packs"]
LONGEST_TOKENS = tokens(SETUP["figure_4"]["longest"])
FULL_PAIR_FLOP = 4.0  # scores and values, a multiply-add each, per query-key pair and unit of width


def lengths(results: Results) -> Part:
    """Shares of tokens and of sequences by length, as sampled for all predictions."""
    rows: list[FigureRow] = []
    values: list[FigureRow] = []
    for dataset, published in SHARES.items():
        sampled = np.concatenate(batches_of(dataset, LONGEST_TOKENS, results.batches))
        for entry in published:
            above = tokens(entry["above"]) if "above" in entry else 0
            up_to = tokens(entry["up_to"]) if "up_to" in entry else LONGEST_TOKENS
            inside = sampled[(sampled > above) & (sampled <= up_to)]
            of_tokens = entry["of"] == "tokens"
            share = float(inside.sum() / sampled.sum()) if of_tokens else len(inside) / len(sampled)
            what = f"{dataset}: {entry['of']} in {entry.get('above', '0')} to {entry.get('up_to', '2M')}"
            value = compared(4, what.replace(" tokens", ""), "%", entry["percent"], 100.0 * share)
            values.append(value)
            bucket = {"up_to_tokens": up_to, "bucket": entry.get("bucket", False)}
            rows.append({"dataset": dataset, **value, **bucket})
    return rows_part(FOLDER, "lengths", rows, compared=values)


def packs(results: Results) -> Part:
    """FLOP of attention in packs of short contexts, filled at random: spread over micro-batches of one step."""
    setting, grid = SETUP["figure_6"]["packs"], np.array(PACKS["tera_flop"])
    context, per_step = tokens(setting["context"]), grid.size
    work = pack_flop(catalog.model(setting["model"]), setting["dataset"], context, results.batches) / 1e12
    steps = work[: len(work) // per_step * per_step].reshape(-1, per_step)
    paper, reason = grid.ravel(), SETUP["figure_6"]["packs"]["why"]
    figures: tuple[tuple[str, str, Callable[[Floats], float], str], ...] = (
        ("mean", "TFLOP", np.mean, ""),
        ("largest", "TFLOP", np.max, ""),
        ("smallest", "TFLOP", np.min, reason),
        ("largest over mean", "×", lambda step: float(step.max() / step.mean()), ""),
    )
    rows = [
        compared(
            6,
            f"6b, packs of one step: {what}",
            unit,
            float(of(paper)),
            float(np.mean([of(s) for s in steps])),
            why,
        )
        for what, unit, of, why in figures
    ]
    return rows_part(FOLDER, "packs", rows, compared=rows)


def pack_flop(model: Model, dataset: str, context_tokens: int, batches: int) -> Floats:
    """FLOP of one layer's attention in every full pack of *context_tokens*, sequences in random order.

    2.5 + 1 passes of 4 h s^2 for every sequence, as the figure counts: scores that a causal mask drops included
    """
    sequences = np.concatenate(batches_of(dataset, context_tokens, max(1, batches // 4)))
    pieces = pack(sequences, context_tokens, "in-order")
    squares = np.bincount(pieces.micro_batch, weights=pieces.tokens.astype(np.float64) ** 2)
    passes = 1.0 + ATTENTION_BACKWARD_FLOP_RATIO
    return np.asarray(passes * FULL_PAIR_FLOP * model.heads * model.head_dim * squares)
