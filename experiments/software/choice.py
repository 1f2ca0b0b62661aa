"""`software:` of a scenario as text: a stack of the catalog and a release of it, or a year."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hdpsim.experiments.software.rules import (
    Stack,
    release_number,
    release_of_year,
    stacks,
)
from hdpsim.quoting import did_you_mean

_TEXT = re.compile(r"(?P<name>[A-Za-z][\w-]*)(?: +v?(?P<release>\d+(?:\.\d+)*))?(?P<more> +with .+)?")
_YEAR = re.compile(r"(19|20)\d\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A stack of the catalog in one release.

    Attributes:
        framework: how a record would write it, with what the scenario says after `with`.
        words: what follows `with`.
        year: in which the release came out, or the newest known one that is not newer; or the year that is named.
        known_release: that release; of a year its usual one.
        others: where no release is said, those of the same year.
    """

    name: str
    release: str
    framework: str
    words: str
    year: int
    known_release: str
    release_said: bool
    others: tuple[str, ...] = ()

    def of_release(self, release: str) -> Software:
        """Return the choice of the same stack in another release."""
        return read_software(f"{self.name} {release} {self.words}".strip())

    @property
    def shown(self) -> str:
        """The choice as a scenario writes it."""
        return f"{self.name} {self.release}"


def software_names() -> tuple[str, ...]:
    """Every stack that a scenario may name."""
    return tuple(sorted(name for stack in stacks() for name in stack.frameworks))


def read_software(text: str) -> Software:
    """Read "megatron-core 0.13", "torchtitan 2.8 with torch.compile", "nemo 2024".

    Without a release the newest known one counts. A year stands for a record that states no more than framework and
    year. What follows `with` is matched by the rules as the words of a record's framework are.

    Raises:
        ValueError: an unknown stack, or a release before all known ones.
    """
    folded = re.sub("[ _]", "-", text.strip().lower())
    known_name = max((name for name in software_names() if folded.startswith(name)), key=len, default="")
    parts = _TEXT.fullmatch(known_name + text.strip()[len(known_name) :])
    known = ", ".join(software_names())
    if parts is None:
        raise ValueError(
            f"expected a stack and its release, such as megatron-core 0.13, got {text!r}; known: {known}"
        )
    name = parts["name"].lower()
    stack = next((stack for stack in stacks() if name in stack.frameworks), None)
    if stack is None:
        raise ValueError(f"unknown software {name!r}{did_you_mean(name, software_names())}; known: {known}")
    release = parts["release"] or max(stack.releases, key=release_number)
    of_a_year = _is_year(stack, release)
    if of_a_year and int(release) < min(year for one in stacks() for year in one.releases.values()):
        years = ", ".join(f"{other} ({year})" for other, year in stack.releases.items())
        raise ValueError(f"{name} had no release by {release}; known are {years}")
    counting = release_of_year(stack, int(release)) if of_a_year else _known_release(stack, name, release)
    written, words = stack.frameworks[name], parts["more"] or ""
    alone = written.split()[0]
    if of_a_year and alone.lower() == name:
        framework = alone  # rules take the usual release of its year, as they do of a record
    else:
        framework = written.format(release=counting if of_a_year else release)
    said = parts["release"] is not None and not of_a_year
    alike = sorted(other for other, year in stack.releases.items() if year == stack.releases[counting])
    return Software(
        name=name,
        release=release,
        framework=framework + words,
        words=words.strip(),
        year=int(release) if of_a_year else stack.releases[counting],
        known_release=counting,
        release_said=said,
        others=() if said else tuple(other for other in alike if other != counting),
    )


def _is_year(stack: Stack, release: str) -> bool:
    """Whether a text is a year and no release of the stack."""
    return _YEAR.fullmatch(release) is not None and release not in stack.releases


def _known_release(stack: Stack, name: str, release: str) -> str:
    """The newest known release that is not newer."""
    known = sorted(stack.releases, key=release_number)
    before = [other for other in known if release_number(other) <= release_number(release)]
    if not before:
        raise ValueError(
            f"{name} {release} is older than the releases of {stack.name} that are known: {', '.join(known)}"
        )
    return before[-1]
