"""What ChunkFlow's schedule would do in a pipeline, which no Plan can say: `python tools/chunkflow_bubbles.py 4 2 1 1`.

Sequences of these lengths (any unit; a forward takes as long, a backward twice) run through a pipeline under plain
1F1B, a micro-batch each and in that order, and as chunks under ChunkFlow's state-aware 1F1B (arXiv 2503.02356). The
paper prints shares of bubbles of an example of four sequences, 57.1 % and 47.8 %. Its lengths are in a figure; the
defaults are inferred: they give both.

Counted: chunks of one length, their order, forwards that are run again.  Ignored: that later chunks of a sequence
attend to more keys, transfers.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import NamedTuple

Pass = tuple[str, int]
"""Forward ("F"), forward that keeps nothing ("f") or backward ("B"), and the number of its chunk."""


class Chunks(NamedTuple):
    """Work in chunks: length of each, and the numbers of those that depend on each other, in their order."""

    lengths: list[float]
    groups: list[list[int]]


def chunks_of(lengths: Sequence[float], size: float) -> Chunks:
    """Short sequences packed into chunks (longest first, each where least room is left), then long ones cut."""
    packs: list[float] = []
    for length in sorted((one for one in lengths if one <= size), reverse=True):
        room = [number for number, held in enumerate(packs) if held + length <= size]
        if room:
            packs[max(room, key=lambda number: packs[number])] += length
        else:
            packs.append(length)
    found = Chunks(packs, [[number] for number in range(len(packs))])
    for length in lengths:
        if length > size:
            first = len(found.lengths)
            while length > 0:
                found.lengths.append(min(size, length))
                length -= size
            found.groups.append(list(range(first, len(found.lengths))))
    return found


def passes(group: Sequence[int], kept: int) -> list[Pass]:
    """Of chunks that depend on each other: *kept* have activations at a time, backwards run from the last."""
    early, late = group[: max(0, len(group) - kept)], group[max(0, len(group) - kept) :]
    first: list[Pass] = [("f", chunk) for chunk in early] + [("F", chunk) for chunk in late]
    again = [one for chunk in reversed(early) for one in (("F", chunk), ("B", chunk))]
    return first + [("B", chunk) for chunk in reversed(late)] + again


def stage_order(run: Sequence[Pass], stage: int, stages: int) -> list[Pass]:
    """1F1B: before a backward its own forward, and one more for every stage behind this one."""
    forwards = [one for one in run if one[0] != "B"]
    order: list[Pass] = []
    done = 0
    for number, backward in enumerate(one for one in run if one[0] == "B"):
        wanted = max(forwards.index(("F", backward[1])) + 1, number + stages - stage)
        order += forwards[done:wanted]
        done = max(done, min(wanted, len(forwards)))
        order.append(backward)
    return order


def bubble(run: Sequence[Pass], lengths: Sequence[float], stages: int) -> float:
    """Share of the step that a stage idles."""
    orders = [stage_order(run, stage, stages) for stage in range(stages)]
    at, free = [0] * stages, [0.0] * stages
    ends: dict[tuple[Pass, int], float] = {}
    while any(at[stage] < len(order) for stage, order in enumerate(orders)):
        before = sum(at)
        for stage, order in enumerate(orders):
            if at[stage] == len(order):
                continue
            one = order[at[stage]]
            sender = stage + 1 if one[0] == "B" else stage - 1
            if 0 <= sender < stages and (one, sender) not in ends:
                continue
            seconds = lengths[one[1]] * (2.0 if one[0] == "B" else 1.0)
            free[stage] = max(free[stage], ends.get((one, sender), 0.0)) + seconds
            ends[one, stage] = free[stage]
            at[stage] += 1
        assert sum(at) > before, "stages wait for each other"
    work = sum(lengths[chunk] * (2.0 if kind == "B" else 1.0) for kind, chunk in run)
    return 1.0 - work / max(free)


def main(arguments: list[str] | None = None) -> None:
    """Print both shares."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=float, default=[4.0, 2.0, 1.0, 1.0], metavar="LENGTH")
    parser.add_argument("--stages", type=int, default=4, metavar="P")
    parser.add_argument("--chunk", type=float, default=2.0, metavar="LENGTH", help="ChunkSize")
    parser.add_argument("--kept", type=int, default=2, metavar="K", help="chunks whose activations are kept")
    options = parser.parse_args(arguments)
    if min(options.lengths) <= 0 or min(options.stages, options.chunk, options.kept) <= 0:
        parser.error("lengths, --stages, --chunk and --kept: expected positive numbers")
    whole = [one for number in range(len(options.lengths)) for one in passes([number], 1)]
    chunks = chunks_of(options.lengths, options.chunk)
    cut = [one for group in chunks.groups for one in passes(group, options.kept)]
    print(f"1F1B, a sequence each: {bubble(whole, options.lengths, options.stages):.1%}")
    print(f"state-aware 1F1B, chunks: {bubble(cut, chunks.lengths, options.stages):.1%}")


if __name__ == "__main__":
    main()
