"""Every verb in Python gives what its command prints with --json, and takes what its command takes."""

from __future__ import annotations

import csv
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import hdpsim
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import VERBS, cli
from hdpsim.experiments.output.document import Document
from hdpsim.experiments.records.columns import shipped_records

pytestmark = pytest.mark.usefixtures("each_step_once", "each_plan_once", "one_process")

TINY = {"data.batch": "64K tokens", "data.context": "16K tokens", "layout.rank_capacity": "8K tokens"}
SETS = tuple(text for key, value in TINY.items() for text in ("--set", f"{key}={value}"))
QUICK = "quickstart-8gpu"
MEASURED = ("planning_wall_s", "execution_wall_s", "planning_s", "seconds")
"""Wall-clock times of hdpsim itself, which differ from run to run (`seconds` of a plan)."""

OF_FILES = {
    "trace",
    "scenarios",
    "schema",
    "catalog",
    "import",
    "export",
    "new",
    "completion",
    "doctor",
    "report",
}
"""Verbs that read or write files: no study, no function."""

SHOWN = {"as_json", "out", "report"}
"""Options that say how a result is shown."""

RENAMED: dict[str, dict[str, str]] = {
    "sweep": {"sweep_file": "sweep"},
    "recommend": {"goal": "target"},
    "calibrate": {"names": "constants", "no_runs": "runs"},
}
COMMAND_ONLY: dict[str, set[str]] = {
    "plan": {"scenario_file", "megatron", "bridge", "torchtitan"},
    "calibrate": {"file"},
    "validate": {"scenario_of", "scenario_file", "markdown", "template"},
}
"""Options that write what Python gets as `result.scenario`, or another rendering."""


def printed(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clocks(inner) for key, inner in value.items() if key not in MEASURED}
    return [without_clocks(inner) for inner in value] if isinstance(value, list) else value


