"""Strategies of one's own: found by name, called, and held to every promise of a plan."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import hdpsim
from hdpsim.errors import OwnPlanError, PlanError, StrategyError
from hdpsim.simulator import find_own_strategy as own_strategy
from hdpsim.simulator.plan import HOLE
from hdpsim.simulator.planning import planning_problem
from hdpsim.simulator.step import simulate_step


@pytest.fixture
def setup():
    return hdpsim.load_scenario("quickstart-8gpu").setup()


@pytest.fixture
def problem(setup):
    return planning_problem(setup, [100, 200, 300, setup.context_tokens])


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """A folder of modules that are forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own_strategy, "_registered", {})
    before = set(sys.modules)

    def write(text, name="own_strategies"):
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _one_each(problem):
    builder = hdpsim.PlanBuilder(problem)
    for sequence, tokens in enumerate(problem.lengths):
        size = -(-int(tokens) // problem.capacity_tokens)
        builder.add(sequence, range(size))
    return builder.build(notes=["one each"])


def test_builder_makes_the_arrays(problem):
    plan = _one_each(replace(problem, capacity_tokens=problem.context_tokens // 2))
    assert plan.segment_tokens.tolist() == [100, 200, 300, problem.context_tokens]
    assert plan.member_ranks.tolist() == [0, 0, 0, 0, 1]
    assert plan.member_offsets.tolist() == [0, 1, 2, 3, 5]
    assert plan.order[: plan.order_offsets[1]].tolist() == [0, 1, 2, 3]
    assert plan.order[plan.order_offsets[1] : plan.order_offsets[2]].tolist() == [3]
    assert plan.notes == ("one each",)


def test_builder_leaves_holes_in_pipelines():
    setup = hdpsim.load_scenario("quickstart-8gpu", ("layout.pp=2", "layout.tp=1")).setup()
    problem = planning_problem(setup, [100, 200, 300])
    builder = hdpsim.PlanBuilder(problem)
    builder.add([0], ranks=0)
    builder.add((1, 2), ranks=[1, 0])
    plan = builder.build()
    assert plan.order[: plan.order_offsets[2]].tolist() == [0, 1, HOLE, 1]


def test_builder_takes_parts_of_sequences_and_slots(problem):
    builder = hdpsim.PlanBuilder(problem)
    builder.add([(3, 0, 1000), 0], ranks=0, slot=1)
    builder.add([(3, 1000, problem.context_tokens - 1000)], ranks=range(problem.ranks), slot=5)
    builder.add([1, 2], ranks=0, slot=0)
    plan = builder.build()
    assert plan.order[: plan.order_offsets[1]].tolist() == [2, 0, 1]


def test_builder_offloads_as_much_as_it_takes(problem):
    tight = replace(problem, capacity_tokens=problem.context_tokens * 3 // 4 // problem.ranks)
    builder = hdpsim.PlanBuilder(tight)
    builder.add(range(3), ranks=0)
    builder.add(3, ranks=range(problem.ranks))
    ratio = builder.build().offload_ratio
    layers = problem.cost.busiest_layers
    assert ratio[0] == 0.0
    assert (2 + (1 - ratio[1]) * (layers - 2)) / layers == pytest.approx(3 / 4, abs=1e-3)
    stingy = hdpsim.PlanBuilder(tight)
    stingy.add(range(3), ranks=0)
    stingy.add(3, ranks=range(problem.ranks), offload=ratio[1] / 2)
    with pytest.raises(PlanError, match=r"micro-batch 1 puts .* must be offloaded"):
        stingy.build()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.add(9, ranks=0), "sequence 9 does not exist; sequences are 0 .. 3"),
        (lambda b: b.add(0, ranks=[0, 99]), "rank 99 does not exist"),
        (lambda b: b.add(0, ranks=[1, 1]), "has rank 1 twice"),
        (lambda b: b.add([], ranks=0), "has no sequence"),
        (lambda b: b.add(0, ranks=[]), "has no rank"),
        (lambda b: b.add(0.5, ranks=0), "must be a whole number"),
        (lambda b: b.add(0, ranks=0, slot=-1), "slot -1 is below 0"),
        (lambda b: b.add(0, ranks=0, offload=2), "offload must lie in 0 .. 1"),
        (lambda b: b.add([(0, 5)], ranks=0), "a part is"),
        (
            lambda b: (b.add(0, ranks=0, slot=2), b.add(1, ranks=[0, 1], slot=2), b.build()),
            "both have slot 2 on rank 0",
        ),
        (lambda b: b.build(), "no micro-batch"),
        (lambda b: (b.add(0, ranks=0), b.build()), "0 of the 200 tokens of sequence 1 are placed"),
        (lambda b: (b.add([0, 1, 2, 2], ranks=0), b.build()), "sequence 2 is placed twice"),
    ],
)
def test_builder_says_what_is_wrong(problem, call, message):
    with pytest.raises(PlanError, match=message):
        call(hdpsim.PlanBuilder(problem))


def test_capacity_is_that_of_the_problem(problem):
    builder = hdpsim.PlanBuilder(replace(problem, capacity_tokens=1000, options=replace(
        problem.options, selective_offloading=False)))  # fmt: skip
    builder.add(range(4), ranks=0)
    with pytest.raises(PlanError, match="on 1 ranks that hold 1000 each"):
        builder.build()


def _simulated(setup, name):
    return simulate_step(replace(setup, strategy=replace(setup.strategy, name=name)), [100, 200, 300])


_MODULE = """
import hdpsim

@hdpsim.strategy("mine")
def plan(problem):
    builder = hdpsim.PlanBuilder(problem)
    builder.add(range(len(problem.lengths)), ranks=0)
    return builder.build()

def named(problem):
    return plan(problem)
"""


def test_a_function_is_found_by_module_and_by_the_name_it_was_given(setup, in_folder):
    in_folder(_MODULE)
    results = [_simulated(setup, f"own_strategies:{name}") for name in ("plan", "mine", "named")]
    results.append(_simulated(setup, "mine"))
    assert len({result.step_s for result in results}) == 1
    assert results[0].strategy == "own_strategies:plan"
    assert "a strategy of one's own: no band" in " ".join(results[0].notes)


def test_switches_of_hdp_leave_it_alone(setup, in_folder):
    in_folder(_MODULE)
    off = replace(setup, strategy=replace(setup.strategy, dynamic_groups=False, balancing=False))
    assert _simulated(off, "own_strategies:plan").step_s == _simulated(setup, "own_strategies:plan").step_s


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            "1 / 0",
            StrategyError,
            r"failed: ZeroDivisionError: division by zero \(.*own_strategies.py, line 3\)",
        ),
        ("raise SystemExit(0)", StrategyError, "failed: SystemExit: 0"),
        ("return None", StrategyError, "expected a Plan, got nothing"),
        ("return [1]", StrategyError, "expected a Plan, got a list"),
        ("problem.lengths[0] = 7", StrategyError, "read-only"),
        (
            "b = hdpsim.PlanBuilder(problem); b.add(0, 0); return b.build()",
            OwnPlanError,
            "sequence 1 are placed",
        ),
        ("raise hdpsim.InfeasibleError('not me')", hdpsim.InfeasibleError, "not me"),
    ],
)
def test_what_goes_wrong_inside_is_one_message(setup, in_folder, body, kind, message):
    in_folder(f"import hdpsim\ndef plan(problem):\n    {body}\n")
    with pytest.raises(kind, match=message):
        _simulated(setup, "own_strategies:plan")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 64}, "the plan is for 64 ranks; there are 4"),
        ({"capacity_tokens": 2**40}, "capacity is"),
        ({"segment_tokens": [0.5]}, "one list of whole numbers"),
        ({"order": np.array([0, 0]), "order_offsets": np.array([0, 2, 2, 2, 2])}, "twice in its order"),
        ({"makespan_s": float("nan")}, "finite"),
        ({"offload_ratio": "much"}, "is not what Plan says"),
    ],
)
def test_plans_made_by_hand_are_held_to_every_promise(setup, monkeypatch, changes, message):
    def plan(problem):
        builder = hdpsim.PlanBuilder(problem)
        builder.add(range(len(problem.lengths)), ranks=0)
        return replace(builder.build(), **changes)

    monkeypatch.setattr(own_strategy, "_registered", {"mine": plan})
    with pytest.raises(OwnPlanError, match=message):
        _simulated(setup, "mine")


