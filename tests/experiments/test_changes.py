"""A change of a key is the same change everywhere: in simulate, whatif, scale, sweep and on a written scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_values import PARTS, SWITCHES, VALUES

from hdpsim.errors import HdpSimError, InfeasibleError, ScenarioError
from hdpsim.experiments.parallel.code_version import scenario_key
from hdpsim.experiments.scenario.overrides import rivals
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.studies.changes.variants import run_variants
from hdpsim.experiments.studies.changes.whatif import whatif
from hdpsim.experiments.studies.comparing.compare import silent
from hdpsim.experiments.studies.scale import scale
from hdpsim.experiments.sweeps.axes import load_sweep
from hdpsim.experiments.sweeps.cells import expand

pytestmark = pytest.mark.usefixtures("each_plan_once")

LIKE_THE_README = """\
model: llama-3-8b
cluster: {node: hgx-h100-80gb, gpus: 16}
layout: {tp: 2}
data: {trace: debian-code, batch: 1M tokens, context: 32K}
"""
NAMED = """\
model: llama-3-8b
cluster: superpod-h100
layout: {tp: 2}
data: {distribution: bytescale-github, batch: 1M tokens, context: 32K}
"""
SIZED = NAMED.replace("superpod-h100", "superpod-h100\ngpus: 64")
OWN_FILES = """\
model: model.yaml
cluster: {like: superpod-h100, nodes: 2}
layout: {tp: 2}
data: {trace: {file: lengths.csv, column: tokens}, batch: 64 sequences, context: 32K}
campaign: {failures: failures.yaml}
"""
BASES = {"like the README": LIKE_THE_README, "named": NAMED, "sized": SIZED, "own files": OWN_FILES}
EVERY = {**VALUES, **PARTS}
NAMES = ("name", "description")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The scenarios as files, in a folder with the files they name."""
    folder = tmp_path_factory.mktemp("bases")
    (folder / "lengths.csv").write_text("id,tokens\n1,4000\n2,90\n")
    (folder / "other.csv").write_text("id,tokens\n1,400\n2,9\n")
    (folder / "model.yaml").write_text("like: llama-3-8b\nlayers: 8\n")
    (folder / "failures.yaml").write_text("causes: []\n")
    paths = {}
    for name, text in BASES.items():
        paths[name] = folder / f"{name.replace(' ', '-')}.yaml"
        paths[name].write_text(text)
    return paths


changes = st.lists(
    st.sampled_from(sorted(EVERY)).flatmap(lambda key: st.tuples(st.just(key), st.sampled_from(EVERY[key]))),
    min_size=1,
    max_size=2,
    unique_by=lambda change: change[0],
).map(tuple)


def found(load: Any) -> object:
    """What tells whether two scenarios are the same: the hash of all they depend on, or why there is none."""
    try:
        scenario: Scenario = load()
    except InfeasibleError as error:
        return "infeasible", str(error).partition("\n")[2]
    except ScenarioError as error:
        return "wrong", frozenset(key for key, _ in error.problems)  # texts may quote paths
    return scenario_key(scenario), scenario.resolved_json, scenario.notes


def test_every_key_has_values_to_try() -> None:
    assert set(VALUES) == set(KEYS)
    assert all(len(set(values)) >= 2 for values in EVERY.values())


@settings(max_examples=100)
@given(st.sampled_from(sorted(BASES)), changes)
def test_a_change_is_the_same_whatever_makes_it(
    bases: dict[str, Path], base: str, change: tuple[tuple[str, str], ...]
) -> None:
    """Read with the file; made to what was read; made to what a run wrote into its directory."""
    texts = tuple(f"{key}={value}" for key, value in change)
    path = bases[base]
    expected = found(lambda: load_scenario(path, texts))
    assert found(lambda: load_scenario(path).with_changes(texts)) == expected
    written = path.with_name("written.yaml")
    written.write_text(load_scenario(path).to_yaml())
    assert found(lambda: load_scenario(written, texts)) == expected
    assert found(lambda: load_scenario(path, texts[::-1])) == expected, "the order of changes counts"


@settings(max_examples=100)
@given(st.sampled_from(sorted(BASES)), changes)
def test_a_cell_of_a_sweep_is_the_scenario_with_its_changes(
    bases: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    base: str,
    change: tuple[tuple[str, str], ...],
) -> None:
    """On axes of its own, and with the first change fixed for all cells."""
    path = bases[base]
    if any(key in NAMES or key.startswith("campaign.") for key, _ in change):
        return  # no axis of a sweep
    texts = tuple(f"{key}={value}" for key, value in change)
    expected = found(lambda: load_scenario(path, texts))
    lines = [f"base: {path}", "list:", "  - {" + ", ".join(f"{key}: {value}" for key, value in change) + "}"]
    if len(change) == 2:
        lines[1:] = [
            f"set: {{{change[0][0]}: {change[0][1]}}}",
            f"grid: {{{change[1][0]}: [{change[1][1]}]}}",
        ]
    sweep = tmp_path_factory.mktemp("sweep") / "sweep.yaml"
    sweep.write_text("\n".join(lines) + "\n")

    def cell() -> Scenario:
        (only,) = expand(load_sweep(sweep))
        if only.scenario is None:
            raise InfeasibleError(only.reason)
        return only.scenario

    try:
        same = found(cell) == expected
    except HdpSimError:
        same = False
    assert same or expected[0] == "wrong"  # type: ignore[index]


