"""How long forwards, backwards and weight gradients take, alone and with the noise of a group's slowest member."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.cost_models.transformer.stages import SPLIT_SCHEDULES
from hdpsim.simulator.plan import Entries
from hdpsim.simulator.play.execution import Noise

from .chain import Chain


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations by virtual stage and micro-batch, of one rank alone and with the slowest member's noise."""

    factors: tuple[Floats, Floats] | None
    """Of each entry's forward and backward, [entries, K]: noise, and what a member of a group takes that is faster
    than its slowest one; None = neither."""
    own: tuple[Floats, Floats, Floats]
    """Forward, backward (weight gradients apart) and weight gradient, [K, micro-batches], without noise."""
    slowest: tuple[Floats, Floats, Floats]
    """Durations times the largest factor of the members."""

    @classmethod
    def of(
        cls, costs: StepCosts, chain: Chain, entries: Entries, way: Ints | None, noise: Noise | None
    ) -> Durations:
        """The durations of the costs under the noise."""
        kinds = chain.kinds(costs.kind)
        forward_s, backward_s = costs.forward_s[kinds], costs.backward_s[kinds]
        weight_s = costs.weight_s[kinds] if costs.schedule in SPLIT_SCHEDULES else np.zeros((1, 1))
        own = (forward_s, backward_s - weight_s if weight_s.any() else backward_s, weight_s)
        if noise is None and costs.members is None:
            return cls(None, own, own)
        factors = _entry_factors(entries, noise or Noise(), chain, way)
        if costs.members is not None:
            rank_kind = costs.members.rank_kind[entries.rank][:, None]
            for factor, share in zip(factors, (costs.members.forward, costs.members.backward), strict=True):
                factor *= share[rank_kind, kinds, entries.micro_batch[:, None]]
        slowest = (_slowest_member(entries.micro_batch, factor, forward_s.shape[1]) for factor in factors)
        forward, backward = slowest
        return cls(factors, own, (own[0] * forward, own[1] * backward, own[2] * backward))

    def factor(self, direction: int, entry: Ints, virtual: Ints) -> Floats | float:
        """The noise of entries' forwards (0) or backwards (1) on virtual stages."""
        return 1.0 if self.factors is None else self.factors[direction][entry, virtual]

    def own_along(self, chain: Chain, entries: Entries) -> Floats:
        """[links, entries]: durations without slower members."""
        assert self.factors is not None
        both = zip(self.own, self.factors, strict=False)  # without weight gradients
        return chain.along(*(own[:, entries.micro_batch] * factor.T for own, factor in both))


def _entry_factors(entries: Entries, noise: Noise, chain: Chain, way: Ints | None) -> tuple[Floats, Floats]:
    """Return the factors of every entry's forward and backward, [entries, virtual stages]."""
    ways = np.zeros(len(entries.micro_batch), dtype=np.int64) if way is None else way[entries.micro_batch]
    stage, chunk = (place[ways, : chain.virtual_stages] for place in (chain.stage, chain.chunk))
    factors = []
    for drawn, lasting in ((noise.forward, noise.forward_stage), (noise.backward, None)):
        factor = np.ones(stage.shape)
        for slowness in (noise.rank_stage, lasting):
            if slowness is not None:
                factor *= slowness[entries.rank[:, None], stage]
        if drawn is not None:
            factor *= drawn[entries.order_index[:, None], stage, chunk]
        factors.append(factor)
    return factors[0], factors[1]


def _slowest_member(micro_batch: Ints, factor: Floats, count: int) -> Floats:
    """Return the largest factor among the entries of each micro-batch, [virtual stages, micro-batches]."""
    slowest = np.zeros((count, factor.shape[1]))
    if len(micro_batch):
        order = np.argsort(micro_batch, kind="stable")
        by_micro_batch = micro_batch[order]
        first = np.flatnonzero(np.diff(by_micro_batch, prepend=-1))
        slowest[by_micro_batch[first]] = np.maximum.reduceat(factor[order], first, axis=0)
    return slowest.T
