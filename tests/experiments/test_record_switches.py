"""Which switches a record's words turn on, and what is said of those that the simulator lacks."""

from __future__ import annotations

from dataclasses import fields

import pytest

from cost_models.layout import Layout
from cost_models.model import Model
from experiments.record_switches import LAYOUT_RULES, MODEL_RULES, switches_of
from experiments.records import RunConfig


def read(field: str, **config: object) -> object:
    """The value of one rule, whether or not Layout has the field."""
    rule = next(rule for rule in (*LAYOUT_RULES, *MODEL_RULES) if rule.field == field)
    finding = rule.read(RunConfig(**{"gpu": "h100", **config}))  # type: ignore[arg-type]
    return finding and finding[0]


LATENT: dict[str, object] = {
    "year": 2025, "framework": "NeMo (Megatron-Core)", "gpu": "GB200-NVL72",
    "notes": "MLA; recompute_modules from launch.sh: core_attn",
}  # fmt: skip
SECOND_NEMO: dict[str, object] = {
    "framework": "NeMo (Megatron-Core)", "tp": 4, "n_experts": 8, "notes": "expert tensor parallel 1 printed",
}  # fmt: skip
GATHERS = (
    "NCCL busbw measured in the same job with 1 GiB fp32: AR 160.0 AG {0} RS {0} GB/s (all ranks); "
    "AWS p5-like cluster, NIC not stated"
)


