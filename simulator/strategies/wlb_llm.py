"""WLB-LLM's variable-length packing: micro-batches of equal work, not of equal length."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats, Ints


def balanced_packs(lengths: Ints, work: Floats, packs: int, most_tokens: float) -> Ints:
    """The pack of every sequence, longest first: the one with the least work, if the sequence fits it.

        pack = that of least work       if its tokens + length <= most_tokens
               that of fewest tokens    else, if the sequence fits there
        What fits neither goes to the pack of least work when all others are placed, however full that is.

    Ties go to the lower number. *work*: of every sequence, in any unit.
    Source: WLB-LLM, arXiv 2503.17924, section 4, without its delay; hao-ai-lab/distca, tests/test_e2e_combined.py
    (what fits neither is placed by work alone).
    """
    load, tokens = np.zeros(packs), np.zeros(packs, dtype=np.int64)
    chosen = np.empty(len(lengths), dtype=np.int64)

    def place(sequence: int, pack: int) -> None:
        chosen[sequence] = pack
        load[pack] += work[sequence]
        tokens[pack] += lengths[sequence]

    unplaced = []
    for sequence in np.argsort(-lengths, kind="stable").tolist():
        room = most_tokens - lengths[sequence]
        lightest, shortest = int(load.argmin()), int(tokens.argmin())
        if tokens[lightest] <= room:
            place(sequence, lightest)
        elif tokens[shortest] <= room:
            place(sequence, shortest)
        else:
            unplaced.append(sequence)
    for sequence in unplaced:
        place(sequence, int(load.argmin()))
    return chosen
