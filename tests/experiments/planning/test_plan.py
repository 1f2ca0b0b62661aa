"""The search for layouts: never worse than full enumeration, and what it finds is what `simulate` says."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from planning_cases import FEW, every_candidate, rates, small, small_space

import hdpsim
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.planning.plan import front, plan_document, planned, why
from hdpsim.experiments.planning.search.bounds import mesh_bound_s, quiet_bound_s
from hdpsim.experiments.planning.search.budget import Budget
from hdpsim.experiments.planning.search.evaluation import (
    Objective,
    most_score,
    score_of,
)
from hdpsim.experiments.planning.search.search import SearchResult, search
from hdpsim.experiments.planning.search.setups import Setups
from hdpsim.experiments.planning.search.space import Candidate, Space, own_value, space_of
from hdpsim.experiments.scenario.scenario import Scenario
from hdpsim.experiments.studies.comparing.compare import run_batches
from hdpsim.experiments.studies.money import costs_of

pytestmark = pytest.mark.usefixtures("each_step_once")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4, 5, 6, 9, 11, 12, 13, 16, 17, 18])
def test_never_worse_than_full_enumeration(seed: int) -> None:
    scenario, space = small(seed), small_space(seed)
    found = search(scenario, space, count=1)
    assert found.complete
    expected = rates(scenario, [Candidate(changes=()), *every_candidate(scenario, space)])
    assert found.best[0].tokens_per_s == pytest.approx(expected[0], rel=1e-12)
    assert found.searched >= len(expected)


def sweep(scenario: Scenario, axes: dict[str, tuple[object, ...]]) -> list[float]:
    """Throughput of every combination of the axes, the best first: without what the search knows of its space."""
    candidates = [
        Candidate(changes=tuple(zip(axes, values, strict=True))) for values in product(*axes.values())
    ]
    return rates(scenario, candidates)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "experts"), [(1, 0), (2, 8)])
@pytest.mark.parametrize(
    "names",
    [("static", "hdp-naive", "hdp-opt"), ("wlb-llm",), ("megatron-dp-balanced", "megatron-balanced-pp")],
)
def test_a_sweep_finds_nothing_better_where_ranks_meet_in_every_layer(
    seed: int, experts: int, names: tuple[str, ...]
) -> None:
    scenario = small(seed)
    own = scenario.with_changes(
        ("cluster.gpus=8", *((f"model.experts={experts}", "model.top_k=2") if experts else ()))
    )
    values: dict[str, tuple[object, ...]] = {
        "layout.tp": (2,),
        "layout.pp": (1, 2),
        "layout.vpp": (1,),
        "layout.schedule": ("1f1b",),
        **(
            {"layout.ep": (4,), "layout.etp": ("auto",)} if experts else {}
        ),  # beyond TP: ranks meet in every layer
        "layout.sharding": ("zero1" if experts else "zero3",),
        "layout.recompute": ("none",),
        "layout.optimizer_offload": (False,),
        "strategy.name": names,
        "strategy.packing": ("first-fit",),
    }
    found = search(own, Space(values=values, pinned=frozenset({"data.context"})), count=1)
    best = {str(dict(one.candidate.changes).get("strategy.name")): one for one in found.best}
    expected = sweep(
        own, {**values, "layout.cp": ("auto", 1, 2, 4), "layout.rank_capacity": ("auto", "8K tokens")}
    )
    assert found.complete
    assert expected
    assert found.best[0].tokens_per_s >= expected[0] * (1.0 - 1e-12), best


FEW_MESHES = {**FEW, "strategy.name": ("static",), "layout.cp": (1, 2)}


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(small(), Space(values=FEW), count=3)


@pytest.mark.slow
def test_pruning_leaves_the_best_as_they_are() -> None:
    pruned, safe = (search(small(1), Space(values=FEW), count=count) for count in (3, 1000))
    assert safe.outrun == 0
    assert pruned.outrun > 0
    assert [one.candidate for one in safe.best[:3]] == [one.candidate for one in pruned.best]
    assert pruned.searched == safe.searched


def test_no_step_is_shorter_than_the_bound_of_its_layout(found: SearchResult) -> None:
    assert all(one.step_s >= one.bound_s > 0.0 for one in found.evaluated if one.candidate.changes)


def test_the_winner_is_a_scenario_that_simulate_times_identically(
    found: SearchResult, tmp_path: Path
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(planned(small(), found.best[0]).to_yaml())
    document = json.loads(CliRunner().invoke(cli, ["simulate", str(file), "--json"]).stdout)["results"]
    assert document["tokens_per_s"]["mean"] == found.best[0].tokens_per_s
    assert document["memory"]["total_bytes"] == found.best[0].memory.total_bytes


def test_accounts_sum_to_the_step(found: SearchResult) -> None:
    for one in found.evaluated:
        assert sum(one.accounts.values()) == pytest.approx(one.step_s)


def test_the_front_holds_what_nothing_else_beats(found: SearchResult) -> None:
    kept = front(found.evaluated)
    assert kept[0].tokens_per_s == max(one.tokens_per_s for one in found.evaluated)
    for one in found.evaluated:
        assert any(
            other.tokens_per_s >= one.tokens_per_s and other.memory.total_bytes <= one.memory.total_bytes
            for other in kept
        )
    for one in kept:
        assert not any(
            other.tokens_per_s > one.tokens_per_s and other.memory.total_bytes < one.memory.total_bytes
            for other in found.evaluated
        )


def test_one_price_is_not_that_of_several_gpus() -> None:
    with pytest.raises(UserInputError, match=r"costs\.price says one price for h100, h200"):
        hdpsim.plan(small().with_changes(("costs.price=2USD/h",)), gpu_types=["h100", "h200"])


def test_json_has_the_keys_of_the_document(found: SearchResult) -> None:
    text = plan_document(small(), found).text()
    assert "tokens_per_s" not in text
    assert "by throughput" in text
    data = plan_document(small(), found).data()
    assert data["best"].keys() >= {"tokens_per_s", "step_s", "memory_gib", "headroom_gib", "band", "scenario"}
    assert data.keys() >= {"candidates", "pareto", "refused", "searched", "seconds"}
    assert data["best"]["memory_gib"] + data["best"]["headroom_gib"] == pytest.approx(79.18)
    assert sum(data["refused"].values()) + data["outrun"] + len(found.evaluated) == data["searched"]


@pytest.mark.parametrize("objective", ["tokens_per_s", "usd_per_token", "energy"])
def test_no_score_exceeds_what_its_throughput_allows(found: SearchResult, objective: Objective) -> None:
    costs = small().costs
    for one in found.evaluated:
        most = most_score(objective, one.tokens_per_s, one.setup, costs)
        assert score_of(one, objective) <= most * (1.0 + 1e-12)


def test_energy_is_that_of_simulate() -> None:
    best = search(small(), Space(values=FEW_MESHES), "energy", count=1).best[0]
    outcome = run_batches(planned(small(), best), small().batches())
    kwh = costs_of(outcome, small().costs).kwh(1.0)
    assert kwh is not None
    assert best.joule_per_token == pytest.approx(3.6e6 * kwh)


@pytest.mark.parametrize("objective", ["tokens_per_s", "usd_per_token", "energy"])
def test_words_say_how_far_runners_up_are_behind_in_what_was_asked_for(objective: Objective) -> None:
    found = search(small(), Space(values=FEW_MESHES), objective, count=3)
    best, *others = found.best
    first, *lines = why(found).splitlines()
    assert first.startswith("The best is ")
    assert f"{best.tokens_per_s:,.0f} tokens/s" in first
    said = {line.partition(" ")[0]: line for line in lines}
    for place, one in enumerate(others, start=2):
        share = score_of(one, objective) / score_of(best, objective)
        assert share <= 1.0
        dear = {"usd_per_token": "money", "energy": "energy"}.get(objective)
        words = f"takes {1 / share - 1:.1%} more {dear} a token" if dear else f"loses {1 - share:.1%}"
        assert said[str(place)].startswith(f"{place} {words}.")


def test_money_by_hand(found: SearchResult) -> None:
    one = found.best[0]
    assert one.usd_per_token == pytest.approx(2.95 / 3600 * one.setup.cluster.gpus / one.tokens_per_s)


def test_keys_of_the_software_and_of_set_stay() -> None:
    scenario = small().with_changes(("software=megatron-core 0.13", "layout.tp=4"))
    space = space_of(scenario, pinned=["layout.tp"])
    assert {dict(layout)["layout.tp"] for layout in space.layouts(scenario, scenario.cluster)} == {4}
    decided = {setting.switch for setting in scenario.settings}
    for key in {f"layout.{switch}" for switch in decided} & {"layout.recompute", "layout.sharding"}:
        assert {dict(layout)[key] for layout in space.layouts(scenario, scenario.cluster)} == {
            own_value(scenario, key)
        }


def test_a_cut_by_hand_stays_with_its_number_of_stages() -> None:
    scenario = small()
    half = scenario.model.layers // 2
    cut = f"Et*{half - 1}|t*{scenario.model.layers - half + 1}L"
    scenario = scenario.with_changes(("layout.pp=2", f"layout.pipeline_layout={cut}"))
    free, pinned = space_of(scenario), space_of(scenario, pinned=["layout.pipeline_layout"])
    stages = set()
    for layout in map(dict, free.layouts(scenario, scenario.cluster)):
        chunks = layout["layout.pp"] * layout["layout.vpp"]  # type: ignore[operator]
        assert layout.get("layout.pipeline_layout", cut) == (cut if chunks == 2 else "auto")
        stages.add(chunks)
    assert len(stages) > 2
    assert not any(
        "layout.pipeline_layout" in dict(one) for one in pinned.layouts(scenario, scenario.cluster)
    )
    few = Space(values={**FEW, "layout.pp": (1, 2)})
    setups = Setups(scenario, ())
    candidates = every_candidate(scenario, few)[::3]
    assert candidates
    for candidate in candidates:
        assert setups.of(candidate.changes) == scenario.with_changes(candidate.overrides).setup()


@pytest.mark.parametrize("software", ["", "megatron-core 0.13"])
def test_setups_of_candidates_are_those_of_their_scenarios(software: str) -> None:
    scenario = small().with_changes((f"software={software}",) if software else ())
    setups, space = Setups(scenario, ()), Space(values={**FEW, "layout.pp": (1, 2)})
    for candidate in every_candidate(scenario, space)[::3]:
        assert setups.of(candidate.changes) == scenario.with_changes(candidate.overrides).setup()


def equal(context: str = "4096 tokens") -> Scenario:
    return small().with_changes(
        (f"data.context={context}", "data.lengths=2048 tokens", "data.batch=32 sequences")
    )


def test_equal_sequences_are_priced_as_they_are_replayed() -> None:
    space = Space(values={**FEW, "layout.pp": (1, 2), "strategy.name": ("static",)})
    found = search(equal(), space, count=1000)
    assert {one.setup.context_tokens for one in found.evaluated} >= {2048, 4096}
    for one in found.evaluated[::7]:
        outcome = run_batches(equal().with_changes(one.candidate.overrides), equal().batches())
        assert outcome.tokens_per_s.mean == pytest.approx(one.tokens_per_s, rel=1e-12)
        assert outcome.results[0].memory == one.memory
    assert all(sum(one.accounts.values()) == pytest.approx(one.step_s) for one in found.best)


@pytest.mark.parametrize("options", [(), ("execution.gpu_spread=0.05", "execution.slow_node_share=0.5")])
def test_no_step_of_equal_sequences_is_shorter_than_the_bound_of_its_mesh(options: tuple[str, ...]) -> None:
    scenario = equal().with_changes(options)
    space = Space(values={**FEW, "layout.pp": (1, 2), "layout.vpp": (1, 2), "strategy.name": ("static",)})
    found = search(scenario, space, count=1000)
    sequences = len(scenario.batches()[0])
    for one in found.evaluated:
        if one.setup.layout.parallel.cp is not None:
            assert 0.0 < mesh_bound_s(one.setup, sequences, 2048) <= one.step_s
            assert quiet_bound_s(one.setup, sequences, 2048) <= one.step_s
    assert all(one.step_s >= one.bound_s > 0.0 for one in found.best if one.candidate.changes)


def test_a_scenario_that_does_not_fit_is_no_candidate() -> None:
    large = ("model=llama-3-70b", "memory.must_fit=false", "layout.rank_capacity=4K tokens", "layout.tp=1")
    found = search(small().with_changes(large), Space(), budget=Budget(steps=0.0))
    assert found.own is not None
    assert not found.own.memory.fits
    assert not found.best


def test_every_degree_divides() -> None:
    scenario = small()
    model, gpus = scenario.model, scenario.cluster.gpus
    for layout in map(dict, Space().layouts(scenario, scenario.cluster)):
        tp, pp, vpp = (int(str(layout[f"layout.{key}"])) for key in ("tp", "pp", "vpp"))
        assert gpus % (tp * pp) == 0
        assert pp * vpp <= model.layers or vpp == 1


@pytest.mark.slow
def test_types_of_gpus_are_compared() -> None:
    values = ["layout.pp=1", "layout.recompute=none", "strategy.name=static", "layout.sharding=zero1"]
    values += ["layout.optimizer_offload=false", "strategy.packing=in-order"]
    found = hdpsim.plan(small(), gpu_types=["h100", "h200"], searched=values, workers=1, budget=None).found
    assert isinstance(found, SearchResult)
    assert {one.setup.cluster.gpu.name for one in found.evaluated} == {"h100-80gb", "h200-141gb"}
    for one in found.best:
        assert planned(small(), one).setup().cluster == one.setup.cluster


def test_unknown_prices_refuse_an_objective_in_money() -> None:
    with pytest.raises(UserInputError, match="price of a800"):
        hdpsim.plan(small(), gpu_types=["a800"], objective="usd_per_token")


def test_what_hdp_cannot_run_is_refused_with_the_reason() -> None:
    scenario = small().with_changes(("layout.schedule=dualpipe", "layout.pp=2", "strategy.name=static"))
    pinned = frozenset({"layout.schedule", "layout.pp"})
    found = search(scenario, Space(values={"strategy.name": ("hdp-opt",)}, pinned=pinned))
    reason = "HDP ranks run different numbers of micro-batches"
    assert any(words.startswith(reason) for words in found.refused), found.refused


def test_documents_that_wait_train_in_the_batches_of_every_other_verb() -> None:
    waiting = {
        "model": "llama-3-8b",
        "cluster": {"node": "hgx-h100-80gb", "gpus": 16},
        "layout": {"tp": 4, "cp": 2, "cp_kind": "all-gather"},
        "data": {"distribution": "bytescale-github", "batch": "256K tokens", "context": "32K tokens"},
        "strategy": {"name": "wlb-llm", "outlier_queues": 2},
        "execution": {"batches": 3},
    }
    pinned = ["layout.tp=4", "layout.pp=1", "layout.cp=1,2", "layout.recompute=none,full", "strategy.name=wlb-llm",
              "layout.sharding=zero1", "layout.rank_capacity=32K tokens"]  # fmt: skip
    found = hdpsim.plan(waiting, searched=pinned, workers=1, budget="none")
    assert found.scenario is not None
    ran = run_batches(found.scenario, found.scenario.batches())
    assert found.to_dict()["best"]["tokens_per_s"] == pytest.approx(ran.tokens_per_s.mean)
    assert [len(lengths) for lengths in ran.lengths] != [
        len(lengths) for lengths in found.scenario.batches()
    ], "some wait"
