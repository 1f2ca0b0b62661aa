"""What a search looks at first, and what it has when it ends early or runs in several processes."""

from __future__ import annotations

from itertools import islice

import pytest
from planning_cases import FEW, every_candidate, rates, small, small_space

from hdpsim.errors import UserInputError
from hdpsim.experiments.planning.plan import nothing_runs, why
from hdpsim.experiments.planning.search.budget import Budget, budget_of
from hdpsim.experiments.planning.search.evaluation import Contender, Question, Task
from hdpsim.experiments.planning.search.race import Entry, Estimates, Race, Waiting
from hdpsim.experiments.planning.search.search import WAVE, SearchResult, entries_of, search
from hdpsim.experiments.planning.search.space import Candidate, Space, own_value
from hdpsim.experiments.planning.search.work import StoppedError, replayed, work_on
from hdpsim.experiments.studies.comparing.compare import run_batches

pytestmark = pytest.mark.usefixtures("each_step_once")


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(small(), Space(values=FEW), count=3)


@pytest.mark.parametrize("text", ["soon", "-1 steps", "steps", "-1s", "5 GPUs", "nan"])
def test_a_budget_is_work_or_time(text: str) -> None:
    with pytest.raises(UserInputError, match="--budget: expected simulated steps"):
        budget_of(text)


def cut_short(workers: int) -> SearchResult:
    scenario = small(several=True).with_changes(("strategy.name=static",))
    space = Space(values={**FEW, "strategy.name": ("static", "hdp-naive")})
    return search(scenario, space, batches=2, budget=Budget(steps=8.0), workers=workers)


