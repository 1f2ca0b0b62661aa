"""What records say of their software in columns that are keys of a scenario."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from key_values import VALUES

from hdpsim.cost_models.hardware import catalog
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.records.columns import _OWN_COLUMN, Record, read_records
from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.validation.views import is_plain, plain
from hdpsim.yaml_loader import load_yaml

ROW = {
    "gpu": "h100", "n_gpus": "16", "gpus_per_node": "8", "model_name": "small", "layers": "24", "hidden": "2048",
    "ffn_hidden": "8192", "heads": "16", "kv_heads": "16", "vocab": "32000", "seq_len": "2048", "micro_batch": "2",
    "tp": "2", "pp": "2", "cp": "1", "dp": "4", "vpp": "", "zero_stage": "zero1", "recompute": "none",
    "global_batch_seqs": "32", "framework": "Megatron-Core 0.13", "year": "2025",
}  # fmt: skip
EXPERTS = {"n_experts": "8", "topk": "2", "ep": "2", "cp": "2", "dp": "2", "vpp": "2"}
SWITCHES = [
    key for key in VALUES if key.startswith("layout.") and key.removeprefix("layout.") not in _OWN_COLUMN
]


def one(tmp_path: Path, changes: dict[str, str]) -> Record:
    row = ROW | changes
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    return read_records(path)[0]


@pytest.mark.parametrize("key", SWITCHES)
def test_a_column_of_a_switch_wins_over_every_rule(tmp_path: Path, key: str) -> None:
    met = 0
    for text in VALUES[key]:
        try:
            prepared = prepare(one(tmp_path, EXPERTS | {key: f'"{text}"'}).config)
        except (InfeasibleError, UserInputError):  # of a combination that no layout has
            continue
        met += 1
        assert prepared.setup.layout.switch(key.removeprefix("layout.")) == KEYS[key].parse(load_yaml(text))
    assert met


def test_columns_say_what_a_plain_record_would_leave_to_guesses(tmp_path: Path) -> None:
    said = {"layout.schedule": "zb-h1", "memory.logit_bytes": "14", "cluster.node": "p5-h100-80gb"}
    record = one(tmp_path, said)
    prepared = prepare(plain(record.config))
    assert prepared.setup.layout.pipeline.schedule == "zb-h1"
    assert prepared.setup.layout.pipeline.overlap  # zero-bubble schedules bring their own transfers
    assert prepared.setup.memory.overheads.logit_bytes == 14.0
    assert prepared.setup.cluster.node.name == "p5-h100-80gb"
    assert not is_plain(plain(record.config))


def test_an_interleaved_schedule_has_chunks_and_1f1b_none(tmp_path: Path) -> None:
    chunks = {
        schedule: prepare(one(tmp_path, {"layout.schedule": schedule}).config).setup.layout.pipeline.vpp
        for schedule in ("interleaved", "1f1b", "zb-v")
    }
    assert chunks == {"interleaved": 12, "1f1b": 1, "zb-v": 2}


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [
        ("layout.tp", "2", "the column is tp"),
        ("layout.micro_batch_size", "2", "the column is micro_batch"),
        ("layout.schedul", "1f1b", "did you mean 'layout.schedule'"),
        ("layout.schedule", "gpipe", "is not one of 1f1b"),
        ("memory.logit_bytes", "many", "expected a number"),
        ("cluster.node", "p6", "there is no node 'p6'"),
        ("cluster.node", "{like: p6}", "like: there is no node 'p6'"),
        ("cluster.node", '"{like: hgx-h100, gpu: {like: h100, tpd: 500W}}"', "gpu.tpd: .*did you mean 'tdp'"),
        ("cluster.gpus", "64", "the column is n_gpus"),
        ("model.layers", "3", "the column is layers"),
        ("execution.network", "flows", "is no switch of a record"),
    ],
)
def test_a_wrong_switch_is_named_with_its_row(tmp_path: Path, column: str, text: str, words: str) -> None:
    with pytest.raises(UserInputError, match=f"row 2: {column}: .*{words}"):
        one(tmp_path, {column: text})


def test_a_record_describes_a_node_and_a_gpu_of_its_own(tmp_path: Path) -> None:
    capped = "{like: hgx-h100-80gb, gpu: {like: h100, tdp: 500W}}"
    node = prepare(one(tmp_path, {"cluster.node": f'"{capped}"'}).config).setup.cluster.node
    usual = catalog.node("hgx-h100-80gb")
    assert node.gpu.tdp_w == 500.0
    assert replace(node, gpu=usual.gpu, name=usual.name, source=usual.source) == usual
    unknown = one(tmp_path, {"cluster.node": f'"{capped}"'}).config
    unknown = replace(
        unknown, gpu="H100 NVL"
    )  # a name that the catalog does not have is that of the node's GPU
    assert Run(unknown).generation == "hopper"
    assert predict(unknown).step_s == predict(replace(unknown, gpu="h100")).step_s
    assert "column cluster.node may describe one" in predict(replace(unknown, switches=())).reason


def test_a_node_with_another_gpu_is_a_reason(tmp_path: Path) -> None:
    found = predict(one(tmp_path, {"cluster.node": "p4d"}).config)
    assert "p4d carries a100-40gb, the record names h100-80gb" in found.reason
