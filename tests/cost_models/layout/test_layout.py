"""A layout is made of groups; everybody who names switches calls them by one flat name."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpsim.cost_models.layout.layout import GROUPS, SWITCHES, Layout
from hdpsim.cost_models.layout.switches import Parallel, Pipeline, Recompute
from hdpsim.cost_models.tracing import watched
from hdpsim.errors import UserInputError

OTHER: dict[str, Any] = {
    "tp": 4, "cp": 2, "order": "tp-pp-dp", "vpp": 2, "schedule": "zb-v", "pp_overlap": False, "tp_overlap": True,
    "sharding": "zero3", "recompute": "full", "recompute_share": 0.5, "precision": "fp8", "expert_kernels": "fused",
    "fused_kernels": False, "cuda_graphs": True, "rank_capacity_tokens": 4096,
}  # fmt: skip
changes = st.dictionaries(st.sampled_from(sorted(OTHER)), st.just(None)).map(
    lambda d: {n: OTHER[n] for n in d}
)


def test_every_switch_has_one_name() -> None:
    assert len(SWITCHES) == sum(len(dataclasses.fields(kind)) for kind in GROUPS.values())  # type: ignore[arg-type]
    assert list(GROUPS) == [field.name for field in dataclasses.fields(Layout)]


@given(changes, changes)
def test_changes_by_name_reach_their_groups(first: dict[str, Any], then: dict[str, Any]) -> None:
    layout = Layout(**first).changed(**then)
    assert layout == Layout(**first | then)
    assert hash(layout) == hash(Layout(**first | then))
    assert layout.switches() == Layout().switches() | first | then
    assert Layout(**layout.switches()) == layout == pickle.loads(pickle.dumps(layout))
    assert eval(repr(layout)) == layout


def test_groups_and_switches_make_the_same_layout() -> None:
    groups = Layout(
        parallel=Parallel(tp=2), pipeline=Pipeline(schedule="zb-h1"), recompute=Recompute(kind="full")
    )
    assert groups == Layout(tp=2, schedule="zb-h1", recompute="full")
    assert groups == Layout(tp=2, pipeline=Pipeline(schedule="zb-h1"), recompute=Recompute(kind="full"))
    assert groups.recompute.kind == "full"
    assert dataclasses.replace(groups, tp=4) == groups.changed(tp=4)


def test_a_watched_group_keeps_its_other_switches_when_one_changes() -> None:
    layout = Layout(parallel=watched(Parallel(tp=2, pp=4), "layout", {"tp": "the_tp"}))
    assert layout.changed(cp=2).switches() == Layout(tp=2, pp=4, cp=2).switches()


def test_a_change_that_would_drop_a_group_is_refused() -> None:
    layout = Layout(recompute="selective", recompute_share=0.5)
    with pytest.raises(UserInputError, match=r"use layout\.changed\(recompute="):
        dataclasses.replace(layout, recompute="full")  # type: ignore[arg-type]
    assert layout.changed(recompute="full").recompute.share == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tpp": 2}, "there is no switch tpp"),
        ({"shedule": "1f1b"}, "did you mean 'schedule'"),
        ({"parallel": Pipeline()}, "parallel is no group of the kind Pipeline"),
        ({"parallel": 4}, "there is no switch parallel"),
        ({"host": Pipeline(), "tp": 2}, "host is no group"),
        ({"precision": "fp9", "tp": 0}, r"Layout: tp: expected .* got 0; precision: expected one of bf16"),
        ({"pp_overlap": 1}, "Layout: pp_overlap: expected True or False"),
    ],
)
def test_what_is_wrong_is_called_as_it_was_given(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        Layout(**wrong)
