"""Settings whose effect is hidden on the batches at hand, because something else takes longer or is larger.

What never has an effect beside other settings, and why, is told by `without_effect`. This is about the rest: every
other setting that is not the default is put back, and a setting is hidden when all figures of all steps stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.cost_models.step.step_costs import StepCosts
from hdpsim.errors import HdpSimError
from hdpsim.simulator.planning import plan_batch, planning_problem, settled_degree
from hdpsim.simulator.play.execution import Noise
from hdpsim.simulator.playing import plan_noise
from hdpsim.simulator.pricing import price_plan
from hdpsim.simulator.settings import changed_settings, note_on, with_default
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, simulate_plan
from hdpsim.simulator.step_memory import capacity_tokens, check_fits, plan_memory
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.static.static_mesh import MeshPacks, mesh_degrees

_HIDERS = (
    ("layout", "cuda_graphs launch_blocking untuned_for_arm checked_collectives",
     "kernels take longer than their launches"),
    ("layout", "attention_kernel", "flash is the same kernel for these heads on this GPU"),
    ("layout", "cp", "auto gives the same degree"),
    ("layout", "rank_capacity", "auto gives the same capacity"),
    ("data", "loader prefetch_steps", "batches get ready within a step"),
    ("strategy", "packing", "it fills packs as the default packer does"),
    ("strategy", "padding", "every pack is full"),
    ("strategy", "activation_offload", "no stage has layers between its first and its last, which keep theirs"),
    ("strategy", "communicators", "no micro-batch is shared"),
    ("strategy", "offload_ratio", "no sequence is so long that groups change"),
    ("strategy", "selective_offloading", "no sequence is so long that offloading pays"),
    ("execution", "gc_pause", "it falls on no process of these steps"),
    ("execution", "link_flaps_per_hour link_flap_mean nccl_timeout nccl_retries adaptive_retransmission",
     "no link goes down in these steps that anything is sent over, or another way takes as long"),
    ("execution", "slow_node_share", "it makes no node slower"),
    ("memory", "logit_bytes bucket_bytes bucket_buffer_bytes gather_buffer_bytes update_copy_bytes",
     "another stage, or another moment of the step, needs more memory"),
    ("memory", "update_in_one_piece cached_logit_bytes",
     "another stage, or another moment of the step, needs more memory"),
)  # fmt: skip
_REASONS = {f"{section}.{name}": why for section, names, why in _HIDERS for name in names.split()}
_OTHERWISE = "whatever it changes is hidden by something longer or larger"

_SHOWN = frozenset({"strategy.name", "execution.executor", "execution.network"})
_SHOWN |= {"layout.tp", "layout.pp", "layout.vpp", "layout.ep"}
"""Never looked at: what decides which GPU does what, the executors, which give the same times by design, and flows, of
which every result says what they cost."""
_NO_FIGURES = ["strategy", "planning_wall_s", "execution_wall_s", "events", "spans", "plan", "notes"]
_NO_FIGURES += ["network"]


def hidden_settings(
    setup: Setup, batches: Sequence[ArrayLike], results: Sequence[StepResult]
) -> tuple[str, ...]:
    """One sentence for every setting whose effect is hidden in all *results*, the steps of *setup* on *batches*.

    Not looked for on nodes of several kinds, nor where transfers share links: each look would play a step as flows.
    """
    if len(setup.cluster.kinds) > 1 or setup.execution.network == "flows":
        return ()
    named = {note.partition(" = ")[0] for result in results for note in result.notes}
    distinct = {
        id(result): _Step(setup.at_step(number), lengths, result)
        for number, (lengths, result) in enumerate(zip(batches, results, strict=True))
    }
    steps = list(distinct.values())
    sentences = []
    for key, value in changed_settings(setup).items():
        if key in named | _SHOWN or key.startswith("model."):
            continue
        try:
            plain = with_default(setup, key)
            mesh_degree = lru_cache(partial(settled_degree, plain, steps[0].lengths))
            same = partial(_same_step, plain)
            hidden = all(same(step, mesh_degree if step is not steps[0] else None) for step in steps)
        except HdpSimError:  # without it the step cannot run
            continue
        if hidden:
            why = f" in these batches: {_REASONS.get(key, _OTHERWISE)}"
            sentences.append(note_on(key, value, why, setup.set_by_software))
    return tuple(sentences)


@dataclass(frozen=True)
class _Step:
    """A step that was simulated; what every other setup is compared with is worked out once."""

    setup: Setup
    lengths: ArrayLike
    result: StepResult

    @cached_property
    def problem(self) -> PlanningProblem:
        return planning_problem(self.setup, self.lengths)

    @cached_property
    def costs(self) -> StepCosts:
        return price_plan(self.setup, self.problem, self.result.plan)

    @cached_property
    def noise(self) -> Noise | None:
        return plan_noise(self.setup, self.result.plan, self.costs)


def _same_step(plain: Setup, step: _Step, mesh_degree: Callable[[], int | None] | None) -> bool:
    """Whether *plain* takes the same step; *mesh_degree* is that of an earlier batch.

    What is cheap to compare comes before the rest: few settings get as far as a plan of their own.
    """
    result, setup = step.result, step.setup
    plan, plain = result.plan, plain.at_step(setup.execution.step)
    if plain.ranks != plan.ranks or capacity_tokens(plain) != result.rank_capacity_tokens:
        return False
    report = plan_memory(plain, plan)
    if _memory_figures(report) != _memory_figures(result.memory):
        return False
    problem = planning_problem(plain, step.lengths)
    costs = price_plan(plain, problem, plan)
    if not _equal(replace(costs, data_path=None), replace(step.costs, data_path=None)):
        return False
    same_order = plain.layout.parallel.order == setup.layout.parallel.order
    drawn_alike = same_order and plain.execution == setup.execution
    if not drawn_alike and not _same_factors(plan_noise(plain, plan, costs), step.noise):
        return False
    if _planned_alike(problem, step.problem):
        check_fits(plain, report)
    else:
        degree = mesh_degree() if mesh_degree else None
        plan, problem, report = plan_batch(plain, step.lengths, mesh_degree=degree)
    same_recompute = plain.layout.recompute.kind == setup.layout.recompute.kind
    if costs.data_path == step.costs.data_path and same_recompute and _equal(plan, result.plan):
        return True
    played = simulate_plan(plain, plan, problem, report)
    return _memory_figures(played.memory) == _memory_figures(result.memory) and all(
        _equal(getattr(played, field.name), getattr(result, field.name))
        for field in fields(StepResult)
        if field.name not in _NO_FIGURES
    )


def _planned_alike(problem: PlanningProblem, other: PlanningProblem) -> bool:
    """Whether both problems, of the same capacity, have the same plan, as far as that is seen without planning."""
    options, others = problem.options, other.options
    if problem.cost is other.cost and options == others:
        return True
    if not options.has_one_mesh or problem.cost.layout.pipeline.schedule == "dualpipe":
        return False  # dualpipe: packs depend on the groups
    if replace(options, packing=others.packing, padding=others.padding) != others:
        return False
    both = (problem, other)
    costs = [(one.cost, one.cost.layout.changed(rank_capacity_tokens=None)) for one in both]
    if len({(cost.model, layout, cost.cluster, cost.cal) for cost, layout in costs}) > 1:
        return False

    def packs(one: PlanningProblem, degree: int) -> MeshPacks:
        return MeshPacks.of(one, one.options.packing, padding=one.options.padding, degree=degree)

    return all(_equal(*(packs(one, degree) for one in both)) for degree in mesh_degrees(problem))


def _same_factors(noise: Noise | None, other: Noise | None) -> bool:
    """Whether two draws of noise slow down the same things; no noise is a factor of 1."""
    pairs = ((_factor(noise, field.name), _factor(other, field.name)) for field in fields(Noise))
    return all(bool(np.all(one == two)) for one, two in pairs)


def _factor(noise: Noise | None, name: str) -> ArrayLike:
    factor: ArrayLike | None = getattr(noise, name, None)
    return 1.0 if factor is None else factor


def _memory_figures(report: MemoryReport) -> tuple[int, ...]:
    """The memory of a GPU and its host in whole bytes, whatever fills it."""
    needed = (report.total_bytes, report.allocated_bytes, report.reserved_bytes, report.host_bytes)
    return tuple(map(round, needed))


def _equal(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(cast("ArrayLike", one), cast("ArrayLike", other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(_equal(*pair) for pair in zip(one, other, strict=True))
    if is_dataclass(one) and type(one) is type(other):
        return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return one == other
