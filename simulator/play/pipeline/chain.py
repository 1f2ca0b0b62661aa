"""The way of a micro-batch through the stages: a chain of operations, each fed by the one before it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hdpsim.arrays import Bools, Floats, Ints
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.transformer.stages import virtual_stage_table

from .schedules import FORWARD


class Chain(NamedTuple):
    """Forwards down the virtual stages, backwards up again. Arrays are by way and link, shared and read-only.

    Merged, the forward and the backward on the last virtual stage are one link, because the schedule runs them
    back to back, unless ranks meet between them. DualPipe has two ways, from either end; all others have one.
    """

    virtual_stages: int
    """Virtual stages that a micro-batch visits."""
    merged: bool
    stage: Ints
    """[ways, links]"""
    chunk: Ints
    """[ways, links]"""
    sends: Bools
    """[links]: whether the result goes to another stage."""

    @property
    def links(self) -> int:
        """Operations of a micro-batch, weight gradients apart."""
        return len(self.sends)

    @property
    def virtual(self) -> Ints:
        """[links]: the virtual stage."""
        link = np.arange(self.links)
        return np.minimum(link, self.links - 1 - link)

    @property
    def forward(self) -> Bools:
        """[links]: whether it is a forward (or the merged one)."""
        return np.arange(self.links) < self.virtual_stages

    def kinds(self, kind: Ints) -> Ints:
        """[virtual stages]: the kind of stage that each is, from *kind* by stage and chunk."""
        first = slice(0, self.virtual_stages)
        return kind[self.stage[0, first], self.chunk[0, first]]

    def link_of(self, op: Ints, virtual: Ints) -> Ints:
        """The link of a forward or backward on a virtual stage."""
        return np.where(op == FORWARD, virtual, self.links - 1 - virtual)

    def has_link(self, op: Ints, virtual: Ints) -> Bools:
        """Whether forwards and backwards are links of their own: the merged backward is part of its forward."""
        separate = (virtual != self.virtual_stages - 1) | (not self.merged)
        return np.asarray((op == FORWARD) | separate)

    def along(self, forward: Floats, backward: Floats) -> Floats:
        """Durations along the chain, from those of the virtual stages (axis 0)."""
        if not self.merged:
            return np.concatenate([forward, backward[::-1]])
        return np.concatenate([forward[:-1], forward[-1:] + backward[-1:], backward[:-1][::-1]])


@lru_cache(maxsize=256)
def make_chain(schedule: Schedule, stages: int, chunks: int, *, meets: bool = False) -> Chain:
    """The chain of a schedule; *meets*: whether ranks meet after forwards (StepCosts.meets_after)."""
    table = np.array(virtual_stage_table(schedule, stages, chunks), dtype=np.int64)
    ways = 2 if schedule == "dualpipe" else 1
    count = stages * chunks // ways
    merged = schedule != "dualpipe" and not meets
    stage, chunk = np.empty((2, ways, count), dtype=np.int64)
    at_stage, at_chunk = np.indices(table.shape)
    way = at_chunk if ways == 2 else np.zeros_like(at_chunk)
    stage[way, table], chunk[way, table] = at_stage, at_chunk
    back = slice(-2, None, -1) if merged else slice(None, None, -1)
    stage, chunk = (np.concatenate([part, part[:, back]], axis=1) for part in (stage, chunk))
    sends = np.zeros(stage.shape[1], dtype=np.bool_)
    sends[:-1] = stage[0, 1:] != stage[0, :-1]
    for array in (stage, chunk, sends):
        array.setflags(write=False)
    return Chain(count, merged, stage, chunk, sends)
