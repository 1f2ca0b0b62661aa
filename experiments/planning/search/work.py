"""What processes of a search do: list and check the candidates of a layout, price them, replay them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.errors import InfeasibleError, OutOfMemoryError, ScenarioError
from hdpsim.experiments.studies.comparing.compare import mean_accounts, strategy_batches
from hdpsim.experiments.studies.power import power_of
from hdpsim.simulator.planning import check_strategy, micro_batch_cost, planning_problem, settled_degree
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, simulate_step
from hdpsim.simulator.step_memory import (
    capacity_tokens,
    check_fits,
    held_tokens,
    memory_of,
    tokens_with_headroom,
)
from hdpsim.simulator.strategies.hdp.groups import needed_ratio
from hdpsim.simulator.strategies.plan_ideal import plan_ideal_s
from hdpsim.simulator.uniform import price_uniform

from .bounds import bounds_of, mesh_bound_s, quiet_bound_s
from .budget import CANDIDATE, CHUNKS, DRAFTS, DRAWN, LAYOUT, PRICED
from .space import Candidate, Changes

if TYPE_CHECKING:
    from hdpsim.cost_models.memory.report import MemoryReport
    from hdpsim.experiments.scenario.data_use import Lengths
    from hdpsim.experiments.scenario.scenario import Scenario

from .evaluation import (
    ON_PAPER,
    Contender,
    Evaluated,
    LayoutResults,
    Question,
    Task,
    ready,
    usd_per_s,
)

DRAFTED = "hdp-opt"
"""The strategy that plans a step from many drafts, or quickly from few."""


class StoppedError(Exception):
    """Time was up in the middle of a replay."""


def try_layouts(task: Task) -> LayoutResults:
    """Try every strategy on some layouts."""
    results = LayoutResults()
    for layout in task.layouts:
        if task.question.time_is_up:
            results.cut = True
            break
        _try_layout(task, layout, results)
    return results


def _try_layout(task: Task, layout: Changes, results: LayoutResults) -> None:
    """Price what can be priced; everything else that is not refused becomes a contender."""
    question, known = task.question, ready(task.question)
    setups, changes = known.setups(task.site), (*task.site, *layout)
    results.work += LAYOUT
    try:
        setup = setups.of(changes)
        check_smallest(setup)
        bounds_s = () if known.equal else bounds_of(setup, known.lengths)
    except (InfeasibleError, ScenarioError) as error:
        results.refuse(Candidate(changes=changes), error)
        return
    variants = question.space.variants(
        question.scenario,
        setup,
        lambda: _room(setup, question.headroom),
        equal=known.equal,
        auto=not question.headroom,
    )
    hopeless = question.hopeless(setup, bounds_s, task.least)
    of_name: Counter[object] = Counter()
    for variant in variants:
        if question.time_is_up:
            results.cut = True
            return
        waits = _documents_wait(question.scenario, dict(variant).get("strategy.name"))
        if hopeless and not waits:
            results.outrun += 1
            continue
        candidate = Candidate(changes=(*changes, *variant))
        try:
            own = setups.of(candidate.changes)
            if known.equal and question.prices(own):
                results.work += PRICED if own.execution.draws_nothing else DRAWN
                _note(_priced(question, candidate, own, results.least(question, task.least)), results)
                continue
            if _is_tight(question, own, known.lengths[0], known.longest):
                results.refused[ON_PAPER] += 1
                continue
            ideal_s = None
            if not own.strategy.has_one_mesh:
                ideal_s = plan_ideal_s(planning_problem(own, known.lengths[0]))
        except (InfeasibleError, ScenarioError) as error:
            results.refuse(candidate, error)
            continue
        kind: tuple[object, ...]
        name = candidate.value("strategy.name")
        if name == "static":
            kind = (name, candidate.value("strategy.packing"), candidate.value("layout.cp"))
        else:
            of_name[name] += 1
            kind = (name, of_name[name])
        contender = Contender(
            candidate=candidate,
            site=task.site,
            kind=kind,
            bounds_s=() if waits else bounds_s,
            ideal_s=ideal_s,
        )
        results.contenders.append((layout, contender))
        results.work += CANDIDATE
        if task.glance:
            results.refused.clear()  # they are counted when the layout is opened
            break


def _documents_wait(scenario: Scenario, strategy: object) -> bool:
    """Whether long documents wait for later batches: no bound of the batches that were drawn holds for these."""
    return strategy == "wlb-llm" and scenario.strategy.outlier_queues > 0


def _note(evaluated: Evaluated | None, results: LayoutResults) -> None:
    if evaluated is None:
        results.outrun += 1
    else:
        results.evaluated.append(evaluated)


def replay(task: Task) -> LayoutResults:
    """Replay contenders: in full if the task says so, or if a first look would be no shorter.

    A first look takes the first batch alone, and of hdp-opt's plans the one that few drafts give. Without a budget
    everything is replayed in full in the end.
    """
    question, known, results = task.question, ready(task.question), LayoutResults()
    for contender in task.contenders:
        if question.time_is_up:
            results.cut = True
            break
        candidate = contender.candidate
        try:
            setup = known.setups(task.site).of(candidate.changes)
            if not task.in_full and looks_first(question, setup.strategy.name):
                step = simulate_step(setup, strategy_batches(setup, known.lengths)[0], quick=True)
                results.first.append((contender, step.step_s))
                continue
            least = results.least(question, task.least)
            evaluated = replayed(
                question,
                candidate,
                setup,
                contender.bounds_s,
                least,
                lambda: task.may_stop and question.time_is_up,
            )
        except (InfeasibleError, ScenarioError) as error:
            results.refuse(candidate, error)
            continue
        except StoppedError:
            results.cut = True
            break
        _note(evaluated, results)
        if evaluated is not None and not task.in_full:
            results.first.append((contender, evaluated.step_s))
    return results


def work_on(task: Task) -> LayoutResults:
    """What a process makes of a task."""
    return replay(task) if task.contenders else try_layouts(task)


def looks_first(question: Question, strategy: object) -> bool:
    """Whether a first look at a strategy's candidate is shorter than its replay in full."""
    return len(ready(question).lengths) > 1 or (question.budget.amount is not None and strategy == DRAFTED)


