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
from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.layout.layout import GROUPS, Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.checked import Checked, Constant, ContradictionError
from hdpsim.cost_models.step.data_loading import DataPipeline
from hdpsim.cost_models.transformer.model import LatentAttention, Model
from hdpsim.errors import HdpSimError, UserInputError
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.ranges import Range, constant_range
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.setup import ExecutionOptions, MemoryOptions, Setup, StrategyOptions

SCENARIO = load_scenario("quickstart-8gpu")
DEEPSEEK = catalog.model("deepseek-v3")
VALUES: tuple[Checked, ...] = (
    *(getattr(Layout(), group) for group in GROUPS),
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
    SCENARIO.calibration,
    DEEPSEEK,
    DEEPSEEK.latent_attention or LatentAttention(**{}),
)
FIELDS = [(value, field.name) for value in VALUES for field in dataclasses.fields(value)]  # type: ignore[arg-type]


def parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def ranges_of(hint: Any, name: str) -> list[Range]:
    marks = [mark for part in parts(hint) if get_origin(part) is Annotated for mark in get_args(part)[1:]]
    marks = [constant_range(name) if isinstance(mark, Constant) else mark for mark in marks]
    return [mark for mark in marks if isinstance(mark, Range)]


def bad_values(hint: Any, name: str) -> list[object]:
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
    for limits in ranges_of(hint, name):
        bad += [limits.low - 1, -7, float("inf"), *([2 * limits.high + 1] if limits.high < 1e300 else [])]
    for part in options:
        if get_origin(part) is Literal:
            bad += [str(get_args(part)[0]) + "x", 3]
    return bad


@pytest.mark.parametrize(
    ("value", "name"), FIELDS, ids=lambda part: part if isinstance(part, str) else type(part).__name__
)
def test_a_field_takes_what_its_annotation_says_and_nothing_else(value: Any, name: str) -> None:
    hint = get_type_hints(type(value), include_extras=True)[name]
    for bad in bad_values(hint, name):
        with pytest.raises(UserInputError, match=rf"{type(value).__name__}: {name}: expected .*; got"):
            dataclasses.replace(value, **{name: bad})
    for part in parts(hint):
        for word in get_args(part) if get_origin(part) is Literal else ():
            assert getattr(dataclasses.replace(value, **{name: word}), name) == word


@pytest.mark.parametrize(("value", "name"), FIELDS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_number_has_a_range(value: Any, name: str) -> None:
    hint = get_type_hints(type(value), include_extras=True)[name]
    assert not {int, float} & set(parts(hint)), f"{type(value).__name__}.{name}: a number without limits"


@given(st.data())
def test_a_model_that_contradicts_itself_is_refused(data: st.DataObject) -> None:
    """Whatever counts of experts are asked for: the model holds together, or its first trouble is named."""
    counts = {key: data.draw(st.integers(0, 9), key) for key in ("experts", "top_k", "dense_layers")}
    experts, top_k, dense = counts.values()
    counts["dense_ffn_hidden"] = 64 if dense else 0
    together = 2 <= experts >= top_k >= 1 if experts else top_k == dense == 0
    if together:
        assert dataclasses.replace(SCENARIO.model, **counts).experts == experts  # type: ignore[arg-type]
        return
    with pytest.raises(ContradictionError) as caught:
        dataclasses.replace(SCENARIO.model, **counts)  # type: ignore[arg-type]
    assert set(dict(caught.value.problems)) <= set(counts)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "lengths",
    [
        [1000.7, 5000.9], [1000.0], np.array([1e3]), ["1000", "2000"], [True, True], [True, 1000], np.array([True]),
        [None], [10**30], [2**64 - 1], [[1, 2], [3]], [[1, 2]], 1000, "1000", [], [0], [-1], [1000, float("nan")],
        b"12", {"a": 1}, np.array([2**63 + 5], dtype=np.uint64),
    ],
    ids=str,
)  # fmt: skip
def test_lengths_are_whole_numbers(lengths: Any) -> None:
    with pytest.raises(UserInputError, match="batch"):
        hdpsim.simulate_step(SCENARIO.setup(), lengths)
    with pytest.raises(UserInputError, match="batch"):
        planning_problem(SCENARIO.setup(), lengths)


def test_lengths_of_every_whole_type_are_the_same_batch() -> None:
    steps = {
        hdpsim.simulate_step(SCENARIO.setup("static"), kind([1000, 2000])).step_s
        for kind in (list, tuple, np.array, np.uint16, lambda x: np.array(x, dtype=object).astype(np.int32))
    }
    assert len(steps) == 1


@pytest.mark.parametrize("count", [-1, 0, 1.5, "2", True, float("nan"), 10**9])
def test_a_number_of_batches_is_a_count(count: Any) -> None:
    with pytest.raises(UserInputError, match="count must be a whole number"):
        SCENARIO.batches(count)


def test_constants_are_held_to_the_ranges_of_files() -> None:
    cal = calibration("hopper")
    for name, hint in get_type_hints(Calibration, include_extras=True).items():
        for limits in ranges_of(hint, name):
            for end in (limits.low, limits.high):
                assert getattr(dataclasses.replace(cal, **{name: end}), name) == end


@given(st.sampled_from([field.name for field in dataclasses.fields(NetworkCalibration)]), st.data())
def test_a_network_takes_no_nonsense(name: str, data: st.DataObject) -> None:
    switches = [
        field.name for field in dataclasses.fields(NetworkCalibration) if field.type in (bool, "bool")
    ]
    nonsense = [float("nan"), float("inf"), -1.0, "0.5", None, [1.0], *([] if name in switches else [True])]
    with pytest.raises(HdpSimError, match=f"NetworkCalibration: {name}: expected"):
        NetworkCalibration(**{name: data.draw(st.sampled_from(nonsense))})


def test_all_faults_are_named_and_a_near_miss_is_suggested() -> None:
    with pytest.raises(UserInputError, match=r"tp: expected .*; pp: .* got 'two'; schedule: .*mean 'zb-h1'"):
        Layout(tp=0, pp="two", schedule="zb-h11")


@given(st.text())
def test_no_word_but_its_own_names_a_strategy(name: str) -> None:
    known = ("static", "hdp-naive", "hdp-opt")
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
    layout = Layout(tp=np.int64(4), recompute="selective", recompute_share=np.float32(0.5))
    assert layout.parallel.tp == 4
    with pytest.raises(UserInputError):
        Layout(tp=np.float64(4))


def test_a_checked_value_is_pickled_and_compared_as_before() -> None:
    assert pickle.loads(pickle.dumps(Layout(tp=2))) == Layout(tp=2)
    assert {Layout(tp=2): 1}[Layout(tp=2)] == 1
    assert not hasattr(Layout(), "__dict__")


def test_checking_costs_little() -> None:
    """A layout is made in loops that search: on a quiet machine in 7 us, changed in 17 us, hashed in 3 us."""
    layout = Layout(tp=2, pp=4)
    for work in (lambda: Layout(tp=2, pp=4), lambda: layout.changed(tp=4), lambda: hash(layout)):
        assert min(timeit.repeat(work, number=200, repeat=10)) / 200 < 100e-6


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
        Calibration,
    ]
    assert all(issubclass(kind, Checked) for kind in classes)
