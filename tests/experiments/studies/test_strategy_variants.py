"""Variants of strategies side by side: how they are written, what they change, how their rows are called."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import hdpsim
from hdpsim.errors import ScenarioError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import compare
from hdpsim.experiments.studies.comparing.strategy_variants import read_variants, split_variants

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

SMALL = ("data.batch=256K tokens", "data.context=64K tokens", "layout.recompute=full")


def test_commas_inside_brackets_belong_to_a_part() -> None:
    assert split_variants("static(cp=4, packing=concatenate), static,hdp-opt") == (
        "static(cp=4, packing=concatenate)",
        "static",
        "hdp-opt",
    )


def test_keys_of_layout_and_strategy() -> None:
    (one, two) = read_variants(["static( cp = 4 , layout.cp_kind=all-gather,padding=false)", "hdp-naive"])
    assert one.label == "static(cp=4,layout.cp_kind=all-gather,padding=false)"
    assert (one.strategy, one.changes) == (
        "static",
        ("layout.cp=4", "layout.cp_kind=all-gather", "strategy.padding=false"),
    )
    assert (two.label, two.changes) == ("hdp-naive", ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("static(cp=4", "brackets do not match"),
        ("static)cp=4(", "brackets do not match"),
        ("static((cp=4))", "brackets do not match"),
        ("static(cp=4)x", "is no strategy such as"),
        ("static,", "is no strategy such as"),
        ("statik(cp=4)", "did you mean 'static'?"),
        ("static()", "expected key=value, got ''"),
        ("static(cp)", "expected key=value, got 'cp'"),
        ("static(cp=)", "expected key=value"),
        ("static(cpp=4)", "'cpp' is no key of layout or strategy"),
        ("static(name=hdp-opt)", "'name' is no key of layout or strategy"),
        ("static(data.context=4)", "'data.context' is no key of layout or strategy"),
        ("static(cp=4,cp=8)", "cp is given twice"),
        ("static(cp=4,layout.cp=8)", "layout.cp is given twice"),
        ("static,static", "expected different names"),
        ("static(cp=4),static(cp=4)", "expected different names"),
        ("static(cp=4),static(layout.cp=4)", "expected different names"),
        ("static(cp=four)", "layout.cp"),
    ],
)
def test_what_is_not_allowed_is_one_message(text: str, words: str) -> None:
    found = CliRunner().invoke(cli, ["compare", "quickstart-8gpu", "--batches", "1", "--strategies", text])
    assert found.exit_code == 2, found.output
    assert words in found.output
    assert "Traceback" not in found.output


def test_rows_are_what_a_scenario_with_these_keys_gives() -> None:
    scenario = load_scenario("quickstart-8gpu", SMALL)
    labels = ("static(cp=4,cp_kind=all-gather)", "static(cp=2,packing=concatenate,padding=false)", "static")
    comparison = compare(scenario, labels, 1)
    assert tuple(outcome.strategy for outcome in comparison.outcomes) == labels
    for outcome, changes in zip(
        comparison.outcomes,
        (
            ("layout.cp=4", "layout.cp_kind=all-gather"),
            ("layout.cp=2", "strategy.packing=concatenate", "strategy.padding=false"),
            (),
        ),
        strict=True,
    ):
        alone = compare(load_scenario("quickstart-8gpu", (*SMALL, *changes)), ("static",), 1).base
        assert outcome.step_s.mean == alone.step_s.mean
        assert outcome.mesh == alone.mesh


def test_a_variant_that_cannot_run_is_a_row_with_a_reason() -> None:
    scenario = load_scenario("quickstart-8gpu", SMALL)
    comparison = compare(scenario, ("static", "static(cp=3)", "distca", "distca(cp_kind=disaggregated)"), 1)
    reasons = {outcome.strategy: outcome.reason for outcome in comparison.outcomes}
    assert "do not divide by cp = 3" in reasons["static(cp=3)"]
    assert "needs layout.cp_kind" in reasons["distca"]
    assert not reasons["distca(cp_kind=disaggregated)"]


def test_the_best_static_mesh_may_be_a_variant() -> None:
    scenario = load_scenario("quickstart-8gpu", SMALL)
    fast = "static(cp=2,padding=false,packing=concatenate)"
    comparison = compare(scenario, ("static(cp=4)", "static", fast, "hdp-opt"), 1, baseline=True)
    best = comparison.best_static
    assert best is not None
    assert best.step_s.mean == min(o.step_s.mean for o in comparison.feasible if o.mesh is not None)


def test_the_command() -> None:
    text = "static(cp=4,cp_kind=ulysses),static(cp=4,cp_kind=gathered-ring),hdp-naive"
    options = [f"--set={change}" for change in SMALL]
    found = CliRunner().invoke(
        cli, ["compare", "quickstart-8gpu", "--batches", "1", "--strategies", text, "--json", *options]
    )
    assert found.exit_code == 0, found.output
    rows = [row["strategy"] for row in json.loads(found.stdout)["results"]]
    assert rows == ["static(cp=4,cp_kind=ulysses)", "static(cp=4,cp_kind=gathered-ring)", "hdp-naive"]


def test_errors_name_the_variant() -> None:
    scenario = load_scenario("quickstart-8gpu", SMALL)
    with pytest.raises(ScenarioError, match=r"static\(cp=0\)"):
        compare(scenario, ("static(cp=0)",), 1)
    with pytest.raises(UserInputError):
        read_variants(["static", "static"])


@pytest.mark.parametrize(
    ("variants", "advice"),
    [
        ("static,wlb-llm", '"wlb-llm(cp_kind=all-gather,outlier_queues=2)" as well'),
        ("static,wlb-llm(outlier_queues=1)", '"wlb-llm(outlier_queues=1,cp_kind=all-gather)" as well'),
        ("static,wlb-llm,wlb-llm(cp_kind=all-gather,outlier_queues=1)", None),
        ("static,hdp-naive", None),
    ],
)
def test_a_comparison_says_what_of_wlb_llm_is_missing(variants: str, advice: str | None) -> None:
    changes = {"data.context": "32K tokens", "layout.cp": 4, "layout.rank_capacity": "8K tokens"}
    compared = hdpsim.compare("quickstart-8gpu", changes, strategies=variants, batches=1)
    said = compared.to_dict()["explanation"]
    assert (advice in said) if advice else ("WLB-LLM" not in said)
