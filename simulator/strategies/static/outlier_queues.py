"""Long documents that wait for others of their length: WLB-LLM's queues from one global batch to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Ints

if TYPE_CHECKING:
    from hdpsim.simulator.setup import Setup


class OutlierQueues:
    """Long documents that wait until every micro-batch can get one.

        queue i of n holds documents of context / 2^(n - i + 1) tokens or more, up to those of the next one
        a queue that holds as many as a batch has micro-batches (tokens / context, rounded up) gives one to each

    What leaves a queue joins the batch that filled it. A batch that would be empty takes what the fullest queue holds.
    The paper tunes the thresholds and prints none: halves of the context are our choice.
    Source: WLB-LLM, arXiv 2503.17924, section 4.2 (multi-level outlier queues).
    """

    def __init__(self, queues: int, context_tokens: int) -> None:
        self._context_tokens = context_tokens
        self._least = context_tokens / 2.0 ** np.arange(queues, 0, -1)
        self._waiting: list[list[int]] = [[] for _ in range(queues)]

    @classmethod
    def of(cls, setup: Setup) -> OutlierQueues | None:
        """The empty queues of a setup's strategy; None: it has none."""
        queues = setup.strategy.outlier_queues
        return cls(queues, setup.context_tokens) if setup.strategy.name == "wlb-llm" and queues else None

    @property
    def waiting(self) -> Ints:
        """Documents that wait, shorter queues first."""
        return np.array([length for held in self._waiting for length in held], dtype=np.int64)

    def batch(self, lengths: Ints) -> Ints:
        """What trains when these documents come."""
        releases = max(1, -(-int(lengths.sum()) // self._context_tokens))
        queue = np.searchsorted(self._least, lengths, side="right") - 1
        now = [lengths[queue < 0]]
        for number, held in enumerate(self._waiting):
            held += lengths[queue == number].tolist()
            while len(held) >= releases:
                now.append(np.array(held[:releases], dtype=np.int64))
                del held[:releases]
        if not sum(len(part) for part in now):
            fullest = max(self._waiting, key=len)
            now.append(np.array(fullest, dtype=np.int64))
            fullest.clear()
        return np.concatenate(now)


def delayed_batches(batches: Sequence[Ints], queues: int, context_tokens: int) -> list[Ints]:
    """The batches that train; what still waits joins the last one, so that nothing is lost."""
    waiting = OutlierQueues(queues, context_tokens)
    trained = [waiting.batch(lengths) for lengths in batches]
    return [*trained[:-1], np.concatenate([trained[-1], waiting.waiting])]
