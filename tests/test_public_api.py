"""The facade: what it offers, and that it loads nothing before it is asked."""

from __future__ import annotations

import json
import pickle
import pydoc
import re
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

import hdpsim

VERBS = {
    "calibrate", "campaign", "check", "check_strategy", "compare", "doctor", "explain", "fabric", "flows", "plan",
    "recommend", "replay", "replay_ops", "reproduce", "scale", "simulate", "sweep", "validate", "whatif",
}  # fmt: skip
SHOWN = VERBS | {
    "Result", "__version__", "calibration", "cluster", "gpu", "load_scenario", "load_trace", "model", "node",
    "read_trace", "strategy",
}  # fmt: skip
PARTS = {
    "CatalogError", "Cluster", "DeadlockError", "ExecutionOptions", "HdpSimError", "InfeasibleError", "Layout", "Model",
    "NotFiniteError", "OutOfMemoryError", "OwnPlanError", "Plan", "PlanBuilder", "PlanError", "PlanningProblem",
    "QuantityError", "Scenario", "ScenarioError", "Setup", "StepResult", "StrategyError", "StrategyOptions", "Trace",
    "TraceError", "UserInputError", "cluster_of", "global_batches", "lower_bound_s", "simulate_step", "validate_plan",
}  # fmt: skip
PUBLIC = SHOWN | PARTS
HEAVY = ("numpy", "pandas", "matplotlib", "networkx", "simpy", "pyarrow", "scipy")


def modules_after(code: str) -> set[str]:
    """Return the top-level modules loaded after *code* ran in a fresh interpreter."""
    report = (
        "\nimport json, sys; print('MODULES' + json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.rpartition("MODULES")[2]))


def test_the_public_names_are_these_and_no_others() -> None:
    assert set(hdpsim.__all__) == SHOWN
    assert set(hdpsim.PARTS) == PARTS
    assert sorted(hdpsim.__all__) == hdpsim.__all__
    assert dir(hdpsim) == sorted(PUBLIC)


def test_no_public_name_is_that_of_a_module() -> None:
    modules = {module.name for module in iter_modules(hdpsim.__path__)}
    assert {"traces", "experiments", "errors"} <= modules
    assert not modules & PUBLIC, "an import of the module would replace the name"


def test_help_reads_like_documentation() -> None:
    text = pydoc.plaintext.document(hdpsim)
    opening = text.partition("PACKAGE CONTENTS")[0]
    assert set(re.findall(r"\w+", opening)) >= VERBS, "every verb is told of before anything else"
    assert len(text.splitlines()) < 640
    for name in VERBS:
        words = getattr(hdpsim, name).__doc__
        assert "hdpsim." + name in words, f"{name} has no example"
        assert "Raises:" in words


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_loads(name: str) -> None:
    assert getattr(hdpsim, name) is not None
    assert name in dir(hdpsim)


@pytest.mark.parametrize(
    "package",
    ["hdpsim.traces", "hdpsim.cost_models", "hdpsim.simulator", "hdpsim.experiments", "hdpsim.errors"],
)
def test_what_a_package_promises_exists(package: str) -> None:
    module = import_module(package)
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name), f"{package}.__all__ names {name}, which does not exist"


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'simulat'.*HdpSimError"):
        hdpsim.simulat  # noqa: B018 - the access is the test


def test_errors_are_the_same_objects_as_in_their_module() -> None:
    from hdpsim import errors

    made = {
        name: one for name, one in vars(errors).items() if isinstance(one, type) and name.endswith("Error")
    }
    assert {name: getattr(hdpsim, name) for name in made} == made


@pytest.mark.parametrize(
    "error",
    [
        hdpsim.TraceError("length 0", "lengths.csv", 7),
        hdpsim.ScenarioError((("layout.tp", "must divide 96"),), "demo.yaml"),
        hdpsim.QuantityError("5", "bandwidth", ("Gbps",)),
        hdpsim.OutOfMemoryError("needs 90 GiB", 90.0, available_bytes=80.0),
        hdpsim.NotFiniteError("step_s", float("inf")),
    ],
)
def test_errors_survive_a_process_pool(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_importing_the_facade_loads_nothing_heavy() -> None:
    assert not modules_after("import hdpsim, hdpsim.errors").intersection(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['hdpsim', '--help']\n"
        "from hdpsim.experiments.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    )
    assert not modules_after(code).intersection(HEAVY)


def test_python_m_hdpsim_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hdpsim", "--help"], capture_output=True, text=True, check=True
    )
    assert "compare" in done.stdout
