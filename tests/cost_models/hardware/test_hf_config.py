import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hdpsim.cost_models.hardware import catalog, hf_config
from hdpsim.cost_models.hardware.hf_config import model_from_hf_config
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.transformer.flop import attention_pairs, layer_pairs
from hdpsim.cost_models.transformer.parameters import active_parameters, parameters, parameters_per_gpu
from hdpsim.errors import CatalogError

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "rope_theta": 500000.0, "max_position_embeddings": 8192, "attention_bias": False,
}  # fmt: skip
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "sliding_window": None,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "num_nextn_predict_layers": 1, "topk_group": 4, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
    "num_hidden_layers": 44, "vocab_size": 50432, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2 = LLAMA | {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "sliding_window": 131072,
    "use_sliding_window": False,
}  # fmt: skip
QWEN3_MOE = LLAMA | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
GEMMA = LLAMA | {
    "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000,
}  # fmt: skip
STARCODER2: dict[str, Any] = {
    "model_type": "starcoder2", "hidden_size": 4608, "intermediate_size": 18432, "num_attention_heads": 36,
    "num_hidden_layers": 32, "num_key_value_heads": 4, "vocab_size": 49152, "sliding_window": 4096, "use_bias": True,
}  # fmt: skip
STARCODER2_15B = STARCODER2 | {
    "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 48, "num_hidden_layers": 40,
    "tie_word_embeddings": False,
}  # fmt: skip
FALCON_40B: dict[str, Any] = {
    "model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8, "new_decoder_architecture": True, "parallel_attn": True, "vocab_size": 65024,
}  # fmt: skip
COMMAND_R: dict[str, Any] = {
    "model_type": "cohere", "hidden_size": 8192, "intermediate_size": 22528, "num_attention_heads": 64,
    "num_hidden_layers": 40, "num_key_value_heads": 64, "vocab_size": 256000, "use_qk_norm": False,
}  # fmt: skip
COMMAND_R7B = COMMAND_R | {
    "model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096,
}  # fmt: skip
ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe", "hidden_size": 2560, "intermediate_size": 12288, "num_attention_heads": 20,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 103424, "use_bias": False,
    "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2, "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1, "moe_layer_interval": 1,
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_attention_heads": 48,
    "num_hidden_layers": 62, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064, "use_qk_norm": True,
    "num_local_experts": 256, "num_experts_per_tok": 8, "tie_word_embeddings": False,
}  # fmt: skip
DOTS: dict[str, Any] = {
    "model_type": "dots1", "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 32, "n_routed_experts": 128,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 152064,
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "published"),
    [
        (LLAMA, 8.03e9),  # Meta-Llama-3-8B
        (MIXTRAL, 46.7e9),
        (DEEPSEEK, 671e9),
        (GPT2, 124.4e6),
        (NEOX, 20.55e9),  # GPT-NeoX-20B
        (QWEN2, 7.616e9),  # Qwen2.5-7B
        (QWEN3_MOE, 30.53e9),  # Qwen3-30B-A3B
        ({key: value for key, value in GEMMA.items() if key != "tie_word_embeddings"}, 8.54e9),  # Gemma 7B
        (STARCODER2, 7.17e9),
        (STARCODER2_15B, 15.958e9),
        (FALCON_40B, 41.836e9 - 65024 * 8192),  # its files hold the head, which is the embedding, once more
        (COMMAND_R, 34.98e9),
        (COMMAND_R7B, 8.03e9),
        (ERNIE, 21.8e9),  # ERNIE-4.5-21B-A3B
        (MINIMAX, 228.7e9),
        (DOTS, 142.8e9),  # dots.llm1
    ],
)
def test_parameter_counts_of_published_configurations(data: dict[str, Any], published: float) -> None:
    model, _ = model_from_hf_config(data, name="m")
    assert parameters(model).total == pytest.approx(published, rel=0.01)


def test_the_configurations_are_the_shipped_models() -> None:
    pairs = ((LLAMA, "llama-3-8b"), (MIXTRAL, "mixtral-8x7b"), (DEEPSEEK, "deepseek-v3"))
    for data, name in pairs:
        model, _ = model_from_hf_config(data, name=name)
        shipped = catalog.model(name)
        assert parameters(model) == parameters(shipped)
        assert parameters_per_gpu(model, Layout(), 0) == parameters_per_gpu(shipped, Layout(), 0)
        assert active_parameters(model) == active_parameters(shipped)


