"""Does a strategy keep every promise? It plans batches of many kinds; what breaks is made as small as possible.

Every case is planned twice with another batch between, checked, and played by the replay and the engine. A case in
which a promise breaks is shrunk while the same promise still breaks: fewer stages, ranks and sequences, shorter ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

import numpy as np

from hdpsim.errors import DeadlockError, HdpSimError, InfeasibleError, PlanError, ScenarioError, StrategyError
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.scenario.scenario import Scenario
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.plan_micro_batches import plan_costs
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.play.engine import run_engine
from hdpsim.simulator.play.replay import run_replay
from hdpsim.simulator.strategies.call_own_strategy import check_plan
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.registry import make_plan

CAPACITY_TOKENS = 4096
CONTEXT_TOKENS = 8 * CAPACITY_TOKENS
RANKS = (1, 2, 3, 8, 64, 1024, 16_384)
STAGES = (1, 2)
FEW_RANKS = 64
"""Up to which there are all kinds of batches, and the engine plays them; beyond, three kinds."""
MOST_ENTRIES = 4096 * 1024
"""Sequences times ranks of a case: a strategy may share every sequence among all ranks."""
RANDOM_CASES = 40
PATIENCE_S = 30.0
"""Once a plan has taken so long, more ranks are not tried."""
SHRINKING_S = 15.0
SHRINKS = 400

PROMISES = meanings("promises_of_plans")
"""What a plan promises, in the order in which it is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch on so many ranks and stages."""

    kind: str
    lengths: tuple[int, ...]
    ranks: int
    stages: int

    @property
    def size(self) -> tuple[int, int, int, int]:
        """By which cases are compared when one is to be small."""
        return len(self.lengths), sum(self.lengths), self.ranks, self.stages

    @property
    def words(self) -> str:
        """For a sentence."""
        shown = ", ".join(f"{tokens:,}" for tokens in self.lengths[:12])
        more = f" and {len(self.lengths) - 12:,} more" if len(self.lengths) > 12 else ""
        ranks = f"{self.ranks:,} rank{'s' * (self.ranks > 1)} of {CAPACITY_TOKENS:,} tokens"
        count = f"{len(self.lengths):,} sequence{'s' * (len(self.lengths) > 1)}"
        return f"{count} ({shown}{more}) on {ranks}, {self.stages} stage{'s' * (self.stages > 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A promise, the smallest case found in which it breaks, and what is said there."""

    promise: str
    case: Case
    message: str
    cases: int = 1


@dataclass(slots=True, kw_only=True)
class StrategyCheck:
    """What was found.

    Attributes:
        kept: promise -> cases in which it was looked at and held.
        broken: the promises that break, in the order of PROMISES.
        seconds: ranks -> the longest that a plan took.
        refused: why the strategy itself said that it cannot run -> cases.
        stopped: why larger cases were left out; empty: none were.
    """

    strategy: str
    kept: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROMISES, 0))
    broken: list[Broken] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    cases: int = 0
    stopped: str = ""


class _BreaksError(Exception):
    def __init__(self, promise: str, message: str) -> None:
        super().__init__(message)
        self.promise, self.message = promise, message


def check_strategy(
    scenario: Scenario,
    strategy: str,
    *,
    most_ranks: int = RANKS[-1],
    report: Callable[[int, int], None] = lambda done, total: None,
) -> StrategyCheck:
    """Let *strategy* plan all cases of up to *most_ranks* ranks; model, cluster and keys are those of *scenario*.

    Raises:
        StrategyError: it cannot be loaded.
        UserInputError: the scenario cannot have two ranks, or something else is wrong with it.
    """
    trial = _Trial(scenario, strategy)
    verdicts = StrategyCheck(strategy=strategy)
    failing: dict[str, list[tuple[Case, str]]] = {}
    cases = [case for case in _cases() if case.ranks <= most_ranks]
    for done, case in enumerate(cases):
        report(done, len(cases))
        if verdicts.stopped and case.ranks > FEW_RANKS:
            continue
        try:
            seconds = trial.run(case)
        except _NoSuchCaseError:
            continue
        except InfeasibleError as error:
            verdicts.cases += 1
            verdicts.refused[str(error)] = verdicts.refused.get(str(error), 0) + 1
            continue
        except _BreaksError as error:
            failing.setdefault(error.promise, []).append((case, error.message))
            reached = error.promise
        else:
            reached = ""
            verdicts.seconds[case.ranks] = max(verdicts.seconds.get(case.ranks, 0.0), seconds)
            if seconds > PATIENCE_S:
                verdicts.stopped = (
                    f"a plan of {case.ranks:,} ranks took {seconds:.0f} s: no more ranks were tried"
                )
        verdicts.cases += 1
        for name in PROMISES:
            if name == reached:
                break
            verdicts.kept[name] += 1
    for name in PROMISES:
        if name in failing:
            case, message = min(failing[name], key=lambda one: one[0].size)
            case, message = trial.shrunk(case, name, message)
            verdicts.broken.append(Broken(promise=name, case=case, message=message, cases=len(failing[name])))
    report(len(cases), len(cases))
    return verdicts


