"""What rules say of stacks by name, release and year: switches that were read in their code."""

from __future__ import annotations

from typing import Any

import pytest

from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import RunConfig


@pytest.mark.parametrize(
    ("model_name", "n_experts", "precision", "framework", "overlaps"),
    [
        ("nemotron-h-56b", None, "fp8", "NeMo", False),  # layers of 16 bits among 8-bit ones
        ("nemotron-h-56b", None, "bf16", "NeMo", True),
        ("nemotron-h-56b", None, "fp8", "Megatron-Bridge 25.09", False),
        ("nemotron-h-56b", None, "fp8", "Megatron-Bridge 26.02", True),
        ("llama4-scout", 16, "fp8", "NeMo", True),
        ("mixtral-8x7b", 8, "fp8", "NeMo", None),
    ],
)
def test_recipes_overlap_tensor_parallel_traffic_where_their_files_say_so(
    model_name: str, n_experts: int | None, precision: str, framework: str, overlaps: bool | None
) -> None:
    config = RunConfig(
        gpu="h100", model_name=model_name, n_experts=n_experts, precision=precision, framework=framework,
        task="pretrain", tp=8,
    )  # fmt: skip
    said = setting_of(Run(config), "tp_overlap")
    assert (said and said.value) == overlaps


@pytest.mark.parametrize(
    ("framework", "fused", "loss_bytes", "logit_bytes"),
    [
        ("Hugging Face Trainer", False, 36.0, 12.0),
        ("Hugging Face Trainer with torch.compile", None, None, None),  # the loss is part of what is compiled
        ("Hugging Face Trainer with Liger kernels", None, None, None),
        ("prime-rl (PyTorch FSDP2) with torch.compile", None, 36.0, 16.0),  # it compiles layers, not the loss
        ("lit-gpt with torch.compile", None, None, None),
        ("torchtitan", False, 36.0, 12.0),
        ("torchtitan with torch.compile", None, None, 4.0),
        ("PyTorch FSDP1 with fused MLP and cross-entropy", False, 6.0, None),
        ("LLM-Foundry", None, 6.0, 4.0),
    ],
)
def test_losses_that_nothing_fuses_copy_their_logits_to_32_bits(
    framework: str, fused: bool | None, loss_bytes: float | None, logit_bytes: float | None
) -> None:
    run = Run(RunConfig(gpu="h100", framework=framework, year=2025))
    said = (setting_of(run, switch) for switch in ("fused_kernels", "loss_bytes", "logit_bytes"))
    assert [setting and setting.value for setting in said] == [fused, loss_bytes, logit_bytes]


def test_the_loss_of_transformers_before_2025_copies_its_logits_once_more() -> None:
    assert (
        setting_of(Run(RunConfig(gpu="a100", framework="Hugging Face Trainer", year=2024)), "loss_bytes")
        is None
    )


@pytest.mark.parametrize(
    ("framework", "notes", "fused", "lean"),
    [
        ("Transformer Engine (PyTorch)", "layers of Transformer Engine (TransformerLayer)", None, True),
        ("Hugging Face accelerate", "layers of Transformer Engine", None, True),
        ("Hugging Face accelerate", "linear layers of 8 bits by Transformer Engine", False, None),
        ("PyTorch DDP (Transformer Engine)", "", False, None),
    ],
)
def test_layers_of_transformer_engine_are_its_kernels_in_any_trainer(
    framework: str, notes: str, fused: bool | None, lean: bool | None
) -> None:
    run = Run(RunConfig(gpu="h100", framework=framework, notes=notes, year=2024))
    said = (setting_of(run, switch) for switch in ("fused_kernels", "lean_gradients"))
    assert [setting and setting.value for setting in said] == [fused, lean]


@pytest.mark.parametrize(
    ("framework", "model", "apart"),
    [
        ("Hugging Face Trainer", "llama2-7b", True),
        ("Hugging Face Trainer with torch.compile", "llama2-7b", None),
        ("Hugging Face Trainer", "qwen-7b", None),  # c_attn
        ("Hugging Face Trainer", "qwen2-7b", True),
        ("torchtitan", "llama3-8b", True),
        ("nanotron", "llama3-8b", None),  # qkv_proj, gate_up_proj
    ],
)
def test_stock_layers_have_a_matrix_for_queries_keys_and_values_each(
    framework: str, model: str, apart: bool | None
) -> None:
    run = Run(RunConfig(gpu="h100", framework=framework, model_name=model, year=2025))
    said = setting_of(run, "matrices_apart")
    assert (said and said.value) == apart