def replay_work(question: Question, contender: Contender, *, in_full: bool) -> float:
    """Work of replaying a candidate, in simulated steps."""
    degrees = (contender.candidate.value(key, 1) for key in ("layout.pp", "layout.vpp"))
    step = 1.0 + prod(int(str(degree)) for degree in degrees) / CHUNKS
    if not in_full and looks_first(question, contender.strategy):
        return step
    return step * len(ready(question).lengths) * (DRAFTS if contender.strategy == DRAFTED else 1.0)


def _is_tight(question: Question, setup: Setup, lengths: Lengths, longest: int) -> bool:
    """Refuse a candidate that its plan would refuse: the fewest micro-batches or the longest sequence do not fit.

    Returns: whether they leave too little memory.

    Of a mesh those are the micro-batches of the busiest rank if packs were full; of HDP it is one. A mesh whose degree
    follows from the batch may do with less.

    Raises:
        InfeasibleError: it does not fit, or its strategy does not run on the layout.
    """
    check_strategy(setup)
    slots = 1
    if setup.strategy.has_one_mesh:
        cp = setup.layout.parallel.cp
        if cp is None:
            return False
        packs = -(-int(lengths.sum()) // setup.context_tokens)
        slots = -(-packs // max(1, setup.ranks // cp))
    capacity = capacity_tokens(setup)
    report = memory_of(setup, held_tokens(setup, capacity), micro_batches=slots, sequence_tokens=1)
    check_fits(setup, report)
    most = micro_batch_cost(setup).attention.most_ranks or setup.ranks
    if not setup.strategy.has_one_mesh and longest > min(setup.ranks, most) * capacity:
        problem = planning_problem(setup, [longest])
        needed_ratio(problem, problem.lengths, np.array([problem.most_ranks]))
    return question.tight(report)


def _room(setup: Setup, headroom: float) -> int:
    """Tokens that memory allows on a rank while its pipeline is full; 0 where even the fewest are too many."""
    try:
        return tokens_with_headroom(setup, headroom)
    except OutOfMemoryError:
        return 0


def _priced(question: Question, candidate: Candidate, setup: Setup, least: float | None) -> Evaluated | None:
    """A candidate on batches of equal sequences: the figures of `replayed`, without accounts.

    None if it cannot reach the score *least*.

    Raises:
        InfeasibleError: it cannot run.
    """
    batches = ready(question).lengths
    for bound in (mesh_bound_s, quiet_bound_s) if least is not None else ():
        bounds_s = [bound(setup, len(lengths), int(lengths[0])) for lengths in batches]
        if all(bounds_s) and question.hopeless(setup, bounds_s, least):
            return None
    prices = {}
    for lengths in batches:
        if len(lengths) not in prices:
            (price,) = price_uniform(setup, (setup.layout,), sequences=len(lengths), tokens=int(lengths[0]))
            if price.refused is not None:
                raise price.refused
            prices[len(lengths)] = price
    steps = [prices[len(lengths)] for lengths in batches]
    rate = sum(price.tokens_per_s * price.step_s for price in steps) / sum(price.step_s for price in steps)
    reports = [price.memory for price in steps if price.memory]
    cp = setup.layout.parallel.cp or 1
    return _evaluated(question, candidate, setup, rate, [price.step_s for price in steps], reports, cp)


def _evaluated(
    question: Question,
    candidate: Candidate,
    setup: Setup,
    tokens_per_s: float,
    steps_s: Sequence[float],
    reports: Iterable[MemoryReport],
    cp: int,
) -> Evaluated:
    """What batch by batch was found of a candidate."""
    cost, memory = usd_per_s(setup, question.scenario.costs), max(reports, key=lambda each: each.total_bytes)
    return Evaluated(
        candidate=candidate,
        setup=setup,
        tokens_per_s=tokens_per_s,
        step_s=sum(steps_s) / len(steps_s),
        memory=memory,
        usd_per_token=None if cost is None else cost / tokens_per_s,
        cp=cp,
        tight=question.tight(memory),
    )


def check_smallest(setup: Setup) -> None:
    """Refuse a layout on which one micro-batch of hardly any tokens does not fit.

    Raises:
        OutOfMemoryError: it does not.
    """
    check_fits(setup, memory_of(setup, setup.layout.parallel.tp, micro_batches=1, sequence_tokens=1))


def replayed(
    question: Question,
    candidate: Candidate,
    setup: Setup,
    bounds_s: Sequence[float],
    least: float | None,
    stops: Callable[[], bool] = lambda: False,
) -> Evaluated | None:
    """Replay a candidate batch by batch; None as soon as it cannot reach the score *least* any more.

    Raises:
        StoppedError: *stops* said so before the last batch.
        InfeasibleError: it cannot run.
    """
    batches = strategy_batches(setup, ready(question).lengths)
    waits = _documents_wait(question.scenario, setup.strategy.name)
    bounds_s = () if waits else bounds_s
    tokens, seconds = [float(lengths.sum()) for lengths in batches], list(bounds_s)
    degree = settled_degree(setup, batches[0]) if len(batches) > 1 else None
    known: dict[bytes, StepResult] = {}
    results: list[StepResult] = []
    for number, lengths in enumerate(batches):
        if question.hopeless(setup, seconds, least, tokens):  # even if all that are left end at their bounds
            return None
        key = lengths.tobytes()
        if stops():
            raise StoppedError
        if key not in known:
            known[key] = simulate_step(setup, lengths, mesh_degree=degree)
        results.append(known[key])
        if seconds:
            tokens[number], seconds[number] = float(results[-1].tokens), results[-1].step_s
    steps_s, accounts = [result.step_s for result in results], mean_accounts(results)
    rate = sum(result.tokens for result in results) / sum(steps_s)
    reports = [result.memory for result in results]
    cp = max(result.largest_group for result in results)
    evaluated = _evaluated(question, candidate, setup, rate, steps_s, reports, cp)
    return replace(
        evaluated,
        joule_per_token=power_of(setup, results, accounts, question.scenario.costs).facility_w / rate,
        bound_s=float(np.mean(bounds_s)) if bounds_s else 0.0,
        accounts=accounts,
    )
