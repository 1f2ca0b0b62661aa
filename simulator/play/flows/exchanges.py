"""Transfers that hold stages (pp_overlap off): each begins when its sender and its receiver have come to it.

See pipeline/extras.py. A transfer is an activity of one rank, from the moment when both ends have run the batch before
it; the receiver's batch and the sender's next one wait for its end. Several transfers of one exchange run at the same
time and share what they share; together they take at least as long as one after the other while nothing else is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpsim.simulator.play.pipeline.program import Program


@dataclass(slots=True, kw_only=True)
class HeldTransfers:
    """Transfers of one step that hold their stages. Lists over transfers.

    Attributes:
        rank: whose transfer it is.
        result: the operation whose result is sent.
        waiting: operations that begin when it is over, each with the end of the other side's batch before it.
        missing: ends of batches it still waits for.
        behind: by operation: transfers that its end lets begin.
    """

    rank: list[int]
    result: list[int]
    waiting: list[list[tuple[int, int]]]
    missing: list[int]
    behind: dict[int, list[int]]

    @classmethod
    def of(cls, program: Program) -> HeldTransfers | None:
        """The held transfers of a step; None: transfers hold nobody."""
        if program.extras is None or program.extras.exchanges is None:
            return None
        exchanges, operation = program.extras.exchanges, program.part_operation
        left, takes = operation[exchanges.left], operation[exchanges.takes]
        came, goes_on = exchanges.came, exchanges.goes_on
        came = np.where(came >= 0, operation[came], left)
        behind: dict[int, list[int]] = {}
        waiting: list[list[tuple[int, int]]] = []
        for transfer, (sent, met, first) in enumerate(
            zip(left.tolist(), came.tolist(), takes.tolist(), strict=True)
        ):
            for number in {sent: None, met: None}:
                behind.setdefault(number, []).append(transfer)
            waiting.append([(first, sent)])
        for transfer in np.flatnonzero(goes_on >= 0).tolist():
            waiting[transfer].append((int(operation[goes_on[transfer]]), int(came[transfer])))
        return cls(
            rank=(exchanges.process % program.ranks).tolist(),
            result=exchanges.result.tolist(),
            waiting=waiting,
            missing=(1 + (came != left)).tolist(),
            behind=behind,
        )

    def ready_behind(self, operation: int) -> list[int]:
        """Transfers that begin with the end of an operation; ask once for each."""
        ready = []
        for transfer in self.behind.get(operation, ()):
            self.missing[transfer] -= 1
            if not self.missing[transfer]:
                ready.append(transfer)
        return ready
