"""A record is a scenario: what is written of it is read back as the same setup, and simulated as it is predicted."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.documents import cluster_document, model_document
from hdpsim.cost_models.hardware.parts import Cluster, Fabric
from hdpsim.cost_models.layout.layout import SWITCHES
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import HdpSimError, InfeasibleError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.records.columns import Record, read_records, shipped_records
from hdpsim.experiments.records.completion import completed
from hdpsim.experiments.records.memory import predict_memory
from hdpsim.experiments.records.prediction import predict, predict_step
from hdpsim.experiments.records.scenario import record_scenario, run_document
from hdpsim.experiments.records.setup import PreparedRun, prepare
from hdpsim.experiments.scenario.scenario import load_scenario, resolve_scenario
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.validation.views import plain
from hdpsim.simulator.settings import FIELDS
from hdpsim.simulator.setup import ExecutionOptions, MemoryOptions, Setup, StrategyOptions
from hdpsim.simulator.step import simulate_step
from hdpsim.yaml_loader import load_yaml

PACKED, EXPERTS = "nemo-0013", "megatron-bridge-0005"


@cache
def prepared_runs(every: int) -> tuple[tuple[Record, PreparedRun], ...]:
    """Every so many-th shipped record, if it can be predicted."""
    found = []
    for record in read_records(shipped_records())[::every]:
        try:
            config, _ = completed(record.config)
            prepared = prepare(config)
        except HdpSimError:
            continue
        if not prepared.blocked:
            found.append((record, prepared))
    return tuple(found)


def assert_simulated_as_predicted(cases: Sequence[tuple[Record, PreparedRun]]) -> None:
    for record, prepared in cases:
        scenario = resolve_scenario(run_document(prepared, record.name))
        result = simulate_step(scenario.setup(), scenario.batches(1)[0])
        step_s, accounts = predict_step(prepared)
        memory = predict_memory(prepared)
        assert result.step_s == pytest.approx(step_s, rel=1e-12), record.name
        means = dict(zip(result.accounts, result.account_s.mean(axis=(1, 2)).tolist(), strict=True))
        assert means == pytest.approx(dict(accounts), rel=1e-12, abs=1e-15), record.name
        assert result.memory == memory.fullest, record.name
        assert result.memory.fits == memory.fits, record.name
        assert result.tokens == prepared.sequences * prepared.seq_len, record.name
        assert any("does not fit" in note for note in result.notes) != memory.fits, record.name


def test_some_records_are_simulated_as_they_are_predicted() -> None:
    several = prepared_runs(24)
    assert len(several) > 30
    assert_simulated_as_predicted(several)


@pytest.mark.slow
def test_every_record_is_written_as_the_setup_and_batch_that_are_predicted() -> None:
    """Of which alone a step is made."""
    every = prepared_runs(1)
    assert len(every) > 800
    for record, prepared in every:
        scenario = resolve_scenario(run_document(prepared, record.name))
        assert without_sources(scenario.setup()) == without_sources(prepared.setup), record.name
        np.testing.assert_array_equal(scenario.batches(1)[0], prepared.lengths, err_msg=record.name)


@pytest.mark.parametrize("name", ["megatron-lm-0001", PACKED, EXPERTS])
def test_what_validate_reports_is_what_simulate_makes_of_the_file(tmp_path: Path, name: str) -> None:
    """From the command that writes the file to the step, for packed documents and for experts, too."""
    record = next(record for record in read_records(shipped_records()) if record.name == name)
    path = tmp_path / f"{name}.yaml"
    done = CliRunner().invoke(cli, ["validate", "--scenario-of", name, "-o", str(path)])
    assert done.exit_code == 0, done.output
    scenario = load_scenario(path)
    assert len(scenario.data.lengths_tokens or ()) == (23 if name == PACKED else 1)
    assert bool(scenario.model.experts) == (name == EXPERTS)
    result = simulate_step(scenario.setup(), scenario.batches(1)[0])
    prediction = predict(record.config)
    assert prediction.step_s == pytest.approx(result.step_s, rel=1e-12)
    assert prediction.memory is not None
    assert prediction.memory.fits == result.memory.fits
    tokens_per_s = result.tokens_per_s / result.gpus
    assert prediction.tokens_per_s_per_gpu == pytest.approx(tokens_per_s, rel=1e-12)
    if name != PACKED:  # sources count the FLOP of a pack as those of one sequence
        flop = result.model_flop / result.step_s / result.gpus / 1e12
        assert prediction.rates["model, causal attention"] == pytest.approx(flop, rel=1e-9)


def test_the_text_says_what_was_assumed(tmp_path: Path) -> None:
    name = "megatron-lm-0020"
    text = record_scenario(name)
    assert "# assumed: vpp 3" in text
    assert "must_fit: false" in text
    printed = CliRunner().invoke(cli, ["validate", "--scenario-of", name])
    assert printed.stdout == text


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="did you mean 'megatron-lm-0020'"):
        record_scenario("megatron-lm-020")
    with open(shipped_records(), encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == "megatron-lm-0020")
    with open(tmp_path / "one.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow({**row, "model_name": "mine", "layers": ""})
    with pytest.raises(InfeasibleError, match=r"(is|are) not stated"):
        record_scenario("megatron-lm-0020", str(tmp_path / "one.csv"))
    run = CliRunner()
    for options in (["--memory"], ["--json"], ["--markdown"], ["--report", "x.html"]):
        assert run.invoke(cli, ["validate", "--scenario-of", "x", *options]).exit_code == 2
    assert run.invoke(cli, ["validate", "-o", "x.yaml"]).exit_code == 2


def without_words(model: Model) -> Model:
    return replace(model, source="")


@pytest.mark.parametrize("name", catalog.names("model"))
def test_shipped_models_are_read_back(name: str) -> None:
    problems = Problems("x", None)
    read = catalog.model_entry(model_document(catalog.model(name)), problems, "model")
    assert not problems.found
    assert read == without_words(catalog.model(name))


def without_sources(setup: Setup) -> Setup:
    # whether software is stated is a matter of bands
    return replace(setup, model=without_words(setup.model), cluster=bare(setup.cluster), software_stated=True)


def read_cluster(cluster: Cluster) -> Cluster:
    problems = Problems("x", None)
    read = catalog.cluster_entry(cluster_document(cluster), problems, "cluster")
    assert read is not None, problems.found
    return bare(read)


def bare(cluster: Cluster) -> Cluster:
    """The same without words about sources."""
    node = replace(cluster.node, source="", gpu=replace(cluster.node.gpu, source=""))
    return replace(cluster, source="", node=node)


@pytest.mark.parametrize("name", catalog.names("cluster"))
def test_shipped_clusters_are_read_back(name: str) -> None:
    assert read_cluster(catalog.cluster(name)) == bare(catalog.cluster(name))


@settings(max_examples=60)
@given(
    name=st.sampled_from(catalog.names("node")),
    nic=st.floats(1e9, 1e12),
    memory=st.floats(1e9, 1e13),
    boost=st.booleans(),
    tdp=st.floats(100.0, 2000.0),
    efficiency=st.none() | st.floats(0.01, 1.0),
    share=st.floats(0.01, 1.0),
    latency=st.floats(1e-9, 1e-3),
    own=st.booleans(),
)
def test_any_cluster_is_read_back_to_the_last_bit(
    name: str,
    nic: float,
    memory: float,
    boost: bool,
    tdp: float,
    efficiency: float | None,
    share: float,
    latency: float,
    own: bool,
) -> None:
    node = catalog.node(name)
    node = replace(
        node,
        name="my node" if own else node.name,
        gpu=replace(node.gpu, tensor_boost=boost, tdp_w=tdp, name="my GPU" if own else node.gpu.name),
        nic_bytes_per_s=nic,
        host_memory_bytes=memory,
        nic_efficiency=efficiency,
        collective_share=share,
    )
    cluster = catalog.cluster_of(node, 4 * node.gpus, Fabric(hop_latency_s=latency, routing="ecmp"))
    assert read_cluster(cluster) == bare(cluster)


def test_everything_of_a_setup_has_a_key() -> None:
    """What a prediction may depend on can be written in a scenario."""
    written = {
        section: {
            FIELDS.get(leaf, leaf)
            for home, _, leaf in (key.rpartition(".") for key in KEYS)
            if home == section
        }
        for section in ("layout", "strategy", "memory", "execution")
    }
    assert SWITCHES.keys() <= written["layout"]
    assert {item.name for item in fields(StrategyOptions)} <= written["strategy"]
    assert {item.name for item in fields(MemoryOverheads)} <= written["memory"]
    assert {item.name for item in fields(MemoryOptions)} - {"overheads"} <= written["memory"]
    counted = {"spans", "record_links", "step", "replication"}  # what a run sets itself
    assert {item.name for item in fields(ExecutionOptions)} - counted <= written["execution"]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("nemo-0003", """
