"""How a record's stack and the meaning of its peak memory are read."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpsim.cost_models.memory.activations import LayerActivations, activation_bytes_per_token_layer
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.experiments.records.memory import predict_memory
from hdpsim.experiments.records.setup import prepare
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import overheads_of
from hdpsim.experiments.software.run_config import RunConfig


def _config(**changes: object) -> RunConfig:
    values: dict[str, object] = {
        "gpu": "H100-SXM-80G", "n_gpus": 16, "gpus_per_node": 8, "framework": "nanotron", "model_name": "m",
        "layers": 16, "hidden": 2048, "ffn_hidden": 8192, "heads": 32, "kv_heads": 32, "vocab": 131072,
        "gated_mlp": True, "seq_len": 4096, "grad_accum": 8, "micro_batch": 1, "tp": 4, "sp": True, "pp": 2,
        "vpp": 1, "cp": 1, "dp": 2, "zero_stage": "zero1", "recompute": "none", "precision": "bf16",
    }  # fmt: skip
    return RunConfig(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("framework", "notes", "gauge"),
    [
        ("x", "", "device"),
        ("x", "peak 3 GiB (peak_mem_gb = reserved)", "reserved"),
        ("x", "peak_mem_gb = max allocated", "allocated"),
        ("x", "Mem = max over nodes from nvidia-smi", "device"),
        ("torchtitan (FSDP2)", "", "reserved"),
        ("Megatron-LM fork (1F1B)", "", "allocated"),
    ],
)
def test_gauge(framework: str, notes: str, gauge: str) -> None:
    assert prepare(_config(framework=framework, notes=notes)).gauge == gauge


def stack_of(config: RunConfig) -> MemoryOverheads:
    return overheads_of(Run(config))


def test_what_a_stack_keeps_is_read_from_its_rules() -> None:
    eager = stack_of(_config())
    assert eager.unfused_copies
    assert eager.host_run_ahead
    assert stack_of(_config(framework="Megatron-LM")) == MemoryOverheads()
    assert not stack_of(_config(notes="after_pp_fix=False: old")).host_run_ahead
    assert stack_of(_config(framework="NeMo 24.07 (Megatron-Core)")).eight_bit_copy_bytes == 0.0
    for year, notes, logit in ((2025, "", 16), (2025, "torch.compile", 4), (2024, "torch.compile", 16)):
        said = _config(framework="torchtitan (FSDP2)", year=year, notes=notes)
        assert stack_of(said).logit_bytes == logit
    assert stack_of(replace(said, year=2025, notes="torchtitan 0.0.2, torch.compile")).logit_bytes == 16.0
    assert stack_of(_config(framework="LLM-Foundry/Composer FSDP1")).logit_bytes == 4.0
    assert stack_of(_config(notes="tiled logits+loss")).logit_bytes == 0.0
    kept = stack_of(_config(framework="MaxText", notes="remat_policy: save_qkv_proj (most)")).selective_keeps
    assert kept == ("queries_keys_values",)


@settings(max_examples=6)
@given(
    heads=st.sampled_from([8, 16, 32]),
    per_group=st.sampled_from([1, 2, 8]),
    wider=st.sampled_from([1, 2, 3.5]),
    tp=st.sampled_from([1, 2]),
)
def test_policies_that_name_more_outputs_keep_more_bytes(
    heads: int, per_group: int, wider: float, tp: int
) -> None:
    hidden = 128 * heads
    shape = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads // per_group,
        "ffn_hidden": int(hidden * wider),
    }

    def kept(policy: str) -> float:
        config = _config(
            framework="MaxText",
            recompute="selective",
            notes=f"remat_policy: {policy}",
            tp=tp,
            dp=None,
            **shape,
        )
        setup = prepare(config).setup
        return activation_bytes_per_token_layer(setup.model, setup.layout, overheads=stack_of(config))

    with_context = [kept(f"{name}") for name in ("minimal_with_context", "save_dot_with_context_except_mlp")]
    without = [kept(name) for name in ("minimal", "save_dot_except_mlp", "save_qkv_proj")]
    assert without == sorted(without, reverse=True)
    output = 2.0 * hidden / tp
    assert with_context[0] - without[0] == pytest.approx(output, rel=0.1)  # and the log-sum-exp
    assert with_context[1] - without[1] == pytest.approx(output, rel=0.1)
    assert kept("save_out_proj") == pytest.approx(2 * output)  # and the layer's input


def test_scores_weigh_activations_or_outputs_of_experts_by_stack() -> None:
    def weighed(framework: str, year: int, experts: int = 128) -> str:
        config = _config(framework=framework, year=year, n_experts=experts, topk=8 if experts else None)
        return prepare(config).setup.layout.experts.weights

    assert weighed("Megatron-Bridge 26.04", 2026) == "activations"
    assert weighed("Megatron-Core v0.16", 2026) == "activations"
    assert weighed("Megatron-Core v0.9", 2024) == "outputs"
    assert weighed("torchtitan", 2026) == "outputs"
    assert weighed("Megatron-Bridge 26.04", 2026, experts=0) == "outputs"  # nothing to weigh, nothing to say


def test_repeated_up_projections_of_latent_attention_are_not_kept() -> None:
    latent = {
        "model_name": "deepseek-v3",
        "layers": 61,
        "hidden": 7168,
        "heads": 128,
        "recompute": "selective",
    }
    repeats = _config(framework="Megatron-Core", notes="recompute_modules: mla_up_proj", **latent)
    kept = stack_of(repeats).selective_keeps
    assert kept is not None
    assert set(kept) == {field.name for field in fields(LayerActivations)} - {"queries_keys_values"}
    others = (
        _config(framework="Megatron-Core", notes="", **latent),  # nothing repeated by name
        replace(repeats, model_name="llama3-8b"),  # no latent attention
    )
    assert all(stack_of(one).selective_keeps is None for one in others)


def test_the_first_stage_is_read_and_every_stage_must_fit() -> None:
    config = _config(notes="peak_mem_gb = reserved", micro_batch=2)
    found = predict_memory(prepare(config))
    assert found.gauge == "reserved"
    assert found.fits == found.fullest.fits
    assert prepare(config).setup.layout.pipeline.balance == "flop"
    device = predict_memory(prepare(_config(micro_batch=2)))
    assert device.peak_gb > found.peak_gb
    assert {part for part, _ in device.parts_gb} >= {"weights", "activations", "context"}


@pytest.mark.parametrize(
    ("notes", "not_read"),
    [
        ("", set()),
        ("peak_mem_gb = reserved", {"context", "communication"}),
        ("peak_mem_gb = allocated", {"context", "communication", "fragmentation"}),
    ],
)
def test_parts_are_what_the_source_reads_and_sum_to_its_peak(notes: str, not_read: set[str]) -> None:
    for changes in ({}, {"framework": "Megatron-LM"}, {"zero_stage": "fsdp", "tp": 1, "dp": 8}):
        config = _config(notes=notes or "nvidia-smi", **changes)
        found = predict_memory(prepare(config))
        parts = dict(found.parts_gb)
        assert sum(parts.values()) == pytest.approx(found.peak_gb, rel=1e-12)
        assert not not_read & set(parts)
        assert min(parts.values()) >= 0.0


def test_tied_embeddings_are_read_from_the_notes() -> None:
    assert prepare(_config(notes="tied embeddings True")).setup.model.tied_embeddings
    assert not prepare(_config(notes="tied embeddings False")).setup.model.tied_embeddings


@pytest.mark.parametrize(
    ("framework", "cp", "kept"),
    [
        ("Megatron-LM", 2, True),
        ("NeMo 24.07 (Megatron-Core)", 8, True),
        ("Megatron-Bridge 26.04", 2, True),
        ("Megatron-LM", 1, False),
        ("Megatron-LM", None, False),
        ("Megatron-DeepSpeed", 2, False),
        ("torchtitan", 8, False),
    ],
)
def test_transformer_engines_ring_keeps_its_steps(framework: str, cp: int | None, kept: bool) -> None:
    assert stack_of(_config(framework=framework, cp=cp, year=2025)).ring_steps_kept == kept