@pytest.mark.parametrize(
    ("field", "config", "value"),
    [
        ("tp_overlap", {"tp": 4, "notes": "TP-comm overlap True; x"}, True),
        ("tp_overlap", {"tp": 4, "notes": "TP-comm overlap False"}, None),
        ("tp_overlap", {"tp": 1, "notes": "TP-comm overlap True"}, None),
        ("tp_overlap", {"tp": 8, "notes": "2D + AsyncTP + torch.compile"}, True),
        ("tp_overlap", {"tp": 8, "notes": "vanilla TP"}, None),
        ("ep_overlap", {"notes": "moe_a2a_overlap=True, cuda_graph=None"}, True),
        ("ep_overlap", {"notes": "recompute mlp, a2a overlap off"}, None),
        ("cuda_graphs", {"notes": "cuda_graph=full_iteration"}, True),
        ("cuda_graphs", {"notes": "cuda_graph=None; x"}, None),
        ("cuda_graphs", {"notes": "cuda_graph=none"}, None),
        ("cuda_graphs", {"notes": "config GB200_64x4x1xtp1pp8cp2_cg_fp4 parsed"}, True),
        ("etp", {"n_experts": 8, "tp": 4, "notes": "ETP = TP (no folding)"}, 4),
        ("etp", {"n_experts": 8, "tp": 4, "notes": "expert tensor parallel 1 printed"}, 1),
        ("etp", {"n_experts": 8, "tp": 4, "notes": "10 FSDP; ETP 1; x"}, 1),
        ("etp", {"n_experts": 8, "tp": 4, "notes": "ETP blank in table"}, None),
        ("etp", {"tp": 4, "notes": "ETP = TP"}, None),
        ("etp", {"n_experts": 8, "tp": 4, "framework": "NeMo (Megatron-Core)", "year": 2024}, 4),
        ("etp", {"n_experts": 8, "tp": 4, "framework": "NeMo (Megatron-Core)", "year": 2025}, 4),
        ("etp", {"n_experts": 8, "tp": 4, "framework": "Megatron-Bridge 26.02", "year": 2026}, None),
        ("etp", {"n_experts": 8, "tp": 4, "framework": "Megatron-Core v0.9", "year": 2024}, 4),
        ("etp", {"tp": 4, "framework": "NeMo (Megatron-Core)", "year": 2024}, None),
        ("expert_kernels", {"n_experts": 8, "framework": "Megatron-Bridge 26.02"}, "separate"),
        ("expert_kernels", {"framework": "Megatron-Bridge 26.02"}, None),
        ("expert_kernels", {"framework": "NeMo (Megatron-Core)", "n_experts": 8, "ep": 8}, "modules"),
        ("expert_kernels", {"framework": "NeMo (Megatron-Core)", "n_experts": 8, "ep": 4}, "separate"),
        (
            "expert_kernels",
            {"framework": "NeMo (Megatron-Core)", "n_experts": 8, "ep": 8, "notes": "expert tensor parallel 1 printed"},
            "separate",
        ),
        ("expert_kernels", {"framework": "Megatron-Core v0.9", "year": 2024, "n_experts": 8, "ep": 8}, "modules"),
        (
            "expert_kernels",
            {
                "framework": "Megatron-Bridge 26.06",
                "n_experts": 8,
                "precision": "mxfp8",
                "notes": "dropless; cuda_graph=full_iteration",
            },
            "fused",
        ),
        (
            "expert_kernels",
            {
                "framework": "Megatron-Bridge 26.06",
                "n_experts": 8,
                "precision": "bf16",
                "notes": "dropless; cuda_graph=full_iteration",
            },
            "separate",
        ),
        (
            "expert_kernels",
            {
                "framework": "Megatron-Bridge 26.06",
                "n_experts": 8,
                "precision": "mxfp8",
                "notes": "known cuDNN performance regression; cuda_graph=full_iteration",
            },
            "separate",
        ),
        (
            "expert_padding",
            {"framework": "Megatron-Bridge 26.06", "gpu": "GB200-NVL72", "n_experts": 8, "precision": "mxfp8"},
            None,
        ),
        ("expert_padding", {"framework": "Megatron-Bridge 26.02", "n_experts": 8, "precision": "fp8"}, True),
        ("expert_padding", {"framework": "Megatron-Bridge 26.02", "n_experts": 8, "precision": "bf16"}, None),
        ("expert_padding", {"framework": "Megatron-Bridge 26.02", "precision": "fp8"}, None),
        (
            "expert_padding",
            {"framework": "NeMo", "n_experts": 8, "precision": "mxfp8", "notes": "moe dispatcher=hybridep, x"},
            None,
        ),
        ("deferred_head_gradient", {"framework": "NeMo/Megatron-Core (MLPerf v4.1)", "pp": 8}, True),
        ("deferred_head_gradient", {"framework": "NeMo/Megatron-Core (MLPerf v4.0)", "pp": 8}, None),
        ("deferred_head_gradient", {"framework": "NeMo/Megatron-Core (MLPerf v5.1)", "pp": 1}, None),
        ("deferred_head_gradient", {"framework": "NeMo", "pp": 8}, None),
        ("separate_scale_updates", {"framework": "NeMo", "year": 2023, "precision": "fp8"}, True),
        ("separate_scale_updates", {"framework": "NeMo", "year": 2024, "precision": "fp8"}, None),
        ("separate_scale_updates", {"framework": "NeMo", "year": 2023, "precision": "bf16"}, None),
        ("separate_scale_updates", {"framework": "torchtitan", "year": 2023, "precision": "fp8"}, None),
        ("blocking_maxima", {"framework": "NeMo/Megatron-Core (MLPerf v3.0)", "year": 2023, "precision": "fp8"}, True),
        ("blocking_maxima", {"framework": "NeMo/Megatron-Core (MLPerf v3.1)", "year": 2023, "precision": "fp8"}, None),
        ("blocking_maxima", {"framework": "Megatron-LM", "year": 2023, "precision": "fp8"}, True),
        ("blocking_maxima", {"framework": "Megatron-LM", "year": 2023, "precision": "bf16"}, None),
        ("blocking_maxima", {"framework": "LLM-Foundry/Composer FSDP1", "year": 2023, "precision": "fp8"}, None),
        ("blocking_maxima", {"framework": "NeMo", "year": 2024, "precision": "fp8"}, None),
        ("fp8_scaling", {"precision": "fp8", "n_experts": 8, "notes": "FP8 (current scaling); x"}, "tensor"),
        ("fp8_scaling", {"precision": "fp8", "notes": "FP8 (current scaling); x"}, None),
        ("scaled_rotary", {"model_name": "gpt-oss-120b", "hidden": 2880}, True),
        ("scaled_rotary", {"model_name": "deepseek-v3", "hidden": 7168, "framework": "NeMo (Megatron-Core)"}, True),
        ("scaled_rotary", {"model_name": "deepseek-v3", "hidden": 7168, "framework": "NeMo AutoModel"}, None),
        ("scaled_rotary", {"model_name": "deepseek-v3", "hidden": 7168, "framework": "Megatron-Bridge"}, None),
        ("scaled_rotary", {"model_name": "deepseek-v3", "hidden": 7168, "framework": "Megatron", "year": 2024}, True),
        ("scaled_rotary", {"model_name": "llama-7b", "hidden": 4096, "framework": "NeMo (Megatron-Core)"}, None),
        ("expert_kernels", {"n_experts": 8, "framework": "torchtitan"}, None),
        ("cuda_graph_experts", {"n_experts": 8, "notes": "dropless; cuda_graph=transformer_engine"}, False),
        ("cuda_graph_experts", {"n_experts": 8, "notes": "token-drop; cuda_graph=transformer_engine"}, None),
        ("cuda_graph_experts", {"n_experts": 8, "notes": "cuda_graph=full_iteration"}, None),
        ("cuda_graph_experts", {"notes": "cuda_graph=transformer_engine"}, None),
        ("qk_norm", {"model_name": "qwen3-30b-a3b", "hidden": 2048}, True),
        ("qk_norm", {"model_name": "qwen3-30b-a3b", "hidden": 4096}, None),
        ("qk_norm", {"model_name": "llama-7b", "hidden": 4096}, None),
        (
            "recompute_small_kernels",
            {"recompute": "selective", "notes": "recompute_modules=['layernorm', 'moe_act'], x"},
            True,
        ),
        ("recompute_small_kernels", {"recompute": "selective", "notes": "recompute_modules=['moe_act']"}, None),
        ("recompute_small_kernels", {"recompute": "none", "notes": "recompute_modules=None"}, None),
        ("mtp_layers", {"model_name": "deepseek-v3", "hidden": 7168, "layers": 61}, 1),
        ("mtp_layers", {"model_name": "deepseek-v3", "hidden": 7168, "layers": 4}, None),
        ("mtp_layers", {"model_name": "deepseek-v3", "hidden": 7168, "layers": 61, "notes": "no MTP; x"}, None),
        ("embedding_layers", {"model_name": "deepseek-v3", "hidden": 7168, "layers": 61, "pp": 8}, True),
        ("clamped_activation", {"model_name": "gpt-oss-120b", "hidden": 2880}, True),
        ("cp_kind", {"cp": 8, "notes": "cp = Ulysses degree (all"}, "ulysses"),
        ("cp_kind", {"cp": 8, "framework": "torchtitan (FSDP2)", "year": 2024}, "gathered-ring"),
        ("cp_kind", {"cp": 8, "framework": "torchtitan (FSDP2)", "year": 2026}, "all-gather"),
        ("cp_kind", {"cp": 1, "framework": "torchtitan (FSDP2)"}, None),
        ("dp_overlap", {"framework": "Megatron-LM (SC21)", "year": 2021}, False),
        ("dp_overlap", {"framework": "Megatron-LM fork (1F1B)", "year": 2023}, False),
        ("dp_overlap", {"framework": "Megatron-LM", "year": 2024}, None),
        ("dp_overlap", {"framework": "Megatron-LLaMA (OverlappedDistributedOptimizer)", "year": 2023}, None),
        ("fused_kernels", {"framework": "GPT-NeoX (DeepSpeed ZeRO-1)", "gated_mlp": False}, False),
        ("fused_kernels", {"framework": "LLaMA-Factory (HF)", "year": 2025}, False),
        ("fused_kernels", {"framework": "Hugging Face Accelerate FSDP", "notes": "Liger kernels"}, None),
        ("fused_kernels", {"framework": "torchtune (FSDP2)"}, False),
        ("fused_kernels", {"framework": "PyTorch DDP", "notes": "compile: true"}, None),
        ("fused_kernels", {"framework": "PyTorch FSDP", "notes": "no compile"}, False),
        ("fused_kernels", {"framework": "LLM-Foundry/Composer FSDP1"}, None),
        ("fused_kernels", {"framework": "Megatron-LLaMA", "year": 2023, "gated_mlp": True}, False),
        ("fused_kernels", {"framework": "Megatron-LM", "year": 2023, "gated_mlp": False}, None),
        ("dp_overlap", {"notes": "TP/p2p/grad overlap OFF"}, False),
        ("dp_overlap", {"framework": "GPT-NeoX (DeepSpeed ZeRO-1)", "zero_stage": "zero1", "year": 2025}, False),
        ("dp_overlap", {"framework": "DeepSpeed ZeRO-3", "zero_stage": "zero3", "year": 2021}, False),
        ("dp_overlap", {"framework": "DeepSpeed ZeRO-3", "zero_stage": "zero3", "year": 2025}, None),
        ("gather_lists", {"framework": "DeepSpeed ZeRO-3", "zero_stage": "zero3", "year": 2021}, True),
        ("gather_lists", {"framework": "DeepSpeed ZeRO-3", "zero_stage": "zero3", "year": 2022}, None),
        ("gather_lists", {"framework": "DeepSpeed", "zero_stage": "zero2", "year": 2021}, None),
        ("shard_copies", {"framework": "MaxText", "zero_stage": "hsdp"}, "none"),
        ("shard_copies", {"framework": "Paxml", "zero_stage": "fsdp"}, None),
        ("shard_copies", {"framework": "LLM-Foundry/Composer FSDP1", "zero_stage": "fsdp"}, "gradients"),
        ("shard_copies", {"framework": "PyTorch FSDP", "zero_stage": "fsdp", "year": 2023}, "gradients"),
        ("shard_copies", {"framework": "PyTorch FSDP", "zero_stage": "fsdp", "year": 2025}, None),
        ("shard_copies", {"framework": "DeepSpeed ZeRO-3", "zero_stage": "zero3", "year": 2023}, None),
        ("shard_copies", {"framework": "MaxText", "zero_stage": "none"}, None),
        ("gradient_bytes", {"framework": "Paxml", "precision": "fp8"}, 2),
        ("gradient_bytes", {"framework": "Megatron-LM", "precision": "fp16"}, 2),
        ("gradient_bytes", {"framework": "Megatron-DeepSpeed", "precision": "bf16"}, None),
        ("gradient_accumulation", {"framework": "Megatron-DeepSpeed", "precision": "bf16"}, "cast"),
        ("gradient_accumulation", {"framework": "Megatron-DeepSpeed", "precision": "fp16"}, "separate"),
        ("gradient_accumulation", {"framework": "DeepSpeed", "zero_stage": "zero3"}, None),
        ("gradient_accumulation", {"framework": "Megatron-LM", "year": 2021}, "separate"),
        ("gradient_accumulation", {"framework": "Megatron-LM", "year": 2022}, None),
        ("pp_overlap", {"framework": "Megatron-Core r0.8.0", "year": 2024, "pp": 4}, False),
        ("pp_overlap", {"framework": "NeMo", "year": 2024, "pp": 4, "vpp": 2}, None),
        ("pp_overlap", {"framework": "NeMo", "year": 2023, "pp": 4, "vpp": 2}, None),
        ("pp_overlap", {"framework": "Megatron-Core", "year": 2023, "pp": 4, "vpp": 2}, False),
        ("tp_overlap", {"framework": "NeMo", "year": 2024, "tp": 4}, True),
        ("tp_overlap", {"framework": "Megatron-Bridge 26.04", "year": 2026, "tp": 4}, True),
        ("tp_overlap", {"framework": "NeMo", "year": 2024, "tp": 4, "n_experts": 8}, None),
        ("tp_overlap", {**SECOND_NEMO, "kv_heads": 8}, True),
        ("tp_overlap", SECOND_NEMO, None),
        ("tp_overlap", {"framework": "NeMo", "year": 2024, "tp": 1}, None),
        ("tp_overlap", {"framework": "NeMo", "tp": 4, "notes": "TP-comm overlap False"}, None),
        ("tp_exchange", {"framework": "NeMo (MLPerf v3.1)", "year": 2023, "tp": 4}, "gathers"),
        ("tp_exchange", {"framework": "NeMo (MLPerf v4.1)", "year": 2024, "tp": 4}, "mlp"),
        ("tp_exchange", {"framework": "NeMo (MLPerf v4.1)", "year": 2024, "tp": 1}, None),
        ("tp_exchange", {"framework": "NeMo (MLPerf v5.0)", "year": 2025, "tp": 4, "gpu": "GB200-NVL72"}, None),
        ("tp_exchange", {"framework": "NeMo", "year": 2024, "tp": 4}, None),
        ("prefetch_gather", {"framework": "NeMo", "zero_stage": "zero1"}, False),
        ("prefetch_gather", {"framework": "NeMo AutoModel (FSDP2)", "zero_stage": "zero1"}, None),
        ("gather_overlap", {"framework": "InternEvo", "zero_stage": "zero1"}, False),
        ("gather_overlap", {"framework": "Megatron-LM", "zero_stage": "zero1"}, None),
        ("owner_broadcasts", {"framework": "InternEvo", "zero_stage": "zero1"}, True),
        ("owner_broadcasts", {"framework": "InternEvo", "zero_stage": "fsdp"}, None),
        ("gradient_all_reduce", {"framework": "InternEvo", "zero_stage": "zero1"}, True),
        ("gradient_all_reduce", {"framework": "NeMo", "zero_stage": "zero1"}, None),
        ("bucket_parameters", {"framework": "InternEvo"}, 2.0**29),
        ("shard_ranks", {"framework": "InternEvo", "zero_stage": "zero1"}, 8),
        ("cp_kind", {"cp": 4, "notes": "DeepSpeed-Ulysses sequence parallelism"}, "ulysses"),
        ("cp_kind", {"cp": 4, "notes": "all-gather based CP"}, "all-gather"),
        ("cp_kind", {"cp": 4, "notes": "ring, not Ulysses"}, None),
        ("etp", {"framework": "NeMo (x)", "n_experts": 8, "n_gpus": 16, "tp": 4, "ep": 8}, None),
        ("shard_ranks", {"framework": "InternEvo", "zero_stage": "zero1", "tp": 2}, 4),
        ("shard_ranks", {"framework": "InternEvo", "zero_stage": "zero1", "notes": "zero1=-1"}, None),
        ("shard_ranks", {"framework": "InternEvo", "zero_stage": "zero1", "notes": "zero1 size 16"}, 16),
        ("shard_ranks", {"framework": "InternEvo", "zero_stage": "zero1", "notes": "states over all ranks"}, None),
        ("gradient_bytes", {"framework": "InternEvo"}, 2),
        ("gradient_bytes", {"framework": "NeMo Automodel"}, None),
        ("attention_kernel", {"framework": "InternEvo", "year": 2023, "attention": "flash-attn"}, "flash1"),
        ("attention_kernel", {"framework": "InternEvo", "year": 2024}, "flash1"),
        ("attention_kernel", {"framework": "InternEvo", "year": 2025}, "flash"),
        ("attention_kernel", {"attention": "FlexAttention", "year": 2025}, "flash2"),
        ("attention_kernel", {"attention": "xformers memory-efficient", "year": 2023}, "flash1"),
        ("attention_kernel", {"attention": "Transformer Engine", "year": 2025}, "flash"),
        ("prefetch_gather", {"framework": "Megatron-DeepSpeed", "zero_stage": "zero1"}, None),
        ("prefetch_gather", {"framework": "NeMo", "zero_stage": "none"}, None),
        ("tp_overlap", {"framework": "Megatron-LM", "year": 2024, "tp": 4}, None),
        ("pp_overlap", {"framework": "Megatron-LM fork (ZB-1p)", "year": 2023, "pp": 4}, None),
        ("pp_overlap", {"framework": "Megatron-LM", "pp": 1}, None),
        ("pp_overlap", {"framework": "nanotron", "pp": 4}, None),
        ("launch_blocking", {"notes": "2nd iteration, CUDA_LAUNCH_BLOCKING=1 probable"}, True),
        ("attention_kernel", {"year": 2024, "framework": "Megatron-DeepSpeed"}, "unfused"),
        ("gradient_bytes", {"notes": "mixed_precision=PURE (PURE: 16-bit; DEFAULT: fp32)"}, 2),
        ("gradient_bytes", {"notes": "mixed_precision=DEFAULT (PURE: 16-bit; DEFAULT: fp32)"}, None),
        ("shard_ranks", {"zero_stage": "hsdp", "notes": "JAX: FSDP axis 128, rest data parallel"}, 128),
        ("shard_ranks", {"zero_stage": "hsdp", "gpus_per_node": 4}, 4),
        ("shard_ranks", {"zero_stage": "fsdp"}, None),
        ("optimizer_offload", {"notes": "optimizer states offloaded to CPU (CPU Adam)"}, True),
        ("embedding_layers", {"notes": "asymmetric pipeline (embedding and loss count as layers: 126+2)"}, True),
        ("attention_kernel", LATENT, "unfused"),
        ("attention_kernel", {**LATENT, "gpu": "H100-SXM-80G"}, "flash"),
        ("attention_kernel", {**LATENT, "notes": "MLA; recompute_modules from launch.sh: mla_up_proj"}, "flash"),
        ("attention_kernel", {**LATENT, "kv_heads": 8}, "flash"),
        ("attention_kernel", {"year": 2022}, "unfused"),
        ("attention_kernel", {"year": 2022, "attention": "FlashAttention-1"}, "flash1"),
        ("attention_kernel", {"year": 2023, "attention": "triton flash attention"}, "flash1"),
        ("attention_kernel", {"year": 2025, "attention": "PyTorch SDPA"}, "flash2"),
        ("attention_kernel", {"year": 2026, "attention": "PyTorch SDPA"}, "flash"),
        ("attention_kernel", {"year": 2026, "attention": "PyTorch SDPA", "gpu": "A100-80G-SXM"}, "flash2"),
        ("attention_kernel", {"year": 2025, "attention": "PyTorch SDPA", "gpu": "B200-SXM-180G"}, "flash"),
        ("attention_kernel", {"year": 2026, "attention": "SDPA flash v2"}, "flash2"),
        ("attention_kernel", {"year": 2025, "framework": "torchtune (FSDP2)"}, "flash2"),
        ("attention_kernel", {"year": 2025, "framework": "Axolotl (DeepSpeed ZeRO-3)"}, "flash2"),
        ("attention_kernel", {"year": 2025, "framework": "NeMo AutoModel"}, "flash"),
        ("attention_kernel", {"year": 2023, "framework": "LitGPT (Lightning Fabric FSDP)"}, "flash1"),
        ("attention_kernel", {"year": 2025, "attention": "PyTorch SDPA (flash/cuDNN backend)"}, "flash"),
        ("attention_kernel", {"year": 2023, "framework": "Megatron-LM fork"}, "unfused"),
        ("attention_kernel", {"year": 2023, "framework": "GPT-NeoX"}, "flash1"),
        ("attention_kernel", {"year": 2023, "framework": "NeMo"}, "flash2"),
        ("attention_kernel", {"year": 2023, "framework": "NeMo (MLPerf v3.0)"}, "flash1"),
        ("attention_kernel", {"year": 2023, "framework": "NeMo (MLPerf v3.1)"}, "flash2"),
        ("attention_kernel", {"year": 2024, "framework": "NeMo (MLPerf v4.0)"}, "flash"),
        ("attention_kernel", {"year": 2024, "framework": "NeMo (NeMo24.03.01)"}, "flash2"),
        ("attention_kernel", {"year": 2024, "framework": "NeMo", "notes": "container NeMo 24.07"}, "flash"),
        ("expert_dispatch", {"notes": "moe dispatcher=hybridep, x"}, "fused"),
        ("expert_dispatch", {"notes": "dispatcher DeepEP; x"}, "fused"),
        ("expert_dispatch", {"notes": "moe dispatcher=None"}, None),
        ("sliding_window", {"notes": "chunked attention 8192; x"}, 8192),
        ("chunked_attention", {"notes": "chunked attention 8192; x"}, True),
        ("sliding_window", {"model_name": "gpt-oss-120b", "hidden": 2880, "notes": "sliding-window layers"}, 128),
        ("full_attention_every", {"model_name": "gpt-oss-120b", "hidden": 2880, "notes": "sliding-window"}, 2),
        ("sliding_window", {"model_name": "gpt-oss-120b", "hidden": 1440, "notes": "sliding-window"}, None),
        ("sliding_window", {"model_name": "llama-3-8b", "hidden": 4096}, None),
        ("dropout", {"framework": "Megatron-Core r0.8.0", "gated_mlp": False}, True),
        ("dropout", {"framework": "Megatron-Core r0.8.0", "gated_mlp": True}, None),
        ("dropout", {"framework": "LLM-Foundry/Composer FSDP1", "gated_mlp": False}, None),
        ("fused_kernels", {"framework": "ArcticTraining (HF Transformers + DeepSpeed ZeRO-3)"}, False),
        ("fused_kernels", {"framework": "torchtitan (FSDP2)", "notes": "AC: full"}, False),
        ("fused_kernels", {"framework": "torchtitan (FSDP2)", "notes": "FSDP+CP+torch.compile+Float8"}, None),
        ("fused_kernels", {"framework": "PyTorch FSDP1 (fms-fsdp)", "notes": "no torch.compile"}, False),
        ("fused_kernels", {"framework": "PyTorch FSDP1 + torch.compile (fms-fsdp)"}, None),
        ("fused_loss", {"framework": "Megatron-LM (SC21)", "year": 2021}, False),
        ("fused_loss", {"framework": "Megatron-LM", "year": 2024}, None),
        ("fused_loss", {"framework": "Megatron-DeepSpeed", "year": 2024}, False),
        ("fused_loss", {"framework": "NeMo", "year": 2023}, None),
        ("gradient_bytes", {"framework": "PyTorch FSDP1 (fms-fsdp)"}, 2),
        ("bucket_parameters", {"notes": "grad accumulation 4; DDP bucket 25MB"}, 25 * 2**20 / 2),
        ("fp8_scaling", {"framework": "torchtitan", "precision": "fp8", "notes": "float8 rowwise; x"}, "row"),
        ("fp8_scaling", {"framework": "torchtitan", "precision": "fp8"}, "tensor"),
        ("fp8_scaling", {"framework": "torchtitan", "precision": "bf16"}, None),
        ("fp8_scaling", {"framework": "NeMo", "precision": "fp8"}, None),
        ("fp8_scaling", {"framework": "FSDP2", "precision": "fp8", "notes": "torchao, rowwise scaling"}, "row"),
        ("tp_batch_first", {"framework": "PyTorch", "tp": 8, "notes": "TP by DTensor"}, True),
        ("tp_batch_first", {"framework": "torchtitan (FSDP2)", "tp": 8}, True),
        ("tp_batch_first", {"framework": "Megatron-LM", "tp": 8}, None),
        ("tp_asynchronous", {"tp": 8, "notes": "with async comm; CUDA_DEVICE_MAX_CONNECTIONS=1"}, True),
        ("tp_asynchronous", {"tp": 8, "notes": "TP mode REDUCE_SCATTER (=SP) with async comm"}, None),
        ("tp_asynchronous", {"tp": 1, "notes": "with async comm; CUDA_DEVICE_MAX_CONNECTIONS=1"}, None),
        ("checked_collectives", {"n_gpus": 512, "notes": GATHERS.format(6.4)}, True),
        ("checked_collectives", {"n_gpus": 512, "notes": GATHERS.format(44.5)}, None),
        ("checked_collectives", {"n_gpus": 32, "notes": GATHERS.format(98.0)}, True),
        ("checked_collectives", {"n_gpus": 32, "notes": GATHERS.format(229.0)}, None),
        ("checked_collectives", {"n_gpus": 16, "notes": GATHERS.format(165.0)}, True),
        ("checked_collectives", {"n_gpus": 16, "notes": GATHERS.format(223.0)}, None),
        ("checked_collectives", {"n_gpus": 8, "notes": GATHERS.format(40.0)}, None),
        ("checked_collectives", {"n_gpus": 512, "notes": GATHERS.format(6.4).replace("AWS p5", "a")}, None),
        ("gradient_accumulation", {"framework": "nanotron", "year": 2024}, "separate"),
        ("attention_kernel", {"year": 2024}, "flash"),
        ("attention_kernel", {"year": 2024, "attention": "eager"}, "unfused"),
    ],
)  # fmt: skip
def test_words_become_switches(field: str, config: dict[str, object], value: object) -> None:
    assert read(field, **config) == value