def test_a_slow_machine_finds_what_a_fast_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the slow one passes an hour with every look at it; the work that a budget counts is the same."""
    fast, hours = cut_short(1), iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: 3600.0 * next(hours))
    slow = cut_short(1)
    assert not fast.complete
    assert fast.set_aside
    assert (slow.searched, slow.set_aside, slow.refused) == (fast.searched, fast.set_aside, fast.refused)
    assert [(one.candidate, one.tokens_per_s) for one in slow.evaluated] == [
        (one.candidate, one.tokens_per_s) for one in fast.evaluated
    ]


@pytest.mark.slow
def test_processes_find_the_same_in_a_search_cut_short() -> None:
    alone, together = map(cut_short, (1, 2))
    assert alone.searched == together.searched
    assert [one.candidate for one in alone.evaluated] == [one.candidate for one in together.evaluated]


@pytest.mark.slow
def test_processes_find_the_same() -> None:
    space = Space(values={**FEW, "layout.recompute": ("full",), "strategy.name": ("static", "hdp-opt")})
    scenario = small(several=True).with_changes(("cluster.gpus=8", "data.batch=24K tokens"))
    alone, together = (search(scenario, space, batches=2, workers=workers) for workers in (1, 2))
    assert alone.complete
    assert together.complete
    assert [one.candidate for one in alone.best] == [one.candidate for one in together.best]
    assert [one.tokens_per_s for one in alone.best] == [one.tokens_per_s for one in together.best]
    assert alone.searched == together.searched


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4, 5, 6, 9])
def test_several_unequal_batches_are_never_worse_than_full_enumeration(seed: int) -> None:
    scenario, space = small(seed, several=True), small_space(seed)
    found = search(scenario, space, count=2, batches=3)
    assert found.complete
    assert found.set_aside == 0
    candidates = [Candidate(changes=()), *every_candidate(scenario, space)]
    expected = rates(scenario.with_changes(("execution.batches=3",)), candidates)
    assert found.best[0].tokens_per_s == pytest.approx(expected[0], rel=1e-12)


def test_a_replay_stops_between_batches_where_it_may() -> None:
    scenario, asked = small(several=True), iter((False, True))
    with pytest.raises(StoppedError):
        question = Question(scenario=scenario, space=Space(), objective="tokens_per_s", batches=3, count=1)
        replayed(question, Candidate(changes=()), scenario.setup(), (), None, lambda: next(asked))
    assert next(asked, None) is None


@pytest.mark.slow
def test_seeds_are_tried_first_and_once(found: SearchResult) -> None:
    seeds = [one.candidate for one in found.evaluated[-2:]]
    seeded = search(small(), Space(values=FEW), count=3, seeds=seeds)
    assert [one.candidate for one in seeded.evaluated[1:3]] == seeds
    assert [one.candidate for one in seeded.best] == [one.candidate for one in found.best]
    assert seeded.searched == found.searched


def test_the_own_layout_is_opened_first() -> None:
    scenario = small(several=True)
    question = Question(scenario=scenario, space=Space(), objective="tokens_per_s", batches=3, count=3)
    race = Race(question=question, entries=entries_of(question), least=lambda: None)
    (first,) = next(race.tasks()).layouts
    assert dict(first) == {key: own_value(scenario, key) for key in dict(first)}
    assert sum(entry.own for entry in race.entries) == 1


def test_the_first_candidate_is_known_before_a_second_one_is_replayed() -> None:
    space = Space(values={**FEW, "layout.pp": (1,), "strategy.name": ("static",)})
    question = Question(scenario=small(), space=space, objective="tokens_per_s", batches=1, count=3)
    race = Race(question=question, entries=entries_of(question), least=lambda: None)
    looks: list[Task] = []
    while not looks:
        wave = list(islice(race.tasks(), WAVE))
        looks = [task for task in wave if task.contenders]
        for task in wave:
            if not task.contenders:
                race.take(task, work_on(task))
    assert len(looks) == 1
    race.take(looks[0], work_on(looks[0]))
    assert sum(len(task.contenders) for task in islice(race.tasks(), WAVE)) > 1


@pytest.mark.slow
def test_a_budget_that_ends_early_says_so_and_has_exact_replays_only() -> None:
    scenario = small(several=True)
    found = search(scenario, Space(), budget=Budget(steps=20.0), batches=3)
    assert not found.complete
    for one in found.best:
        outcome = run_batches(scenario.with_changes(one.candidate.overrides), scenario.batches(3))
        assert one.tokens_per_s == pytest.approx(outcome.tokens_per_s.mean, rel=1e-12)


def test_what_relatives_took_decides_who_is_next() -> None:
    def entry(tp: int, kind: str, guess_s: float) -> Entry:
        layout = {"layout.tp": tp, "layout.pp": 1, "layout.sharding": "zero1", "layout.recompute": "none"}
        contender = Contender(
            candidate=Candidate(changes=()), site=(), kind=(kind,), bounds_s=(), ideal_s=guess_s
        )
        return Entry(site=(), layout=tuple(layout.items()), rough_s=1.0, contender=contender)

    estimates = Estimates()
    for tp, kind, took_s in ((1, "a", 2.0), (1, "b", 4.0)):
        one = entry(tp, kind, 1.0)
        estimates.learn(one.family, one.kind, one.guess_s, took_s)
    waiting = Waiting(estimates, lambda site: 1.0)
    slow, quick = entry(2, "b", 1.0), entry(2, "a", 1.5)
    waiting.add(slow)
    waiting.add(quick)
    assert waiting.take() is quick
    assert waiting.take(like=quick) is slow
    assert waiting.take() is None


def test_time_that_is_up_keeps_what_was_found() -> None:
    told: list[tuple[int, int]] = []
    found = search(
        small(), Space(), budget=Budget(steps=0.0), progress=lambda done, total, _: told.append((done, total))
    )
    assert not found.complete
    assert found.best == [found.own]
    assert set(told) == {(0, 0)}  # steps, not layouts, most of which nobody will look at
    assert "Nothing that was tried (the search did not end; replayed: 1) is better" in why(found)


@pytest.mark.parametrize(("ended", "advice"), [("budget", "give a larger --budget, or use more GPUs"),
                                                ("Ctrl-C", "let it go on, or use more GPUs"),
                                                ("", "use more GPUs")])  # fmt: skip
def test_a_search_that_did_not_end_is_told_to_go_on_before_it_asks_for_more_gpus(
    ended: str, advice: str
) -> None:
    found = SearchResult(objective="tokens_per_s", budget=Budget(steps=3.0), searched=5, complete=not ended)
    found.interrupted = ended == "Ctrl-C"
    message = str(nothing_runs(small(), found))
    assert message.splitlines()[-1].startswith(advice)
    assert ("--budget was used up (3 simulated steps" in message) == (ended == "budget")


@pytest.mark.slow
def test_interrupts_keep_what_was_found() -> None:
    def stop(done: int, total: int, words: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = search(small(), Space(values=FEW), progress=stop)
    assert not found.complete
    assert found.interrupted
    assert found.own in found.evaluated
