"""Which candidate of a search is replayed next: the most promising, by what its relatives took."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import log
from typing import TYPE_CHECKING

from .estimates import Estimates, Family, Kind
from .evaluation import Contender, LayoutResults, Question, Task, most_score, ready
from .space import Candidate, Changes
from .survey import SHARE as SURVEY_SHARE
from .survey import Survey
from .work import replay_work

if TYPE_CHECKING:
    from collections.abc import Callable

CURIOSITY = 0.05
"""By how much, as a share of the step, layouts that were not opened count as better than expected as long as opening
has taken less work than replaying, and as worse after that: both get about half of it."""
TWIN = 0.3
"""Logarithm of a factor on what a twin is expected to take, for its place in the order alone."""
LAST_SHARE = 0.5
"""Of the budget, at most, that is kept for the leaders at its end."""
FINISHING_SHARE = 0.25
"""Of the work so far, at most, that goes into replaying the leaders in full; the rest looks for better ones."""
TOGETHER = 8
"""Layouts of a task, where equal sequences make each a matter of milliseconds."""
LEADERS = 2
"""So many times the candidates that are wanted are replayed in full: a first look is off by some percent."""


@dataclass(eq=False, kw_only=True)
class Entry:
    """A layout that was not opened yet, or a candidate of one that was.

    Attributes:
        site: GPUs and their number.
        layout: changes of the layout alone.
        rough_s: step by the rough estimate of the layout.
        own: whether it is the scenario's own layout.
        contender: the candidate; None: none of the layout's is known.
        step_s: on the first batch, once it was replayed.
        twin: an earlier one is likely to be the same under another name.
    """

    site: Changes
    layout: Changes
    rough_s: float
    own: bool = False
    contender: Contender | None = None
    step_s: float = 0.0
    twin: bool = False

    @cached_property
    def family(self) -> Family:
        """What an entry has in common with layouts whose estimates are off by about as much."""
        layout = dict(self.layout)
        keys = ("layout.tp", "layout.pp", "layout.sharding", "layout.recompute")
        return (self.site, *(layout[key] for key in keys), layout.get("layout.ep"))

    @cached_property
    def corner(self) -> Family:
        """The degrees that decide most about time and memory."""
        layout = dict(self.layout)
        return (self.site, *(layout.get(key) for key in ("layout.tp", "layout.pp", "layout.ep")))

    @property
    def guess_s(self) -> float:
        """Its step as far as it is known without a replay: ideal, bounded from below, or roughly."""
        if self.contender is None:
            return self.rough_s
        known = (self.contender.ideal_s or 0.0, *self.contender.bounds_s[:1])
        return max(known) or self.rough_s

    @property
    def kind(self) -> Kind | None:
        """What a candidate has in common with those of other layouts."""
        return None if self.contender is None else self.contender.kind


class Waiting:
    """Layouts that were not opened and candidates that were not replayed, the most promising first."""

    def __init__(self, estimates: Estimates, worth: Callable[[Changes], float]) -> None:
        """*worth*: score of a step of one second on a site."""
        self._estimates, self._worth = estimates, worth
        self._heaps: dict[tuple[Family, Kind | None, bool], list[tuple[float, int, Entry]]] = {}
        self._count = self._added = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_layouts(self) -> bool:
        """Whether any layout was not opened yet."""
        return any(kind is None for _, kind, _ in self._heaps)

    def add(self, entry: Entry) -> None:
        """Add a candidate."""
        heap = self._heaps.setdefault((entry.family, entry.kind, entry.twin), [])
        self._count, self._added = self._count + 1, self._added + 1
        heappush(heap, (entry.guess_s, self._added, entry))

    def take(
        self, *, like: Entry | None = None, curious: bool = False, layouts: bool = False
    ) -> Entry | None:
        """The most promising one, a candidate as long as none was replayed.

        *curious*: layouts that were not opened count as better than they are expected to be; else as worse.
        *layouts*: no candidate is wanted.

        None if it has to be *like* another (on its site, and opened or not), and is not.
        """
        if not self._heaps:
            return None
        unknown = not self._estimates.has_replays and any(kind is not None for _, kind, _ in self._heaps)
        best = min(
            (key for key in self._heaps if not (layouts or unknown) or (key[1] is None) == layouts),
            key=lambda key: self._expected(key, CURIOSITY if curious else -CURIOSITY),
        )
        entry = self._heaps[best][0][2]
        if like and (entry.site != like.site or (entry.contender is None) != (like.contender is None)):
            return None
        heappop(self._heaps[best])
        if not self._heaps[best]:
            del self._heaps[best]
        self._count -= 1
        return entry

    def _expected(self, key: tuple[Family, Kind | None, bool], curiosity: float) -> tuple[float, int]:
        """Logarithm of one over the score of the first of a heap."""
        guess_s, number, entry = self._heaps[key][0]
        expected = log(guess_s / self._worth(entry.site)) + self._estimates.correction(*key[:2])
        expected += TWIN if entry.twin else 0.0
        return expected - (curiosity if key[1] is None else 0.0), number


@dataclass(kw_only=True)
class Race:
    """All layouts of a search, and what becomes of them.

    1. The scenario's own layout is opened: it is refused if hardly any tokens fit, else it is bounded, and its
       candidates are listed. Then always the most promising layout is opened, or the most promising candidate is
       looked at: quickly planned and replayed on the first batch.
    2. Candidates that are among the best at first sight are replayed in full: on all batches, with the best plans.

    Attributes:
        question: what all have in common.
        entries: the layouts.
        least: the score that has to be reached by now.
        opened: how many were opened or refused.
    """

    question: Question
    entries: list[Entry]
    least: Callable[[], float | None]
    opened: int = 0

    def __post_init__(self) -> None:
        self._estimates = Estimates()
        self.open = Waiting(self._estimates, lambda site: self._score(site, 1.0))
        """Still to be looked at."""
        self._own = [entry for entry in self.entries if entry.own]
        """Layouts as the scenario has them: opened first, since what runs today is a good place to begin."""
        self._ready = ready(self.question)
        others = [entry for entry in self.entries if not entry.own]
        self._survey = None if self._ready.equal else Survey(others)
        """Not where all sequences are equal: there a layout takes milliseconds, and nothing has to be replayed."""
        for entry in others if self._survey is None else ():
            self.open.add(entry)
        self.waiting: list[Entry] = []
        """Looked at, not replayed in full."""
        self._seeds: deque[Entry] = deque()
        """Candidates that are tried first."""
        self._seeded: set[Changes] = set()
        self._known: dict[Changes, Entry] = {}
        """What is being worked on, by its changes."""
        self._full: list[float] = []
        """Scores at first sight of those that were, or are being, replayed in full."""
        self._worth: dict[Changes, float] = {}
        self._looks: set[tuple[object, ...]] = set()
        self._surveying = self._opening = self._replaying = self._finishing = 0.0
        """Work that was done or is under way, in simulated steps."""
        self._finished = False
        """Whether any candidate was replayed in full."""
        self.outrun = 0
        """Candidates that a bound showed to be slower than the best ones before they were replayed."""

    def seed(self, candidates: Sequence[Candidate]) -> None:
        """Try *candidates* first, those whose layout is one of the entries."""
        known = {(*entry.site, *entry.layout): entry for entry in self.entries}
        for candidate in candidates:
            parent = next(
                (
                    known[candidate.changes[:length]]
                    for length in range(len(candidate.changes), 0, -1)
                    if candidate.changes[:length] in known
                ),
                None,
            )
            if parent is not None:
                contender = Contender(
                    candidate=candidate, site=parent.site, kind=("seed",), bounds_s=(), ideal_s=None
                )
                self._seeds.append(replace(parent, contender=contender))
                self._seeded.add(candidate.changes)

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return not self._own and self._survey is None and not self.open and not self.waiting

    @property
    def _waits(self) -> bool:
        """Whether the first candidate of all is being replayed: until that is known, others would be blind guesses."""
        return not self._estimates.has_replays and any(entry.contender for entry in self._known.values())

    @property
    def _work(self) -> float:
        return self._surveying + self._opening + self._replaying + self._finishing

    @property
    def used(self) -> float:
        """Share of the budget."""
        return self.question.used(self._work)

    def tasks(self) -> Iterator[Task]:
        """What is to be done next, until nothing is known to be."""
        while self._seeds:
            yield self._replay(self._seeds.popleft())
        while self.used < 1.0:
            leader = self._leader()
            if self._own:
                entry = self._own.pop(0)
                self._known[*entry.site, *entry.layout] = entry
                yield self._task(entry, (entry.layout,))
            elif (surveyed := self._surveyed()) is not None:
                self._known[*surveyed.site, *surveyed.layout] = surveyed
                yield self._task(surveyed, (surveyed.layout,), glance=True)
            elif leader is not None:
                yield self._finish(leader)
            elif self.open:
                if self._waits and not self.open.has_layouts:
                    return
                task = self._explore()
                if task is not None:
                    yield task
            elif self.waiting:
                yield self._finish(max(self.waiting, key=self._first_score))
            else:
                return

    def take(self, task: Task, results: LayoutResults) -> None:
        """Learn from what became of a task."""
        if task.in_full:
            self._finished |= bool(results.evaluated)
            return
        if task.glance:
            self._surveying += results.work
            self._glanced(self._known.pop((*task.site, *task.layouts[0])), results)
            return
        if task.layouts:
            self.opened += len(task.layouts)
            self._opening += results.work
            parents = {layout: self._known.pop((*task.site, *layout)) for layout in task.layouts}
            for layout, parent in parents.items():
                rivals = [
                    replace(parent, contender=contender)
                    for one, contender in results.contenders
                    if one == layout and contender.candidate.changes not in self._seeded
                ]
                for entry in rivals:
                    entry.twin = self._looks_like_another(entry)
                self._learn(parent, rivals)
                for entry in rivals:
                    self.open.add(entry)
            return
        in_full = {one.candidate for one in results.evaluated}
        for contender, step_s in results.first:
            entry = self._known[contender.candidate.changes]
            entry.step_s = step_s
            self._estimates.learn(entry.family, entry.kind, entry.guess_s, entry.step_s)
            if contender.candidate not in in_full:
                self.waiting.append(entry)
        for contender in task.contenders:
            del self._known[contender.candidate.changes]

    def _score(self, site: Changes, step_s: float) -> float:
        """Score of so long a step on the first batch; that of energy as if all drew as little as they can."""
        if site not in self._worth:
            setup, tokens = self._ready.setups(site).base, float(self._ready.lengths[0].sum())
            self._worth[site] = most_score(
                self.question.objective, tokens, setup, self.question.scenario.costs
            )
        return self._worth[site] / step_s

    def _learn(self, layout: Entry, candidates: Sequence[Entry]) -> None:
        if candidates:
            best_s = min(candidate.guess_s for candidate in candidates)
            self._estimates.opened(layout.family, layout.rough_s, best_s)

    def _looks_like_another(self, entry: Entry) -> bool:
        """Whether another layout of the same degrees had a candidate that looked the same to the last digit."""
        contender = entry.contender
        assert contender is not None
        layout = dict(entry.layout)
        own = [layout.get(key) for key in ("layout.vpp", "layout.sharding", "layout.optimizer_offload")]
        variant = contender.candidate.changes[len(entry.site) + len(entry.layout) :]
        looks = (entry.corner, *own, variant, contender.kind, contender.bounds_s, contender.ideal_s)
        seen = looks in self._looks
        self._looks.add(looks)
        return seen

    def _glanced(self, layout: Entry, results: LayoutResults) -> None:
        """Learn from a layout of the survey; one that fits is opened when its turn comes."""
        self._learn(layout, [replace(layout, contender=one) for _, one in results.contenders])
        if results.contenders:
            self.open.add(layout)
        else:
            self.opened += 1
        if self._survey is not None:
            self._survey.glanced(layout, fits=bool(results.contenders))

    def _surveyed(self) -> Entry | None:
        """The next layout of the survey; None where it has ended, or waits for what was asked."""
        if self._survey is None:
            return None
        in_time = self.used < SURVEY_SHARE
        entry = self._survey.take() if in_time else None
        if entry is None and not (in_time and self._survey.waits):
            for other in self._survey.rest():
                self.open.add(other)
            self._survey = None
        return entry

    def _first_score(self, entry: Entry) -> float:
        return self._score(entry.site, entry.step_s)

    def _leader(self) -> Entry | None:
        """A candidate that is among the best at first sight, if now is the time to replay it in full."""
        count = LEADERS * self.question.count
        ahead = sorted(self.waiting, key=self._first_score, reverse=True)[:count]
        best = sorted((*self._full, *map(self._first_score, ahead)), reverse=True)[:count]
        ahead = [entry for entry in ahead if self._first_score(entry) >= best[-1]]
        if not ahead:
            return None
        full = [self._full_work(entry) for entry in ahead]
        if self._finishing + full[0] <= FINISHING_SHARE * self._work:
            return ahead[0]
        used = self.used
        kept = min(used * sum(full) / self._work, LAST_SHARE)
        return ahead[0] if used and 1.0 - used < kept else None

    def _full_work(self, entry: Entry) -> float:
        assert entry.contender is not None
        return replay_work(self.question, entry.contender, in_full=True)

    def _finish(self, entry: Entry) -> Task:
        assert entry.contender is not None
        self.waiting.remove(entry)
        self._full.append(self._first_score(entry))
        self._finishing += self._full_work(entry)
        return self._task(entry, contenders=(entry.contender,), in_full=True)

    def _replay(self, entry: Entry) -> Task:
        """A first look at a candidate."""
        assert entry.contender is not None
        self._known[entry.contender.candidate.changes] = entry
        self._replaying += replay_work(self.question, entry.contender, in_full=False)
        return self._task(entry, contenders=(entry.contender,))

    def _explore(self) -> Task | None:
        """Open the most promising layouts, or look at the most promising candidate; None if it is outrun."""
        curious = self._opening < self._replaying
        first = entry = self.open.take(curious=curious, layouts=self._waits)
        if first is None:
            return None
        if first.contender is not None:
            if not self._hopeless(first.contender):
                return self._replay(first)
            self.outrun += 1
            return None
        layouts = []
        while entry is not None:
            self._known[*entry.site, *entry.layout] = entry
            layouts.append(entry.layout)
            enough = not self._ready.equal or len(layouts) == TOGETHER
            entry = None if enough else self.open.take(like=first, curious=curious)
        return self._task(first, tuple(layouts))

    def _hopeless(self, contender: Contender) -> bool:
        setup = self._ready.setups(contender.site).base
        return self.question.hopeless(setup, contender.bounds_s, self.least())

    def _task(
        self,
        entry: Entry,
        layouts: tuple[Changes, ...] = (),
        contenders: tuple[Contender, ...] = (),
        *,
        in_full: bool = False,
        glance: bool = False,
    ) -> Task:
        return Task(
            question=self.question, site=entry.site, layouts=layouts, contenders=contenders, in_full=in_full,
            glance=glance, may_stop=self._finished, least=self.least(),
        )  # fmt: skip