def test_ignored_keys_are_told() -> None:
    for data in (DEEPSEEK, STARCODER2, COMMAND_R, ERNIE, MINIMAX, DOTS):
        assert model_from_hf_config(data)[1] == ()
    assert model_from_hf_config(LLAMA | {"my_key": 1})[1] == ("my_key",)


def test_sliding_windows() -> None:
    assert model_from_hf_config(LLAMA | {"sliding_window": 4096})[0].sliding_window == 4096
    assert model_from_hf_config(QWEN2)[0].sliding_window is None
    mixed = LLAMA | {"sliding_window": 4096, "layer_types": ["full_attention", "sliding_attention"] * 16}
    alternating = model_from_hf_config(mixed)[0]
    assert (alternating.sliding_window, alternating.full_attention_every) == (4096, 2)
    chunks = LLAMA | {
        "attention_chunk_size": 8192,
        "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 8,
    }
    llama4 = model_from_hf_config(chunks)[0]
    assert (llama4.sliding_window, llama4.full_attention_every, llama4.chunked_attention) == (8192, 4, True)
    assert (
        model_from_hf_config(LLAMA | {"sliding_window": 4096, "layer_types": ["full_attention"] * 32})[
            0
        ].sliding_window
        is None
    )


def kinds_of(data: dict[str, Any], layers: int) -> list[str]:
    """What Hugging Face's configuration classes make of the keys, layer by layer."""
    family, numbers = data["model_type"], range(1, layers + 1)
    if "layer_types" in data:
        return list(data["layer_types"])
    if family.startswith("qwen"):
        first = data.get("max_window_layers", 28)
        used = data.get("use_sliding_window", False)
        return [SLIDING if used and number > first else FULL for number in numbers]
    every = data.get("sliding_window_pattern", {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}.get(family, 0))
    return [FULL if every and number % every == 0 else SLIDING for number in numbers]


FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWED = st.fixed_dictionaries(
    {
        "model_type": st.sampled_from(
            ["gemma2", "gemma3_text", "gpt_oss", "mistral", "qwen2", "qwen3", "qwen2_moe"]
        )
    },
    optional={
        "use_sliding_window": st.booleans(),
        "max_window_layers": st.integers(0, 50),
        "sliding_window_pattern": st.integers(1, 50),
    },
)


@given(WINDOWED, st.integers(1, 48), st.none() | st.integers(0, 2**48 - 1), st.integers(1, 20_000))
def test_windows_cover_the_layers_that_the_family_gives_them(
    data: dict[str, Any], layers: int, listed: int | None, length: int
) -> None:
    if not data["model_type"].startswith("qwen"):
        data.pop("use_sliding_window", None)
    if data["model_type"] not in ("gemma3_text",):
        data.pop("sliding_window_pattern", None)
    if listed is not None and data.get("use_sliding_window", not data["model_type"].startswith("qwen")):
        data["layer_types"] = [SLIDING if listed >> layer & 1 else FULL for layer in range(layers)]
    kinds = kinds_of(data, layers)
    window = attention_pairs(length, window=4096)
    expected = [attention_pairs(length) if kind == FULL else window for kind in kinds]
    model = model_from_hf_config(LLAMA | {"num_hidden_layers": layers, "sliding_window": 4096} | data)[0]
    assert layer_pairs(model, length) == pytest.approx(sum(expected) / layers, rel=1e-9)


