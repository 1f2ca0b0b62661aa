"""Hybrids from a file to an answer: scenarios, wrong input, config.json, other tools, published runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.documents import model_document
from hdpsim.cost_models.hardware.hf_config import model_from_hf_config
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.errors import CatalogError, InfeasibleError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.other_tools.exporter import TARGETS, flags
from hdpsim.experiments.other_tools.importer import UserAnswers, import_file
from hdpsim.experiments.records.columns import Record, read_records, shipped_records
from hdpsim.experiments.records.completion import completed
from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.records.setup import prepare

CONFIG = {
    "model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 2688, "moe_intermediate_size": 2688,
    "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376, "n_routed_experts": 512,
    "n_shared_experts": 1, "num_experts_per_tok": 22, "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2,
    "chunk_size": 128, "vocab_size": 131072, "num_hidden_layers": 88, "num_nextn_predict_layers": 2,
    "hybrid_override_pattern": catalog.model("nemotron-3-super").layer_pattern, "mtp_hybrid_override_pattern": "*E",
    "mlp_hidden_act": "relu2", "use_mamba_kernels": True, "routed_scaling_factor": 5.0,
}  # fmt: skip
SCENARIO = """\
name: hybrid
model: {model}
cluster: {{node: hgx-h100-80gb, gpus: 16}}
data: {{lengths: [8192, 4096, 4096, 8192], context: 8K, batch: 8 sequences}}
layout: {{tp: 2, {layout}}}
strategy: {{name: {strategy}}}
"""
SMALL = """{layers: 4, hidden: 1024, heads: 8, ffn_hidden: 2048, vocab: 32000, gated_mlp: false, layer_pattern: PATTERN,
  mamba: {heads: 16, head_dim: 64, state: 64, groups: 4}}"""


NAMES = ("Nemotron_3_Super", "Nemotron_3_Nano", "Nemotron_3_Ultra", "nemotronh-56b")


@pytest.fixture(scope="module")
def published() -> dict[str, Record]:
    """A run of each hybrid."""
    return {
        one.config.model_name: one
        for one in read_records(shipped_records())
        if one.config.model_name in NAMES
    }


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def scenario(
    folder: Path, pattern: str = "2(M-)", layout: str = "pp: 1", strategy: str = "static", **model: str
) -> str:
    text = SMALL.replace("PATTERN", pattern)
    for old, new in model.items():
        text = text.replace(f"{old}: ", f"{old}: {new} #", 1) if new else text
    path = folder / "hybrid.yaml"
    path.write_text(SCENARIO.format(model=text, layout=layout, strategy=strategy))
    return str(path)


@pytest.mark.parametrize("strategy", ["static", "hdp-naive", "hdp-balance", "hdp-opt", "wlb-llm"])
def test_every_strategy_runs_a_hybrid(tmp_path: Path, strategy: str) -> None:
    """Half of a sequence fits a rank: two share it, and exchange around the scan."""
    path = scenario(tmp_path, pattern="M-*M", layout="pp: 2, rank_capacity: 4K", strategy=strategy)
    found = run("simulate", path, "--json")
    assert found.exit_code == 0, found.output
    results = json.loads(found.stdout)["results"]
    assert (results["strategy"], results["feasible"]) == (strategy, True)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("MM", "has 2 layers, layers says 4"),
        ("M-MX", "'X' at place 4; letters are M Mamba-2, * attention, - MLP, E mixture of experts"),
        ("2(M-", "opens a bracket that is not closed"),
        ("M-ME", "experts: is required: the pattern has layers E"),
    ],
)
def test_a_wrong_pattern_is_wrong_input(tmp_path: Path, pattern: str, words: str) -> None:
    found = run("simulate", scenario(tmp_path, pattern=pattern))
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("pp: 1, cp: 4, ep: 2", "has no experts"),
        ("pp: 8", "stages are more than the 4 layers"),
    ],
)
def test_what_does_not_divide_cannot_run(tmp_path: Path, layout: str, words: str) -> None:
    found = run("simulate", scenario(tmp_path, layout=layout))
    assert found.exit_code == 3
    assert words in " ".join(found.output.split())


def test_groups_must_divide_by_tensor_parallelism(tmp_path: Path) -> None:
    path = Path(scenario(tmp_path))
    path.write_text(path.read_text().replace("tp: 2", "tp: 8"))
    found = run("simulate", str(path))
    assert found.exit_code == 3
    assert "4 groups of Mamba-2 heads" in " ".join(found.output.split())


def test_the_catalog_counts_the_letters() -> None:
    found = run("catalog", "models")
    line = next(line for line in found.output.splitlines() if line.startswith("nemotron-3-super"))
    assert "40 M, 8 *, 40 E" in line


def test_config_json_of_nemotron() -> None:
    model, ignored = model_from_hf_config(CONFIG, "super")
    known = catalog.model("nemotron-3-super")
    assert replace(model, name=known.name, source=known.source) == known
    assert ignored == ("n_shared_experts",)


def test_layers_as_a_list_of_blocks() -> None:
    blocks = {"M": "mamba", "E": "moe", "*": "attention"}
    listed = CONFIG | {
        "layers_block_type": [blocks[letter] for letter in CONFIG["hybrid_override_pattern"]],
        "mtp_layers_block_type": ["attention", "moe"],
        "num_hidden_layers": None,
    }
    listed = {key: value for key, value in listed.items() if "pattern" not in key}
    assert model_from_hf_config(listed, "x")[0] == replace(model_from_hf_config(CONFIG, "x")[0])
    with pytest.raises(CatalogError, match="'gru'; supported: mamba, attention, mlp, moe"):
        model_from_hf_config(listed | {"layers_block_type": ["gru"]})


def test_a_dense_hybrid_has_no_experts_whatever_its_class_says() -> None:
    dense = CONFIG | {
        "hybrid_override_pattern": "M-*-",
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 0,
    }
    model, _ = model_from_hf_config(dense)
    assert (model.experts, model.ffn_hidden, model.expert_latent, model.mtp_pattern) == (0, 2688, 0, "")
    with pytest.raises(CatalogError, match="missing layers_block_type or hybrid_override_pattern"):
        model_from_hf_config(dense | {"hybrid_override_pattern": None})


def test_a_config_json_becomes_a_scenario(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    mine = str(tmp_path / "mine.yaml")
    found = run(
        "import", str(tmp_path / "config.json"), "--cluster", "hgx-h100-80gb", "--gpus", "64", "-o", mine
    )
    assert found.exit_code == 0, found.output
    assert "model: nemotron-3-super-120b-a12b" in Path(mine).read_text()


def test_a_model_is_written_and_read_back() -> None:
    model = catalog.model("nemotron-3-ultra")
    problems = Problems("document")
    assert catalog.model_entry(model_document(model), problems, "model") == replace(model, source="")


@pytest.mark.parametrize("target", TARGETS)
def test_no_tool_is_told_of_another_model(target: str, published: dict[str, Record]) -> None:
    config, _ = completed(published["nemotronh-56b"].config)
    with pytest.raises(InfeasibleError, match="nemotron-h-56b is a hybrid"):
        flags(prepare(config).setup, target)


@pytest.mark.parametrize(
    "option", ["--hybrid-override-pattern M-M*", "--hybrid-layer-pattern M-M*", "--is-hybrid-model"]
)
def test_options_of_hybrids_are_refused(tmp_path: Path, option: str) -> None:
    path = tmp_path / "pretrain.sh"
    path.write_text(
        f"torchrun pretrain_mamba.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --bf16 {option}\n"
    )
    with pytest.raises(InfeasibleError, match="layers of a hybrid"):
        import_file(str(path), asked=UserAnswers(cluster="hgx-h100-80gb", gpus=8))


@pytest.mark.parametrize("name", NAMES)
def test_published_hybrids_are_predicted_by_their_names(name: str, published: dict[str, Record]) -> None:
    """Layer by layer: nothing stands in for what no column holds."""
    found = predict(published[name].config)
    assert found.step_s is not None, found.reason
    assert f"layers of {catalog.model(name).name}" in found.assumptions
    assert not found.not_modelled


def test_recomputed_experts_of_a_hybrid_are_whole_layers(published: dict[str, Record]) -> None:
    """Megatron-Core's module moe is a layer of its own there: all its products, and nothing of other layers."""
    config, _ = completed(published["Nemotron_3_Nano"].config)
    recompute = prepare(config).setup.layout.recompute
    assert (recompute.layers, recompute.products, recompute.share) == ("moe", 1.0, 1.0)


def test_a_record_of_another_shape_is_no_hybrid_of_the_catalog(published: dict[str, Record]) -> None:
    config, _ = completed(published["nemotronh-56b"].config)
    with pytest.raises(InfeasibleError, match="hidden the record states otherwise"):
        prepare(replace(config, hidden=4096))
