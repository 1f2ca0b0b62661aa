"""Operations of different ranks that end together: where all ranks of a stage agree on something after a pass.

* The loss of a micro-batch, averaged over all ranks after its forward on the last virtual stage: the backward that
  follows begins when the forwards of all ranks at that slot have ended.
* The largest elements of 8-bit tensors with delayed scales (blocking maxima): after every forward and backward of a
  stage's chunk all its GPUs reduce them to common ones.

Both are collectives on the stream on which the stage computes: whatever the stage does next, and whoever waits for what
it computed, waits for the last rank. The host does not. A rank without a micro-batch at a slot is not waited for; of a
shared micro-batch the slot on its first member counts.
Source: see cost_models/layer/output_head.py and maxima_s of cost_models/kernels/casts.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.arrays import Ints, offsets_of, ranges
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.simulator.plan import Entries

from .chain import Chain

ALONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonEnds:
    """Which operations end together.

    Attributes:
        meeting: [operations]: whom each ends with; ALONE: nobody else.
        parties: [meetings]: operations of each.
    """

    meeting: Ints
    parties: Ints

    @classmethod
    def of(cls, costs: StepCosts, chain: Chain, entries: Entries, units: int) -> CommonEnds | None:
        """Return the common ends of a plan's units; None where ranks meet nowhere."""
        if costs.meets_after == "step" or not units:
            return None
        slot = np.zeros(units, dtype=np.int64)
        slot[entries.micro_batch[::-1]] = entries.slot[::-1]
        links = np.arange(chain.links)[:, None]
        if costs.meets_after == "loss":
            meeting = np.where(links == chain.virtual_stages - 1, slot, ALONE)
        else:
            meeting = links * (slot.max() + 1) + slot
        return cls(meeting=meeting.ravel(), parties=np.bincount(meeting[meeting != ALONE]))

    def with_whom(self, operation: int) -> Ints:
        """The operations that end together with one."""
        meeting = self.meeting[operation]
        return np.flatnonzero(self.meeting == meeting) if meeting != ALONE else np.array([operation])


class Arrivals:
    """Who has come to the common ends of a step so far."""

    def __init__(self, ends: CommonEnds) -> None:
        self._meeting, self._parties, self._absent = ends.meeting, ends.parties, ends.parties.copy()
        self._operations = np.argsort(ends.meeting, kind="stable")[np.count_nonzero(ends.meeting == ALONE) :]
        self._first = offsets_of(ends.parties)

    def after(self, computed: Ints) -> Ints:
        """Operations that end once these have been *computed*, too."""
        meeting = self._meeting[computed]
        met = meeting != ALONE
        arrived = meeting[met]
        np.subtract.at(self._absent, arrived, 1)
        held = np.unique(arrived[self._absent[arrived] == 0])
        together = self._operations[ranges(self._first[held], self._parties[held])]
        return np.concatenate([computed[~met], together])