def test_lists_are_fine_instead_of_arrays(setup, monkeypatch):
    def plan(problem):
        builder = hdpsim.PlanBuilder(problem)
        builder.add(range(len(problem.lengths)), ranks=0)
        made = builder.build()
        return replace(made, order=made.order.tolist(), segment_tokens=made.segment_tokens.tolist())

    monkeypatch.setattr(own_strategy, "_registered", {"mine": plan})
    assert _simulated(setup, "mine").step_s > 0


@pytest.mark.parametrize("name", ["", "has space", "static", "distca", "hdp-mine", "a:b"])
def test_names_that_cannot_be_registered(name):
    with pytest.raises(StrategyError):
        own_strategy.strategy(name)


def test_two_modules_cannot_have_one_name(in_folder):
    in_folder(_MODULE)
    in_folder(_MODULE, "another")
    own_strategy.load_strategy("own_strategies:plan")
    with pytest.raises(StrategyError, match="own_strategies has a strategy of that name"):
        own_strategy.load_strategy("another:plan")


def test_installed_packages_offer_strategies_by_name(setup, in_folder, monkeypatch):
    from importlib.metadata import EntryPoint

    in_folder(_MODULE.replace("mine", "other"))
    point = EntryPoint("packaged", "own_strategies:plan", own_strategy.GROUP)
    monkeypatch.syspath_prepend(".")
    monkeypatch.setattr(own_strategy, "_entry_point", lambda name: point if name == "packaged" else None)
    assert _simulated(setup, "packaged").strategy == "packaged"
    with pytest.raises(hdpsim.UserInputError, match="my_module:function for one's own"):
        replace(setup.strategy, name="unpackaged")


def test_the_source_is_that_of_all_files_it_uses(in_folder, tmp_path):
    in_folder("def help(): return 1\n", "own_helper")
    in_folder("from own_helper import help\nimport numpy\ndef plan(problem): return help()\n")
    first = own_strategy.source_hash("own_strategies:plan")
    assert own_strategy.source_hash("own_strategies:plan") == first
    (tmp_path / "own_helper.py").write_text("def help(): return 2\n")
    assert own_strategy.source_hash("own_strategies:plan") != first
    assert own_strategy.location("own_strategies:plan").endswith("own_strategies.py")


def test_a_plan_that_cuts_sequences_is_held_against_the_bound_of_its_pieces(monkeypatch):
    from hdpsim.experiments.studies.comparing.compare import run_batches

    def plan(problem):
        builder = hdpsim.PlanBuilder(problem)
        half = problem.context_tokens // 2
        for number, start in enumerate((0, half)):
            builder.add([(0, start, half)], ranks=[number])
        return builder.build()

    monkeypatch.setattr(own_strategy, "_registered", {"mine": plan})
    scenario = hdpsim.load_scenario("quickstart-8gpu")
    outcome = run_batches(scenario, [np.array([scenario.data.context_tokens])], "mine")
    assert outcome.work_left_out > 0.1
    assert outcome.over_bound > 0
    assert outcome.band is None
