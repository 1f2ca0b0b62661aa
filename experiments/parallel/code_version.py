"""The hash of everything a simulated scenario depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim import __version__
from hdpsim.errors import UserInputError
from hdpsim.simulator.find_own_strategy import source_hash

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario


_PACKAGES = ("hdpsim", "hdpsim.traces", "hdpsim.cost_models", "hdpsim.simulator", "hdpsim.experiments")
"""Each by itself: in a checkout the inner ones are links, which a search of the outer one does not follow."""
_BYTECODE = (".pyc", ".pyo")


@cache
def code_version() -> str:
    """Version and a hash of the code and data that results depend on.

    Counted: every file of the package, whatever it holds (also those that only draw: better a sweep too many
    than one with stale results), but for the bytecode that Python itself leaves there. Ignored: versions of Python
    and of other packages (numpy), which move results by rounding at most.
    """
    digest = hashlib.sha256()
    for package in _PACKAGES:
        folder = Path(str(resources.files(package)))
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in _BYTECODE:
                _add_file(
                    digest, f"{package.removeprefix('hdpsim.')}/{path.relative_to(folder).as_posix()}", path
                )
    return f"{__version__}+{digest.hexdigest()[:16]}"


def _add_file(digest: Any, name: str, path: Path) -> None:
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    digest.update(f"{name}\0{content}\0".encode())


def scenario_key(scenario: Scenario) -> str:
    """SHA-256 of what the result of *scenario* depends on.

    Counted: model, cluster, layout, calibration and strategy as resolved (so files and catalog entries enter with
    their content), the source of a strategy of one's own, the data section, the content of the trace or distribution
    file, seeds, the number of batches and code_version(). Ignored: the name and description of the scenario.
    """
    data = scenario.data
    parts = {
        "code": code_version(),
        "model": _canonical(scenario.model),
        "cluster": _canonical(scenario.cluster),
        "calibration": _canonical(scenario.calibration),
        "layout": _plain(scenario.layout),
        "strategy": _plain(scenario.strategy),
        "own": source_hash(scenario.strategy.name) if scenario.strategy.is_own else "",
        "execution": _plain(scenario.execution),
        "memory": _plain(scenario.memory),
        "batches": scenario.batch_count,
        "data": _plain(data) | {"trace": _content(data.trace), "distribution": _content(data.distribution)},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=512)
def _canonical(value: object) -> str:
    """Hash of a frozen dataclass."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()


def _content(name: str | None) -> str | None:
    """A shipped name as it is (its content is part of code_version), a file as its hash."""
    if name is None or not Path(name).is_absolute():
        return name
    path = Path(name)
    try:
        state = path.stat()
        return f"sha256:{file_sha256(path, state.st_mtime_ns, state.st_size)}"
    except OSError as error:
        raise UserInputError(f"{path}: cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=256)
def file_sha256(path: Path, mtime_ns: int, size_bytes: int) -> str:
    """SHA-256 of a file; the other arguments tell when it has to be read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: object) -> Any:
    """*value* as JSON data, exactly: floats as their shortest text, so that infinity is not lost."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = (field.name for field in dataclasses.fields(value) if field.init)
        return {name: _plain(getattr(value, name)) for name in given}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return {repr(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical form")
