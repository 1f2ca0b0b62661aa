"""Every key changes the answer, or is named with the reason why it does not; and what is named changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from key_values import SWITCHES, VALUES

from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.studies.changes.whatif import whatif, whatif_table
from hdpsim.experiments.studies.comparing.compare import Outcome, run_batches
from hdpsim.experiments.studies.step_report import notes_of
from hdpsim.simulator.planning import plan_batch
from hdpsim.simulator.settings import changed_settings
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.without_effect import without_effect

pytestmark = pytest.mark.usefixtures("each_plan_once")

SMALL = (
    "cluster.node=hgx-b200-180gb", "gpus=16", "model.layers=4", "data.trace=bytescale-github", "data.batch=256K tokens",
    "data.context=32K", "layout.rank_capacity=auto", "layout.recompute=none", "execution.batches=1",
)  # fmt: skip
EXPERTS = (*SMALL, "model=mixtral-8x7b", "model.layers=4", "strategy.name=static")
CASES: dict[str, tuple[str, ...]] = {
    "static pipeline": (*SMALL, "strategy.name=static", "layout.pp=2", "data.asynchronous_loading=false"),
    "balance": (*SMALL, "layout.rank_capacity=4K"),
    "naive pipeline": (*SMALL, "strategy.name=hdp-naive", "layout.pp=2", "layout.rank_capacity=8K"),
    "experts": (*EXPERTS, "layout.ep=4"),
    "experts, fp8, zero3": (
        *EXPERTS, "layout.sharding=zero3", "layout.precision=fp8", "layout.recompute=selective",
        "layout.attention_kernel=unfused",
    ),
    "mesh of HDP": (
        *SMALL, "strategy.dynamic_groups=false", "layout.pp=4", "model.layers=7", "layout.recompute=full",
        "layout.sharding=none", "layout.dp_overlap=false",
    ),
    "one rank": (*SMALL, "strategy.name=static", "gpus=2", "data.context=8K", "data.batch=32K tokens"),
    "graphs and noise": (
        *SMALL, "strategy.name=static", "layout.tp=4", "layout.cuda_graphs=true", "layout.tp_overlap=true",
        "execution.jitter=0.1", "execution.slow_node_share=0.5", "execution.gc_pause=100ms",
    ),
}  # fmt: skip
NOT_HERE = (
    "name",
    "description",
    "cluster",
    "software",
)  # words, what all cases refine, what sets other keys
STEP = sorted(key for key in VALUES if not key.startswith("campaign.") and key not in NOT_HERE)

SAME = {
    "execution.executor": "both executors give the same times (docs/reference/scenarios.md)",
    "execution.network": "a line of its own says what sharing links costs",
    "strategy.name": "every result names its strategy",
}


@dataclass(frozen=True)
class Answer:
    """What one step says; its notes, which take longer than the step, are asked for by key."""

    figures: tuple[object, ...]
    outcome: Outcome

    def names(self, key: str) -> bool:
        """Whether the notes say that *key* changes nothing; no other key is looked for."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "hdpsim.simulator.hidden_settings.changed_settings",
                lambda setup: {name: value for name, value in changed_settings(setup).items() if name == key},
            )
            return any(
                note.startswith(f"{key} = ") and "changes nothing" in note
                for note in notes_of(replace(self.outcome))
            )


@cache
def read(changes: tuple[str, ...]) -> Scenario | None:
    """None: it is refused."""
    try:
        return load_scenario("quickstart-8gpu", changes)
    except (InfeasibleError, UserInputError):
        return None


@cache
def answer(changes: tuple[str, ...]) -> Answer | None:
    """None: it cannot run."""
    scenario = read(changes)
    try:
        outcome = run_batches(scenario, scenario.batches()) if scenario else None
    except (InfeasibleError, UserInputError):
        return None
    if outcome is None or not outcome.results:
        return None
    first = outcome.results[0]
    figures = (
        tuple((result.step_s, result.tokens) for result in outcome.results), tuple(outcome.account_s().items()),
        round(first.memory.total_bytes), round(first.memory.host_bytes), round(first.memory.allocated_bytes),
        round(first.memory.cached),
        first.plan_micro_batches, first.rank_capacity_tokens, first.makespan_s,
    )  # fmt: skip
    return Answer(figures, outcome)


def has_default(scenario: Scenario, key: str) -> bool:
    section, _, name = key.rpartition(".")
    document = scenario.document[section] if section else scenario.document
    return document.get(name) == KEYS[key].dump(KEYS[key].default)


