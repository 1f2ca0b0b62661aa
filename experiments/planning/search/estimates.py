"""What candidates and layouts of a search are expected to take, corrected by what their relatives took."""

from __future__ import annotations

from math import log

Kind = tuple[object, ...]
"""What a candidate's strategy has in common with the candidates of other layouts."""
Family = tuple[object, ...]
"""What a layout has in common with layouts whose estimates are off by about as much."""

ROUNDS = 8
"""Of fitting families to kinds and kinds to families: more change nothing that the order of a search would notice."""


class Means:
    """Running means by key."""

    def __init__(self) -> None:
        self._sums: dict[object, tuple[float, int]] = {}
        self._all = (0.0, 0)

    def add(self, key: object, value: float) -> None:
        """Count one more value of a key."""
        total, count = self._sums.get(key, (0.0, 0))
        self._sums[key] = total + value, count + 1
        self._all = self._all[0] + value, self._all[1] + 1

    def get(self, key: object, default: float) -> float:
        """The mean of what was seen of a key."""
        total, count = self._sums.get(key, (default, 1))
        return total / count

    def drawn(self, key: object, towards: float) -> float:
        """The mean of a key as if *towards* had been seen once more."""
        total, count = self._sums.get(key, (0.0, 0))
        return (total + towards) / (count + 1)

    @property
    def overall(self) -> float:
        """The mean of all values; 0 where there are none."""
        return self._all[0] / max(1, self._all[1])

    @property
    def least(self) -> float:
        """The least mean of a key; 0 where there is none."""
        return min((total / count for total, count in self._sums.values()), default=0.0)


class Estimates:
    """Steps of the first batch: what is known of them beforehand, corrected by what relatives took.

        ln step of a candidate = ln guess + correction of the strategy's kind + correction of the family of layouts
        ln step of a layout = ln rough step + mean of ln(best guess / rough step) in the family + the same corrections

    The corrections explain together what was seen, with the least squares of what they leave. Those of families are
    drawn towards the best one's as if one more had been seen. What was not seen yet, family or kind, counts as the
    best that was, and so does the kind of a layout: each is tried early.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[Family, Kind | None, float]] = []
        self._kinds, self._families, self._layouts = Means(), Means(), Means()

    @property
    def has_replays(self) -> bool:
        """Whether any candidate was replayed."""
        return bool(self._seen)

    def learn(self, family: Family, kind: Kind | None, guess_s: float, step_s: float) -> None:
        """Take over what a candidate took."""
        self._seen.append((family, kind, log(step_s / guess_s)))
        for _ in range(ROUNDS):
            families, kinds = Means(), Means()
            for candidate_family, its_kind, off in self._seen:
                families.add(candidate_family, off - self._kinds.get(its_kind, 0.0))
            for candidate_family, its_kind, off in self._seen:
                kinds.add(its_kind, off - families.get(candidate_family, 0.0))
            self._families, self._kinds = families, kinds

    def opened(self, family: Family, rough_s: float, guess_s: float) -> None:
        """Take over the best guess of a layout's candidates."""
        self._layouts.add(family, log(guess_s / rough_s))

    def correction(self, family: Family, kind: Kind | None) -> float:
        """Of the logarithm of a guess; *kind* None: of the rough estimate of a layout."""
        known = self._kinds.get(kind, self._kinds.least) + self._families.drawn(family, self._families.least)
        return known if kind is not None else known + self._layouts.drawn(family, self._layouts.overall)