CASES: dict[str, tuple[tuple[str, ...], Callable[[], hdpsim.Result]]] = {
    "simulate": (
        (QUICK, *SETS, "--batches", "2", "--tokens", "300B"),
        lambda: hdpsim.simulate(QUICK, TINY, batches=2, tokens="300B"),
    ),
    "simulate --steps": (
        (QUICK, *SETS, "--steps", "3"),
        lambda: hdpsim.simulate(QUICK, TINY, steps=3),
    ),
    "compare": (
        (QUICK, *SETS, "--batches", "2", "--strategies", "static(cp=2),hdp-opt"),
        lambda: hdpsim.compare(QUICK, TINY, batches=2, strategies=["static(cp=2)", "hdp-opt"]),
    ),
    "explain": ((QUICK, *SETS, "--term", "gemm"), lambda: hdpsim.explain(QUICK, TINY, term="gemm")),
    "replay": (
        (QUICK, *SETS, "--trace", "debian-code", "--steps", "2", "--workers", "1"),
        lambda: hdpsim.replay(QUICK, TINY, trace="debian-code", steps=2, workers=1),
    ),
    "campaign": (
        (QUICK, *SETS, "--set", "campaign.step=10s", "--duration", "2d", "--seeds", "2", "--workers", "1"),
        lambda: hdpsim.campaign(QUICK, {**TINY, "campaign.step": "10s"}, duration="2d", seeds=2, workers=1),
    ),
    "scale": (
        (QUICK, *SETS, "--gpus", "8,16", "--batches", "1", "--weak"),
        lambda: hdpsim.scale(QUICK, [8, 16], TINY, batches=1, weak=True),
    ),
    "whatif": (
        (
            QUICK,
            "--set",
            "layout.tp=4",
            "--set",
            "layout.rank_capacity=64K tokens,layout.pp=2",
            "--batches",
            "1",
        ),
        lambda: hdpsim.whatif(
            QUICK, ["layout.tp=4", {"layout.rank_capacity": "64K tokens", "layout.pp": 2}], batches=1
        ),
    ),
    "fabric": (("llama3-24k", "--gpus", "64"), lambda: hdpsim.fabric("llama3-24k", gpus=64)),
    "flows": (
        (QUICK, "--gpus", "32", "--pattern", "ring", "--set", "cluster.fabric.routing=ecmp"),
        lambda: hdpsim.flows(QUICK, {"cluster.fabric.routing": "ecmp"}, gpus=32, pattern="ring"),
    ),
    "check-strategy": (("hdp-naive", "--ranks", "3"), lambda: hdpsim.check_strategy("hdp-naive", ranks=3)),
}
SEARCHES: dict[str, tuple[tuple[str, ...], Callable[[], hdpsim.Result]]] = {
    "check": (
        (QUICK, *SETS, "--set", "strategy.name=static", "--batches", "1"),
        lambda: hdpsim.check(QUICK, {**TINY, "strategy.name": "static"}, batches=1),
    ),
    "plan": (
        (QUICK, *SETS, "--batches", "1", "--search", "layout.tp=1,2", "--search", "layout.pp=1",
         "--search", "strategy.name=hdp-naive", "--search", "layout.recompute=full", "--budget", "none",
         "--workers", "1"),
        lambda: hdpsim.plan(
            QUICK, TINY, batches=1, budget=None, workers=1,
            searched=["layout.tp=1,2", "layout.pp=1", "strategy.name=hdp-naive", "layout.recompute=full"],
        ),
    ),
    "recommend": (
        (QUICK, *SETS, "--target", "1B tokens in 3 days", "--keep-layout", "--budget", "none",
         "--set", "campaign.seeds=2"),
        lambda: hdpsim.recommend(
            QUICK, "1B tokens in 3 days", {**TINY, "campaign.seeds": 2}, keep_layout=True, budget="none"
        ),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verb", sorted({**CASES, **SEARCHES}))
def test_commands_print_what_functions_return(verb: str) -> None:
    arguments, call = {**CASES, **SEARCHES}[verb]
    result = call()
    assert without_clocks(printed(verb.split()[0], *arguments)) == without_clocks(result.to_dict())
    assert result.error is None
    assert len(result.to_frame()) > 0
    assert result.plot().axes
    assert (result.scenario is not None) == (verb not in ("fabric", "flows"))


@pytest.mark.slow
def test_sweeps_are_the_same(tmp_path: Path) -> None:
    document = {"base": QUICK, "set": {**TINY, "execution.batches": 1}, "grid": {"layout.tp": [1, 2]}}
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(document))
    result = hdpsim.sweep(document, store=tmp_path / "store", workers=1)
    again = printed("sweep", str(file), "--store", str(tmp_path / "store"))
    assert again == result.to_dict()
    result.save(tmp_path / "run")
    assert "layout.tp" in (tmp_path / "run" / "sweep.yaml").read_text()
    assert result.error is None


def test_validations_are_the_same(tmp_path: Path) -> None:
    with shipped_records().open(newline="") as shipped:
        rows = [row for _, row in zip(range(3), csv.reader(shipped), strict=False)]
    few = tmp_path / "few.csv"
    with few.open("w", newline="") as out:
        csv.writer(out).writerows(rows)
    result = hdpsim.validate(few)
    assert printed("validate", str(few)) == result.to_dict()
    assert len(result.to_frame()) == 2


def test_papers_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = tmp_path / "cells.csv"

    def echo(paper: Any, cells: str | None, *, report: object, **options: object) -> Document:
        return Document(kind=paper.folder.name, payload={"cells": cells, **options})

    monkeypatch.setattr("hdpsim.experiments.papers.paper.reproduce", echo)
    result = hdpsim.reproduce("bytescale", cells=cells, batches=2, figures=[17])
    assert result.to_dict()["cells"] == str(cells)
    assert (
        printed("reproduce", "bytescale", "--cells", str(cells), "--batches", "2", "--figure", "17")
        == result.to_dict()
    )
    assert printed("reproduce", "megascale") == hdpsim.reproduce("megascale").to_dict()
    with pytest.raises(UserInputError, match=r"megascal: no such paper.*megascale"):
        hdpsim.reproduce("megascal")
    with pytest.raises(UserInputError, match="megascale does not average"):
        hdpsim.reproduce("megascale", batches=2)


@pytest.mark.parametrize("verb", sorted(set(VERBS) - OF_FILES - {"reproduce"}))
def test_functions_take_what_commands_take(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    given = {parameter.name for parameter in command.params} - SHOWN - COMMAND_ONLY.get(verb, set())
    names = RENAMED.get(verb, {})
    taken = set(inspect.signature(getattr(hdpsim, verb.replace("-", "_"))).parameters)
    assert {names.get(str(name), str(name)) for name in given} <= taken
