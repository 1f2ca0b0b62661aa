"""A pipeline cut by hand, in the words of Megatron-Core: Et*3|(tt|)*29m|L."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

CUT_WORDS = (
    "what virtual stages hold, as Megatron-Core writes it: E (embedding) first, then t (a layer), m (a layer of "
    "multi-token prediction; none: all are with L), L (output projection and loss) last, | between stages, x*3 and "
    "(..)*3 for repetition, as in Et*3|(tt|)*29m|L"
)
_LONGEST = 100_000  # letters of a cut that is written out
_GROUP, _LETTER = re.compile(r"\(([^()]*)\)\*(\d{1,4})"), re.compile(r"([EtmL|])\*(\d{1,4})")
_WHOLE = re.compile(r"E[t|]*+[m|]*+L")  # what was read stays read: a long text takes as long as it is


class StageWords(NamedTuple):
    """What one virtual stage holds."""

    layers: int
    embedding: bool
    head: bool
    mtp_layers: int


def is_cut(text: str) -> bool:
    """Whether *text* cuts a model into stages: all of its parts in their order."""
    return _written_out(text) is not None


@lru_cache(maxsize=256)
def stages_of(text: str) -> tuple[StageWords, ...]:
    """The virtual stages of a cut, in the order in which a forward visits them.

    Counted: layers of a stage, whichever kind; the output projection of every layer of multi-token prediction is where
    L is, as in Megatron-Core. Ignored: other orders than E, t, m, L, which Megatron-Core refuses, too.
    Source: Megatron-Core, transformer/pipeline_parallel_layer_layout.py (PipelineParallelLayerLayout).
    """
    written = _written_out(text)
    assert written is not None  # a layout has checked it
    return tuple(
        StageWords(
            layers=part.count("t"), embedding="E" in part, head="L" in part, mtp_layers=part.count("m")
        )
        for part in written.split("|")
    )


@lru_cache(maxsize=256)
def _written_out(text: str) -> str | None:
    """The cut letter by letter; None where it is none."""
    written = re.sub(r"[\s,]", "", text)
    for pattern in (_GROUP, _LETTER):
        if sum(len(part) * int(times) for part, times in pattern.findall(written)) > _LONGEST:
            return None
        written = pattern.sub(lambda found: found[1] * int(found[2]), written)
    return written if _WHOLE.fullmatch(written) else None
