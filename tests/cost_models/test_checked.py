"""Every value that a user may build checks what it is given."""

from __future__ import annotations

import dataclasses
import pickle
import timeit
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hdpsim
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.checked import Checked
from hdpsim.cost_models.step.loading import DataPipeline
from hdpsim.cost_models.transformer.model import LatentAttention, Model
from hdpsim.errors import UserInputError
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.ranges import Range
from hdpsim.simulator.setup import ExecutionOptions, MemoryOptions, Setup, StrategyOptions

SCENARIO = load_scenario("quickstart-8gpu")
DEEPSEEK = catalog.model("deepseek-v3")
VALUES: tuple[Checked, ...] = (
    Layout(),
    StrategyOptions(),
    ExecutionOptions(),
    DataPipeline(),
    MemoryOptions(),
    MemoryOverheads(),
    Fabric(),
    SCENARIO.cluster,
    SCENARIO.cluster.node,
    SCENARIO.cluster.gpu,
    SCENARIO.model,
    SCENARIO.setup(),
    SCENARIO.data,
    DEEPSEEK,
    DEEPSEEK.latent_attention or LatentAttention(**{}),
)
FIELDS = [(value, field.name) for value in VALUES for field in dataclasses.fields(value)]  # type: ignore[arg-type]


def parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def bad_values(hint: Any) -> list[object]:
    """What a field of that annotation must refuse."""
    options = parts(hint)
    kinds = {get_args(part)[0] if get_origin(part) is Annotated else part for part in options}
    bad: list[object] = [object(), [1], {"a": 1}, b"x", Layout]
    if NoneType not in options:
        bad.append(None)
    if str not in kinds:
        bad += ["16K", "foo", ""]
    if bool not in kinds:
        bad += [True, False]
    if not kinds & {int, float}:
        bad += [7, 0.5]
    if float in kinds:
        bad.append(float("nan"))
    elif int in kinds:
        bad += [0.5, float("inf"), 2.0]
    for part in options:
        for mark in get_args(part)[1:] if get_origin(part) is Annotated else ():
            if isinstance(mark, Range):
                bad += [mark.low - 1, -7, float("inf"), *([mark.high + 1] if mark.high < 1e300 else [])]
        if get_origin(part) is Literal:
            bad += [str(get_args(part)[0]) + "x", 3]
    return bad


@pytest.mark.parametrize(
    ("value", "name"), FIELDS, ids=lambda part: part if isinstance(part, str) else type(part).__name__
)
def test_a_field_takes_what_its_annotation_says_and_nothing_else(value: Any, name: str) -> None:
    hint = get_type_hints(type(value), include_extras=True)[name]
    for bad in bad_values(hint):
        with pytest.raises(UserInputError, match=rf"{type(value).__name__}: {name}: expected .*; got"):
            dataclasses.replace(value, **{name: bad})
    for part in parts(hint):
        for word in get_args(part) if get_origin(part) is Literal else ():
            assert getattr(dataclasses.replace(value, **{name: word}), name) == word


def test_all_faults_are_named_and_a_near_miss_is_suggested() -> None:
    with pytest.raises(UserInputError, match=r"tp: expected .*; pp: .* got 'two'; schedule: .*mean 'zb-h1'"):
        Layout(tp=0, pp="two", schedule="zb-h11")  # type: ignore[arg-type]


@given(st.text())
def test_no_word_but_its_own_names_a_strategy(name: str) -> None:
    known = ("static", "hdp-naive", "hdp-balance")
    if name not in known:
        with pytest.raises(UserInputError, match="expected one of static"):
            SCENARIO.setup(name)
    assert all(SCENARIO.setup(word).strategy.name == word for word in known)


def test_a_scenario_is_no_setup() -> None:
    with pytest.raises(
        UserInputError, match=r"expected a Setup, got a Scenario; the setup\(\) of a scenario"
    ):
        hdpsim.simulate_step(SCENARIO, [100])  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    assert Layout(tp=np.int64(4), recompute="selective", recompute_share=np.float32(0.5)).tp == 4  # type: ignore[arg-type]
    with pytest.raises(UserInputError):
        Layout(tp=np.float64(4))  # type: ignore[arg-type]


def test_a_checked_value_is_pickled_and_compared_as_before() -> None:
    assert pickle.loads(pickle.dumps(Layout(tp=2))) == Layout(tp=2)
    assert {Layout(tp=2): 1}[Layout(tp=2)] == 1
    assert not hasattr(Layout(), "__dict__")


def test_checking_costs_little() -> None:
    """A layout is made in loops that search: 60 fields in 10 us on a quiet machine."""
    fields = {field.name: getattr(Layout(), field.name) for field in dataclasses.fields(Layout)}
    assert min(timeit.repeat(lambda: Layout(**fields), number=200, repeat=10)) / 200 < 100e-6


def test_public_constructors_are_checked() -> None:
    classes = [
        Layout,
        StrategyOptions,
        ExecutionOptions,
        Setup,
        Model,
        Cluster,
        Node,
        Gpu,
        Fabric,
        DataPipeline,
    ]
    assert all(issubclass(kind, Checked) for kind in classes)
