"""Long documents that wait for others of their length: WLB-LLM's queues from one global batch to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hdpsim.arrays import Ints


def delayed_batches(batches: Sequence[Ints], queues: int, context_tokens: int) -> list[Ints]:
    """The batches that train when long documents wait until every micro-batch can get one.

        queue i of n holds documents of context / 2^(n - i + 1) tokens or more, up to those of the next one
        a queue that holds as many as a batch has micro-batches (tokens / context, rounded up) gives one to each

    What leaves a queue joins the batch that filled it; what still waits joins the last batch, so that nothing is lost.
    A batch that would be empty takes what the fullest queue holds.
    The paper tunes the thresholds and prints none: halves of the context are our choice.
    Source: WLB-LLM, arXiv 2503.17924, section 4.2 (multi-level outlier queues).
    """
    least = context_tokens / 2.0 ** np.arange(queues, 0, -1)
    waiting: list[list[int]] = [[] for _ in range(queues)]
    trained = []
    for lengths in batches:
        releases = max(1, -(-int(lengths.sum()) // context_tokens))
        queue = np.searchsorted(least, lengths, side="right") - 1
        now = [lengths[queue < 0]]
        for number, held in enumerate(waiting):
            held += lengths[queue == number].tolist()
            while len(held) >= releases:
                now.append(np.array(held[:releases], dtype=np.int64))
                del held[:releases]
        if not sum(len(part) for part in now):
            fullest = max(waiting, key=len)
            now.append(np.array(fullest, dtype=np.int64))
            fullest.clear()
        trained.append(np.concatenate(now))
    late = np.array([length for held in waiting for length in held], dtype=np.int64)
    return [*trained[:-1], np.concatenate([trained[-1], late])]
