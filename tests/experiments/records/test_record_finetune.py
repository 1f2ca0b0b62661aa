"""Pipelines that a record only half states, and packs of fine-tuning recipes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.experiments.records.prediction import predict
from hdpsim.experiments.records.setup import prepare, virtual_stages
from hdpsim.experiments.records.switches import switches_of
from hdpsim.experiments.software.facts import Run, interleaves
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.simulator.planning import plan_batch


def _config(**changes: object) -> RunConfig:
    values: dict[str, object] = {
        "gpu": "H100-SXM-80G", "n_gpus": 8, "gpus_per_node": 8, "framework": "NeMo 24.07 (Megatron-Core)",
        "model_name": "m", "year": 2024, "layers": 40, "hidden": 5120, "ffn_hidden": 13824, "heads": 40, "kv_heads": 40,
        "vocab": 32000, "gated_mlp": True, "seq_len": 4096, "global_batch_seqs": 32, "micro_batch": 1, "tp": 1,
        "sp": False, "pp": 4, "vpp": None, "cp": 1, "dp": 2, "zero_stage": "zero1", "recompute": "none",
        "precision": "fp8", "task": "sft",
    }  # fmt: skip
    return RunConfig(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "chunks", "interleaved"),
    [
        ({}, 10, True),  # one of 40 layers on 4 stages to a chunk
        ({"vpp": 2}, 2, True),
        ({"vpp": 1}, 1, False),
        ({"pp": 1, "dp": 8}, 1, False),
        ({"pp": 1, "vpp": 3, "dp": 8}, 1, False),
        ({"n_experts": 8, "topk": 2}, 1, False),
        ({"framework": "Megatron-Core MCore", "n_experts": 8, "topk": 2}, 10, True),
        ({"framework": "Megatron-Core MCore"}, 1, False),
        ({"framework": "Megatron-LM"}, 1, False),
        ({"framework": "Megatron-LM fork (1F1B-I)"}, 10, True),
        ({"notes": "VP printed NA (other releases of the same recipe print VP 5 for it)"}, 5, True),
    ],
)
def test_chunks_of_a_stage(changes: dict[str, object], chunks: int, interleaved: bool) -> None:
    config = _config(**changes)
    assert virtual_stages(Run(config), 40)[0] == chunks
    assert interleaves(Run(config)) == interleaved


def test_a_recipe_interleaves_and_its_transfers_run_beside_compute() -> None:
    prepared, plain = prepare(_config()), prepare(_config(vpp=1))
    assert (
        prepared.setup.layout.pipeline.schedule,
        prepared.setup.layout.pipeline.vpp,
        prepared.setup.layout.pipeline.overlap,
    ) == (
        "interleaved",
        10,
        True,
    )
    assert (plain.setup.layout.pipeline.schedule, plain.setup.layout.pipeline.overlap) == ("1f1b", False)
    assert "vpp 10" in prepared.assumptions


@pytest.mark.parametrize(
    ("changes", "documents"),
    [
        ({}, 23),  # 4096 / 180
        ({"task": "lora", "seq_len": 2048}, 11),
        ({"seq_len": 100}, 1),
        ({"framework": "Megatron-Bridge 26.06"}, 23),
        ({"framework": "NeMo/Megatron-Core (MLPerf v5.0)"}, 1),
        ({"framework": "ArcticTraining"}, 1),
        ({"framework": "NeMo AutoModel"}, 1),
        ({"task": "pretrain"}, 1),
    ],
)
def test_documents_of_a_pack(changes: dict[str, object], documents: int) -> None:
    assert len(prepare(_config(**changes)).round_tokens) == documents


def test_short_documents_cost_less_attention_and_nothing_else() -> None:
    packed = dict(predict(_config(pp=1, dp=8)).account_s)
    whole = dict(predict(_config(pp=1, dp=8, task="pretrain")).account_s)
    assert packed["attention"] < 0.5 * whole["attention"]
    assert packed["gemm"] == pytest.approx(whole["gemm"])


@settings(max_examples=20)
@given(
    tokens=st.integers(1, 5000),
    sequences=st.integers(1, 4),
    micro_batches=st.integers(1, 4),
)
def test_documents_keep_every_token(tokens: int, sequences: int, micro_batches: int) -> None:
    batch = {"global_batch_seqs": 8 * sequences * micro_batches, "micro_batch": sequences, "pp": 1, "dp": 8}
    prepared = prepare(_config(seq_len=tokens, **batch))
    plan, _, _ = plan_batch(prepared.setup, prepared.lengths)
    ends = np.cumsum(plan.segment_tokens)[plan.segment_offsets[1:] - 1]
    assert np.diff(ends, prepend=0).tolist() == [sequences * tokens] * micro_batches * 8
    assert sum(prepared.round_tokens) == tokens
    assert max(prepared.round_tokens) - min(prepared.round_tokens) <= 1


MIXTURE = {
    "framework": "Megatron-Bridge 26.08", "gpu": "GB200-NVL72", "n_gpus": 8, "layers": 48, "hidden": 2048,
    "ffn_hidden": 768, "heads": 32, "kv_heads": 4, "head_dim": 128, "n_experts": 128, "topk": 8, "pp": 1, "dp": 8,
    "ep": 8, "precision": "mxfp8", "task": "pretrain", "notes": "router force-balanced, dropless", "year": 2026,
}  # fmt: skip
FULL = {"cuda_graphs": True, "cuda_graph_scope": "iteration", "expert_dispatch": "fused", "ep_overlap": True}
PARTIAL = {"cuda_graphs": True, "cuda_graph_experts": False, "expert_dispatch": "fused"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, FULL),
        ({"framework": "Megatron-Bridge 26.06.01"}, FULL),
        ({"framework": "Megatron-Bridge 26.04"}, PARTIAL),
        ({"framework": "Megatron-Bridge 25.11"}, PARTIAL),
        ({"framework": "Megatron-Bridge 25.09"}, {}),
        (
            {"framework": "Megatron-Bridge 25.09", "notes": "token-drop", "gpu": "B200-SXM-180G"},
            {"cuda_graphs": True, "cuda_graph_scope": "iteration"},
        ),
        ({"gpu": "B200-SXM-180G"}, FULL),  # one stage, nothing repeated
        ({"gpu": "B200-SXM-180G", "pp": 8}, {}),
        ({"gpu": "B200-SXM-180G", "recompute": "selective"}, {}),
        ({"gpu": "H100-SXM-80G"}, {}),
        ({"notes": "perf recipe X: moe dispatcher=None, cuda_graph=None"}, {}),
        ({"notes": "cuda_graph=full_iteration"}, {"cuda_graphs": True, "cuda_graph_scope": "iteration"}),
        ({"notes": "cuda_graph=local"}, {"cuda_graphs": True, "cuda_graph_scope": "iteration"}),
        ({"notes": "cuda_graph=transformer_engine"}, {"cuda_graphs": True, "cuda_graph_experts": False}),
        ({"n_experts": None}, {}),
        ({"framework": "Megatron-LM"}, {}),
    ],
)
def test_recipes_that_are_not_printed(changes: dict[str, object], found: dict[str, object]) -> None:
    layout = switches_of(Run(_config(**{**MIXTURE, **changes}))).layout
    names = ("cuda_graphs", "cuda_graph_scope", "cuda_graph_experts", "expert_dispatch", "ep_overlap")
    assert {name: layout[name] for name in names if name in layout} == found


@pytest.mark.parametrize("task", ["pretrain", "sft", "lora"])
@pytest.mark.parametrize(
    ("framework", "year", "fused"),
    [
        ("NeMo 24.07 (Megatron-Core)", 2024, False),
        ("NeMo (Megatron-Core)", 2025, True),
        ("NeMo/Megatron-Core (MLPerf v4.0)", 2024, True),
        ("Megatron-Core/NeMo", 2025, True),
        ("Megatron-Bridge 26.02", 2026, True),
        ("Megatron-LM", 2026, False),
        ("Megatron-Core v0.9 MoE", 2024, False),
        ("Megatron-Core v0.16", 2026, False),
        ("Megatron-Core v0.16 MoE", 2026, True),
        ("Megatron-DeepSpeed", 2022, False),
    ],
)
def test_stacks_without_a_fused_kernel_of_the_loss(framework: str, year: int, fused: bool, task: str) -> None:
    config = _config(framework=framework, year=year, task=task, n_experts=8 if "MoE" in framework else None)
    found = setting_of(Run(config), "fused_loss")
    of_recipe = task == "lora" and framework.startswith(("NeMo (", "Megatron-Bridge", "Megatron-Core/NeMo"))
    assert (found is None or found.value is True) is (fused and not of_recipe)


@pytest.mark.parametrize(
    ("family", "year", "model", "second"),
    [
        ("dgxc", 2024, "gpt3-175b", True),
        ("dgxc", 2024, "grok1-314b", True),
        ("dgxc", 2024, "nemotron4-340b", True),
        ("dgxc", 2024, "nemotron4-15b", False),
        ("dgxc", 2024, "llama3.1-405b", False),
        ("dgxc", 2025, "gpt3-175b", False),  # cuDNN's kernels are on again
        ("dgxc", 2025, "grok1-314b", True),
        ("nemo", 2024, "gpt3-175b", False),
    ],
)
def test_launchers_that_turn_cudnns_attention_off(family: str, year: int, model: str, second: bool) -> None:
    config = _config(framework="NeMo (Megatron-Core)", year=year, model_name=model, family=family)
    found = setting_of(Run(config), "attention_kernel")
    assert (found is not None and found.value == "flash2") is second


@pytest.mark.parametrize("switch", ["attention_kernel", "fused_loss"])
def test_grok_of_nemo_2_is_not_the_launchers(switch: str) -> None:
    launched, recipe = (
        setting_of(Run(_config(
            framework="NeMo (Megatron-Core)", year=2025, model_name="grok1-314b", family="dgxc", task="pretrain",
            notes=notes,
        )), switch)
        for notes in ("", "expert tensor parallel 4 printed")
    )  # fmt: skip
    assert launched is not None
    assert launched.value in ("flash2", False)
    assert recipe is None or recipe.value not in ("flash2", False)


def test_both_launchers_of_grok_overlap_tensor_parallel_traffic() -> None:
    for notes in ("", "expert tensor parallel 4 printed"):
        config = _config(
            framework="NeMo", year=2025, model_name="grok1-314b", family="dgxc", notes=notes,
            n_experts=8, tp=4, sp=True,
        )  # fmt: skip
        found = setting_of(Run(config), "tp_overlap")
        assert found is not None
        assert found.value is True


LATENT = {
    "framework": "Megatron-Bridge 25.09", "gpu": "H100-SXM-80G", "year": 2025, "model_name": "deepseek-v3",
    "n_gpus": 1024, "layers": 61, "hidden": 7168, "ffn_hidden": 2048, "heads": 128, "n_experts": 256, "topk": 8,
    "shared_expert_ffn": 2048, "tp": 2, "pp": 8, "vpp": 4, "ep": 64, "dp": 64, "precision": "fp8",
    "task": "pretrain", "notes": "MLA",
}  # fmt: skip
DEEPEP = {"expert_dispatch": "fused", "ep_overlap": True}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, DEEPEP),
        ({"framework": "Megatron-Bridge 26.04", "year": 2026}, DEEPEP),
        ({"framework": "Megatron-Bridge"}, DEEPEP),
        ({"vpp": 1}, {"expert_dispatch": "fused"}),  # nothing to overlap with
        ({"gpu": "B200-SXM-180G"}, {}),
        ({"notes": "perf recipe X: moe dispatcher=None, moe_a2a_overlap=False"}, {}),
        ({"framework": "NeMo"}, {}),
        ({"model_name": "qwen3-235b-a22b", "heads": 64, "kv_heads": 4, "hidden": 4096}, {}),
    ],
)
def test_the_recipe_of_deepseek_v3_on_hopper(changes: dict[str, object], found: dict[str, object]) -> None:
    layout = switches_of(Run(_config(**{**LATENT, **changes}))).layout
    assert {name: layout[name] for name in DEEPEP if name in layout} == found


@pytest.mark.parametrize(
    ("round_", "notes", "task", "graphs", "scope"),
    [
        ("v5.1", "config GB300_128x4x1xtp2pp1cp4_8b parsed", "pretrain", True, "iteration"),
        ("v5.1", "config GB300_128x4x72xtp2pp8cp2_cg_fp4 parsed", "pretrain", True, "iteration"),
        ("v5.1", "config GB200_128x4x112xtp4pp8cp2 parsed", "pretrain", None, None),
        ("v5.0", "config GB200_128x4x112xtp4pp8cp2_cg_dplast parsed", "pretrain", True, None),
        ("v5.0", "config X", "lora", True, None),
        ("v4.1", "config X", "lora", None, None),
    ],
)
def test_graphs_of_the_benchmark(
    round_: str, notes: str, task: str, graphs: bool | None, scope: str | None
) -> None:
    config = _config(framework=f"NeMo/Megatron-Core (MLPerf {round_})", notes=notes, task=task)
    layout = switches_of(Run(config)).layout
    assert (layout.get("cuda_graphs"), layout.get("cuda_graph_scope")) == (graphs, scope)


@pytest.mark.parametrize(
    ("changes", "rank", "targets"),
    [
        ({"task": "lora"}, 16, "qkv"),
        ({"task": "lora", "notes": "LoRA rank 32"}, 32, "qkv"),
        ({"task": "lora", "notes": "LoRA rank 8, all linear layers"}, 8, "all"),
        ({"task": "lora", "framework": "NeMo/Megatron-Core (MLPerf v4.0)"}, 16, "attention"),
        ({"task": "lora", "framework": "NeMo AutoModel"}, 16, "all"),
        ({"task": "sft"}, 0, "attention"),
    ],
)
def test_adapters_of_a_record(changes: dict[str, object], rank: int, targets: str) -> None:
    model = prepare(_config(**changes)).setup.model
    assert (model.adapter_rank, model.adapter_targets) == (rank, targets)


@pytest.mark.parametrize(
    ("changes", "kernels"),
    [
        ({"framework": "Hugging Face Trainer", "year": 2026}, "autocast"),
        ({"framework": "Hugging Face Trainer", "year": 2025, "notes": "no autocast"}, "wide"),
        ({"framework": "Hugging Face Trainer", "year": 2024}, "separate"),  # PEFT 0.11 is the middle one
        ({"framework": "Hugging Face Trainer", "year": 2024, "notes": "PEFT 0.13.2"}, "autocast"),
        ({"framework": "Hugging Face Trainer", "year": 2023}, "autocast"),
        ({"framework": "Hugging Face Trainer", "year": 2023, "notes": "PEFT 0.6.1"}, "separate"),
        ({"framework": "TRL", "year": 2026, "zero_stage": "fsdp"}, "separate"),
        ({"framework": "Hugging Face Trainer (DeepSpeed)", "year": 2026, "zero_stage": "zero3"}, "separate"),
        ({"framework": "torchtune 0.3", "year": 2024}, "separate"),
        ({"framework": "TRL (Unsloth)", "year": 2026}, "joined"),
        ({"framework": "NeMo 24.07 (Megatron-Core)", "year": 2024}, "joined"),
    ],
)
def test_kernels_of_adapters(changes: dict[str, object], kernels: str) -> None:
    assert prepare(_config(task="lora", **changes)).setup.layout.kernels.adapters == kernels


@pytest.mark.parametrize(
    ("notes", "dropout"), [("LoRA dropout 0.05", True), ("LoRA dropout 0.0", False), ("LoRA rank 8", False)]
)
def test_dropout_of_adapters(notes: str, dropout: bool) -> None:
    assert prepare(_config(task="lora", notes=notes)).setup.model.adapter_dropout is dropout


@pytest.mark.parametrize(
    ("changes", "overlap"),
    [
        ({"precision": "fp8", "year": 2025}, True),
        ({"precision": "bf16", "year": 2025}, False),
        ({"precision": None, "year": 2025}, False),
        ({"precision": "fp8", "year": 2024}, False),
        ({"precision": "bf16", "task": "sft"}, True),
    ],
)
def test_tensor_parallel_overlap_of_lora(changes: dict[str, object], overlap: bool) -> None:
    config = _config(**{"task": "lora", "tp": 2, "sp": True, "dp": 1, **changes})
    assert prepare(config).setup.layout.tensor.overlap == overlap


def test_the_loss_of_late_lora_recipes_is_separate() -> None:
    assert not prepare(_config(task="lora", year=2025)).setup.layout.kernels.fused_loss
    assert prepare(_config(task="sft", year=2025)).setup.layout.kernels.fused_loss
