"""Strategies of one's own: functions from a PlanningProblem to a Plan, found by name.

static, hdp-naive, ...   shipped: not looked up here
my_module:plan           a function of a module, found as `python` in the current directory finds it
my_module:mine           the same by the name that @strategy("mine") gave it
mine                     registered in this process, or an entry point "mine" of the group hdpsim.strategies
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from hdpsim.errors import HdpSimError, StrategyError
from hdpsim.quoting import quoted

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hdpsim.simulator.plan import Plan
    from hdpsim.simulator.strategies.problem import PlanningProblem

Strategy = Callable[["PlanningProblem"], "Plan"]
_Function = TypeVar("_Function", bound=Callable[..., object])

GROUP = "hdpsim.strategies"
"""Of entry points, with which an installed package offers strategies by a plain name."""
OWN_NAME = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_][\w.-]*"
"""module:function, as a regular expression."""
OWN_WORDS = "my_module:function for one's own"

_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_registered: dict[str, Callable[..., object]] = {}
_reserved = {"static", "best-static"}


def reserve(names: Iterable[str]) -> None:
    """Keep the names of shipped strategies from being registered."""
    _reserved.update(names)


def strategy(name: str) -> Callable[[_Function], _Function]:
    """Register the decorated function as a strategy under a plain *name*.

    Raises:
        StrategyError: the name is no plain name, is one of hdpsim's own, or is taken by another module.
    """
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise StrategyError(f"@strategy needs a name of letters, digits, _, . and -; got {quoted(name)}")
    if name in _reserved or name.startswith("hdp-"):
        raise StrategyError(f"@strategy({name!r}): names of hdpsim's own strategies are taken")

    def register(function: _Function) -> _Function:
        other = _registered.get(name)
        if other is not None and other.__module__ != function.__module__:
            taken = f"{other.__module__} has a strategy of that name already"
            raise StrategyError(f"@strategy({name!r}): {taken}")
        _registered[name] = function
        return function

    return register


def is_own_name(name: str) -> bool:
    """Whether *name* may be that of a strategy of one's own; a module is not looked for yet."""
    return bool(re.fullmatch(OWN_NAME, name)) or name in _registered or _entry_point(name) is not None


def installed_names() -> tuple[str, ...]:
    """Plain names under which installed packages offer strategies, hdpsim's own package among them."""
    from importlib.metadata import entry_points

    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def load_strategy(name: str) -> Strategy:
    """The function of that name, which takes one argument.

    Raises:
        StrategyError: it cannot be found or imported, or takes something else.
    """
    function = _registered.get(name)
    if function is None:
        function = _imported(name) if ":" in name else _installed(name)
    if not callable(function):
        raise StrategyError(
            f"strategy {name}: expected a function plan(problem) -> Plan, got {function!r:.60}"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise StrategyError(
            f"strategy {name}: must take one argument, the planning problem; its signature is "
            f"{inspect.signature(function)}"
        ) from None
    except ValueError:  # written in C, which has no signature
        pass
    return function  # type: ignore[return-value]  # what it returns is checked when it has planned


def source_hash(name: str) -> str:
    """SHA-256 of the source of a strategy: its module, and what that uses of the same package or folder."""
    module = _module_of(name)
    digest = hashlib.sha256(name.encode())
    for path in sorted(_source_files(module)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def location(name: str) -> str:
    """The file in which a strategy is."""
    return str(getattr(_module_of(name), "__file__", "") or "")


def _module_of(name: str) -> ModuleType | None:
    function = load_strategy(name)
    return sys.modules.get(getattr(function, "__module__", type(function).__module__))


def _imported(name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    with _user_code(name, f"cannot import {module_name}"), _here_first():
        module = importlib.import_module(module_name)
    part_of_module: object = module
    for part in attribute.split("."):
        part_of_module = getattr(part_of_module, part, None)
    registered = _registered.get(attribute)
    if part_of_module is None and registered is not None and registered.__module__ == module_name:
        return registered
    if part_of_module is None:
        functions = inspect.getmembers(module, inspect.isfunction)
        own = [key for key, value in functions if value.__module__ == module.__name__]
        raise StrategyError(
            f"strategy {name}: {getattr(module, '__file__', module_name)} has no {attribute}; "
            f"its functions: {', '.join(own) or 'none'}"
        )
    return part_of_module  # type: ignore[return-value]  # load_strategy looks at it


def _entry_point(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points  # takes a while to load

    return next(iter(entry_points(group=GROUP, name=name)), None)


def _installed(name: str) -> Callable[..., object]:
    point = _entry_point(name)
    if point is None:
        raise StrategyError(
            f"strategy {name} is not known in this process: import the module that registers it, or give it as "
            f"module:{name}"
        )
    with _user_code(name, f"cannot load the entry point {point.value}"):
        function: Callable[..., object] = point.load()
    return function


@contextmanager
def _here_first() -> Iterator[None]:
    """Modules are found in the current directory first, as `python -m` does it; it stays the last place to look."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)


@contextmanager
def _user_code(name: str, what: str) -> Iterator[None]:
    """Turn whatever the code of somebody else raises into one message that says where."""
    try:
        yield
    except HdpSimError:
        raise
    except (Exception, SystemExit) as error:
        raise StrategyError(f"strategy {name}: {what}: {error_words(error)}") from error


def error_words(error: BaseException) -> str:
    """Kind, message and place of an error that somebody else's code raised."""
    place = ""
    trace = error.__traceback__
    while trace is not None:  # the innermost frame that is neither ours nor of the import machinery
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(("<frozen", str(Path(__file__).parent))):
            place = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    if isinstance(error, ModuleNotFoundError):
        place = place if "importlib" not in place else ""
    text = str(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def _source_files(module: ModuleType | None) -> set[Path]:
    """Files of a module and of those it uses from its own package, or from its own folder where it has no package."""
    first = _file(module)
    if module is None or first is None:
        return set()
    package = module.__name__.partition(".")[0]
    installed = "site-packages" in first.parts or "dist-packages" in first.parts
    folder = first.parent
    for _ in range(module.__name__.count(".") + (first.name == "__init__.py")):
        folder = folder.parent
    files: set[Path] = set()
    waiting = [module]
    while waiting:
        module_in_turn = waiting.pop()
        path = _file(module_in_turn)
        if path is None or path in files or folder not in path.parents:
            continue
        if installed and module_in_turn.__name__.partition(".")[0] != package:
            continue
        files.add(path)
        for value in list(vars(module_in_turn).values()):
            name = getattr(value, "__module__", "")
            if isinstance(value, ModuleType):
                waiting.append(value)
            elif isinstance(name, str) and name in sys.modules:
                waiting.append(sys.modules[name])
    return files


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if name and Path(name).is_file() else None
