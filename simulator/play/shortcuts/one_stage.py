"""Ranks of one stage are played in one pass: an operation is played as soon as the last of its members has come.

Pipelines find the waves of a plan first and keep them (see waves). Here finding them takes as long as playing.
"""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Floats, Ints, ranges
from hdpsim.simulator.play.pipeline.deadlock import deadlock_error
from hdpsim.simulator.play.pipeline.program import Program


def is_one_stage(program: Program) -> bool:
    """Whether operations wait for their members and for nothing else: forward and backward are one, of one stage."""
    return program.chain.links == 1


def play_one_stage(program: Program, opening_s: Floats) -> tuple[Floats, Floats, Floats]:
    """When the stage opens at *opening_s*: start and end of every operation (NaN: nobody runs it), end of every rank.

    Raises:
        DeadlockError: some operations can never start.
    """
    plan, sizes, missing = program.plan, program.plan.group_size, program.parties.copy()
    part_operation, at, last = (
        program.part_operation,
        program.part_offsets[:-1].copy(),
        program.part_offsets[1:],
    )
    free_s = np.repeat(opening_s, program.ranks)  # of each rank: when it got to the operation it is at
    start_s, end_s = np.zeros(program.units), np.full(program.units, np.nan)
    winner = np.empty(program.units, dtype=np.int64)
    arrived = np.flatnonzero(at < last)
    while len(arrived):
        operation = part_operation[at[arrived]]
        shared = sizes[operation] > 1
        alone, runs = operation[~shared], arrived[~shared]
        start_s[alone] = free_s[runs]
        end_s[alone] = free_s[runs] = free_s[runs] + program.operation_s[alone]
        if len(alone) < len(operation):
            meeting, comes = operation[shared], arrived[shared]
            np.maximum.at(start_s, meeting, free_s[comes])
            np.subtract.at(missing, meeting, 1)
            met = _once(meeting[missing[meeting] == 0], winner)
            end_s[met] = start_s[met] + program.operation_s[met]
            members = plan.member_ranks[ranges(plan.member_offsets[met], sizes[met])]
            free_s[members] = end_s[met].repeat(sizes[met])
            runs = np.concatenate([runs, members])
        at[runs] += 1
        arrived = runs[at[runs] < last[runs]]
    if np.any(at < last):
        raise deadlock_error(program, ~np.isnan(end_s))
    return start_s, end_s, free_s


def _once(operations: Ints, winner: Ints) -> Ints:
    """Each operation once, though several members arrived: the last one to write its place stays."""
    place = np.arange(len(operations))
    winner[operations] = place
    once: Ints = operations[winner[operations] == place]
    return once
