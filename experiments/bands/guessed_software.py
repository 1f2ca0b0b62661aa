"""Bands of runs whose software is named or not even that: what it does was guessed, and the band holds the guess.

A published run says which release it ran, which graphs, which overlap, which recomputation. A run of one's own often
does not, and rules guess. What a wrong guess costs shows in published runs that are predicted once more without these
words: their residuals hold the error of the model and that of the guess. A run whose software is guessed gets its
band from these.

Guesses are good for some kinds of runs and bad for others, so the stretch of a band is local:

    stretch = TARGET quantile of what records need, each with the weight exp(-distance / LOCAL) x quality,
              and of what they need when their whole source is left out, all together with the weight NEW

Near many records it is what these need; far from all it is what runs of a new source need.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hdpsim.arrays import Bools, Floats
from hdpsim.experiments.bands.band import Residual, Residuals, Stretches, weighted_level

LOCAL = 0.25  # distance at which a record's say in the stretch has fallen to 1/e
NEW = 0.3  # the say of all sources left out, as records at no distance


class GuessedResiduals(Residuals):
    """Validated runs as they are predicted from the name of their software alone."""

    about = "no release of its software is stated"

    def __init__(
        self, rows: Sequence[Residual], needed_alone: Floats | None = None, needed_new: Floats | None = None
    ) -> None:
        """*needed_alone*, *needed_new*: what every row needs; None: found, which takes seconds for a thousand rows."""
        super().__init__(rows, Stretches(new=1.0, known={}))
        if needed_alone is not None and needed_new is not None:
            self.needed_alone, self.needed_new = needed_alone, needed_new

    def stretch(self, source: str, left_out: Bools, distance: Floats) -> float:
        """What runs like this one need, whoever measured it."""
        del source
        weight = self.quality * ~left_out
        if not weight.any():
            return 1.0
        of_sources = weight / self._of_source
        weights = (np.exp(-distance / LOCAL) * weight, NEW * of_sources / of_sources.sum())
        return weighted_level(np.concatenate((self.needed_alone, self.needed_new)), np.concatenate(weights))
