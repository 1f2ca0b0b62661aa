"""Figure 5: what uneven micro-batches cost a pipeline whose replicas wait for each other at the end of a step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hdpsim.arrays import Ints
from hdpsim.experiments.papers.bytescale_figures.single_steps import SingleStep, SingleStepJob, static_setup
from hdpsim.experiments.papers.bytescale_steps import BATCH_TOKENS, FOLDER, OWN, SETUP, batches_of, tokens
from hdpsim.experiments.papers.figures import compared
from hdpsim.experiments.papers.paper import Results
from hdpsim.experiments.papers.report import FigureRow, Part, rows_part
from hdpsim.simulator.play.execution import WAITS

SETTING, PAPER = SETUP["figure_5"], FOLDER.published["figure_5"]
STAGES, MICRO_BATCHES, REPLICAS = SETTING["pp"], SETTING["micro_batches"], SETTING["replicas"]
CONTEXTS_TOKENS = tuple(tokens(text) for text in SETTING["contexts"])


def bubble_jobs(batches: int) -> Iterator[SingleStepJob]:
    """Steps of packs at every context, and the one with a single long micro-batch."""
    for context in CONTEXTS_TOKENS:
        yield from _packed(context, batches)
    yield _one_heavier()


def _packed(context_tokens: int, batches: int) -> Iterator[SingleStepJob]:
    """Steps of REPLICAS x MICRO_BATCHES full packs of the data set, in the order in which sequences come."""
    step_tokens = REPLICAS * MICRO_BATCHES * context_tokens
    needed = batches * step_tokens // BATCH_TOKENS + 1
    sequences = np.concatenate(batches_of(SETTING["dataset"], context_tokens, needed))
    ends = np.searchsorted(np.cumsum(sequences), np.arange(batches + 1) * step_tokens)
    for first, last in pairwise(ends.tolist()):
        yield _job(context_tokens, sequences[first:last])


def _one_heavier() -> SingleStepJob:
    """All packs hold the same short sequences, but one of the first replica holds a single long one."""
    context = CONTEXTS_TOKENS[0]
    short = np.full(REPLICAS * MICRO_BATCHES * 32, context // 32, dtype=np.int64)
    return _job(context, np.concatenate(([context], short[32:])))


def _job(context_tokens: int, lengths: Ints) -> SingleStepJob:
    tp = SETTING["tp"]
    layout = {"tp": tp, "pp": STAGES, "cp": 1, "rank_capacity_tokens": context_tokens}
    setup = static_setup(
        OWN, model=SETTING["model"], gpus=tp * STAGES * REPLICAS, context_tokens=context_tokens, **layout
    )
    return SingleStepJob(setup=setup, lengths=tuple(lengths.tolist()))


def bubbles(results: Results) -> Part:
    """Shares of a step that replicas wait for each other and stages for each other, by context."""
    rows: list[FigureRow] = []
    for context, label in zip(CONTEXTS_TOKENS, SETTING["contexts"], strict=True):
        steps: list[SingleStep] = [results.outcomes[job] for job in _packed(context, results.batches)]
        rows.append(
            {
                "context_tokens": context,
                "context": label,
                "steps": len(steps),
                "replicas_percent": 100.0 * float(np.mean([step.share("wait_gradients") for step in steps])),
                "stages_percent": 100.0 * float(np.mean([step.share("wait_pipeline") for step in steps])),
            }
        )
    factor = amplification(results.outcomes[_one_heavier()])
    first = rows[-1]
    values = [
        compared(
            5,
            f"share of a step that replicas wait for the slowest (paper: more than this), context {first['context']}",
            "%",
            PAPER["replicas_above_percent"],
            first["replicas_percent"],
            PAPER["why"],
        ),
        compared(5, "seconds lost over seconds that one micro-batch of one replica is longer on a stage", "×",
                 float(STAGES), factor),
    ]  # fmt: skip
    line = (
        f"One micro-batch that takes 1 s longer on each of {STAGES} stages makes its replica {factor:.2f} s later "
        f"(paper: d_pp = {STAGES} times)."
    )
    return rows_part(FOLDER, "bubbles", rows, lines=(line,), compared=values)


def amplification(step: SingleStep) -> float:
    """How many times what its heavier micro-batch takes longer on a stage the first replica ends later than others."""
    busy_s = np.sum([seconds for name, seconds in step.account_s.items() if name not in WAITS], axis=0)
    wait_s = step.account_s["wait_gradients"]
    longer_s = float((busy_s[0] - busy_s[1]).mean())
    return float((wait_s[1] - wait_s[0]).mean()) / longer_s
