"""Which parts of a layer a record's stack repeats."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import RematPolicy, RunConfig

SHAPE = {"hidden": 4, "heads": 2, "kv_heads": 1, "ffn_hidden": 8, "gated_mlp": True}
"""Products of 16 (queries), 8, 8, 16 (output), 32 (gate), 32, 32 (down): 144 in all."""
TITAN = {"framework": "torchtitan (FSDP2)", "recompute": "selective", **SHAPE}
MAXTEXT = {"framework": "MaxText", "recompute": "selective", **SHAPE}


def value(switch: str, config: dict[str, Any]) -> object:
    """What the rules make of the switch."""
    found = setting_of(Run(RunConfig(**{"gpu": "h100", **config})), switch)
    return None if found is None else found.value


@pytest.mark.parametrize(
    ("config", "products", "rest", "attention"),
    [
        ({**TITAN, "precision": "bf16"}, (8 + 16 + 32) / 144, 1.0, 0.0),
        ({**TITAN, "precision": "fp8"}, (8 + 16 + 32) / 144, 1.0, 0.0),
        ({**TITAN, "notes": "AC: selective layer"}, None, 0.5, None),
        ({**TITAN, "n_experts": 8}, None, 0.5, None),
        ({**TITAN, "recompute": "full", "notes": "torch.compile"}, (144 - 32) / 144, None, None),
        ({**TITAN, "recompute": "full"}, None, None, None),
        ({**TITAN, "recompute": "full", "notes": "compile false"}, None, None, None),
        ({**MAXTEXT, "notes": "remat_policy: save_qkv_proj (x)"}, (16 + 32 + 32) / 144, 1.0, None),
        ({**MAXTEXT, "notes": "remat_policy: save_dot_except_mlp + list"}, (32 + 32) / 144, 1.0, None),
        ({**MAXTEXT, "notes": "remat_policy: save_dot_with_context_except_mlp"}, (32 + 32) / 144, 1.0, 0.0),
        ({**MAXTEXT, "notes": "remat_policy: save_out_proj"}, (16 + 8 + 8 + 32 + 32) / 144, 1.0, None),
        ({**MAXTEXT, "notes": "remat_policy: minimal"}, 0.0, 1.0, None),
        ({**MAXTEXT, "notes": "remat_policy=minimal_flash, scan_layers false"}, 0.0, 1.0, 0.0),
        ({**MAXTEXT, "notes": "remat_policy: minimal_offloaded"}, None, None, None),
        ({**MAXTEXT, "notes": "remat_policy: save_something"}, None, None, None),
        (
            {
                "framework": "Paxml",
                "recompute": "selective",
                "notes": "checkpoint policy SAVE_DOT_WITH_NO_BATCH_DIM",
                **SHAPE,
            },
            0.0,
            1.0,
            None,
        ),
        ({"framework": "Paxml", **SHAPE}, (144 - 32) / 144, None, None),
        ({"framework": "Megatron-LM", "recompute": "full", **SHAPE}, None, None, None),
        (
            {"framework": "PyTorch FSDP2", "recompute": "full", "notes": "torch.compile", **SHAPE},
            (144 - 32) / 144,
            None,
            None,
        ),
        (
            {"framework": "PyTorch FSDP2", "recompute": "full", "notes": "no compile", **SHAPE},
            None,
            None,
            None,
        ),
    ],
)
def test_policies_by_operation_repeat_what_they_do_not_keep(
    config: dict[str, object], products: float | None, rest: float | None, attention: float | None
) -> None:
    assert value("recompute_products", config) == (None if products is None else pytest.approx(products))
    assert value("recompute_share", config) == rest
    assert value("recompute_attention", config) == attention


def test_what_is_not_stated_of_recomputation() -> None:
    assert value("recompute", {"framework": "Paxml"}) == "full"
    assert value("recompute", {"framework": "NeMo"}) == "none"
    assert value("recompute", {"recompute": "selective"}) is None


@pytest.mark.parametrize(
    ("notes", "up", "experts"),
    [
        ("recompute_modules from launch.sh: mla_up_proj", True, False),
        ("recompute_modules from launch.sh: mla_up_proj mlp moe", True, True),
        ("recompute_modules=['mla_up_proj', 'mlp', 'moe']", True, True),
        ("recompute_modules=['moe']", False, True),
        ("x", False, False),
    ],
)
def test_what_runs_again_of_latent_attention_and_its_experts(notes: str, up: bool, experts: bool) -> None:
    deepseek = {
        "gpu": "h100", "framework": "NeMo (Megatron-Core)", "model_name": "deepseek-v3", "hidden": 7168, "heads": 128,
        "ffn_hidden": 2048, "n_experts": 256, "topk": 8, "shared_expert_ffn": 2048, "recompute": "selective",
    }  # fmt: skip
    unfolds = 1536 * 128 * 192 + 512 * 128 * 256
    routed = 9 * 3 * 7168 * 2048  # eight of the experts and the one of every token
    rest = 7168 * (1536 + 512 + 64) + 128 * 128 * 7168
    again = up * unfolds + experts * routed
    found = value("recompute_products", {**deepseek, "notes": notes})
    assert found == (pytest.approx(again / (unfolds + routed + rest)) if again else None)
    # The module of experts takes its small kernels along; attention itself does not run again.
    assert value("recompute_share", {**deepseek, "notes": notes}) == (1.0 if experts else None)
    assert value("recompute_attention", {**deepseek, "notes": notes}) == (0.0 if experts else None)


def test_experts_run_again_as_a_module() -> None:
    shape: dict[str, Any] = {
        "hidden": 4096, "heads": 64, "kv_heads": 4, "head_dim": 128, "ffn_hidden": 1536, "n_experts": 128, "topk": 8
    }  # fmt: skip
    notes = "recompute_modules=[layernorm, moe_act, moe]"
    config = {"recompute": "selective", "notes": notes, **shape}
    # Attention 4096 x 128 x (2 x 64 + 2 x 4), experts 3 x 4096 x 8 x 1536.
    attention, experts = 4096 * 128 * 136, 3 * 4096 * 8 * 1536
    assert value("recompute_products", config) == pytest.approx(experts / (attention + experts))
    assert value("recompute_share", config) == 1.0
    assert value("recompute_attention", config) == 0.0
    assert value("recompute_collectives", config) == 0.0
    assert value("recompute_small_kernels", config) is None  # already among what runs again
    small = {"recompute": "selective", "notes": "recompute-modules layernorm moe_act", **shape}
    assert value("recompute_products", small) is None
    assert value("recompute_small_kernels", small) is True
    assert value("recompute_products", {**config, "recompute": "none"}) is None


@pytest.mark.parametrize("policy", get_args(RematPolicy))
def test_a_policy_of_the_column_is_known_and_told_with_those_that_there_are(policy: RematPolicy) -> None:
    run = Run(RunConfig(gpu="h100", remat_policy=policy, **MAXTEXT))
    assert setting_of(run, "recompute_products") is not None
    assert setting_of(run, "unknown_policy") is None
    assert value("recompute", {"framework": "MaxText", "remat_policy": policy}) == "selective"
    unknown = setting_of(
        Run(RunConfig(gpu="h100", notes="remat_policy: save_it", **MAXTEXT)), "unknown_policy"
    )
    assert unknown is not None
    assert "policy save_it" in unknown.words
    assert policy in unknown.words