model: {like: gpt3-175b, vocab: 51200}
cluster: {node: hgx-h100-80gb, gpus: 128}
layout: {tp: 4, pp: 8, vpp: 6, schedule: interleaved, cp: 1, precision: fp8, rank_capacity: 2K}
data: {lengths: 2K, batch: 256 sequences, context: 2K}
software: nemo 2024"""),
        ("megatron-bridge-0023", """
model: qwen3-30b-a3b
cluster: {node: {like: nvl72-gb300, gpus: 8, nics: 8}, gpus: 8}
layout: {ep: 8, cp: 1, precision: mxfp8, rank_capacity: 32K}
data: {lengths: 4K, batch: 512 sequences, context: 32K}
software: megatron-bridge 2026"""),
    ],
)  # fmt: skip
def test_a_run_written_by_hand_is_predicted_as_its_plain_record(name: str, written: str) -> None:
    """Framework and year, shape, degrees and batch: what both have decides, and nothing else."""
    record = next(record for record in read_records(shipped_records()) if record.name == name)
    document = load_yaml(written) | {"strategy": {"name": "static"}, "memory": {"must_fit": False}}
    scenario = resolve_scenario(document)
    step_s = simulate_step(scenario.setup(), scenario.batches(1)[0]).step_s
    assert step_s == pytest.approx(predict(plain(record.config)).step_s, rel=1e-9)
