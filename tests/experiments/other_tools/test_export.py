"""Scenarios as options of other tools: what is said, what is listed, and that reading it back gives the same."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.layout.layout import SWITCHES, Layout
from hdpsim.cost_models.transformer.model import LatentAttention, Model
from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.other_tools.exporter import TARGETS, Exported, export_scenario, flags
from hdpsim.experiments.other_tools.importer import Imported, UserAnswers, import_file
from hdpsim.experiments.scenario.scenario import load_scenario
from hdpsim.experiments.scenario.values import Batch
from hdpsim.simulator.setup import Setup, StrategyOptions

GPUS = 64
LENGTH = 2048
DENSE = Model(
    name="dense", layers=16, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn_hidden=4096, vocab=32768
)
EXPERTS = replace(DENSE, name="experts", experts=16, top_k=2, ffn_hidden=1024, shared_expert_ffn=512)
LATENT = replace(
    EXPERTS,
    name="latent",
    kv_heads=16,
    dense_layers=2,
    dense_ffn_hidden=4096,
    latent_attention=LatentAttention(
        q_lora_rank=256, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    ),
)
GPT = replace(
    DENSE,
    name="gpt",
    kv_heads=16,
    gated_mlp=False,
    norm="layer",
    biases=True,
    dropout=True,
    tied_embeddings=True,
    learned_positions=65536,
)
WINDOWS = replace(
    EXPERTS, name="windows", sliding_window=128, full_attention_every=2, qkv_biases=True, qk_norm=True
)
MODELS = (DENSE, EXPERTS, LATENT, GPT, WINDOWS)
NAMED = (catalog.model("llama-3-8b"), catalog.model("qwen3-30b-a3b"))
ENDINGS = {"megatron-core": "sh", "megatron-bridge": "yaml", "torchtitan": "toml"}
WORDS: dict[str, tuple[Any, ...]] = {
    "schedule": ("1f1b", "interleaved", "zb-v", "zb-h1"),
    "sharding": ("none", "zero1", "zero2", "zero3"),
    "recompute": ("none", "selective", "full"),
    "recompute_share": (0.0, 0.5),
    "precision": ("bf16", "fp8", "mxfp8", "nvfp4"),
    "fp8_scaling": ("delayed", "tensor", "row", "block"),
    "cp_kind": ("ring", "all-gather", "ulysses", "gathered-ring", "double-ring", "hybrid", "disaggregated"),
    "order": ("tp-dp-pp", "tp-pp-dp"),
    "gradient_accumulation": ("fused", "separate", "cast"),
    "gradient_bytes": (2, 4),
    "optimizer_bytes": (12.0, 8.0),
    "expert_dispatch": ("all-to-all", "fused"),
    "expert_kernels": ("grouped", "separate", "modules", "indexed", "fused"),
    "expert_imbalance": (None, 1.0, 1.3),
    "expert_routing": ("loss", "bias", "even", "in-turn", "untrained"),
    "attention_kernel": ("flash", "flash2", "mxfp8", "unfused"),
    "cuda_graph_scope": ("layers", "iteration"),
    "shard_ranks": (None, 2),
    "schedule_micro_batches": (None, 2, 3),
    "bucket_parameters": (None, 50_000_000.0),
}
FLAGS = tuple(name for name in SWITCHES if isinstance(Layout().switch(name), bool))


@st.composite
def setups(draw: st.DrawFn, models: tuple[Model, ...]) -> Setup:
    """Setups of 64 GPUs: any switch of a layout, of a static mesh or of groups that form anew."""
    model = draw(st.sampled_from(models))
    pp = draw(st.sampled_from((1, 2, 4)))
    switches: dict[str, Any] = {name: draw(st.booleans()) for name in FLAGS}
    switches |= {name: draw(st.sampled_from(values)) for name, values in WORDS.items()}
    switches |= {"tp": draw(st.sampled_from((1, 2, 4))), "pp": pp, "cp": draw(st.sampled_from((1, 2)))}
    if pp == 1:
        switches["schedule"] = "1f1b"
    switches["vpp"] = 2 if switches["schedule"] in ("interleaved", "zb-v") else 1
    if model.experts:
        switches |= {"ep": draw(st.sampled_from((1, 2, 4))), "etp": draw(st.sampled_from((None, 1)))}
        if switches["ep"] > 1:
            switches["order"] = "tp-dp-pp"
    if switches["sharding"] == "none":
        switches["shard_ranks"] = None
    name = draw(st.sampled_from(("static", "hdp-opt")))
    if name != "static":
        switches |= {"cp": None, "rank_capacity_tokens": 512}
        switches["sharding"] = "zero1" if switches["sharding"] == "zero3" else switches["sharding"]
    return Setup(
        model=model,
        cluster=catalog.cluster_of("hgx-b200-180gb", GPUS),
        layout=Layout(**switches),
        calibration=calibration("blackwell"),
        context_tokens=LENGTH * draw(st.sampled_from((1, 2))) if name == "static" else LENGTH,
        strategy=StrategyOptions(name=name),  # type: ignore[arg-type]
    )


def read_back(found: Exported) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"config.{ENDINGS[found.target]}"
        path.write_text(found.text)
        form = {"megatron-core": "megatron", "megatron-bridge": "bridge", "torchtitan": "torchtitan"}[
            found.target
        ]
        return import_file(str(path), form, UserAnswers(cluster="hgx-b200-180gb", gpus=GPUS))


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.data())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_what_is_written_and_read_back_is_the_same_but_for_what_is_listed(
    target: str, data: st.DataObject
) -> None:
    setup = data.draw(setups(NAMED if target == "torchtitan" else MODELS))
    assert differences(target, setup) == {}


def differences(target: str, setup: Setup) -> dict[str, tuple[Any, Any]]:
    """What reading the options back gives -> what was to be, of everything that is not listed."""
    found = flags(setup, target, batch=Batch(sequences=GPUS * 4), length_tokens=LENGTH)
    listed = {*found.cannot, *found.without_effect}
    back = read_back(found)
    assert back.scenario is not None
    layout, model = back.scenario.layout, back.scenario.model
    dynamic = setup.strategy.name != "static" and target != "torchtitan"
    pairs: dict[str, tuple[Any, Any]] = {
        f"layout.{name}": (layout.switch(name), setup.layout.switch(name))
        for name in SWITCHES
        if name not in ("etp", "cp", "rank_capacity_tokens")
    }
    pairs["cp"] = (layout.parallel.cp or 1, setup.layout.parallel.cp or 1)
    pairs["context"] = (back.scenario.data.context_tokens, setup.context_tokens)
    pairs["batch"] = (back.scenario.data.batch, Batch(sequences=GPUS * 4))
    pairs["dynamic"] = (back.scenario.strategy.name != "static", dynamic)
    pairs["unknown"] = (back.unknown, ())
    if dynamic:
        pairs["capacity"] = (layout.context.rank_capacity_tokens, setup.layout.context.rank_capacity_tokens)
    if setup.model.experts:
        pairs["experts cut"] = (layout.parallel.expert_cut, setup.layout.parallel.expert_cut)
    for item in fields(Model):
        if item.name not in ("name", "source"):
            pairs[f"model.{item.name}"] = (getattr(model, item.name), getattr(setup.model, item.name))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name not in listed}


def small(**switches: Any) -> Setup:
    return Setup(
        model=DENSE,
        cluster=catalog.cluster_of("hgx-h100-80gb", GPUS),
        layout=Layout(**switches),
        calibration=calibration("hopper"),
        context_tokens=8192,
    )


def test_dynamic_groups_are_spelled_as_megatron_does_and_did() -> None:
    setup = small(tp=2, rank_capacity_tokens=1024)
    now = flags(setup, "megatron-core").options
    expected = {"dynamic-context-parallel": True, "min-dynamic-context-parallel-size": 1}
    expected |= {"sequence-packing-scheduler": "default_dynamic_cp", "calculate-per-token-loss": True}
    assert {**expected, "max-seqlen-per-dp-cp-rank": 1024}.items() <= now.items()
    before = flags(setup, "megatron-core", spelling="main-2026-08").options
    assert {"hybrid-context-parallel": True, "max-seqlen-per-dp-cp-rank": 1024}.items() <= before.items()
    assert "dynamic-context-parallel" not in before
    piped = flags(small(tp=2, pp=2, rank_capacity_tokens=1024), "megatron-core", spelling="main-2026-08")
    assert "without a pipeline only" in piped.cannot["strategy.name"]


def test_what_a_scenario_does_not_know_is_listed_and_never_said() -> None:
    found = flags(small(rank_capacity_tokens=1024), "megatron-core")
    assert {"--lr", "--data-path", "--tokenizer-type", "--global-batch-size"} <= found.yours.keys()
    assert not {"lr", "data-path", "global-batch-size"} & found.options.keys()
    assert found.cannot["layout.prefetch_gather"] == "true"
    assert "static mesh" in flags(small(rank_capacity_tokens=1024), "torchtitan").cannot["strategy.name"]


def test_wrong_targets_and_spellings() -> None:
    with pytest.raises(UserInputError, match="did you mean 'megatron-core'"):
        flags(small(), "megatron-cor")
    with pytest.raises(UserInputError, match="known: main-2026-08"):
        flags(small(), "megatron-core", spelling="main-2020")
    with pytest.raises(UserInputError, match="known: none"):
        flags(small(), "torchtitan", spelling="main-2026-08")


def test_a_shipped_scenario_keeps_its_batch() -> None:
    found = export_scenario(load_scenario("megascale-175b-12k"), "megatron-core")
    assert found.options["global-batch-size"] == 6144
    assert found.options["num-virtual-stages-per-pipeline-rank"] == 6


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "flags.sh"
    result = CliRunner().invoke(cli, ["export", "quickstart-8gpu", "--to", "megatron-core", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "MEGATRON_ARGS=(" in out.read_text()
    result = CliRunner().invoke(cli, ["export", "quickstart-8gpu", "--to", "megatron-bridge", "--json"])
    document = json.loads(result.stdout)
    assert yaml.safe_load(document["text"])["model"]["tensor_model_parallel_size"] == 2
