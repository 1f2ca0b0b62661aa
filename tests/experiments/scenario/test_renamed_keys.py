"""A key of an earlier version is refused with its name of today, wherever keys are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpsim.errors import ScenarioError, UserInputError
from hdpsim.experiments.records.columns import _switch
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.scenario.schema import KEYS, OF_OTHERS, RENAMED
from hdpsim.experiments.sweeps.axes import load_sweep


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_names_its_new_one(old: str, new: str, tmp_path: Path) -> None:
    assert old not in KEYS
    said = f"it is now {new}: .*{KEYS[new].parse.words[:12]}"
    section, _, leaf = old.partition(".")
    written = tmp_path / "old.yaml"
    written.write_text(f"model: llama2-7b\ncluster: h100-8\n{section}: {{{leaf}: 1}}\n")
    with pytest.raises(ScenarioError, match=said):
        load_scenario(written)
    with pytest.raises(ScenarioError, match=said):
        load_scenario("quickstart-8gpu", (f"{old}=1",))
    with pytest.raises(ScenarioError, match=said):
        load_sweep({"base": "quickstart-8gpu", "grid": {old: [1]}})
    with pytest.raises(UserInputError, match=said):
        _switch("runs.csv, row 2", old, "1")


def test_a_key_of_another_tool_names_the_one_here() -> None:
    assert set(OF_OTHERS.values()) <= set(KEYS)
    assert not set(OF_OTHERS) & {key.rpartition(".")[2] for key in KEYS}
    with pytest.raises(ScenarioError, match=r"did you mean layout\.rank_capacity\?"):
        load_scenario("quickstart-8gpu", ("layout.micro_batch_size=1",))