@pytest.mark.parametrize("n_experts", [None, 128])
@pytest.mark.parametrize(
    ("changes", "hooks"),
    [
        ({}, True),
        ({"notes": "experts are leaf modules"}, False),
        ({"zero_stage": "zero2"}, False),
        ({"year": 2021}, False),
        ({"framework": "Hugging Face Trainer (FSDP)", "zero_stage": "fsdp"}, False),
    ],
)
def test_zero3_of_deepspeed_has_hooks_around_every_matrix_with_experts_or_without(
    n_experts: int | None, changes: dict[str, Any], hooks: bool
) -> None:
    zero3: dict[str, Any] = {"framework": "Hugging Face Trainer (DeepSpeed ZeRO-3)", "zero_stage": "zero3"}
    config = RunConfig(gpu="a100", dp=8, n_experts=n_experts, **{"year": 2025, **zero3, **changes})
    assert (setting_of(Run(config), "module_hooks") is not None) == hooks


@pytest.mark.parametrize(
    ("framework", "batch_first", "gathered"),
    [
        ("KempnerForge (PyTorch FSDP2)", True, True),
        ("Hugging Face Trainer", True, True),
        ("torchtitan", True, None),
        ("OLMo-core 2.0 FSDP2", True, None),
        ("nanotron", None, None),
        ("Megatron-LM", None, None),
    ],
)
def test_tensor_parallelism_of_pytorch_cuts_the_second_dimension_and_gathers_logits(
    framework: str, batch_first: bool | None, gathered: bool | None
) -> None:
    of_four, of_one = (Run(RunConfig(gpu="h100", framework=framework, year=2025, tp=tp)) for tp in (4, 1))
    switches = ("tp_batch_first", "gathered_logits")
    assert [setting_of(of_one, switch) for switch in switches] == [None, None]
    said = [setting_of(of_four, switch) for switch in switches]
    assert [setting and setting.value for setting in said] == [batch_first, gathered]


@pytest.mark.parametrize(
    ("framework", "sequences", "whole"),
    [
        ("Hugging Face Trainer", 64, True),
        ("Hugging Face Trainer", 16, None),  # one micro-batch
        ("lit-gpt (PyTorch FSDP1)", 64, None),
        ("KempnerForge (PyTorch FSDP2)", 64, True),
        ("torchtitan", 64, None),
        ("Hugging Face Trainer with DeepSpeed", 64, None),
    ],
)
def test_trainers_that_sum_gradients_of_micro_batches_once_a_step(
    framework: str, sequences: int, whole: bool | None
) -> None:
    config = RunConfig(
        gpu="h100", n_gpus=8, framework=framework, year=2025, zero_stage="fsdp", micro_batch=2,
        global_batch_seqs=sequences,
    )  # fmt: skip
    said = [setting_of(Run(config), switch) for switch in ("whole_gradients", "gradient_accumulation")]
    assert (said[0] and said[0].value) == whole
    assert (said[1] is not None and said[1].value == "separate") == bool(whole)


@pytest.mark.parametrize(
    ("framework", "zero_stage", "precision", "bytes_summed"),
    [
        ("Hugging Face accelerate (PyTorch FSDP1)", "fsdp", "bf16", 2),
        ("TRL 0.20 FSDP2", "hsdp", "fp16", 2),
        ("Hugging Face Trainer", "none", "bf16", None),
        ("KempnerForge (PyTorch FSDP2)", "fsdp", "bf16", None),
        ("Hugging Face NeMo AutoModel FSDP2", "fsdp", "bf16", None),
    ],
)
def test_accelerate_sums_gradients_of_shards_in_16_bits(
    framework: str, zero_stage: str, precision: str, bytes_summed: int | None
) -> None:
    config = RunConfig(gpu="h100", framework=framework, year=2026, zero_stage=zero_stage, precision=precision)
    said = setting_of(Run(config), "gradient_bytes")
    assert (said and said.value) == bytes_summed


