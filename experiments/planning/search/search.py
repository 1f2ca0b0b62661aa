"""The best layouts and strategies of a space: bounded from below, pruned, and replayed on the same batches."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import inf, log2
from typing import TYPE_CHECKING

from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.flop import sequence_model_flop
from hdpsim.cost_models.transformer.stages import bubble_weight
from hdpsim.errors import InfeasibleError, ScenarioError
from hdpsim.experiments.parallel.dispatch import dispatch
from hdpsim.experiments.parallel.engines import LocalEngine

from .bounds import bounds_of
from .budget import NO_LIMIT, Budget
from .evaluation import Evaluated, LayoutResults, Objective, Question, Task, ranked, ready, score_of
from .race import Entry, Race
from .setups import Setups
from .space import Candidate, Changes, Space, own_value
from .work import replayed, work_on

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.parts import Cluster
    from hdpsim.experiments.parallel.engines import Engine
    from hdpsim.experiments.scenario.scenario import Scenario

Progress = Callable[[int, int, str], None]
"""Told how many layouts are done, how many there are, and the best so far in words."""

BEST = 5
ALONE_S = 5.0
"""How long one process works before others are started, which takes a second or two."""
WAVE, GROWS = 16, 4
"""Most tasks that are chosen before any of them is taken over, the same for any number of processes, so that their
number changes no result; and how many must have been taken over for one more: at first every task is learned from."""

PACK_TOKENS = 8192.0
"""About what a micro-batch of unequal sequences holds, for the order of layouts alone."""


@dataclass(slots=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        headroom: see search.
        best: the best candidates, the best first; those that are the same under another name are left out.
        own: the scenario as it is, one of the candidates if it fits the memory; None where it cannot run.
        evaluated: every candidate that was replayed.
        refused: candidates by the limit that refused them.
        outrun: candidates that a lower bound showed to be slower than the best ones.
        closest: of what memory refused, the candidate that lacks least, and the message.
        asked: the clusters on which candidates were looked for.
        left_out: the others that were asked for, with the reason.
        searched: candidates that were looked at to the end.
        set_aside: candidates that were looked at, but not replayed in full.
        budget: what the search was allowed.
        complete: whether that is all of them.
        interrupted: Ctrl-C came before the end.
    """

    objective: Objective
    headroom: float = 0.0
    budget: Budget = NO_LIMIT
    best: list[Evaluated] = field(default_factory=list)
    own: Evaluated | None = None
    own_reason: str = ""
    evaluated: list[Evaluated] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    outrun: int = 0
    closest: tuple[float, Candidate, str] | None = None
    asked: tuple[Cluster, ...] = ()
    left_out: tuple[str, ...] = ()
    searched: int = 0
    set_aside: int = 0
    layouts: int = 0
    seconds: float = 0.0
    complete: bool = False
    interrupted: bool = False

    @property
    def several_clusters(self) -> bool:
        """Whether the best or the scenario itself differ in their GPUs."""
        known = [self.own] if self.own is not None else []
        return len({one.setup.cluster for one in (*known, *self.best)}) > 1

    @property
    def on_paper(self) -> list[Evaluated]:
        """Candidates that would be among the best or better, but leave too little memory, the best first."""
        least = score_of(self.best[-1], self.objective) if self.best else 0.0
        tight = [one for one in self.evaluated if one.tight and score_of(one, self.objective) > least]
        return sorted(tight, key=lambda one: -score_of(one, self.objective))[:BEST]

    def add(self, results: LayoutResults, count: int) -> None:
        """Take over what became of one layout; *count*: how many are the best."""
        self.evaluated += results.evaluated
        self.refused += results.refused
        self.outrun += results.outrun
        self.searched += len(results.evaluated) + results.outrun + results.refused.total()
        if results.closest and (self.closest is None or results.closest[0] < self.closest[0]):
            self.closest = results.closest
        if results.evaluated:
            self.best = ranked([*self.best, *results.evaluated], self.objective, count)


