"""Settings whose effect is hidden on the batches at hand, because something else takes longer or is larger.

What never has an effect beside other settings, and why, is told by `without_effect`. This is about the rest: every
other setting that is not the default is put back, and a setting is hidden when all figures of all steps stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.errors import HdpSimError
from hdpsim.simulator.settings import changed_settings, note_on, with_default
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import (
    StepResult,
    plan_batch,
    planning_problem,
    price_plan,
    settled_degree,
    simulate_plan,
)
from hdpsim.simulator.step_memory import capacity_tokens, check_fits, plan_memory

_HOST = "kernels take longer than their launches"
_MEMORY = "another stage, or another moment of the step, needs more memory"
_READY = "batches get ready within a step"
_REASONS: Mapping[str, str] = {
    "layout.cuda_graphs": _HOST,
    "layout.launch_blocking": _HOST,
    "layout.checked_collectives": _HOST,
    "layout.attention_kernel": "flash is the same kernel on this GPU",
    "layout.cp": "auto gives the same degree",
    "layout.rank_capacity": "auto gives the same capacity",
    "data.loader": _READY,
    "data.prefetch_steps": _READY,
    "strategy.packing": "it fills packs as the default packer does",
    "strategy.padding": "every pack is full",
    "strategy.activation_offload": "no stage has layers between its first and its last, which keep theirs",
    "strategy.selective_offloading": "no sequence is so long that offloading pays",
    "execution.gc_pause": "it falls on no process of these steps",
    "execution.slow_node_share": "it makes no node slower",
    "memory.logit_bytes": _MEMORY,
    "memory.bucket_bytes": _MEMORY,
    "memory.gather_buffer_bytes": _MEMORY,
}
_OTHERWISE = "whatever it changes is hidden by something longer or larger"

_SHOWN = frozenset(
    {"layout.tp", "layout.pp", "layout.vpp", "layout.ep", "strategy.name", "execution.executor"}
)
"""Never looked at: what decides which GPU does what, and the executors, which give the same times by design."""
_NO_FIGURES = frozenset(
    {"strategy", "planning_wall_s", "execution_wall_s", "events", "spans", "plan", "notes"}
)


def hidden_settings(
    setup: Setup, batches: Sequence[ArrayLike], results: Sequence[StepResult]
) -> tuple[str, ...]:
    """One sentence for every setting whose effect is hidden in all *results*, the steps of *setup* on *batches*."""
    named = {note.partition(" = ")[0] for result in results for note in result.notes}
    sentences = []
    for key, value in changed_settings(setup).items():
        if key in named | _SHOWN or key.startswith("model."):
            continue
        try:
            plain = with_default(setup, key)
            hidden = all(
                _same_step(setup, plain, batches[0], lengths, result)
                for lengths, result in zip(batches, results, strict=True)
            )
        except HdpSimError:  # without it the step cannot run
            continue
        if hidden:
            sentences.append(note_on(key, value, f" in these batches: {_REASONS.get(key, _OTHERWISE)}"))
    return tuple(sentences)


def _same_step(setup: Setup, plain: Setup, first: ArrayLike, lengths: ArrayLike, result: StepResult) -> bool:
    """Whether *plain* takes the same step; the *first* batch of the run decides its mesh.

    What is cheap to compare comes before the rest: few settings get to the end.
    """
    plan = result.plan
    if plain.ranks != plan.ranks or capacity_tokens(plain) != result.rank_capacity_tokens:
        return False
    report = plan_memory(plain, plan)
    if _needed(report) != _needed(result.memory):
        return False
    before, problem = planning_problem(setup, lengths), planning_problem(plain, lengths)
    costs, plain_costs = price_plan(setup, before, plan), price_plan(plain, problem, plan)
    if not _same(replace(costs, data_path=None), replace(plain_costs, data_path=None)):
        return False
    if problem.cost is before.cost and problem.options == before.options:
        check_fits(plain, report)
        plain_plan = plan
    else:
        plain_plan, problem, report = plan_batch(plain, lengths, mesh_degree=settled_degree(plain, first))
    played_alike = costs.data_path == plain_costs.data_path and _of_playing(setup) == _of_playing(plain)
    if played_alike and _same(plain_plan, plan):
        return True
    played = simulate_plan(plain, plain_plan, problem, report)
    return _needed(played.memory) == _needed(result.memory) and all(
        _same(getattr(played, field.name), getattr(result, field.name))
        for field in fields(StepResult)
        if field.name not in _NO_FIGURES
    )


def _needed(report: MemoryReport) -> tuple[int, ...]:
    """The memory of a GPU and its host in whole bytes, whatever fills it."""
    needed = (report.total_bytes, report.allocated_bytes, report.reserved_bytes, report.host_bytes)
    return tuple(map(round, needed))


def _of_playing(setup: Setup) -> tuple[object, ...]:
    """What the figures of a priced plan depend on."""
    return setup.execution, setup.layout.parallel.order, setup.layout.recompute.kind


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(cast("ArrayLike", one), cast("ArrayLike", other))
    if is_dataclass(one) and type(one) is type(other):
        return all(_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return one == other