@pytest.mark.parametrize(("sp", "pp", "told"), [(True, 1, False), (False, 1, True), (True, 2, True)])
def test_a_head_that_no_plan_cuts_is_told(sp: bool, pp: int, told: bool) -> None:
    config = RunConfig(gpu="h200", framework="KempnerForge (PyTorch FSDP2)", year=2026, tp=4, sp=sp, pp=pp)
    said = setting_of(Run(config), "not_modelled")
    assert (said is not None and "output head" in said.words) == told


@pytest.mark.parametrize(
    ("framework", "year", "notes", "switch", "value"),
    [
        ("PaddleNLP (PaddlePaddle 2.6)", 2023, "fused RMSNorm", "fused_kernels", False),
        ("PaddleNLP (PaddlePaddle 2.6)", 2023, "fused kernels", "fused_kernels", None),
        ("Hugging Face accelerate", 2023, "", "attention_kernel", "unfused"),
        ("PyTorch FSDP1", 2023, "Hugging Face Llama", "attention_kernel", "unfused"),
        ("PyTorch FSDP1", 2024, "Hugging Face Llama", "attention_kernel", "flash2"),
        ("PyTorch FSDP1", 2023, "", "attention_kernel", "flash1"),
        ("NeMo", 2023, "", "attention_kernel", "flash2"),
        ("BioNeMo", 2023, "", "attention_kernel", "flash1"),
        ("Megatron-LM", 2024, "moe_grouped_gemm false", "expert_kernels", "modules"),
        ("Megatron-Core", 2025, "moe_grouped_gemm true", "expert_kernels", "separate"),
        ("Hugging Face Trainer", 2024, "", "expert_kernels", "indexed"),
        ("Hugging Face Trainer", 2026, "", "expert_kernels", None),
    ],
)
def test_what_a_stack_of_a_year_does(
    framework: str, year: int, notes: str, switch: str, value: object
) -> None:
    experts = 8 * (switch == "expert_kernels")
    config = RunConfig(
        gpu="a100", framework=framework, year=year, notes=notes, zero_stage="zero1", dp=8, n_experts=experts
    )
    run = Run(config)
    found = setting_of(run, switch)
    assert (found and found.value) == value


@pytest.mark.parametrize(
    ("framework", "year", "fused"),
    [
        ("torchtitan", 2026, True),
        ("torchtitan", 2025, None),
        ("torchtitan with torch.compile", 2026, None),
        ("Hugging Face Trainer", 2026, None),
    ],
)
def test_norms_are_one_kernel_where_the_stack_has_pytorchs(
    framework: str, year: int, fused: bool | None
) -> None:
    said = setting_of(Run(RunConfig(gpu="h100", framework=framework, year=year)), "fused_norms")
    assert (said and said.value) == fused


@pytest.mark.parametrize(
    ("precision", "zero_stage", "notes", "gradients", "copies"),
    [
        ("bf16", "zero1", "", 2.0, None),  # bf16_optimizer.py
        ("bf16", "none", "", 2.0, None),
        ("bf16", "zero1", "gradients added up in bf16", None, 6.0),  # stage_1_and_2.py
        ("fp16", "zero1", "", None, 6.0),
        ("bf16", "zero2", "", None, 6.0),
        ("bf16", "zero3", "", None, 6.0),
    ],
)
def test_optimizers_of_deepspeed_keep_second_gradients_or_flatten_them(
    precision: str, zero_stage: str, notes: str, gradients: float | None, copies: float | None
) -> None:
    config = RunConfig(
        gpu="a100",
        framework="Megatron-DeepSpeed",
        year=2022,
        precision=precision,
        zero_stage=zero_stage,
        notes=notes,
    )
    said = (setting_of(Run(config), f"{switch}_bytes") for switch in ("second_gradient", "update_copy"))
    assert [setting and setting.value for setting in said] == [gradients, copies]


@pytest.mark.parametrize(
    ("framework", "year", "context"),
    [
        ("Megatron-LM", 2022, 1.65e9),
        ("Megatron-LM", 2023, None),
        ("PyTorch FSDP1", 2022, 1.65e9),
        ("Paxml", 2022, None),
    ],
)
def test_kernels_were_loaded_with_the_process(framework: str, year: int, context: float | None) -> None:
    said = setting_of(Run(RunConfig(gpu="a100", framework=framework, year=year)), "cuda_context_bytes")
    assert (said and said.value) == context