def search(
    scenario: Scenario,
    space: Space,
    objective: Objective = "tokens_per_s",
    budget: Budget = NO_LIMIT,
    progress: Progress = lambda done, total, words: None,
    *,
    batches: int | None = None,
    count: int = BEST,
    headroom: float = 0.0,
    workers: int | None = 1,
    engine: Engine | None = None,
    own_reason: str = "",
    seeds: Sequence[Candidate] = (),
) -> SearchResult:
    """Look for the best candidates of a space.

    Candidates are taken in the order of a Race; whatever the order, a candidate is left out for good only if it cannot
    run, or if the lower bound of its layout (lower_bound_s, for every batch) is worse than the *count* best candidates
    that were replayed. Everything else is replayed on the same batches, as far as the budget goes.

    Args:
        scenario: what was asked about; its batches are everybody's.
        space: what is tried.
        objective: what is best.
        budget: how far it goes.
        progress: told after every layout.
        batches: how many global batches; default: the scenario's.
        count: how many best candidates are wanted: as many are safe from pruning.
        headroom: over what is predicted, a share of it, for which the memory of the best must suffice.
        workers: processes; None: one per processor, where the first layouts say that it takes long.
        engine: where they run, instead of *workers*.
        own_reason: why the scenario as it is cannot run, where that is known.
        seeds: candidates that are tried first.
    """
    began = time.monotonic()
    sites, left_out = _sites_that_run(scenario, space)
    question = Question(
        scenario=scenario,
        space=replace(space, sites=sites),
        objective=objective,
        batches=batches or scenario.batch_count,
        count=count,
        budget=budget,
        began_s=began,
        headroom=headroom,
    )
    found = SearchResult(objective=objective, headroom=headroom, budget=budget, own_reason=own_reason)
    found.asked = tuple(ready(question).setups(site).base.cluster for site in sites)
    found.left_out = left_out
    try:
        if not own_reason:
            _replay_own_layout(question, found)
        race = Race(question=question, entries=entries_of(question), least=lambda: _least(question, found))
        found.layouts = len(race.entries)
        race.seed(seeds)
        try:
            found.complete = _run(question, race, found, workers, engine, progress)
        finally:
            found.outrun += race.outrun
            found.searched += race.outrun
            found.set_aside = len(race.waiting)
    except KeyboardInterrupt:
        if not found.evaluated:
            raise
        found.interrupted = True
    found.best = [_detailed(question, one) for one in found.best]
    found.seconds = time.monotonic() - began
    return found


def _sites_that_run(scenario: Scenario, space: Space) -> tuple[tuple[Changes, ...], tuple[str, ...]]:
    """The sites on which the scenario can run whatever its degrees, and why it cannot on the others.

    Raises:
        InfeasibleError, ScenarioError: it can on none.
    """
    sites: list[Changes] = []
    left_out: list[str] = []
    for site in space.sites:
        try:
            Setups(scenario, site)
        except (InfeasibleError, ScenarioError) as error:
            if site is space.sites[-1] and not sites:
                raise
            reason = " ".join(str(error).split())
            left_out.append(f"{', '.join(Candidate(changes=site).overrides)}: {reason}")
        else:
            sites.append(site)
    return tuple(sites), tuple(left_out)


def _replay_own_layout(question: Question, found: SearchResult) -> None:
    """Replay the scenario as it is: what every candidate is held against, whether or not it has to fit."""
    try:
        found.own = replayed(question, Candidate(changes=()), question.scenario.setup(), (), None)
    except InfeasibleError as error:
        found.own_reason = str(error)
    results = LayoutResults()
    if found.own is not None and found.own.memory.fits and found.own.setup.cluster in found.asked:
        results.evaluated.append(found.own)
    found.add(results, question.count)


def _detailed(question: Question, evaluated: Evaluated) -> Evaluated:
    """The result with its accounts and its lower bound, where it was only priced."""
    if evaluated.accounts:
        return evaluated
    bounds_s = bounds_of(evaluated.setup, ready(question).lengths)
    full = replayed(question, evaluated.candidate, evaluated.setup, bounds_s, None)
    assert full is not None  # nobody asked for a score
    return replace(full, tight=evaluated.tight)


