"""Every key changes the answer, or is named with the reason why it does not; and what is named changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from key_values import VALUES

from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.studies.whatif import whatif, whatif_table
from hdpsim.simulator.step import simulate_step
from hdpsim.simulator.without_effect import without_effect

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

HIDDEN = {
    "data.loader",  # behind the step before
    "execution.gc_pause",  # may fall on no process of this step
    "execution.slow_node_share",  # may be no node of a few
    "layout.checked_collectives",  # behind kernels, as everything that the host does
    "layout.cuda_graphs",
    "layout.expert_kernels",
    "layout.fused_loss",
    "layout.launch_blocking",
    "strategy.activation_offload",  # where a stage has so few layers that none is moved
    "strategy.selective_offloading",  # where no sequence is so long that it pays
    "strategy.packing",  # where all packers fill packs alike
    "strategy.padding",  # where every pack is full
    "memory.bucket_bytes",  # where another moment of the step, or another stage, needs more
    "memory.gather_buffer_bytes",
    "memory.logit_bytes",
}
"""Keys whose effect may be hidden by something longer or larger; each shows in one of the cases at least."""

SAME = {
    "execution.executor": "both executors give the same times (docs/reference/scenarios.md)",
    "data.prefetch_steps": "batches that get ready within a step never show (tests/simulator/test_data_path.py)",
}


@dataclass(frozen=True)
class Answer:
    """What one step says, and what its notes name as without effect."""

    figures: tuple[object, ...]
    named: frozenset[str]


@cache
def answer(changes: tuple[str, ...]) -> Answer | None:
    """None: it cannot run."""
    try:
        scenario = load_scenario("quickstart-8gpu", changes)
        results = [simulate_step(scenario.setup(), batch) for batch in scenario.batches()]
    except (InfeasibleError, UserInputError):
        return None
    first = results[0]
    figures = (
        tuple((result.step_s, result.tokens) for result in results),
        first.memory.total_bytes, first.memory.host_bytes, first.memory.allocated_bytes,
        first.plan_micro_batches, first.rank_capacity_tokens,
    )  # fmt: skip
    return Answer(
        figures, frozenset(note.partition(" = ")[0] for note in first.notes if "changes nothing" in note)
    )


def has_default(scenario: Scenario, key: str) -> bool:
    section, _, name = key.rpartition(".")
    document = scenario.document[section] if section else scenario.document
    return document.get(name) == KEYS[key].dump(KEYS[key].default)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_key_changes_the_answer_or_is_named(case: str) -> None:
    base, scenario = answer(CASES[case]), load_scenario("quickstart-8gpu", CASES[case])
    assert base is not None
    silent = []
    for key in STEP:
        for value in VALUES[key]:
            changes = (*CASES[case], f"{key}={value}")
            changed = answer(changes)
            if changed is None or key in HIDDEN or key in SAME:
                continue
            if changed.figures == base.figures and key not in changed.named | base.named:
                other = load_scenario("quickstart-8gpu", changes)
                if (other.setup(), other.batch_count) != (scenario.setup(), scenario.batch_count):
                    silent.append(f"{key}={value}")
            if key in changed.named and has_default(scenario, key):
                assert changed.figures == base.figures, f"{key}={value} is named and changes the answer"
    assert silent == []


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(HIDDEN))
def test_what_may_be_hidden_shows_somewhere(key: str) -> None:
    more = {"memory.gather_buffer_bytes": "data.context=1K", "memory.logit_bytes": "data.context=4K"}.get(key)
    for changes in CASES.values():
        base = (*changes, more) if more else changes
        found = {answer((*base, f"{key}={value}")) for value in VALUES[key]} - {None}
        if len({one.figures for one in found if one}) > 1:
            return
    pytest.fail(f"{key} changes nothing anywhere")


def test_a_row_of_whatif_says_so() -> None:
    changes = ("strategy.packing=first-fit", "execution.seed=3", "layout.tp=4")
    scenario = load_scenario("quickstart-8gpu", SMALL)
    rows: dict[str, Any] = {row[0]: row[-1] for row in whatif_table(whatif(scenario, changes)).rows}
    assert "changes nothing: strategy is hdp-balance" in rows["strategy.packing=first-fit"]
    assert "execution.seed = 3 changes nothing" in rows["execution.seed=3"]
    assert rows["layout.tp=4"] == rows["base"] == ""


def test_defaults_are_never_named() -> None:
    for strategy in ("static", "hdp-naive", "hdp-balance"):
        setup = load_scenario(
            "quickstart-8gpu", ("layout.recompute=none", f"strategy.name={strategy}")
        ).setup()
        assert without_effect(setup, 1) == ()
