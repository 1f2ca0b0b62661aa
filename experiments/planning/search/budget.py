"""How far a search goes: so much counted work, so many seconds, or to its end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hdpsim.cost_models.reading.units import parse_quantity
from hdpsim.errors import QuantityError, UserInputError
from hdpsim.experiments.output.amounts import span
from hdpsim.quoting import quoted

LAYOUT, CANDIDATE, PRICED, DRAWN = 0.01, 0.1, 0.05, 1.0
"""Work in simulated steps: a layout that is refused; a candidate of a layout, bounded and listed; a step of equal
sequences that is priced; the same where GPUs are drawn unequal."""
CHUNKS, DRAFTS = 8, 2.5
"""Chunks of a pipeline that take as long as a step has at least; how much longer hdp-opt takes with all its drafts.

All from timings of six shipped scenarios, where a step took about 0.1 s on one processor: 0.05 to 0.1 without pipeline,
0.9 with 80 chunks. Only the order of a search depends on them, and where it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a search may use; without limits it goes to its end.

    Attributes:
        steps: work, counted in simulated steps of a batch: ends at the same candidate on every machine.
        seconds: time, in which a fast or idle machine gets further.
    """

    steps: float | None = None
    seconds: float | None = None

    @property
    def amount(self) -> float | None:
        """Steps or seconds; None: a search may not end before everything was looked at."""
        return self.steps if self.seconds is None else self.seconds

    @property
    def words(self) -> str:
        """Say how far the budget went, for readers of the result."""
        if self.seconds is not None:
            return f"{span(self.seconds)}, in which another machine may find something else"
        return "to the end" if self.steps is None else f"{self.steps:,.0f} simulated steps, as on any machine"

    @property
    def unit(self) -> str:
        """What progress counts: of a limit how much is used, else layouts."""
        if self.seconds is not None:
            return "s"
        return "layouts" if self.steps is None else "steps"

    def part(self, share: float) -> Budget:
        """A share of it."""
        return replace(
            self,
            steps=None if self.steps is None else self.steps * share,
            seconds=None if self.seconds is None else self.seconds * share,
        )


NO_LIMIT = Budget()


def budget_of(value: str | float | None) -> Budget:
    """What `--budget` says.

    >>> budget_of("500 steps")
    Budget(steps=500.0, seconds=None)
    >>> budget_of("1min").seconds
    60.0

    Raises:
        UserInputError: neither steps nor a time.
    """
    text = "none" if value is None else str(value).strip()
    if text == "none":
        return NO_LIMIT
    count, _, unit = text.replace(",", "").partition(" ")
    if unit.strip() in ("step", "steps") and count.isdecimal():
        return Budget(steps=float(count))
    try:
        seconds = parse_quantity(value, "time") if isinstance(value, str) else float(text)
    except (QuantityError, ValueError):
        seconds = -1.0
    if not seconds >= 0.0:
        money = (
            '; recommend takes money in --target: "300B tokens in 30 days for 20M USD"'
            if "USD" in text
            else ""
        )
        raise UserInputError(
            f"--budget: expected simulated steps (500 steps), a time (60s, 10min) or none, got {quoted(text)}{money}"
        )
    return Budget(seconds=seconds)