def entries_of(question: Question) -> list[Entry]:
    """Every layout, the one that is likely to be best first."""
    known, scenario = ready(question), question.scenario
    work = Work(
        flop=sequence_model_flop(scenario.model, known.lengths[0], causal=True),
        tokens=float(known.lengths[0].sum()),
        pack_tokens=scenario.data.context_tokens
        if known.equal
        else min(scenario.data.context_tokens, max(PACK_TOKENS, float(known.lengths[0].mean()))),
    )
    estimates: list[tuple[float, int, Changes, Changes]] = []
    for site in question.space.sites:
        cluster = known.setups(site).base.cluster
        for layout in question.space.layouts(scenario, cluster):
            rough_s = work.rough_s(scenario, cluster, dict(layout))
            estimates.append((rough_s, len(estimates), site, layout))
    return [
        Entry(
            site=site,
            layout=layout,
            rough_s=rough_s,
            own=all(own_value(scenario, key) == value for key, value in layout),
        )
        for rough_s, _, site, layout in sorted(estimates, key=lambda item: item[:2])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a batch as the rough estimate sees it."""

    flop: float
    tokens: float
    pack_tokens: float
    """Of a micro-batch: the context of a mesh, less where sequences are unequal and HDP may share them."""

    def rough_s(self, scenario: Scenario, cluster: Cluster, layout: dict[str, object]) -> float:
        """A rough estimate of a step, used for the order alone.

        Counted: work, recomputation, tensor-parallel traffic, bubbles and uneven numbers of micro-batches under the
            best context-parallel degree, parameters that are gathered for every micro-batch (zero3).
        """
        tp, pp, vpp = (int(str(layout[f"layout.{key}"])) for key in ("tp", "pp", "vpp"))
        model = scenario.model
        repeated = {"full": 4.0 / 3.0, "selective": 1.05}.get(str(layout["layout.recompute"]), 1.0)
        ranks = max(1, cluster.gpus // (tp * pp))
        traffic = 8.0 * 2.0 * model.hidden * model.layers * self.tokens * (tp - 1) / tp / (ranks * pp)
        work_s = self.flop * repeated / (0.6 * cluster.gpu.bf16_flop_per_s * cluster.gpus)
        work_s += traffic / (0.7 * cluster.gpu.nvlink_bytes_per_s)
        bubbles = _bubbles(pp, vpp, str(layout["layout.schedule"]))
        weights = self.flop / (6.0 * self.tokens) / (tp * pp)
        gather_s = 6.0 * weights / cluster.node.nic_bytes_per_s_per_gpu
        packs = self.tokens / self.pack_tokens
        best_s = inf
        for power in range(ranks.bit_length()):
            groups = max(1.0, ranks / 2**power)
            slots = max(1.0, packs / groups)
            busy_s = work_s * (slots * groups / packs) * (1.0 + bubbles / slots) * (1.0 + 0.03 * power)
            if layout["layout.sharding"] == "zero3":
                busy_s = max(busy_s, slots * gather_s) + 0.05 * work_s
            best_s = min(best_s, busy_s)
        if (
            "layout.ep" in layout
        ):  # whole experts on every GPU of a tensor-parallel group are the least traffic
            best_s *= 1.0 + 0.05 * abs(log2(int(str(layout["layout.ep"])) / tp))
        best_s *= 1.0 + 0.001 * vpp  # of equals the one that is replayed faster first
        return best_s * (1.05 if layout["layout.optimizer_offload"] else 1.0)


@lru_cache(maxsize=1024)
def _bubbles(pp: int, vpp: int, schedule: str) -> float:
    return bubble_weight(Layout(pp=pp, vpp=vpp, schedule=schedule))


def _run(
    question: Question,
    race: Race,
    found: SearchResult,
    workers: int | None,
    engine: Engine | None,
    progress: Progress,
) -> bool:
    """Work through the layouts; return whether none is left."""
    complete = True
    for task, results in _results(race, workers, engine):
        race.take(task, results)
        found.add(results, question.count)
        complete &= not results.cut
        best = f"best {found.best[0].tokens_per_s:,.0f} tokens/s" if found.best else "nothing fits so far"
        allowed = question.budget.amount
        if allowed is None:
            progress(race.opened, found.layouts, best)
        else:
            layouts = f"{race.opened:,} of {found.layouts:,} layouts"
            progress(round(min(race.used, 1.0) * allowed), round(allowed), f"{layouts}, {best}")
    return complete and race.over


def _results(race: Race, workers: int | None, engine: Engine | None) -> Iterator[tuple[Task, LayoutResults]]:
    """What becomes of every task, in their order: of one process at first, of several if that takes long."""
    began, taken = time.monotonic(), 0
    slots = workers or os.cpu_count() or 1
    with ExitStack() as stack:
        pool = None if engine is None else stack.enter_context(engine)
        while wave := list(islice(race.tasks(), min(WAVE, 1 + taken // GROWS))):
            taken += len(wave)
            if pool is None and slots > 1 and (workers or time.monotonic() - began > ALONE_S):
                pool = stack.enter_context(LocalEngine(slots))
            if pool is None:
                yield from ((task, work_on(task)) for task in wave)
                continue
            finished = sorted(dispatch(pool, work_on, wave), key=lambda one: one.number)
            yield from ((one.arguments, one.value or LayoutResults(cut=True)) for one in finished)


def _least(question: Question, found: SearchResult) -> float | None:
    enough = len(found.best) == question.count
    return score_of(found.best[-1], question.objective) if enough else None
