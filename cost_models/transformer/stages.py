"""What a pipeline schedule fixes about a stage: the virtual stages it holds and the passes it keeps in flight."""

from __future__ import annotations

from functools import lru_cache
from typing import assert_never

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule

SPLIT_SCHEDULES: frozenset[Schedule] = frozenset({"zb-h1", "zb-h2", "zb-v", "dualpipe"})
"""Schedules that run the weight gradient of a backward apart from its input gradient."""


def chunks_per_stage(schedule: Schedule, vpp: int) -> int:
    """Model chunks a stage holds: vpp, or the two copies of DualPipe."""
    return 2 if schedule == "dualpipe" else vpp


@lru_cache(maxsize=256)
def virtual_stage_table(schedule: Schedule, stages: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """[stage][chunk]: the virtual stage, in the order in which a forward visits them.

        in turn (1F1B, interleaved, ZB-H1, ZB-H2):  v p + s
        V (ZB-V):                                   s and 2 p - 1 - s: down the stages and back up
        both ways (DualPipe):                       s and p - 1 - s: the whole model twice, a micro-batch visits one

    Source: arXiv 2104.04473 (in turn), 2401.10241 section 6 (V), 2412.19437 section 3.2.1 (both ways).
    """
    match schedule:
        case "zb-v":
            return tuple((stage, 2 * stages - 1 - stage) for stage in range(stages))
        case "dualpipe":
            return tuple((stage, stages - 1 - stage) for stage in range(stages))
        case "1f1b" | "interleaved" | "zb-h1" | "zb-h2":
            return tuple(tuple(chunk * stages + stage for chunk in range(chunks)) for stage in range(stages))
        case _:
            assert_never(schedule)


def schedule_problems(layout: Layout) -> list[str]:
    """Why this schedule cannot run with these degrees."""
    schedule, pp, vpp = layout.pipeline.schedule, layout.parallel.pp, layout.pipeline.vpp
    if schedule not in SPLIT_SCHEDULES:
        return []
    problems = []
    if not layout.pipeline.overlap:
        problems.append(f"schedule {schedule} needs asynchronous transfers (pp_overlap)")
    needed = 2 if schedule == "zb-v" else 1
    if vpp != needed:
        problems.append(f"schedule {schedule} needs vpp {needed}, not {vpp}")
    if pp < 2:
        problems.append(f"schedule {schedule} needs a pipeline (pp > 1)")
    if schedule == "dualpipe" and pp % 2:
        problems.append(f"schedule dualpipe needs an even number of stages, not pp {pp}")
    if schedule == "dualpipe" and layout.pipeline.call is not None:
        problems.append("schedule dualpipe takes all micro-batches of a step (schedule_micro_batches: all)")
    return problems


def bubble_weight(layout: Layout) -> float:
    """Micro-batch times (forward + backward) a pipeline idles, with forward, input and weight gradient alike.

        1F1B, interleaved: (p - 1) / v        ZB-H1: (p - 1) (F + B - 2 W) = (p - 1) / 3
        ZB-H2, ZB-V: 0                        DualPipe: (p / 2 - 1) (F + 2 B - 3 W) = (p / 2 - 1) 2 / 3

    B is the whole backward.  Source: arXiv 2104.04473, 2401.10241; DualPipe's README.
    """
    match layout.pipeline.schedule:
        case "1f1b" | "interleaved":
            return (layout.parallel.pp - 1) / layout.pipeline.vpp
        case "zb-h1":
            return (layout.parallel.pp - 1) / 3.0
        case "zb-h2" | "zb-v":
            return 0.0
        case "dualpipe":
            return (layout.parallel.pp / 2.0 - 1.0) * 2.0 / 3.0
        case _:
            assert_never(layout.pipeline.schedule)


def in_flight_passes(layout: Layout, stage: int, micro_batches: int | None = None) -> tuple[int, ...]:
    """For each chunk of a stage, how many micro-batches keep activations at the worst moment.

        1F1B:        p - s
        interleaved: 2 (p - s - 1) + (v - 1) p + 1 chunk passes, in groups of p per chunk; on stage 0 that is the
                     model's layers / p x (1 + (p - 1) / (p v))
        ZB-H1:       p            (s of them only wait for their weight gradient)
        ZB-H2:       2 p - 1      (2 s of them only wait for their weight gradient)
        ZB-V:        2 p - 1 - s and s + 1 passes of the two half chunks, as much as p whole ones
        DualPipe:    p - h and h + 1, h = the distance from the nearer end: p + 1 together

    Never more than there are *micro_batches* a step (m v chunk passes when interleaved), or in a call of the schedule
    (`schedule_micro_batches`); None = enough to fill it.
    Counted: a pass until its weight gradient is done, in full.  Ignored: what the input gradient alone sets free.
    Source: arXiv 2104.04473 section 2.2; arXiv 2205.05198 section 4.2.3; arXiv 2401.10241; DualPipe's README.
    """
    p, v = layout.parallel.pp, layout.pipeline.vpp
    limits = (micro_batches, layout.pipeline.call)
    micro_batches = min((limit for limit in limits if limit is not None), default=None)
    if layout.pipeline.schedule in SPLIT_SCHEDULES:
        end = min(stage, p - 1 - stage)
        counts = {
            "zb-h1": (p,),
            "zb-h2": (2 * p - 1,),
            "zb-v": (2 * p - 1 - stage, stage + 1),
            "dualpipe": (p - end, end + 1) if stage < p / 2 else (end + 1, p - end),
        }[layout.pipeline.schedule]
        most = micro_batches if micro_batches is not None else 2 * p
        return tuple(min(count, most) for count in counts)
    passes = p - stage if v == 1 else 2 * (p - stage - 1) + (v - 1) * p + 1
    if micro_batches is not None:
        passes = min(passes, micro_batches * v)
    rounds, left = divmod(passes, p * v)
    return tuple(rounds * p + min(max(0, left - chunk * p), p) for chunk in range(v))