class _Trial:
    """A strategy on cases of one scenario."""

    def __init__(self, scenario: Scenario, strategy: str) -> None:
        self._scenario, self._strategy = scenario, strategy
        self._problem = lru_cache(maxsize=64)(self._new_problem)

    def _new_problem(self, ranks: int, stages: int) -> PlanningProblem:
        """The problem of a batch of one token."""
        tp = self._scenario.layout.parallel.tp
        try:
            changed = self._scenario.with_changes(
                (
                    f"gpus={ranks * stages * tp}",
                    f"layout.pp={stages}",
                    "layout.cp=auto",
                    f"layout.rank_capacity={CAPACITY_TOKENS}",
                    f"data.context={CONTEXT_TOKENS}",
                    "memory.must_fit=false",
                )
            )
        except (InfeasibleError, ScenarioError) as error:
            raise _NoSuchCaseError(str(error)) from error
        return planning_problem(changed.setup(self._strategy), [1])

    def _plan(self, case: Case) -> tuple[PlanningProblem, Plan]:
        problem = self._problem(case.ranks, case.stages)
        problem = replace(problem, lengths=np.array(case.lengths, dtype=np.int64))
        plan = make_plan(problem)
        check_plan(problem, plan)
        return problem, plan

    def run(self, case: Case) -> float:
        """Seconds that the plan of *case* took.

        Raises:
            _BreaksError: a promise breaks.
            InfeasibleError: the strategy says that it cannot run.
        """
        try:
            began = time.perf_counter()
            problem, plan = self._plan(case)
            seconds = time.perf_counter() - began
            self._plan(replace(case, lengths=(1,)))
            _, repeated = self._plan(case)
        except StrategyError as error:
            raise _BreaksError("runs", str(error)) from error
        except PlanError as error:
            raise _BreaksError(error.promise or "arrays", str(error)) from error
        except DeadlockError as error:
            raise _BreaksError("deadlock", str(error)) from error
        other = _difference(plan, repeated)
        if other:
            raise _BreaksError("repeats", f"planned twice, {other} differs")
        self._play(case, problem, plan)
        return seconds

    def _play(self, case: Case, problem: PlanningProblem, plan: Plan) -> None:
        try:
            costs = plan_costs(problem.cost, None, plan, data_s=0.0)
            replayed_s = run_replay(plan, costs).step_s
            if case.ranks > FEW_RANKS:
                return
            engine_s = run_engine(plan, costs).step_s
        except DeadlockError as error:
            raise _BreaksError("deadlock", str(error)) from error
        except HdpSimError as error:
            raise _BreaksError("plays", str(error)) from error
        if abs(replayed_s - engine_s) > 1e-9 * engine_s:
            raise _BreaksError("plays", f"the replay takes {replayed_s} s, the engine {engine_s} s")

    def shrunk(self, case: Case, promise: str, message: str) -> tuple[Case, str]:
        """The smallest case found that breaks the same promise, and its message."""
        until = time.perf_counter() + SHRINKING_S
        tried: set[Case] = {case}
        smaller = True
        while smaller:
            smaller = False
            for candidate in _smaller(case):
                if candidate in tried or candidate.size >= case.size:
                    continue
                if len(tried) > SHRINKS or time.perf_counter() > until:
                    return case, message
                tried.add(candidate)
                try:
                    self.run(candidate)
                except _BreaksError as error:
                    if error.promise == promise:
                        case, message, smaller = candidate, error.message, True
                        break
                except InfeasibleError:
                    continue
        return case, message


