"""Patterns of hybrid models: a letter for every layer, repetitions written short."""

from __future__ import annotations

import re
from functools import lru_cache

LETTERS = {"M": "Mamba-2", "*": "attention", "-": "MLP", "E": "mixture of experts"}
"""Megatron-Core's: Symbols in megatron/core/ssm/mamba_hybrid_layer_allocation.py."""
MOST_LAYERS = 10_000  # of a pattern written out
_TOKEN = re.compile(r"(\d*)([M*E(-])|(\))")


class PatternError(ValueError):
    """A text that is no pattern; the message says why."""


@lru_cache(maxsize=256)
def written_out(pattern: str) -> str:
    """The letters of *pattern*, one for every layer: "3(ME)2M*" is "MEMEMEMM*".

    Raises:
        PatternError: an unknown letter, a bracket without its partner, or more than MOST_LAYERS layers.
    """
    open_parts: list[tuple[int, str]] = []
    letters, place = "", 0
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        if token is None:
            known = ", ".join(f"{letter} {what}" for letter, what in LETTERS.items())
            raise PatternError(
                f"has {pattern[place]!r} at place {place + 1}; letters are {known}; a number before a letter or before "
                "(...) repeats it"
            )
        times = min(int(token[1][:9]), MOST_LAYERS + 1) if token[1] else 1
        if token[3]:
            if not open_parts:
                raise PatternError(f"closes a bracket at place {place + 1} that was not opened")
            outer_times, outer = open_parts.pop()
            letters = _repeated(outer, letters, outer_times)
        elif token[2] == "(":
            open_parts.append((times, letters))
            letters = ""
        else:
            letters = _repeated(letters, token[2], times)
        place = token.end()
    if open_parts:
        raise PatternError("opens a bracket that is not closed")
    return letters


def _repeated(before: str, part: str, times: int) -> str:
    if len(before) + len(part) * times > MOST_LAYERS:
        raise PatternError(f"has more than {MOST_LAYERS:,} layers")
    return before + part * times
