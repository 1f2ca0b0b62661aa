"""A simulator whose results can be computed by hand, for tests of what is built around it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from hdpsim.cost_models.memory.report import MemoryReport
from hdpsim.errors import InfeasibleError
from hdpsim.simulator.play.execution import Spans
from hdpsim.simulator.setup import Setup
from hdpsim.simulator.step import StepResult, simulate_step

# Helpers of tests become importable by their names: --import-mode=importlib puts no test folder on sys.path.
for _name, _file in {
    "key_values": "key_values.py",
    "made_up_residuals": "bands/made_up_residuals.py",
    "planning_cases": "planning/cases.py",
    "simulator_runs": "../simulator/runs.py",
}.items():
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parent / _file)
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_name] = _module
    _spec.loader.exec_module(_module)

ATTENTION_S = 1.0
RING_S = {"static": 3.0, "hdp-naive": 1.0, "hdp-balance": 0.75, "hdp-opt": 0.5}
WAIT_S = {"static": 1.0, "hdp-naive": 1.0, "hdp-balance": 0.5, "hdp-opt": 0.25}

GIB = 2.0**30
MEMORY = MemoryReport(
    stage=0, tokens_per_rank=1024, weights=8 * GIB, gradients=4 * GIB, optimizer=6 * GIB, gathered=0.0,
    activations=40 * GIB, head=0.0, working_set=GIB, communication=GIB / 2, context=GIB / 2, fragmentation=0.0,
    host_bytes=0.0, capacity_bytes=80 * GIB, host_capacity_bytes=100 * GIB,
)  # fmt: skip
"""60 of 80 GiB."""


@dataclass(frozen=True, kw_only=True)
class FakeResult:
    """The fields of simulator.simulate.StepResult that tables and documents read."""

    strategy: str
    step_s: float
    tokens: int
    gpus: int
    tokens_per_s: float
    model_flop: float
    model_flop_full: float
    hardware_flop: float
    hardware_flop_full: float
    mfu: float
    mfu_full: float
    accounts: tuple[str, ...]
    account_s: NDArray[np.float64]
    plan_ideal_s: float
    makespan_s: float
    plan_micro_batches: int
    largest_group: int
    memory: MemoryReport
    planning_wall_s: float
    execution_wall_s: float
    spans: Spans | None
    notes: tuple[str, ...]
    network: None = None
    work_left_out: float = 0.0
    network: None = None
    rank_capacity_tokens: int = 8192
    plan: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(ranks=0))  # ranks of no setup


def fake_step(setup: Setup, lengths: NDArray[np.int64], **_: object) -> FakeResult:
    """A step whose accounts per 1M tokens and 8 GPUs are the constants above; TP 16 does not run."""
    if setup.layout.parallel.tp == 16:
        raise InfeasibleError("needs 90 GiB a GPU, 80 GiB are there")
    name, tokens = setup.strategy.name, int(lengths.sum())
    scale = tokens / 2**20 * 8 / setup.cluster.gpus
    seconds = scale * np.array([ATTENTION_S, RING_S[name], WAIT_S[name]])
    step_s = float(seconds.sum())
    spans = None
    if setup.execution.spans:
        one = np.zeros(1, dtype=np.int64)
        spans = Spans(
            rank=one, stage=one, chunk=one, op=one, micro_batch=one,
            start_s=np.zeros(1), end_s=np.ones(1),
        )  # fmt: skip
    return FakeResult(
        strategy=name,
        step_s=step_s,
        tokens=tokens,
        gpus=setup.cluster.gpus,
        tokens_per_s=tokens / step_s,
        model_flop=4e14 * setup.cluster.gpus * step_s,
        model_flop_full=5e14 * setup.cluster.gpus * step_s,
        hardware_flop=5e14 * setup.cluster.gpus * step_s,
        hardware_flop_full=6e14 * setup.cluster.gpus * step_s,
        mfu=0.4,
        mfu_full=0.5,
        accounts=("attention", "cp_ring", "wait_group"),
        account_s=np.broadcast_to(seconds[:, None, None], (3, setup.ranks, setup.layout.parallel.pp)).copy(),
        plan_ideal_s=step_s / 1.04,
        makespan_s=step_s,
        plan_micro_batches=7,
        largest_group=4,
        memory=MEMORY,
        planning_wall_s=0.1,
        execution_wall_s=0.2,
        spans=spans,
        notes=(),
    )


@pytest.fixture
def fake_simulator(monkeypatch: pytest.MonkeyPatch) -> Callable[[Setup, NDArray[np.int64]], FakeResult]:
    """Replace the simulator by `fake_step`."""
    monkeypatch.setattr("hdpsim.experiments.studies.comparing.compare.simulate_step", fake_step)
    monkeypatch.setattr("hdpsim.experiments.studies.comparing.files.plan_files", lambda outcomes: ())
    monkeypatch.setattr("hdpsim.experiments.studies.comparing.files.pass_files", lambda outcomes: ())
    monkeypatch.setattr(
        "hdpsim.experiments.studies.comparing.plan_files.timeline_passes", lambda outcome: None
    )
    monkeypatch.setattr(
        "hdpsim.experiments.studies.comparing.compare.lower_bound_s",
        lambda setup, lengths: fake_step(setup, lengths).step_s / 1.04,
    )
    return fake_step


@pytest.fixture(scope="module")
def each_step_once() -> Iterator[None]:
    """Who simulates the same setup on the same batch once more gets the result that there is, until the module ends."""
    with pytest.MonkeyPatch.context() as patch:
        _simulate_once(patch)
        yield


@pytest.fixture(scope="module")
def lean_studies() -> Iterator[None]:
    """The same for a module whose tests look at no note: nobody searches for settings without effect either."""
    with pytest.MonkeyPatch.context() as patch:
        _simulate_once(patch)
        for module in ("studies.comparing.compare", "explaining.explain"):
            patch.setattr(f"hdpsim.experiments.{module}.hidden_settings", lambda *_: ())
        yield


def _simulate_once(patch: pytest.MonkeyPatch) -> None:
    known: dict[tuple[Setup, bytes, int | None, bool], StepResult] = {}

    def once(
        setup: Setup, lengths: NDArray[np.int64], *, mesh_degree: int | None = None, quick: bool = False
    ) -> StepResult:
        key = (setup, lengths.tobytes(), mesh_degree, quick)
        if key not in known:
            known[key] = simulate_step(setup, lengths, mesh_degree=mesh_degree, quick=quick)
        return known[key]

    patch.setattr("hdpsim.experiments.planning.search.work.simulate_step", once)
    patch.setattr("hdpsim.experiments.studies.comparing.compare.simulate_step", once)


class ThreadEngine:
    """An engine without processes: starts at once, and sees what tests replace."""

    deaths: tuple[type[BaseException], ...] = ()
    spreads = False
    patience = 1

    def __init__(self, slots: int = 2, task_s: float = 0.0) -> None:
        self.slots, self.task_s = slots, task_s
        self.executor = ThreadPoolExecutor(slots)

    def restart(self) -> None:
        pass

    def check(self) -> None:
        pass

    def __enter__(self) -> ThreadEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown(cancel_futures=True)


@pytest.fixture
def thread_engine() -> type[ThreadEngine]:
    return ThreadEngine


@pytest.fixture(scope="session")
def timeline_problems() -> Callable[[Path], tuple[str, ...]]:
    """Says what viewers would not show of a timeline file as it is meant."""
    return _timeline_problems


def _timeline_problems(path: Path) -> tuple[str, ...]:
    """Return what is wrong with a timeline file; nothing, if viewers will show it as it is meant."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    problems: list[str] = []
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    named: set[tuple[int, int]] = set()
    for event in document["traceEvents"]:
        kind, lane = event["ph"], (event["pid"], event.get("tid", 0))
        if kind == "M" and event["name"] == "thread_name":
            named.add(lane)
        elif kind == "X":
            start_ns, length_ns = round(event["ts"] * 1000), round(event["dur"] * 1000)
            if start_ns < 0 or length_ns < 0:
                problems.append(f"lane {lane}: {event['name']} has ts {event['ts']}, dur {event['dur']}")
            if event.get("cat") != "part":  # which lies inside a pass
                lanes.setdefault(lane, []).append((start_ns, start_ns + length_ns))
        elif kind not in ("M", "C"):
            problems.append(f"unknown kind of event {kind!r}")
    for lane, pieces in lanes.items():
        if lane not in named:
            problems.append(f"lane {lane} has no name")
        pieces.sort()
        for (_, end_ns), (start_ns, _) in pairwise(pieces):
            if start_ns < end_ns:
                problems.append(
                    f"lane {lane}: a slice starts at {start_ns} ns, before the last ends at {end_ns} ns"
                )
    return tuple(problems)
