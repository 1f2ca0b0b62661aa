"""The table of checks: what may waste time in a step, what it costs, and what may help.

The table is experiments/data/checks.yaml. Seconds come from the accounts of the step, or from the difference to the
same step without the waste. Remedies are candidates only: `check` simulates every one and recommends what gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.yaml_loader import load_yaml

from . import remedies as computed
from .facts import Facts
from .observed import halves

if TYPE_CHECKING:
    from .observed import Observed
    from .trials import Changes

HIDDEN_BY_OTHERS = 0.005
"""Share of a step below which a waste is not worth a word."""

_TABLE: Mapping[str, Any] = load_yaml(shipped("experiments/data/checks.yaml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One kind of waste; see the table.

    Attributes:
        name: of its findings.
        seen: what is lost there, a sentence without its seconds.
        remedies: what may help.
        accounts: of the step, whose seconds are lost; or
        saved_by: changes without which they are lost; or
        most_saved: those that the best remedy saves are lost; or
        lost: a fact says how many.
        needs: a fact without which, or with "not " with which, the check is not about a scenario.
    """

    name: str
    seen: str
    remedies: Sequence[str | Mapping[str, object]]
    accounts: tuple[str, ...] = ()
    saved_by: Mapping[str, object] | None = None
    most_saved: bool = False
    lost: str = ""
    needs: str = ""

    @property
    def of_step(self) -> bool:
        """Whether a step alone tells the seconds, and no other one has to be simulated for them."""
        return self.saved_by is None and not self.most_saved

    def seconds(self, observed: Observed) -> float:
        """What a step loses."""
        needed = self.needs.removeprefix("not ")
        if needed and bool(Facts(observed)[needed]) == self.needs.startswith("not "):
            return 0.0
        if self.saved_by is not None:
            return observed.saved_s(self.saved_by)
        if self.most_saved:
            return max(map(observed.saved_s, self.candidates(observed)), default=0.0)
        return float(Facts(observed)[self.lost]) if self.lost else observed.seconds_in(*self.accounts)

    def candidates(self, observed: Observed) -> Iterator[Changes]:
        """Changes that may help."""
        return _candidates(self.remedies, observed)

    def words(self, observed: Observed) -> str:
        """What is lost there."""
        return self.seen.format_map(Facts(observed))


def _candidates(remedies: Iterable[str | Mapping[str, object]], observed: Observed) -> Iterator[Changes]:
    for remedy in remedies:
        if isinstance(remedy, Mapping):
            yield from _alternatives(remedy, observed)
        elif remedy in _TABLE["remedies"]:
            yield from _candidates(_TABLE["remedies"][remedy], observed)
        else:
            yield from getattr(computed, remedy)(observed)


def _alternatives(remedy: Mapping[str, object], observed: Observed) -> Iterator[Changes]:
    """One candidate for every value that the keys may have."""
    are = {
        "static": observed.is_static,
        "hdp": not observed.is_static,
        "experts": observed.setup.model.experts,
    }
    changes = dict(remedy)
    if not are.get(str(changes.pop("only", "")), True):
        return
    axes = [[(key, value) for value in _values(key, given, observed)] for key, given in changes.items()]
    yield from map(dict, product(*axes))


def _values(key: str, given: object, observed: Observed) -> Iterator[object]:
    if isinstance(given, list):
        for given_value in given:
            yield from _values(key, given_value, observed)
    elif given == "halves":
        yield from halves(observed.value(key) or 1)
    elif isinstance(given, str) and given.startswith("x") and given != "x":
        yield from (capacity[key] for capacity in observed.capacities(float(given[1:])))
    else:
        yield given


CHECKS = tuple(
    Check(name=name, **{**given, "accounts": tuple(given.get("accounts", ()))})
    for name, given in _TABLE["checks"].items()
)
