"""Traces and distributions that come with the package, found by name."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

from hdpsim.errors import TraceError
from hdpsim.quoting import did_you_mean
from hdpsim.traces.distributions import Distribution, read_distribution, synthesize
from hdpsim.traces.file_formats import FORMATS
from hdpsim.traces.files import read_trace
from hdpsim.traces.trace import Trace

_DATA = Path(__file__).parent / "data"


@cache
def shipped_traces() -> tuple[str, ...]:
    """Names of the recorded traces that come with the package."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.npz")))


@cache
def shipped_distributions() -> tuple[str, ...]:
    """Names of the published length distributions that come with the package."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.yaml")))


@cache
def _shipped_trace(name: str) -> Trace:
    with np.load(_DATA / f"{name}.npz", allow_pickle=False) as archive:
        lengths = archive["lengths"]
    return Trace(lengths, name, (_DATA / f"{name}.txt").read_text(encoding="utf-8").strip())


_shipped_distribution = cache(read_distribution)


def load_distribution(name_or_path: str | Path) -> Distribution:
    """Return a shipped distribution, or one from a YAML file (see `read_distribution`)."""
    name = str(name_or_path)
    if name in shipped_distributions():
        return _shipped_distribution(_DATA / f"{name}.yaml")
    if _looks_like_path(name, (".yaml", ".yml")):
        return read_distribution(name)
    raise _unknown(name, "distribution", shipped_distributions())


def load_trace(
    name_or_path: str | Path, *, column: str | None = None, count: int = 1_000_000, seed: int = 0
) -> Trace:
    """Return the trace of that name: recorded, drawn from a distribution, or read from a file.

    Args:
        name_or_path: one of `shipped_traces()` or `shipped_distributions()`, or a file (a .yaml file is a
            distribution). A name wins over a file of the same name; write ./name for the file.
        column: for a file, the column that holds the lengths.
        count: for a distribution, how many sequences to draw.
        seed: for a distribution, the seed to draw them with.
    """
    source = load_source(name_or_path, column=column)
    return synthesize(source, count, seed) if isinstance(source, Distribution) else source


def load_source(name_or_path: str | Path, *, column: str | None = None) -> Trace | Distribution:
    """Load a trace, or return a distribution as such: `global_batches` draws from it without end."""
    name = str(name_or_path)
    if name in shipped_traces():
        return _shipped_trace(name)
    if name in shipped_distributions() or name.lower().endswith((".yaml", ".yml")):
        return load_distribution(name)
    if _looks_like_path(name, (*FORMATS, ".gz")):
        return read_trace(name, column)
    raise _unknown(name, "trace", shipped_traces() + shipped_distributions())


def _looks_like_path(name: str, endings: tuple[str, ...]) -> bool:
    return name.lower().endswith(endings) or "/" in name or "\\" in name or os.path.exists(name)


def _unknown(name: str, what: str, known: tuple[str, ...]) -> TraceError:
    return TraceError(
        f"there is no {what} of this name and no such file{did_you_mean(name, known)}; shipped: {', '.join(known)}",
        name,
    )