def silent(base_changes: tuple[str, ...], key: str, value: str) -> bool:
    """Whether a key neither changes the answer nor is named; what is named and back at its default changes nothing."""
    changes = (*base_changes, f"{key}={value}")
    scenario, other = read(base_changes), read(changes)
    if scenario is None or other is None or key in SAME:
        return False
    if (other.setup(), other.batch_count) == (scenario.setup(), scenario.batch_count):
        return False
    base, changed = answer(base_changes), answer(changes)
    if base is None or changed is None:
        return False
    if changed.figures != base.figures:
        named = has_default(scenario, key) and changed.names(key)
        assert not named, f"{key}={value} is named and changes the answer"
        return False
    return not (changed.names(key) or base.names(key))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_key_changes_the_answer_or_is_named(case: str) -> None:
    """Every value in half of the cases: the first values of half of the keys, the second of the others, and so on."""
    assert answer(CASES[case]) is not None
    place = list(CASES).index(case)
    asked = [(key, value) for n, key in enumerate(STEP) for value in VALUES[key][(place + n) % 2 :: 2]]
    found = [f"{key}={value}" for key, value in asked if silent(CASES[case], key, value)]
    assert found == []


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[tuple[str, ...], str, str]:
    """A case with a few of its switches set otherwise, and one more change."""
    *others, key = draw(
        st.lists(st.sampled_from(sorted(SWITCHES.keys() & set(STEP))), min_size=2, max_size=4, unique=True)
    )
    changes = (f"{other}={draw(st.sampled_from(VALUES[other]))}" for other in others)
    return (*draw(st.sampled_from(sorted(CASES.values()))), *changes), key, draw(st.sampled_from(VALUES[key]))


@pytest.mark.slow
@settings(max_examples=50)
@given(mixtures())
@example(((*CASES["one rank"], "layout.sharding=zero3"), "layout.whole_gradients", "true"))
@example(
    (
        (*CASES["one rank"], "model.adapter_rank=16", "layout.sharding=zero1"),
        "layout.gradient_accumulation",
        "separate",
    )
)
@example(
    (
        (
            *CASES["balance"],
            "layout.sharding=zero3",
            "layout.sequence_parallel=false",
            "layout.lean_gradients=true",
        ),
        "strategy.buckets",
        "4",
    )
)
def test_a_key_changes_any_answer_or_is_named(mixture: tuple[tuple[str, ...], str, str]) -> None:
    assert not silent(*mixture)


@pytest.mark.parametrize(
    ("case", "change", "why"),
    [
        ("one rank", "layout.cuda_graphs=true", "kernels take longer than their launches"),
        ("experts, fp8, zero3", "memory.logit_bytes=14", "another moment of the step, needs more memory"),
        ("static pipeline", "execution.slow_node_share=0.1", "it makes no node slower"),
        ("balance", "data.loader=redundant", "batches get ready within a step"),
    ],
)
def test_what_is_hidden_is_named_with_the_reason(case: str, change: str, why: str) -> None:
    plain = tuple(other for other in CASES[case] if other != "data.asynchronous_loading=false")
    scenario = load_scenario("quickstart-8gpu", (*plain, change))
    notes = notes_of(run_batches(scenario, scenario.batches()))
    assert [note for note in notes if note.startswith(change.partition("=")[0]) and why in note] != []


def test_the_search_plans_only_what_may_be_planned_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight equal batches one new plan for a kernel that is priced anew, none for a packer that packs alike."""
    planned = []

    def plan(setup: Setup, *batch: Any, **options: Any) -> Any:
        planned.append(setup.layout.kernels.attention)
        return plan_batch(setup, *batch, **options)

    monkeypatch.setattr("hdpsim.simulator.hidden_settings.plan_batch", plan)
    scenario = load_scenario("megascale-175b-12k")
    notes = run_batches(scenario, scenario.batches()).hidden_notes
    assert {note.partition(" = ")[0] for note in notes} >= {"layout.attention_kernel", "strategy.packing"}
    assert planned == ["flash"]


def test_what_changes_nothing_does_so_in_all_batches() -> None:
    of_one, of_both = "a.b = 1 changes nothing: no reason", "c.d = 2 changes nothing: no reason"
    results = [SimpleNamespace(notes=(of_one, of_both, "first")), SimpleNamespace(notes=(of_both, "second"))]
    assert notes_of(Outcome(strategy="static", results=tuple(results))) == (of_both, "first", "second")  # type: ignore[arg-type]


def test_a_row_of_whatif_says_so() -> None:
    changes = ("strategy.packing=first-fit", "execution.seed=3", "layout.tp=4")
    scenario = load_scenario("quickstart-8gpu", SMALL)
    rows: dict[str, Any] = {row[0]: row[-1] for row in whatif_table(whatif(scenario, changes)).drawn().rows}
    assert "changes nothing: strategy is hdp-opt" in rows["strategy.packing=first-fit"]
    assert "execution.seed = 3 changes nothing" in rows["execution.seed=3"]
    assert rows["layout.tp=4"] == rows["base"] == ""


def test_defaults_are_never_named() -> None:
    for strategy in ("static", "hdp-naive", "hdp-opt"):
        setup = load_scenario(
            "quickstart-8gpu", ("layout.recompute=none", f"strategy.name={strategy}")
        ).setup()
        assert without_effect(setup, 1) == ()
