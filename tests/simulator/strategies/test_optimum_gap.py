"""tools/optimum_gap.py: the optimum by hand, and no strategy below it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.simulator.planning import planning_problem

_PATH = Path(__file__).resolve().parents[3] / "tools" / "optimum_gap.py"
_SPEC = importlib.util.spec_from_file_location("optimum_gap", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
tool = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tool)


def problem(lengths: list[int]):  # type: ignore[no-untyped-def]
    return planning_problem(
        load_scenario("quickstart-8gpu", tool.SCENARIO).setup("hdp-opt"), np.array(lengths)
    )


def test_four_equal_sequences_take_a_rank_each() -> None:
    asked = problem([8000] * 4)  # 4 ranks of 8K
    alone_s = tool._times_s(asked, [(0,)])[(0,), 1]
    assert tool.optimum_s(asked) == pytest.approx(alone_s, rel=2e-4)


def test_one_that_fits_two_ranks_takes_the_size_that_is_fastest() -> None:
    asked = problem([16000])
    times = tool._times_s(asked, [(0,)])
    assert tool.optimum_s(asked) == pytest.approx(min(times[(0,), size] for size in (2, 3, 4)), rel=2e-4)


def test_no_strategy_is_below_the_optimum() -> None:
    found = tool.gaps(2, 5)
    assert set(found) == set(tool.STRATEGIES)
    assert all(len(gap) == 2 for gap in found.values())
    assert min(min(gap) for gap in found.values()) > -1e-3
    assert max(found["hdp-opt"]) < 0.3