def test_published_windows() -> None:
    """What the repositories of these models hold, and how their classes read it."""
    gemma2 = model_from_hf_config(GEMMA | {"model_type": "gemma2", "sliding_window": 4096})[0]
    assert (gemma2.sliding_window, gemma2.full_attention_every) == (4096, 2)
    gemma3 = GEMMA | {"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}
    assert model_from_hf_config(gemma3)[0].full_attention_every == 34 / 5
    last = QWEN2 | {"use_sliding_window": True, "max_window_layers": 28}
    assert model_from_hf_config(last)[0].sliding_window is None
    unsaid = {key: value for key, value in last.items() if key != "use_sliding_window"}
    assert model_from_hf_config(unsaid | {"max_window_layers": 0})[0].sliding_window is None
    mistral = LLAMA | {"model_type": "mistral"}
    assert model_from_hf_config(mistral)[0].sliding_window == 4096  # the class default
    assert model_from_hf_config(mistral | {"sliding_window": None})[0].sliding_window is None
    llama4 = model_from_hf_config(LLAMA | {"model_type": "llama4_text", "no_rope_layers": []})[0]
    assert (llama4.sliding_window, llama4.full_attention_every, llama4.chunked_attention) == (8192, 4, True)


@given(st.text(max_size=12) | st.sampled_from(["foo", "mamba2", "qwen3_next", "jamba"]))
def test_a_family_is_known_or_refused(family: str) -> None:
    assume(family not in hf_config._facts()["families"])
    with pytest.raises(CatalogError, match=r"known: baichuan, bloom, .*say so with model_type"):
        model_from_hf_config(LLAMA | {"model_type": family or None})


def test_details_of_families() -> None:
    assert model_from_hf_config({key: value for key, value in QWEN2.items() if key != "attention_bias"})[
        0
    ].qkv_biases
    gpt2 = model_from_hf_config(GPT2)[0]
    assert (gpt2.learned_positions, gpt2.tied_embeddings, gpt2.gated_mlp, gpt2.norm) == (
        1024,
        True,
        False,
        "layer",
    )
    assert model_from_hf_config(NEOX)[0].parallel_block
    command_r = model_from_hf_config(COMMAND_R)[0]
    assert (command_r.norm, command_r.gated_mlp, command_r.parallel_block, command_r.qk_norm) == (
        "layer",
        True,
        True,
        False,
    )
    assert model_from_hf_config(COMMAND_R7B)[0].full_attention_every == 4
    assert model_from_hf_config(STARCODER2)[0].biases
    assert not model_from_hf_config(ERNIE)[0].biases
    assert model_from_hf_config(LLAMA | {"model_type": "glm4_moe", "use_qk_norm": True})[0].qk_norm
    assert model_from_hf_config({"text_config": LLAMA, "vision_config": {}})[0].layers == 32


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert model_from_hf_config(tmp_path)[0].hidden == 4096
    assert model_from_hf_config(tmp_path / "config.json", name="mine")[0].name == "mine"
    for text, words in (("{", "not JSON"), ("[1]", "JSON object"), ("{}", "missing layers")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CatalogError, match=words):
            model_from_hf_config(tmp_path / "bad.json")
    with pytest.raises(CatalogError, match="no such file"):
        model_from_hf_config(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": None, "vocab_size": None}, "missing layers .*num_hidden_layers.*, vocab"),
        ({"intermediate_size": None}, "missing ffn"),
        ({"num_attention_heads": "32"}, "whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads .* from 1"),
        ({"head_dim": 0}, "head_dim .* from 1"),
        ({"vocab_size": 0}, "vocab_size .* from 1"),
        ({"num_key_value_heads": 0}, "num_key_value_heads .* from 1"),
        ({"hidden_size": 10**400}, "hidden_size .* from 1 to 1,000,000"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings .* must be true or false, got 'false'"),
        ({"sliding_window": "4096"}, "sliding_window must be a whole number"),
        ({"sliding_window": -1}, "sliding_window must be a whole number from 0"),
        ({"model_type": ["llama"]}, "model_type must be a text"),
        ({"text_config": 5}, "text_config must be a JSON object"),
        ({"layer_types": "full_attention"}, "layer_types must be a list of texts"),
        (
            {"layer_types": ["linear_attention"] * 31 + ["full_attention"]},
            "layer_types has 'linear_attention'; supp",
        ),
        ({"layer_types": ["full_attention"] * 3}, "layer_types lists 3 layers of 32"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is not set"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": -1},
            "mlp_only_layers must be a list",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": True},
            "mlp_only_layers must be a list",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": 1.0},
            "decoder_sparse_step .* must be a whole",
        ),
        ({"num_attention_heads": 31, "num_key_value_heads": None}, "head_dim is missing"),
        ({"num_key_value_heads": 7}, "kv_heads must divide"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2}, "every 2th layer"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [5]}, "not the first layers"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1, 0]}, "mixes"),
    ],
)
def test_faults_name_the_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        model_from_hf_config(LLAMA | change)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.sampled_from(sorted(DEEPSEEK | GPT2)), values, max_size=6))
def test_any_configuration_is_read_or_refused_cleanly(change: dict[str, Any]) -> None:
    with contextlib.suppress(CatalogError):
        model_from_hf_config(DEEPSEEK | change)
