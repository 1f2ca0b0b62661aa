"""The JSON Schema of scenarios takes what hdpsim takes, and refuses what it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from key_values import VALUES

from hdpsim import cost_models
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.scenario import scenario as scenarios
from hdpsim.experiments.scenario.json_schema import scenario_schema
from hdpsim.experiments.scenario.overrides import apply_overrides
from hdpsim.experiments.scenario.scenario import load_scenario, scenario_names, scenario_path
from hdpsim.experiments.scenario.schema import KEYS, read_keys

SCHEMA = scenario_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
QUICK: dict[str, Any] = yaml.safe_load(scenario_path("quickstart-8gpu").read_text(encoding="utf-8"))
CATALOG = Path(next(iter(cost_models.__path__))) / "data"


def fits(document: object) -> bool:
    return bool(VALIDATOR.is_valid(document))


def changed(change: str) -> Any:
    return apply_overrides(copy.deepcopy(QUICK), (change,))


def test_it_is_a_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_fits(name: str) -> None:
    for document in (
        yaml.safe_load(scenario_path(name).read_text(encoding="utf-8")),
        load_scenario(name).document,
    ):
        assert [error.message for error in VALIDATOR.iter_errors(document)] == []


@pytest.mark.parametrize("kind", ["model", "cluster", "node", "gpu"])
def test_every_entry_of_the_catalog_fits(kind: str) -> None:
    part = Draft202012Validator({**SCHEMA["$defs"][kind], "$defs": SCHEMA["$defs"]})
    files = sorted((CATALOG / f"{kind}s").glob("*.yaml"))
    assert files
    for file in files:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert [f"{file.name}: {error.message}" for error in part.iter_errors(document)] == []


@pytest.mark.parametrize("key", sorted(VALUES))
def test_what_a_scenario_may_say_fits(key: str) -> None:
    for value in VALUES[key]:
        document = changed(f"{key}={value}")
        assert [error.message for error in VALIDATOR.iter_errors(document)] == [], value


WRONG = (
    "layout.tp=0", "layout.tp=two", "layout.tp=2.5", "layout.schedule=1f1c", "layout.gradient_bytes=3",
    "layout.rank_capacity=32 kilo", "layout.fp8=true", "layout.dp_overlap=yes please", "layout.recompute_share=1.5",
    "data.batch=512 rows", "data.batch=0 sequences", "data.context=none", "data.contxt=8K",
    "strategy.name=hdp", "memory.libraries=3", "memory.libraries=3 bananas",
    "memory.selective_keeps=everything", "execution.jitter=2", "execution.batches=0", "execution.gc_pause=100",
    "campaign.duration=30", "campaign.checkpoint_interval=weekly", "campaign.spares=many",
    "software=no-such-stack 1.0", "model.layrs=3", "cluster.node.nic=800", "cluster.fabric.routing=lucky",
    "gpus=0", "layouts.tp=2", "data=3",
)  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_what_is_wrong_does_not_fit(change: str) -> None:
    """Each is refused by hdpsim as well."""
    document = changed(change)
    assert not fits(document)
    with pytest.raises(UserInputError):
        scenarios.resolve_scenario(document)


def test_two_sources_of_lengths_do_not_fit() -> None:
    assert not fits({**QUICK, "data": {**QUICK["data"], "lengths": "8K"}})


@pytest.mark.parametrize("key", ["model", "cluster", "data"])
def test_what_is_missing_does_not_fit(key: str) -> None:
    assert not fits({name: value for name, value in QUICK.items() if name != key})


ODD = (
    None, True, False, 0, 1, 2, 3, 4.5, -1, 0.5, 1e9 + 0.5, "", " ", "auto", "all", "none", "rest", "8K", "8k",
    "8 K tokens", "1_000", "3 bananas", "30d", "0s", "1.5e3 ms", "5 GB/s", "400Gbps", "400Gb/s", "0.5GiB", "true",
    "ring", "12 sequences", "0 sequences", "1 sequence", "flash", [], ["mlp"], ["mlp", "mlp"], [8192, "8K"], {},
    {"file": "a.csv"},
)  # fmt: skip


@pytest.mark.parametrize("key", sorted(KEYS))
def test_schema_and_reader_agree_on_odd_values(key: str) -> None:
    """What the schema refuses, hdpsim refuses; what hdpsim refuses, the schema may take only where it is a text."""
    section, dot, leaf = key.rpartition(".")
    for value in ODD:
        document = copy.deepcopy(QUICK)
        (document.setdefault(section, {}) if dot else document)[leaf] = value
        found = Problems("test")
        read_keys(document, found)
        refused = any(name == key for name, _ in found.found)
        own = SCHEMA["properties"][section]["properties"][leaf] if dot else SCHEMA["properties"][leaf]
        takes = Draft202012Validator({**own, "$defs": SCHEMA["$defs"]}).is_valid(value)
        if not refused:
            assert takes or key in LOOKED_UP, f"{key}: {value!r} is read, and the schema refuses it"
        elif not isinstance(value, str):
            assert not takes, f"{key}: {value!r} is refused, and the schema takes it"


LOOKED_UP = frozenset({"model", "cluster", "data.trace", "software"})
"""Keys whose value is only checked when what it names is looked up."""


def test_the_command_prints_and_writes_it(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["schema"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == json.loads(json.dumps(SCHEMA))
    written = CliRunner().invoke(cli, ["schema", "-o", str(tmp_path / "scenario.json")])
    assert written.exit_code == 0
    assert (tmp_path / "scenario.json").read_text(encoding="utf-8") == printed.stdout
    nowhere = CliRunner().invoke(cli, ["schema", "-o", str(tmp_path / "no" / "scenario.json")])
    assert nowhere.exit_code == 2
    assert "cannot be written: No such file" in nowhere.output
