"""Sweep files: what the axes expand to, and every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpsim.cost_models.reading.shipped import names_in, shipped
from hdpsim.errors import ScenarioError, UserInputError
from hdpsim.experiments.sweeps.axes import Sweep, load_sweep
from hdpsim.experiments.sweeps.cells import expand


def sweep(tmp_path: Path, text: str) -> Sweep:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_sweep(path)


def test_axes_multiply_and_the_last_one_changes_fastest(tmp_path: Path) -> None:
    found = sweep(
        tmp_path,
        """
base: quickstart-8gpu
grid: {layout.tp: [2, 4]}
zip: {data.batch: [1M tokens, 2M tokens], data.context: [32K, 64K]}
list: [{strategy.name: static}, {strategy.name: hdp-opt, strategy.balancing: false}]
""",
    )
    assert found.cells == 2 * 2 * 2
    assert found.keys == ("layout.tp", "data.batch", "data.context", "strategy.name", "strategy.balancing")
    changes = [dict(change) for change in found.combinations()]
    assert changes[0] == {
        "layout.tp": 2,
        "data.batch": "1M tokens",
        "data.context": "32K",
        "strategy.name": "static",
    }
    assert changes[1]["strategy.balancing"] is False
    assert [c["data.context"] for c in changes] == ["32K", "32K", "64K", "64K"] * 2
    assert [c["layout.tp"] for c in changes] == [2] * 4 + [4] * 4


def test_several_zips_are_several_axes(tmp_path: Path) -> None:
    found = sweep(
        tmp_path,
        "base: quickstart-8gpu\nzip: [{layout.tp: [2, 4], data.seed: [0, 1]}, {layout.recompute: [none, full]}]",
    )
    assert [axis.keys for axis in found.axes] == [("layout.tp", "data.seed"), ("layout.recompute",)]
    assert found.cells == 4


def test_cells_are_what_set_would_make_of_the_scenario(tmp_path: Path) -> None:
    from hdpsim.experiments.scenario.scenario import load_scenario

    found = sweep(
        tmp_path,
        "base: quickstart-8gpu\nset: {data.seed: 5}\ngrid: {cluster.node.nic: [200Gbps], gpus: [8, 16]}",
    )
    cells = expand(found, ("execution.batches=2",))
    same = load_scenario(
        "quickstart-8gpu", ("data.seed=5", "execution.batches=2", "cluster.node.nic=200Gbps", "gpus=16")
    )
    assert cells[1].scenario == same


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        sweep(
            tmp_path,
            """
base: quickstart-8gpu
sett: {}
grid:
  layout.tpp: [1]
  layout.tp: [1, two, 1]
  data.context: 64K
  model: []
zip: {gpus: [8, 16], data.seed: [1]}
list: [{layout.tp: 8}, 5]
plot: {x: nonsense}
""",
        )
    found = dict(caught.value.problems)
    assert found.keys() == {
        "sett", "grid.layout.tpp", "grid.layout.tp", "grid.data.context", "grid.model", "zip", "list[1]",
        "layout.tp", "plot.x",
    }  # fmt: skip
    assert "did you mean 'set'" in found["sett"]
    assert "did you mean 'tp'" in found["grid.layout.tpp"]
    assert "gpus has 2, data.seed has 1" in found["zip"]
    assert "one axis only" in found["layout.tp"]
    assert "(line 5)" in found["grid.layout.tpp"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: quickstart-8gpu", "nothing to sweep"),
        ("[1]", "must be a mapping"),
        ("grid: {layout.tp: [1]}", "base: is required"),
        ("base: quickstart-8gpu\ngrid: {data.seed: [" + ",".join(map(str, range(300))) + "], "
         "execution.seed: [" + ",".join(map(str, range(300))) + "]}", "90,000 cells"),
        ("base: quickstart-8gpu\ngrid: {campaign.seeds: [1]}", "no influence"),
        ("base: quickstart-8gpu\ngrid: {data.trace: [debian-code], data.distribution: [x]}", "replaces data.trace"),
    ],
)  # fmt: skip
def test_what_is_no_sweep_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        sweep(tmp_path, text)


def test_wrong_names_show_when_cells_are_put_together_each_once(tmp_path: Path) -> None:
    found = sweep(
        tmp_path,
        "base: quickstart-8gpu\n"
        "grid: {model: [llama-3-8b, llama-9], cluster.node.nic: [400Gbps, 4 Gb/s], layout.tp: [1, 2]}",
    )
    with pytest.raises(ScenarioError) as caught:
        expand(found)
    assert [(key, "in 4 of 8 cells" in text) for key, text in caught.value.problems] == [
        ("cluster.node.nic", True),
        ("model", True),
    ]


def test_contradictions_of_some_cells_are_cells_and_of_all_an_error(tmp_path: Path) -> None:
    base = "base: quickstart-8gpu\nset: {layout.pp: 2}\n"
    text = base + "grid: {layout.schedule: [1f1b, interleaved], layout.vpp: [1, 2]}"
    cells = expand(sweep(tmp_path, text))
    assert [cell.status for cell in cells] == ["to run", "invalid", "invalid", "to run"]
    assert "needs schedule: interleaved" in cells[1].reason
    with pytest.raises(ScenarioError, match="needs schedule: interleaved"):
        expand(sweep(tmp_path, "base: quickstart-8gpu\ngrid: {layout.vpp: [2, 4]}"))


def test_a_key_on_an_axis_cannot_be_set(tmp_path: Path) -> None:
    found = sweep(tmp_path, "base: quickstart-8gpu\ngrid: {layout.tp: [1, 2]}")
    with pytest.raises(ScenarioError, match="is on an axis"):
        expand(found, ("layout.tp=4",))


def test_files_are_looked_for_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("100\n200\n")
    (tmp_path / "base.yaml").write_text(
        "model: llama-3-8b\ncluster: {node: hgx-h100-80gb, gpus: 8}\n"
        "data: {distribution: bytescale-byted, batch: 1M tokens, context: 32K}"
    )
    (cell,) = expand(sweep(tmp_path, "base: base.yaml\ngrid: {data.trace: [mine.txt]}"))
    assert cell.scenario is not None
    assert cell.scenario.data.trace == str(tmp_path / "mine.txt")


@pytest.mark.parametrize("name", names_in(shipped("experiments/data/sweeps")))
def test_shipped_sweeps_expand(name: str) -> None:
    cells = expand(load_sweep(name))
    assert any(cell.status == "to run" for cell in cells)
    assert len({cell.key for cell in cells if cell.key}) == sum(cell.status == "to run" for cell in cells)
