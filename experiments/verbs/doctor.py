"""Is an installation sound: what is there, and does a step agree with itself?"""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import hdpsim
from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import HdpSimError
from hdpsim.experiments.output.document import Column, Document, Table
from hdpsim.experiments.scenario.scenario import load_scenario, scenario_names
from hdpsim.experiments.sweeps.store import default_store
from hdpsim.experiments.verbs.result import Result
from hdpsim.simulator.lower_bound import lower_bound_s
from hdpsim.simulator.step import simulate_step
from hdpsim.traces import shipped_traces

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;]*(?:;.*extra == ['\"](?P<extra>\w+)['\"])?")
_FOR_DEVELOPERS = ("dev", "docs")

AGREE = 1e-9
"""How far the two executors may be apart, relative to the step."""

_TINY = ("data.batch=64K tokens", "data.context=16K tokens")


class SelfCheckError(HdpSimError):
    """A step does not agree with itself: this installation computes something else than it should."""

    exit_code = 1


def doctor() -> Result:
    """Is this installation sound: versions, processors, catalog, a step checked against itself?

        print(hdpsim.doctor())

    The self-check takes about a second: both executors play the same step, which must not be below its lower bound.

    Returns:
        A result whose `error` says what is wrong; None where all is well.

    Raises:
        HdpSimError: what is shipped with hdpsim cannot be read.
    """
    rows = [*_environment(), *_catalog(), *_self_check()]
    wrong = [row for row in rows if row["ok"] is False]
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("what"),
        Column("found", left=True),
        Column("ok", format=lambda ok: "ok" if ok else "WRONG", missing="", left=True),
    )
    error = None
    if wrong:
        error = SelfCheckError("; ".join(f"{row['what']}: {row['found']}" for row in wrong))
    document = Document(
        kind="doctor",
        head=f"hdpsim {hdpsim.__version__}",
        blocks=(Table(columns=columns, rows=rows),),
        notes=("This installation is sound." if error is None else "Something is wrong; see above.",),
        payload={"sound": error is None, "checks": rows},
    )
    return Result(document=document, error=error)


def _row(what: str, finding: object, ok: bool | None = None) -> dict[str, Any]:
    return {"what": what, "found": str(finding), "ok": ok}


def _environment() -> list[dict[str, Any]]:
    rows = [
        _row("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        _row("installed in", Path(hdpsim.__file__).parent),
        _row("processors", os.cpu_count() or 1),
        _row("results of sweeps", default_store()),
    ]
    for requirement in _requirements():
        matched = _REQUIREMENT.match(requirement)
        assert matched is not None
        name, extra = matched["name"], matched["extra"]
        version = _version(name)
        if extra is None:
            rows.append(_row(name, version or "is missing", version is not None))
        elif extra not in _FOR_DEVELOPERS:
            rows.append(_row(name, version or f"not installed; pip install 'hdpsim[{extra}]' would"))
    return rows


def _requirements() -> list[str]:
    try:
        return metadata.requires("hdpsim") or []
    except metadata.PackageNotFoundError:  # a checkout that was never installed
        return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _catalog() -> list[dict[str, Any]]:
    kinds: tuple[catalog.Kind, ...] = ("model", "gpu", "node", "cluster")
    counts = [f"{len(catalog.names(kind))} {kind.replace('gpu', 'GPU')}s" for kind in kinds]
    shipped = f"{', '.join(counts)}, {len(shipped_traces())} traces, {len(scenario_names())} scenarios"
    return [_row("catalog", shipped, True)]


def _self_check() -> list[dict[str, Any]]:
    """Play a step with both executors, hold it against its bound, and sum its accounts."""
    scenario = load_scenario("quickstart-8gpu", _TINY)
    lengths = scenario.batches(1)[0]
    replayed, played = (
        simulate_step(scenario.with_changes((f"execution.executor={name}",)).setup(), lengths)
        for name in ("replay", "engine")
    )
    apart = abs(replayed.step_s - played.step_s) / played.step_s
    bound_s = lower_bound_s(scenario.setup(), lengths)
    sums_s = replayed.account_s.sum(axis=0)
    add_up = bool(np.allclose(sums_s, replayed.step_s, rtol=AGREE, atol=0.0))
    return [
        _row(
            "executors agree",
            f"to {max(apart, np.finfo(float).eps):.0e} of a step of {played.step_s:.3f} s",
            apart <= AGREE,
        ),
        _row(
            "above its lower bound",
            f"{replayed.step_s / bound_s - 1:+.1%}",
            replayed.step_s >= bound_s * (1 - AGREE),
        ),
        _row(
            "accounts sum to the step",
            "on every rank and stage" if add_up else "they do not",
            add_up,
        ),
    ]