def test_rows_of_whatif_and_scale_are_those_of_simulate(
    bases: dict[str, Path], fake_simulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the size of the cluster stands inside it."""
    seen: list[Any] = []

    def listen(setup: Any, lengths: Any, **_: object) -> Any:
        seen.append(setup)
        return fake_simulator(setup, lengths)

    monkeypatch.setattr("hdpsim.experiments.studies.comparing.compare.simulate_step", listen)
    for path in bases.values():
        texts = ("cluster.gpus=8", "cluster=superpod-a100", "layout.tp=4")
        seen.clear()
        whatif(load_scenario(path), texts, batches=1)
        expected = [(), *((text,) for text in texts), texts[:2], texts]  # changes 1 to 2 are a row, too
        assert seen == [load_scenario(path, change).setup() for change in expected]
        seen.clear()
        scale(load_scenario(path), (8, 32), ("static",), batches=1)
        assert [setup.cluster.gpus for setup in seen] == [8, 32]
        assert seen == [load_scenario(path, (f"gpus={n}",)).setup("static") for n in (8, 32)]


def test_a_written_scenario_does_not_hold_a_second_size(bases: dict[str, Path]) -> None:
    assert load_scenario(bases["like the README"]).document["gpus"] == "auto"
    assert load_scenario(bases["sized"]).document["gpus"] == 64


@pytest.mark.parametrize(
    "texts",
    [
        ("gpus=8", "cluster.gpus=16"),
        ("cluster.nodes=1", "cluster.gpus=16"),
        ("data.trace=debian-code", "data.distribution=bytescale-github"),
        ("data.trace=debian-code", "data.lengths=4K"),
    ],
)
def test_two_changes_that_replace_each_other_are_an_error(
    bases: dict[str, Path], texts: tuple[str, ...]
) -> None:
    base = load_scenario(bases["named"])
    for order in (texts, texts[::-1]):
        with pytest.raises(ScenarioError, match="contradicts"):
            load_scenario(bases["named"], order)
        with pytest.raises(ScenarioError, match="contradicts"):
            run_variants(base, [("both", order)], report=silent)


@pytest.mark.parametrize("size", ["gpus: 16", "nodes: 2"])
def test_a_document_with_two_sizes_is_an_error(tmp_path: Path, size: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(LIKE_THE_README.replace("gpus: 16", size) + "gpus: 8\n")
    with pytest.raises(ScenarioError, match=rf"gpus: 8 contradicts cluster\.{size}"):
        load_scenario(path)
    path.write_text(path.read_text().replace("gpus: 8", "gpus: 16"))
    assert load_scenario(path).cluster.gpus == 16


def test_the_size_of_a_cluster_may_stand_outside(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(LIKE_THE_README.replace(", gpus: 16", "") + "gpus: 4\n")
    cluster = load_scenario(path).cluster
    assert (cluster.nodes, cluster.node.gpus) == (1, 4)  # part of a node
    assert load_scenario(path, ("cluster.gpus=24",)).cluster.gpus == 24


def test_rivals_replace_each_other_both_ways() -> None:
    for key in ("gpus", "cluster.gpus", "cluster.nodes", "data.trace", "data.distribution", "data.lengths"):
        assert all(key in rivals(other) for other in rivals(key))
    assert not SWITCHES.keys() & {"gpus"}


def test_set_cannot_replace_what_is_on_an_axis(bases: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"base: {bases['named']}\nset: {{gpus: 64}}\ngrid: {{layout.tp: [2, 4]}}\n")
    assert {cell.scenario and cell.scenario.cluster.gpus for cell in expand(load_sweep(path))} == {64}
    cells = expand(load_sweep(path), ("cluster.gpus=128",))
    assert {cell.scenario and cell.scenario.cluster.gpus for cell in cells} == {128}
    path.write_text(f"base: {bases['named']}\ngrid: {{cluster.gpus: [64, 128]}}\n")
    with pytest.raises(ScenarioError, match="on an axis"):
        expand(load_sweep(path), ("gpus=8",))


def test_a_fixed_part_of_a_cluster_survives_another_cluster(bases: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"base: {bases['named']}\nset: {{cluster.node.nic: 800Gbps}}\n"
        "grid: {cluster: [superpod-h100, superpod-a100]}\n"
    )
    found = [cell.scenario.cluster for cell in expand(load_sweep(path)) if cell.scenario is not None]
    assert [cluster.node.nic_bytes_per_s for cluster in found] == [100e9, 100e9]
    assert len({cluster.gpu.name for cluster in found}) == 2


def test_a_file_that_writes_every_key_leaves_its_software_nothing(
    tmp_path: Path, bases: dict[str, Path]
) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(load_scenario(bases["named"]).to_yaml() + 'software: "megatron-core 0.13"\n')
    notes = load_scenario(path).notes
    assert any("software = megatron-core 0.13 changes nothing" in note for note in notes)