@pytest.mark.parametrize(
    ("framework", "tp", "notes", "logit_bytes", "cached"),
    [
        ("torchtitan", 1, "", 12.0, 2.0),
        ("torchtitan", 8, "", 16.0, 2.0),  # the loss of cut logits has one more of 4 B
        ("torchtitan with torch.compile", 8, "", 4.0, None),
        ("TRL", 1, "", 12.0, 2.0),
        ("TRL", 1, "tiled logits", 0.0, None),
    ],
)
def test_blocks_of_16_bit_logits_are_too_small_for_those_of_32(
    framework: str, tp: int, notes: str, logit_bytes: float, cached: float | None
) -> None:
    run = Run(RunConfig(gpu="h100", framework=framework, year=2025, tp=tp, notes=notes))
    said = (setting_of(run, switch) for switch in ("logit_bytes", "cached_logit_bytes"))
    assert [setting and setting.value for setting in said] == [logit_bytes, cached]


@pytest.mark.parametrize(
    ("framework", "year", "switches", "copies"),
    [
        ("Hugging Face Trainer", 2024, (), 4.0),
        ("Hugging Face Trainer", 2024, (("optimizer_bytes", 4),), 2.0),  # states of 16 bits
        ("Hugging Face Trainer", 2026, (), None),  # fused by default
        ("Hugging Face Trainer, DeepSpeed", 2024, (), None),
        ("torchtitan", 2024, (), None),
    ],
)
def test_adam_by_lists_has_the_roots_of_all_second_moments_at_once(
    framework: str, year: int, switches: tuple[tuple[str, object], ...], copies: float | None
) -> None:
    config = RunConfig(gpu="a100", framework=framework, year=year, zero_stage="fsdp", switches=switches)
    said = setting_of(Run(config), "update_copy_bytes")
    assert (said and said.value) == copies


@pytest.mark.parametrize(
    ("framework", "notes", "autocast", "kept"),
    [
        ("ATorch (PyTorch FSDP1)", "bf16 autocast, forward_prefetch", True, True),
        ("ATorch (DeepSpeed 3D)", "", None, None),
        ("Hugging Face Trainer", "states in 16 bits, no autocast", None, None),
    ],
)
def test_models_under_autocast_and_others_checkpoints_keep_more(
    framework: str, notes: str, autocast: bool | None, kept: bool | None
) -> None:
    sharded = "zero1" if "DeepSpeed" in framework else "fsdp"
    config = RunConfig(
        gpu="a100", framework=framework, year=2023, recompute="full", zero_stage=sharded, notes=notes
    )
    said = (setting_of(Run(config), switch) for switch in ("autocast", "keys_values_kept"))
    assert [setting and setting.value for setting in said] == [autocast, kept]


@pytest.mark.parametrize(
    ("framework", "year", "logit_bytes"),
    [
        ("Megatron-LM", 2023, 10.0),
        ("Megatron-LM (Megatron-Core 0.6.0)", 2024, 10.0),
        ("Megatron-LM (Megatron-Core 0.9.0)", 2024, None),
        ("Megatron-DeepSpeed", 2024, 10.0),
        ("NeMo 25.04", 2025, None),
    ],
)
def test_the_cross_entropy_of_megatron_subtracted_into_a_new_tensor(
    framework: str, year: int, logit_bytes: float | None
) -> None:
    said = setting_of(Run(RunConfig(gpu="h100", framework=framework, year=year)), "logit_bytes")
    assert (said and said.value) == logit_bytes


@pytest.mark.parametrize(
    ("year", "second", "copies"), [(2021, None, 6.0), (2023, 2.0, None), (2024, None, 6.0)]
)
def test_gradients_of_bf16_under_zero1_are_those_of_its_own_optimizer_or_of_zero(
    year: int, second: float | None, copies: float | None
) -> None:
    config = RunConfig(
        gpu="a100", framework="DeepSpeed", year=year, zero_stage="zero1", dp=8, precision="bf16"
    )
    for switch, value in (("second_gradient_bytes", second), ("update_copy_bytes", copies)):
        found = setting_of(Run(config), switch)
        assert (found and found.value) == value
