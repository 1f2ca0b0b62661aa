"""Makes the helpers of these tests importable as simulator_*, and plans the same batch once where a test says so."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.registry import make_plan

# --import-mode=importlib puts no test folder on sys.path.
for _name in ("plans", "setups", "runs"):
    _spec = importlib.util.spec_from_file_location(
        f"simulator_{_name}", Path(__file__).with_name(f"{_name}.py")
    )
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_spec.name] = _module
    _spec.loader.exec_module(_module)


@pytest.fixture(scope="module")
def each_plan_once() -> Iterator[None]:
    """Whoever asks a planner the same once more gets the plan that there is: for tests of what is done with plans."""
    known: dict[tuple[object, ...], Plan] = {}

    def once(problem: PlanningProblem) -> Plan:
        key = _asked(problem)
        if key not in known:
            known[key] = make_plan(problem)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdpsim.simulator.planning.make_plan", once)
        yield


def _asked(problem: PlanningProblem) -> tuple[object, ...]:
    """All that a plan follows from; costs are the same where they are the same object."""
    values = {field.name: getattr(problem, field.name) for field in fields(problem)}
    mixed = values.pop("mixed")
    values["lengths"] = problem.lengths.tobytes()
    values["kinds"] = tuple(map(_asked, problem.kinds))
    return (*values.values(), None if mixed is None else mixed.rank_kind.tobytes())
