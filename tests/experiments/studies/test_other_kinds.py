"""A ring that holds static meshes back is no proof of HDP: compare names the other way of sharing that is faster."""

from __future__ import annotations

import pytest

import hdpsim
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import Comparison, compare
from hdpsim.experiments.studies.comparing.other_kinds import KINDS
from hdpsim.experiments.studies.comparing.report import compare_document, explanation

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once")

# Short sequences in packs that sixteen ranks share: a ring's steps are too short to hide what they send.
SHORT_IN_LONG_PACKS = {
    "model": "llama-3-8b",
    "cluster": {"node": "hgx-h100-80gb", "gpus": 32},
    "layout": {"tp": 2, "cp": 16, "rank_capacity": "8K tokens"},
    "data": {"distribution": "bytescale-github", "batch": "1M tokens", "context": "128K tokens"},
    "execution": {"batches": 1},
}
HELD = "The way in which ranks share attention holds static meshes back"


def compared(*changes: str, strategies: tuple[str, ...] = ("static", "hdp-opt")) -> Comparison:
    return compare(load_scenario(SHORT_IN_LONG_PACKS, changes), strategies, baseline=True)


def test_the_kind_that_is_named_is_the_fastest_and_takes_what_that_scenario_takes() -> None:
    ring = compared()
    steps = {
        kind: best.results[0].step_s
        for kind in KINDS
        if (best := compared(f"layout.cp_kind={kind}", strategies=("static",)).best_static) is not None
    }
    other, best = ring.other_kind, ring.best_static
    assert other is not None
    assert best is not None
    assert other.kind == min(steps, key=lambda kind: steps[kind]) != "ring"
    assert other.faster_than(best) == pytest.approx(steps["ring"] / steps[other.kind])
    text = explanation(ring)
    against = other.tried.outcome.results[0].step_s / ring.feasible[-1].results[0].step_s
    assert HELD in text
    assert f"hdp-opt is {against:.2f} times as fast as that one" in text
    assert compare_document(ring).payload["static_mesh_of_another_cp_kind"]["cp_kind"] == other.kind


def test_who_compares_with_the_fastest_kind_is_told_nothing() -> None:
    named = compared().other_kind
    assert named is not None
    row = f"static(cp_kind={named.kind},packing={named.tried.setup.strategy.packing})"
    assert compared(strategies=("static", row, "hdp-opt")).other_kind is None
    assert HELD not in explanation(compared(f"layout.cp_kind={named.kind}"))


def test_ranks_that_share_no_sequence_have_no_kind() -> None:
    alone = compared("layout.cp=1", "data.context=8K tokens")
    assert alone.best_static is not None
    assert alone.other_kind is None


def test_whatif_and_scale_name_the_same_meshes_as_compare() -> None:
    known = compared()
    faster = [other for other in (known.other_degree, known.other_kind) if other is not None]
    assert known.other_kind in faster
    names = ["static", "hdp-opt"]
    for result in (
        hdpsim.whatif(SHORT_IN_LONG_PACKS, {"execution.jitter": 0.01}, strategies=names),
        hdpsim.scale(SHORT_IN_LONG_PACKS, [32], strategies=names),
    ):
        row = result.to_dict()["results"][0]["best_static"]
        assert row["other_kind"] == compare_document(known).data()["static_mesh_of_another_cp_kind"]
        assert row["other_degree"] == compare_document(known).data()["static_mesh_of_another_degree"]
        text = " ".join(result.document.text().split())
        assert all(other.words in text for other in faster)
