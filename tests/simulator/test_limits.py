"""What a plan may ask for: refused with the limit before anything is planned."""

from __future__ import annotations

import numpy as np
import pytest
from simulator_setups import small_setup

from hdpsim.errors import InfeasibleError
from hdpsim.ranges import LIMITS
from hdpsim.simulator.planning import plan_batch


def test_more_ranks_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup()
    lengths = np.full(8, 512)
    monkeypatch.setitem(LIMITS, "ranks", (setup.ranks, "a test"))  # type: ignore[arg-type]
    plan_batch(setup, lengths)
    monkeypatch.setitem(LIMITS, "ranks", (setup.ranks - 1, "a test"))  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError, match=rf"{setup.ranks} ranks .* at most {setup.ranks - 1}: a test"):
        plan_batch(setup, lengths)
