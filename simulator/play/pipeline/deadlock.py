"""Why a program cannot go on: the cycle of processes that wait for each other."""

from __future__ import annotations

import numpy as np

from hdpsim.arrays import Bools, Ints
from hdpsim.errors import DeadlockError

from .program import Program

_LINKS_SHOWN = 8  # longer cycles are cut: nobody reads on


def deadlock_error(program: Program, finished: Bools) -> DeadlockError:
    """Return the error that names the waits of a program which stopped after the *finished* operations."""
    done = np.bincount(program.part_process, finished[program.part_operation], program.processes)
    position = program.part_offsets[:-1] + done.astype(np.int64)
    process = int(np.flatnonzero(position < program.part_offsets[1:])[0])
    names: list[str] = []
    waits: list[str] = []
    seen: dict[int, int] = {}
    while process not in seen:
        seen[process] = len(names)
        names.append(_process_name(program, process))
        operation = int(program.part_operation[position[process]])
        process = _blocker(program, finished, position, operation)
        waits.append(f"waits in {_operation_name(program, operation)} for {_process_name(program, process)}")
        if position[process] == program.part_offsets[process + 1]:
            lacks = f"{names[-1]} {waits[-1]}, whose order does not hold it any more"
            return DeadlockError(f"the plan cannot finish: {lacks}")
    first = seen[process]
    cycle = waits[first:]
    left_out = len(cycle) - _LINKS_SHOWN
    if left_out > 0:
        cycle = [*cycle[: _LINKS_SHOWN - 1], f"leads through {left_out} more waits to {names[-1]}", cycle[-1]]
    return DeadlockError(f"deadlock: {names[first]} {', which '.join(cycle)}")


def _blocker(program: Program, finished: Bools, position: Ints, operation: int) -> int:
    """Return the first process that has to act before *operation* can start."""
    for process in _members(program, operation):
        at = position[process]
        if at == program.part_offsets[process + 1] or program.part_operation[at] != operation:
            return process
    # All members are here: what is missing is their input, whose members are on their way to it or wait in it.
    inputs = [operation - program.units] if operation >= program.units else []
    if program.extras is not None:
        feeds = program.extras.feeds
        inputs += feeds.before[feeds.after == operation].tolist()
    if program.common_ends is not None:
        inputs += [
            other for one in (operation, *inputs) for other in program.common_ends.with_whom(one).tolist()
        ]
    missing = [number for number in inputs if not finished[number] and number != operation]
    assert missing, "an operation with all its parties did not start"
    for number in missing:
        for process in _members(program, number):
            at = position[process]
            if at == program.part_offsets[process + 1] or program.part_operation[at] != number:
                return process
    return _members(program, missing[0])[0]


def _members(program: Program, operation: int) -> list[int]:
    """The processes that take part in an operation."""
    link, unit = divmod(operation, program.units)
    plan = program.plan
    ranks = plan.member_ranks[plan.member_offsets[unit] : plan.member_offsets[unit + 1]]
    stage = int(program.stage_of(np.array(link), np.array(unit)))
    return [stage * program.ranks + int(rank) for rank in ranks]


def _process_name(program: Program, process: int) -> str:
    stage, rank = divmod(process, program.ranks)
    return f"rank {rank}" if program.stages == 1 else f"rank {rank} stage {stage}"


def _operation_name(program: Program, operation: int) -> str:
    link, unit = divmod(operation, program.units)
    chain = program.chain
    op = "forward" if chain.forward[link] else "backward"
    chunk = int(chain.chunk[0 if program.way is None else program.way[unit], link])
    where = f" (chunk {chunk})" if chain.chunk.any() else ""
    return f"the {op} of micro-batch {unit}{where}"
