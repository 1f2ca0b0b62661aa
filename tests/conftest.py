"""What holds for all tests: how Hypothesis draws, what commands under test hear and keep, how figures are written.

Hypothesis draws the same examples every time, and none too slow: on a loaded machine a single example may take long,
and that is no failure. A change is judged by the examples that the one before was judged by.
`pytest --hypothesis-profile search` draws others.

Whoever starts the tests in the background (`&`, nohup) has Ctrl-C and the end of the terminal ignored, and so would
every command that the tests start and interrupt.

Where nothing may be written beside the sources, every process would compile hdpsim and the tests anew: what it made
is kept with pytest's cache.

Figures of files are laid out, text and all, but not drawn as PNG and SVG, which takes most of many commands' time:
tests of the drawing itself ask for `pictures`.

Planning is most of a small step's time: modules that are about what is done with plans ask for `each_plan_once`.
A process of a pool has to import hdpsim first, a second of CPU: modules that are not about pools ask for `one_process`.

Python's cyclic garbage collector would walk through all modules and all collected tests again and again, a tenth of
the time: what is there when the tests begin is left out.
"""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from matplotlib.figure import Figure

from hdpsim.experiments.output.plots import style
from hdpsim.simulator.plan import Plan
from hdpsim.simulator.strategies.problem import PlanningProblem
from hdpsim.simulator.strategies.registry import make_plan

settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("search"), derandomize=True)
settings.load_profile("same")

for _name, _answer in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    _number = getattr(signal, _name, None)  # Windows has no SIGHUP
    if _number is not None and signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _answer)

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    _kept = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
    try:
        _kept.mkdir(parents=True, exist_ok=True)
    except OSError:  # a checkout that is only read
        _kept = Path(tempfile.mkdtemp(prefix="hdpsim-tests-"))
        atexit.register(shutil.rmtree, _kept, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(_kept)
    sys.dont_write_bytecode = False

OBJECTS_PER_COLLECTION = 10_000
"""How many more objects there have to be before the collector looks at the youngest; Python's own default is 700."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(OBJECTS_PER_COLLECTION, *older)


_draw = style.write_figure


def _lay_out(figure: Figure, path: Path) -> None:
    if path.suffix == ".png":  # the SVG is the same figure once more
        with style.style(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # as where they are drawn
            figure.draw_without_rendering()
    path.write_text("laid out only")


@pytest.fixture(scope="session", autouse=True)
def _figures_are_laid_out_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "write_figure", _lay_out)
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures become PNG and SVG."""
    monkeypatch.setattr(style, "write_figure", _draw)


@pytest.fixture(scope="module")
def each_plan_once() -> Iterator[None]:
    """Whoever asks a planner the same once more gets the plan that there is, until the module ends."""
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


POOLS = tuple(
    f"hdpsim.experiments.{name}.worker_pool"
    for name in ("papers.paper", "calibration.run", "campaigns.run", "parallel.engines")
)
"""Where modules of the product find their pool of processes."""


class _Here(Executor):
    """Does what it is given at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


@contextmanager
def _pool(_processes: int) -> Iterator[Executor]:
    yield _Here()


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """Every pool of the product is this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in POOLS:
            patch.setattr(name, _pool)
        yield
