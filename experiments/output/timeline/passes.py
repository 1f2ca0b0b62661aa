"""What a timeline says of a pass besides its times: its sequences, its group, and what it spends its time on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.play.pipeline.schedules import BACKWARD, BACKWARD_WEIGHT, FORWARD

PARTS = {
    "attention": ("attention", "ring_merge"),
    "ring": ("ring_wait",),
    "GEMM": ("gemm", "logits"),
    "tensor parallel": ("tp_communication",),
    "experts": ("expert_all_to_all",),
    "parameters": ("layer_gather", "layer_reduce"),
    "recompute": ("recompute",),
    "other": ("small_kernels", "offload_wait", "host"),
}
"""Slices inside a pass, and the terms of each."""
WAIT = "wait"
"""What a pass lasts longer than its own terms: a slower member of its group or meeting, noise."""
LENGTHS_SHOWN = 12


NAMES = {FORWARD: "forward", BACKWARD: "backward", BACKWARD_WEIGHT: "weight gradient"}


@dataclass(frozen=True, slots=True)
class Passes:
    """The micro-batches of a step.

    Attributes:
        arguments: of every micro-batch, its tokens, lengths and ranks as the inside of a JSON object.
        names: of the parts.
        part_ns: [ops, parts, K, n]: nanoseconds of each part of a forward, a backward and a weight gradient.
        kind: [S, V]: which row K a chunk of a stage is.
    """

    arguments: list[str]
    names: tuple[str, ...]
    part_ns: dict[int, Floats]
    kind: Ints

    @classmethod
    def of(cls, plan: Plan, costs: StepCosts, parts: Mapping[str, Sequence[str]] = PARTS) -> Passes:
        """The passes of a priced plan; *parts*: what they are divided into, and the terms of each part."""
        weights = costs.weight_terms_s
        terms = {FORWARD: costs.forward_terms_s, BACKWARD: costs.backward_terms_s}
        if weights is not None:
            terms |= {BACKWARD: costs.backward_terms_s - weights, BACKWARD_WEIGHT: weights}
        rows = [
            [costs.terms.index(term) for term in names if term in costs.terms] for names in parts.values()
        ]
        part_ns = {
            op: 1e9 * np.stack([seconds[row].sum(axis=0) for row in rows]) for op, seconds in terms.items()
        }
        return cls(_arguments(plan), tuple(parts), part_ns, costs.kind)

    def parts(
        self, op: int, stage: int, chunk: int, number: int, start_ns: int, end_ns: int
    ) -> Iterator[tuple[str, int, int]]:
        """Name, begin and end of the parts of a pass, one after the other; their order inside a layer is not told."""
        every = self.part_ns[op][:, self.kind[stage, chunk], number]
        own_ns = float(every.sum())
        # Of a pass that noise makes shorter than its terms all parts shrink alike.
        shrunk = min(1.0, (end_ns - start_ns) / own_ns) if own_ns > 0.0 else 0.0
        at_ns = start_ns
        for name, end in zip(self.names, (start_ns + shrunk * np.cumsum(every)).tolist(), strict=True):
            until_ns = min(round(end), end_ns)
            if until_ns > at_ns:
                yield name, at_ns, until_ns
            at_ns = until_ns
        if end_ns - at_ns > 1:
            yield WAIT, at_ns, end_ns


def telling_ranks(work: Floats) -> list[int]:
    """Places of the ranks that tell most, by their *work*: the one with most, with least, and the median one."""
    by_work = np.argsort(-work, kind="stable")
    return list(dict.fromkeys(by_work[[0, -1, len(by_work) // 2]].tolist()))


def _arguments(plan: Plan) -> list[str]:
    texts = []
    offsets, members = plan.segment_offsets.tolist(), plan.member_offsets.tolist()
    for number in range(plan.micro_batches):
        lengths = np.sort(plan.segment_tokens[offsets[number] : offsets[number + 1]])[::-1]
        ranks = plan.member_ranks[members[number] : members[number + 1]]
        shown = ", ".join(str(length) for length in lengths[:LENGTHS_SHOWN].tolist())
        more = len(lengths) - LENGTHS_SHOWN
        text = json.dumps({
            "tokens": int(lengths.sum()), "sequences": len(lengths),
            "lengths": shown + (f" and {more} more" if more > 0 else ""),
            "ranks": _words(ranks), "group": len(ranks), "offloaded": round(float(plan.offload_ratio[number]), 3),
        })  # fmt: skip
        texts.append(text[1:-1])
    return texts


def _words(ranks: Ints) -> str:
    """`0-7, 12`."""
    cuts = np.flatnonzero(np.diff(ranks) > 1) + 1
    runs = np.split(ranks, cuts)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
