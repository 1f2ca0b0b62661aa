"""Static rows say which mesh they are and how far the best one is away, hdp-naive that its capacity is stated."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.studies.comparing.compare import compare
from hdpsim.simulator.setup import Packing

pytestmark = pytest.mark.usefixtures("lean_studies", "each_plan_once")

PACKERS = st.sampled_from(get_args(Packing))
CAPACITIES = st.sampled_from(("8K", "16K", "64K"))
NAMES = st.sampled_from(("static", "hdp-naive", "hdp-opt"))


def said(*arguments: str) -> str:
    """Standard output of a command."""
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False).stdout


def document(*arguments: str) -> dict[str, Any]:
    """Its JSON."""
    found: dict[str, Any] = json.loads(said(*arguments, "--json"))
    return found


def words(mesh: dict[str, Any]) -> str:
    """How tables name a mesh."""
    return f"{mesh['packing']} packing, {'padded' if mesh['padding'] else 'not padded'}, CP {mesh['cp']}"


def scenario_file(folder: Path, *changes: str) -> str:
    """The smallest scenario, changed, for a command whose --set means something else."""
    path = folder / "mine.yaml"
    fixed = ("layout.rank_capacity=32K", "execution.batches=1")
    path.write_text(load_scenario("quickstart-8gpu", (*fixed, *changes)).to_yaml())
    return str(path)


@settings(derandomize=True, max_examples=4, deadline=None)
@given(PACKERS, st.booleans(), NAMES, NAMES)
def test_whatif_names_every_static_mesh_and_holds_strategies_against_the_best(
    tmp_path_factory: pytest.TempPathFactory, packing: str, padding: bool, name: str, other: str
) -> None:
    file = scenario_file(
        tmp_path_factory.mktemp("whatif"),
        f"strategy.name={name}",
        f"strategy.packing={packing}",
        f"strategy.padding={str(padding).lower()}",
    )
    arguments = ("whatif", file, "--set", f"strategy.name={other}", "--set", "gpus=16")
    rows = document(*arguments)["results"]
    text = said(*arguments)
    assert {row["strategy"] for row in rows} == {name, other}
    lines = {row["label"]: next(s for s in text.splitlines() if s.startswith(row["label"])) for row in rows}
    for row in rows:
        if row["strategy"] == "static":
            assert (row["static_mesh"]["packing"], row["static_mesh"]["padding"]) == (packing, padding)
            assert words(row["static_mesh"]) in lines[row["label"]]
    if "static" in (name, other) and name != other:
        best = compare(load_scenario(file), ("static",), baseline=True).best_static
        assert best is not None
        for row in rows:
            ratio = row.get("speed_up_vs_best_static", {}).get("mean")
            assert ratio == pytest.approx(row["tokens_per_s"]["mean"] / best.tokens_per_s.mean)
            assert f"{ratio:.2f}" in lines[row["label"]]
    else:
        assert all(row["speed_up_vs_best_static"] is None for row in rows)
        assert ("not the best one" in text) == (name == "static")


@settings(derandomize=True, max_examples=4, deadline=None)
@given(PACKERS, st.permutations(("static", "hdp-naive", "hdp-opt")), st.integers(1, 3))
def test_scale_names_them_in_text_json_and_csv(
    tmp_path_factory: pytest.TempPathFactory, packing: str, names: list[str], count: int
) -> None:
    folder = tmp_path_factory.mktemp("scale")
    chosen = names[:count]
    arguments = [
        "scale",
        "quickstart-8gpu",
        "--gpus",
        "8,16",
        "--batches",
        "2",
        "--strategies",
        ",".join(chosen),
    ]
    arguments += ["--set", f"strategy.packing={packing}"]
    text, rows = said(*arguments), document(*arguments, "--out", str(folder / "out"))["results"]
    with (folder / "out" / "scaling.csv").open() as file:
        written = list(csv.DictReader(file))
    searched = "static" in chosen and count > 1
    assert ("over best static" in text) == searched
    assert ("not the best one" in text) == (chosen == ["static"])
    for row, cells in zip(rows, written, strict=True):
        mesh = row["static_mesh"] or {"packing": "", "padding": "", "cp": ""}
        assert [cells["packing"], cells["padding"], cells["cp"]] == [str(part) for part in mesh.values()]
        if row["strategy"] == "static":
            assert mesh["packing"] == packing
            assert words(mesh) in text
        if not searched:
            assert row["speed_up_vs_best_static"] is None
            continue
        ratio = row["speed_up_vs_best_static"]["mean"]
        assert float(cells["speed_up_vs_best_static"]) == pytest.approx(ratio)
        assert ratio <= 1.001 or row["strategy"] != "static"


@settings(derandomize=True, max_examples=4, deadline=None)
@given(PACKERS, st.sampled_from(("hdp-naive", "hdp-opt")), st.integers(0, 5))
def test_compare_scale_and_whatif_give_one_answer(
    tmp_path_factory: pytest.TempPathFactory, packing: str, name: str, seed: int
) -> None:
    """Over the best static mesh: the same ratio, with the same interval, of every row that stands in all three."""
    changes = (f"strategy.packing={packing}", f"data.seed={seed}", "data.batch=512K tokens")
    file = scenario_file(tmp_path_factory.mktemp("one"), *changes, "gpus=16", "execution.batches=3")
    strategies = ("--strategies", f"static,{name}")
    compared = document("compare", file, *strategies)["results"]
    scaled = document("scale", file, *strategies, "--gpus", "16,32")["results"]
    changed = document("whatif", file, *strategies, "--set", "gpus=32")["results"]
    for strategy in ("static", name):
        same = [
            next(row for row in compared if row["strategy"] == strategy),
            next(row for row in scaled if row["strategy"] == strategy and row["gpus"] == 16),
            next(row for row in changed if row["strategy"] == strategy and row["label"] == "base"),
        ]
        for row in same:
            found = row["speed_up_vs_best_static"]
            assert found.keys() == same[0]["speed_up_vs_best_static"].keys()
            assert found == pytest.approx(same[0]["speed_up_vs_best_static"])
            assert row["tokens_per_s"] == pytest.approx(same[0]["tokens_per_s"])
    assert any(row["speed_up_vs_best_static"]["ci95_half_width"] for row in compared)


def test_a_sweep_names_them_in_text_json_and_csv(tmp_path: Path) -> None:
    sweep = {
        "base": "quickstart-8gpu",
        "set": {"execution.batches": 1, "data.context": "16K"},
        "grid": {"strategy.name": ["static", "hdp-opt"], "strategy.packing": ["in-order", "best-fit"]},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(sweep))
    arguments = ["sweep", str(tmp_path / "mine.yaml"), "--workers", "1", "--store", str(tmp_path / "store")]
    rows = document(*arguments, "--out", str(tmp_path / "out"))["results"]
    text = said(*arguments)
    with (tmp_path / "out" / "cells.csv").open() as file:
        written = list(csv.DictReader(file))
    assert "not the best one" in text
    for row, cells in zip(rows, written, strict=True):
        mesh = row["static_mesh"]
        assert (mesh is not None) == (row["changes"]["strategy.name"] == "static")
        assert cells["packing"] == (mesh["packing"] if mesh else "")
        assert cells["cp"] == (str(mesh["cp"]) if mesh else "")
        assert mesh is None or words(mesh) in text


@settings(derandomize=True, max_examples=6, deadline=None)
@given(NAMES, CAPACITIES, st.integers(0, 3))
def test_who_is_slower_with_more_memory_is_told_that_its_capacity_is_stated(
    tmp_path_factory: pytest.TempPathFactory, name: str, capacity: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("rule")
    file = scenario_file(folder, "gpus=32", f"strategy.name={name}", f"data.seed={seed}")
    command = ("whatif", file, "--set", f"layout.rank_capacity={capacity}")
    text, found = said(*command), document(*command)
    told = "hdp-naive keeps to the layout.rank_capacity" in text
    ran = [row for row in found["results"] if row["feasible"]]
    steps = {row["batches"][0]["rank_capacity_tokens"]: row["step_s"]["mean"] for row in ran}
    less, more = steps[min(steps)], steps[max(steps)]
    assert told == (name == "hdp-naive" and less != more)
    assert told or more <= less * 1.02
    assert told == any("hdp-naive keeps to the layout.rank_capacity" in line for line in found["remarks"])