class _NoSuchCaseError(InfeasibleError):
    """The scenario cannot have so many ranks or stages."""


def _difference(plan: Plan, other: Plan) -> str:
    """The first field in which two plans differ; notes and the planner's own times apart."""
    for item in fields(Plan):
        if item.name not in ("notes", "ideal_s", "makespan_s") and not np.array_equal(
            getattr(plan, item.name), getattr(other, item.name)
        ):
            return item.name
    return ""


def _cases() -> Iterator[Case]:
    """Batches of all kinds, the fewest ranks first, then random ones, then many ranks."""
    few = [ranks for ranks in RANKS if ranks <= FEW_RANKS]
    for ranks in few:
        for stages in STAGES:
            for kind, lengths in _batches(ranks).items():
                yield Case(kind=kind, lengths=lengths, ranks=ranks, stages=stages)
    draw = np.random.default_rng(0)
    for _ in range(RANDOM_CASES):
        ranks = int(draw.choice((1, 2, 3, 4, 5, 8, 16)))
        lengths = _mixed(draw, int(draw.integers(1, 25)), ranks)
        yield Case(kind="random", lengths=lengths, ranks=ranks, stages=int(draw.choice((1, 2, 4))))
    for ranks in RANKS[len(few) :]:
        for stages in STAGES:
            batches = _batches(ranks)
            for kind in ("one token", "one as long as the context", "mixed"):
                yield Case(kind=kind, lengths=batches[kind], ranks=ranks, stages=stages)


def _batches(ranks: int) -> dict[str, tuple[int, ...]]:
    full, longest = CAPACITY_TOKENS, _longest(ranks)
    sequences = min(4 * ranks + 3, MOST_ENTRIES // ranks)
    draw = np.random.default_rng(ranks)
    return {
        "one token": (1,),
        "one sequence": (full // 3,),
        "one as long as the context": (longest,),
        "fewer than ranks": (full // 2,) * max(1, ranks // 2),
        "equal": (full // 2,) * sequences,
        "around the capacity": tuple(min(longest, full + more) for more in (-1, 0, 1) for _ in range(ranks)),
        "a long one among short ones": (7,) * sequences + (longest,) + (7,) * sequences,
        "mixed": _mixed(draw, sequences, ranks),
    }


def _longest(ranks: int) -> int:
    """The longest sequence that fits so many ranks without offloading."""
    return min(CONTEXT_TOKENS, ranks * CAPACITY_TOKENS)


def _mixed(draw: np.random.Generator, count: int, ranks: int) -> tuple[int, ...]:
    """Most are short, few are long."""
    lengths = np.exp(draw.normal(np.log(CAPACITY_TOKENS / 8), 1.5, count))
    return tuple(np.clip(lengths, 1, _longest(ranks)).astype(int).tolist())


def _smaller(case: Case) -> Iterator[Case]:
    """Cases that are simpler in one way, the greatest steps first."""
    for stages in (1, 2):
        if stages < case.stages:
            yield replace(case, stages=stages)
    lengths = case.lengths
    size = len(lengths)
    while size > 1:
        size = -(-size // 2)
        for start in range(0, len(lengths), size):
            kept = lengths[:start] + lengths[start + size :]
            if kept:
                yield replace(case, lengths=kept)
    for ranks in dict.fromkeys((1, 2, 3, case.ranks // 2, case.ranks - 1)):
        if 1 <= ranks < case.ranks and max(lengths) <= _longest(ranks):
            yield replace(case, ranks=ranks)
    for place, tokens in enumerate(lengths[:24]):
        for less in dict.fromkeys((1, 2, CAPACITY_TOKENS, CAPACITY_TOKENS + 1, tokens // 2, tokens - 1)):
            if 1 <= less < tokens:
                yield replace(case, lengths=(*lengths[:place], less, *lengths[place + 1 :]))
