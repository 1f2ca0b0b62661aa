"""Candidates of a search: what is known of them, how good they are, and what speaks against them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from hdpsim.cost_models.kernels.power import COMMUNICATION_SHARE, waiting_w
from hdpsim.cost_models.reading.units import HOUR_S
from hdpsim.errors import InfeasibleError, OutOfMemoryError, ScenarioError
from hdpsim.experiments.output.meanings import meanings
from hdpsim.experiments.studies.money import mean_price
from hdpsim.experiments.studies.power import cluster_power
from hdpsim.simulator.setup import Setup

from .budget import NO_LIMIT, Budget
from .setups import Setups
from .space import Candidate, Changes, Space

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.prices import CostOptions
    from hdpsim.cost_models.memory.report import MemoryReport
    from hdpsim.experiments.scenario.scenario import Scenario

Objective = Literal["tokens_per_s", "usd_per_token", "time_to_train", "energy"]

OBJECTIVE_WORDS: dict[Objective, str] = {
    "tokens_per_s": "throughput",
    "usd_per_token": "money per token",
    "time_to_train": "time to train",
    "energy": "energy per token",
}
"""What each objective compares, in words."""

_NUMBER = re.compile(r"\d[\d,.]*")
ALIKE = 1e-9
"""Relative difference of steps below which two candidates are the same under different names."""

GPU_MEMORY, HOST_MEMORY = "GPU memory", "host memory"
ON_PAPER = "headroom (they fit on paper)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A candidate replayed on all batches.

    Attributes:
        tokens_per_s: all tokens of the batches over all seconds, as of `hdpsim simulate`.
        memory: of the fullest stage, of the batch that needs most.
        usd_per_token: GPUs alone; None where their price is unknown.
        joule_per_token: all that the data centre draws; None where it was only priced.
        bound_s: no plan of these batches on this layout takes less, mean over the batches; 0 where nobody asked.
        accounts: seconds of a step in each, mean over ranks, stages and batches; none where it was only priced.
        cp: ranks of the largest group.
        tight: it fits on paper, but leaves less memory than was asked for: it is not among the best.
    """

    candidate: Candidate
    setup: Setup
    tokens_per_s: float
    step_s: float
    memory: MemoryReport
    usd_per_token: float | None
    cp: int
    joule_per_token: float | None = None
    bound_s: float = 0.0
    accounts: dict[str, float] = field(default_factory=dict)
    tight: bool = False

    @property
    def headroom_bytes(self) -> float:
        """Memory of the GPU that is left."""
        return self.memory.capacity_bytes - self.memory.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A candidate that fits as far as its layout and the tokens of a rank tell, and has to be replayed.

    Attributes:
        site: the GPUs and their number.
        kind: what its strategy's candidates of other layouts have in common with it.
        bounds_s: for every batch a time that it does not undercut; none where that is unknown.
        ideal_s: of the first batch, what balanced plans of dynamic groups hardly undercut; None for meshes.
    """

    candidate: Candidate
    site: Changes
    kind: tuple[object, ...]
    bounds_s: tuple[float, ...]
    ideal_s: float | None

    @property
    def strategy(self) -> object:
        """The name of its strategy."""
        return self.candidate.value("strategy.name")


@dataclass(slots=True, kw_only=True)
class LayoutResults:
    """What became of the candidates of some layouts; see SearchResult.

    Attributes:
        contenders: layouts and their candidates that have to be replayed.
        first: contenders that were replayed on the first batch, the only one or not, and their step there.
        work: of listing and pricing, in simulated steps (see budget.py).
        cut: time was up before the last one.
    """

    evaluated: list[Evaluated] = field(default_factory=list)
    contenders: list[tuple[Changes, Contender]] = field(default_factory=list)
    first: list[tuple[Contender, float]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    outrun: int = 0
    closest: tuple[float, Candidate, str] | None = None
    cut: bool = False
    work: float = 0.0

    def least(self, question: Question, so_far: float | None) -> float | None:
        """The score that has to be reached: *so_far*, or that of the last of the best here if there are enough."""
        best = ranked(self.evaluated, question.objective, question.count)
        if len(best) < question.count:
            return so_far
        last_score = score_of(best[-1], question.objective)
        return last_score if so_far is None else max(so_far, last_score)

    def refuse(self, candidate: Candidate, error: InfeasibleError | ScenarioError) -> None:
        """Note why a candidate cannot run."""
        self.refused[limit_of(error)] += 1
        if isinstance(error, OutOfMemoryError):
            excess = error.needed_bytes / error.available_bytes
            if self.closest is None or excess < self.closest[0]:
                self.closest = (excess, candidate, str(error))


def score_of(evaluated: Evaluated, objective: Objective) -> float:
    """How good a candidate is, more is better: tokens a second, per USD or per joule."""
    match objective:
        case "usd_per_token":
            assert evaluated.usd_per_token is not None  # the objective was refused where prices are unknown
            return 1.0 / evaluated.usd_per_token
        case "energy":
            assert evaluated.joule_per_token is not None  # whoever asks for energy replays
            return 1.0 / evaluated.joule_per_token
        case "tokens_per_s" | "time_to_train":
            return evaluated.tokens_per_s


def most_score(objective: Objective, tokens_per_s: float, setup: Setup, costs: CostOptions) -> float:
    """The score that a candidate cannot exceed if it cannot exceed that throughput.

    Of energy: its GPUs draw at least what those of them draw that do what needs least power.
    """
    match objective:
        case "usd_per_token":
            cost = usd_per_s(setup, costs)
            assert cost is not None
            return tokens_per_s / cost
        case "energy":
            gpu = setup.cluster.gpu
            least_w = min(
                waiting_w(gpu), setup.calibration.static_w or gpu.tdp_w, COMMUNICATION_SHARE * gpu.tdp_w
            )
            return tokens_per_s / cluster_power(setup.cluster, least_w, costs).facility_w
        case "tokens_per_s" | "time_to_train":
            return tokens_per_s


def usd_per_s(setup: Setup, costs: CostOptions) -> float | None:
    """What all GPUs cost; None where their price is unknown."""
    price = mean_price(setup.cluster, costs).usd_per_hour
    return None if price is None else price * setup.cluster.gpus / HOUR_S


def ranked(candidates: Sequence[Evaluated], objective: Objective, count: int) -> list[Evaluated]:
    """The best that are not tight, the best first; of those of the same step and memory, the first."""
    ordered = sorted(
        (candidate for candidate in candidates if not candidate.tight),
        key=lambda candidate: (-score_of(candidate, objective), candidate.memory.total_bytes),
    )
    kept: list[Evaluated] = []
    for candidate in ordered:
        if not any(_alike(candidate, other) for other in kept):
            kept.append(candidate)
            if len(kept) == count:
                break
    return kept


def _alike(one: Evaluated, other: Evaluated) -> bool:
    return (
        abs(one.step_s - other.step_s) <= ALIKE * one.step_s
        and one.memory.total_bytes == other.memory.total_bytes
        and one.setup.cluster == other.setup.cluster
    )


def limit_of(error: InfeasibleError | ScenarioError) -> str:
    """Which limit a candidate met, the same words for all whom it refuses."""
    if isinstance(error, OutOfMemoryError):
        return HOST_MEMORY if "host" in str(error) else GPU_MEMORY
    lines = [line.strip() for line in str(error).splitlines()]
    text = lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]
    if isinstance(error, ScenarioError) and error.problems:
        text = ": ".join(error.problems[0])
    key = text.partition(":")[0]
    known = meanings("limits_of_candidates")
    if key in known:
        return known[key]
    return _NUMBER.sub("N", re.split(r" \(|[:;]", text)[0])[:100]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What all layouts of a search have in common.

    Attributes:
        batches: how many global batches.
        count: how many best candidates are safe from pruning.
        headroom: over what is predicted, a share of it, for which memory must suffice.
        budget: how far it goes.
        began_s: when it began, on the clock of time.monotonic.
    """

    scenario: Scenario
    space: Space
    objective: Objective
    batches: int
    count: int
    budget: Budget = NO_LIMIT
    began_s: float = 0.0
    headroom: float = 0.0

    @property
    def time_is_up(self) -> bool:
        """Whether time is up, where it is limited."""
        return self.budget.seconds is not None and self.used(0.0) >= 1.0

    def used(self, work: float) -> float:
        """Share of the budget that is used up after so much *work*; 0 without limits."""
        if self.budget.seconds is not None:
            return (time.monotonic() - self.began_s) / max(self.budget.seconds, 1e-9)
        return 0.0 if self.budget.steps is None else work / max(self.budget.steps, 1e-9)

    def tight(self, report: MemoryReport) -> bool:
        """Whether memory would not suffice for what is predicted and the headroom."""
        return report.is_tight(self.headroom)

    def prices(self, setup: Setup) -> bool:
        """Whether equal sequences on this setup need no replay."""
        return (
            setup.layout.parallel.cp is not None
            and setup.strategy.name == "static"
            and self.objective != "energy"
        )

    def hopeless(
        self, setup: Setup, seconds: Sequence[float], least: float | None, tokens: Sequence[float] = ()
    ) -> bool:
        """Whether nothing reaches the score *least* whose batches take at least so long; *tokens*: of each of them."""
        if least is None or not seconds:
            return False
        total = sum(tokens or map(np.sum, ready(self).lengths))
        return most_score(self.objective, float(total) / sum(seconds), setup, self.scenario.costs) < least


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Some layouts or contenders of a site: a unit of work for a process."""

    question: Question
    site: Changes
    layouts: tuple[Changes, ...] = ()
    contenders: tuple[Contender, ...] = ()
    """To be replayed, on all batches if *in_full*, else on the first."""
    in_full: bool = False
    glance: bool = False
    """One candidate that fits is enough to know of a layout."""
    may_stop: bool = False
    """Once time is up, between two batches: others were replayed in full."""
    least: float | None = None
    """Score that a candidate must be able to reach; None: any."""


class Ready:
    """What a process works out once for all layouts of a question.

    Attributes:
        lengths: of every batch.
        equal: all sequences are of one length.
        longest: tokens of the longest sequence.
    """

    def __init__(self, question: Question) -> None:
        self.lengths = question.scenario.batches(question.batches)
        self.equal = len(np.unique(np.concatenate([np.unique(lengths) for lengths in self.lengths]))) == 1
        self.longest = max(int(lengths.max()) for lengths in self.lengths)
        self._scenario = question.scenario
        self._setups: dict[Changes, Setups] = {}

    def setups(self, site: Changes) -> Setups:
        """Setups of the candidates on so many GPUs of a type."""
        if site not in self._setups:
            self._setups[site] = Setups(self._scenario, site)
        return self._setups[site]


@dataclass(frozen=True)
class _Key:
    """A question that equals others about the same scenario and batches."""

    question: Question = field(compare=False)
    key: tuple[object, ...]


@lru_cache(maxsize=4)
def _ready(key: _Key) -> Ready:
    return Ready(key.question)


def ready(question: Question) -> Ready:
    """What all tasks of a question share, worked out once."""
    scenario = question.scenario
    return _ready(_Key(question, (scenario.resolved_json, scenario.folder, question.batches)))