def test_every_switch_is_taken_or_said_to_be_missing() -> None:
    config = RunConfig(
        gpu="h100", tp=8, cp=2, n_experts=8, year=2021, framework="Megatron-LM",
        notes="async TP; ETP 1; cuda_graph=full_iteration; cp = Ulysses degree; CPU Adam; a2a overlap on",
    )  # fmt: skip
    switches = switches_of(config)
    known = {field.name for field in fields(Layout)} | {field.name for field in fields(Model)}
    assert set(switches.layout) | set(switches.model) <= known
    for rule in LAYOUT_RULES:
        finding = rule.read(config)
        if finding is not None and finding[0] != rule.plain and rule.without:
            assert (rule.field in switches.layout) != (rule.without in switches.not_modelled), rule.field


def test_what_is_not_stated_is_said() -> None:
    assert set(switches_of(RunConfig(gpu="h100", tp=2)).assumptions) >= {"bf16", "sequence parallelism"}


@pytest.mark.parametrize(
    ("layers", "pp", "counted"), [(30, 8, True), (32, 8, None), (31, 8, None), (30, 1, None)]
)
def test_layers_that_only_divide_with_embedding_and_head(layers: int, pp: int, counted: bool | None) -> None:
    assert read("embedding_layers", layers=layers, pp=pp) is counted


def test_a_slow_release_that_the_source_mentions_is_not_modelled() -> None:
    notes = "source footnote: known cuDNN performance regression in this release"
    assert any(
        "slow release" in words for words in switches_of(RunConfig(gpu="h100", notes=notes)).not_modelled
    )
