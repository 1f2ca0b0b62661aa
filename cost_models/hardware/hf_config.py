"""Models from the `config.json` of a Hugging Face repository, read directly: no transformers, no remote code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hdpsim.cost_models.reading.checked import ContradictionError
from hdpsim.cost_models.transformer.model import LatentAttention, Mamba, Model
from hdpsim.errors import CatalogError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import RANGES
from hdpsim.reading import UnreadableError, loads_json, read_text

_ALIASES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "ffn": ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "num_selected_experts"),
    "expert_ffn": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_ffn": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "expert_latent": ("moe_latent_size",),
    "mamba_heads": ("mamba_num_heads",),
    "mamba_state": ("ssm_state_size",),
    "mamba_groups": ("n_groups",),
    "mamba_conv": ("conv_kernel",),
    "mamba_chunk": ("chunk_size",),
    "dense_layers": ("first_k_dense_replace",),
    "tied": ("tie_word_embeddings", "tie_embeddings"),
    "positions": ("n_positions", "max_position_embeddings", "n_ctx"),
    "mtp": ("num_nextn_predict_layers",),
    "full_every": ("sliding_window_pattern", "_sliding_window_pattern"),
    "expert_every": ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"),
}
_KINDS = {
    "kv_heads": "heads", "ffn": "ffn_hidden", "expert_ffn": "ffn_hidden", "shared_ffn": "ffn_hidden",
    "shared_experts": "experts", "dense_layers": "layers", "mtp": "mtp_layers", "q_lora_rank": "lora_rank",
    "kv_lora_rank": "lora_rank", "qk_nope_head_dim": "head_dim", "qk_rope_head_dim": "head_dim",
    "v_head_dim": "head_dim", "sliding_window": "window_tokens", "attention_chunk_size": "window_tokens",
    "expert_latent": "lora_rank", "mamba_heads": "heads", "mamba_head_dim": "head_dim", "mamba_state": "head_dim",
    "mamba_groups": "heads", "mamba_conv": "head_dim", "mamba_chunk": "head_dim",
    "expert_every": "layers", "full_every": "layers", "max_window_layers": "layers", "no_rope_layer_interval": "layers",
}  # fmt: skip
"""The ranges of counts that are not called like a range."""
_MAY_BE_ZERO = frozenset(
    {
        "experts", "top_k", "shared_ffn", "shared_experts", "dense_layers", "mtp", "q_lora_rank", "qk_rope_head_dim",
        "positions", "sliding_window", "attention_chunk_size", "expert_ffn", "ffn",
        "full_every", "max_window_layers", "expert_latent",
    }
)  # fmt: skip
"""Counts of which 0 means that there is no such thing."""
_REQUIRED = ("layers", "hidden", "heads", "vocab")
_PLAIN_MLP_FAMILIES = frozenset(
    {"gpt2", "gpt_neox", "gptj", "gpt_neo", "bloom", "falcon", "opt", "mpt", "phi"}
)
"""Families whose MLP has two matrices and whose norms are LayerNorm."""
_LEARNED_POSITION_FAMILIES = frozenset({"gpt2", "gpt_neo", "opt"})
_TIED_BY_DEFAULT = frozenset(
    {"gpt2", "gpt_neo", "bloom", "falcon", "opt", "mpt", "gemma", "gemma2", "gemma3_text"}
)
"""Families whose configuration class ties embedding and head unless told otherwise."""
_QKV_BIAS_BY_DEFAULT = frozenset({"qwen2", "qwen2_moe"})  # their attention code adds it, no key says so
_QK_NORM_FAMILIES = frozenset(
    {"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2", "olmoe"}
)  # in their attention code
_PARALLEL_BY_DEFAULT = frozenset({"gptj", "gpt_neox", "falcon", "phi"})
_LLAMA_LIKE_FAMILIES = frozenset(
    {
        "llama", "llama4_text", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek",
        "deepseek_v2", "deepseek_v3", "kimi_k2", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "olmo2",
        "olmoe", "phi3", "granite", "granitemoe", "glm4", "glm4_moe", "chatglm",
        "baichuan", "internlm2", "minicpm", "smollm3", "seed_oss",
    }
)  # fmt: skip
"""Families whose MLP is gated and whose norms are RMSNorm, one block after the other."""
_HYBRID_FAMILIES = frozenset({"nemotron_h"})
"""Families of one part a layer, Mamba-2 among them, whose MLP has two matrices and whose norms are RMSNorm."""
_BLOCK_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Of `layers_block_type`, as transformers 5 writes a pattern."""
_WITHOUT_EFFECT_IN_HYBRIDS = ("num_logits_to_keep", "expand", "time_step_limit", "time_step_min", "time_step_max",
    "time_step_floor", "use_mamba_kernels", "mamba_hidden_act", "mlp_hidden_act", "mamba_ssm_cache_dtype",
    "rescale_prenorm_residual", "residual_in_fp32", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
    "moe_shared_expert_overlap", "partial_rotary_factor", "mamba_proj_bias", "mlp_bias", "use_bias", "use_conv_bias",
    "norm_eps")  # fmt: skip
_FAMILIES = _PLAIN_MLP_FAMILIES | _LLAMA_LIKE_FAMILIES | _HYBRID_FAMILIES
_QWEN_WINDOW_FAMILIES = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Families with windows only where `use_sliding_window` says so, and only from layer `max_window_layers` on."""
_WINDOW_BY_DEFAULT = {"mistral": 4096, "gemma2": 4096, "gemma3": 4096, "gemma3_text": 4096, "gpt_oss": 128}
_WINDOW_BY_DEFAULT |= dict.fromkeys(_QWEN_WINDOW_FAMILIES, 4096)
_CHUNK_BY_DEFAULT = {"llama4_text": 8192}
"""What the configuration class of a family takes where the key is absent; null means none."""
_FULL_EVERY_BY_DEFAULT = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "llama4_text": 4}
"""Every so many layers one attends to everything: the class of the family says so when no key does."""
_LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention")
_QWEN_FIRST_WINDOW_LAYER = 28
_WITHOUT_EFFECT = frozenset(
    {
        "architectures", "attention_dropout", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id",
        "hidden_act", "hidden_dropout", "initializer_range", "max_position_embeddings", "model_type", "name",
        "rms_norm_eps", "rope_scaling", "rope_theta", "rope_parameters", "torch_dtype", "dtype",
        "transformers_version", "use_cache", "activation_function", "attn_pdrop", "embd_pdrop", "resid_pdrop",
        "layer_norm_epsilon", "layer_norm_eps", "quantization_config", "pretraining_tp", "router_aux_loss_coef",
        "output_router_logits", "max_window_layers", "_name_or_path",
    }
)  # fmt: skip


class _Config:
    """A configuration whose keys are taken one by one, so that the rest can be reported."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data, self.where = data, where
        self._taken: set[str] = set()

    def raw(self, *keys: str) -> Any:
        """The first of *keys* that is set (not null), or None."""
        self._taken.update(keys)
        return next((self._data[key] for key in keys if self._data.get(key) is not None), None)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number under any alias of *name*, in its range; 0 only where that means that there is none."""
        value = self.raw(*_ALIASES.get(name, (name,)))
        if value is None:
            value = default
        allowed = RANGES[_KINDS.get(name, name)].from_least(0 if name in _MAY_BE_ZERO else 1)
        if not allowed.holds(value):
            keys = " / ".join(_ALIASES.get(name, (name,)))
            raise CatalogError(f"{self.where}: {keys} {allowed.complaint(value)}")
        return int(value)

    def count_or_class_default(self, name: str, default: int) -> int:
        """A count that the configuration class sets to *default* where the key is absent; null means 0."""
        return self.count(name, default=0 if name in self._data else default)

    def text(self, *keys: str) -> str:
        """A text, empty when none of the keys is set."""
        value = self.raw(*keys)
        if value is not None and not isinstance(value, str):
            raise CatalogError(f"{self.where}: {' / '.join(keys)} must be a text, got {quoted(value)}")
        return value or ""

    def numbers(self, key: str) -> list[int]:
        """A list of whole numbers, empty when the key is not set."""
        value = self.raw(key)
        if value is None:
            return []
        allowed = RANGES["layers"].from_least(0)
        if not isinstance(value, list) or not all(map(allowed.holds, value)):
            raise CatalogError(
                f"{self.where}: {key} must be a list of whole numbers from {allowed}, got {quoted(value)}"
            )
        return value

    def has(self, name: str) -> bool:
        """Whether any alias of *name* is set."""
        return self.raw(*_ALIASES.get(name, (name,))) is not None

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A true/false value, spelled so."""
        value = self.raw(*keys)
        if value is not None and not isinstance(value, bool):
            raise CatalogError(f"{self.where}: {' / '.join(keys)} must be true or false, got {quoted(value)}")
        return default if value is None else value

    def ignored(self) -> tuple[str, ...]:
        """Keys that were set, were not taken, and might have mattered."""
        return tuple(sorted(set(self._data) - self._taken - _WITHOUT_EFFECT))


def model_from_hf_config(
    path_or_dict: str | Path | Mapping[str, Any], name: str | None = None
) -> tuple[Model, tuple[str, ...]]:
    """Return the model of a `config.json` and the keys of it that had no influence.

    Understood: Llama, Mistral, Mixtral, Qwen 2/3 and their MoE variants, DeepSeek V2/V3 (latent attention, dense
    first layers, shared experts, multi-token prediction), Nemotron-H and Nemotron 3 (hybrids with Mamba-2), GPT-2,
    GPT-NeoX, Gemma and others; an error lists them.
    Multi-modal files are read from their `text_config`.

    Raises:
        CatalogError: no configuration, lacks keys (all named), is of an unknown family, or contradicts itself.
    """
    data, where = _source(path_or_dict)
    config = _Config(_with_layers(data), where)
    missing = [f"{what} ({' or '.join(_ALIASES[what])})" for what in _REQUIRED if not config.has(what)]
    if missing:
        raise CatalogError(f"{where}: not the config.json of a language model: missing {', '.join(missing)}")
    stated = config.text("name") or config.text("_name_or_path")
    try:
        result = _model(config, name or stated or Path(where).stem)
    except ContradictionError as error:
        texts = [f"{key} {text}" for key, text in error.problems]
        raise CatalogError(f"{where}: " + "; ".join(texts)) from error
    return result, config.ignored()


def _source(path_or_dict: str | Path | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The configuration (of the language part) and what to call it in errors."""
    if isinstance(path_or_dict, Mapping):
        data, where = path_or_dict, "config"
    else:
        path = Path(path_or_dict)
        path = path / "config.json" if path.is_dir() else path
        where = shortened(str(path), LONGEST_NAME)
        try:
            data = loads_json(read_text(path), str(path))
        except UnreadableError as error:
            raise CatalogError(str(error)) from None
    if not isinstance(data, Mapping):
        raise CatalogError(f"{where}: must be a JSON object, got {quoted(data)}")
    inner = data.get("text_config")
    if inner is not None and not isinstance(inner, Mapping):
        raise CatalogError(f"{where}: text_config must be a JSON object, got {quoted(inner)}")
    return (data, where) if inner is None else (inner, where)


def _model(config: _Config, name: str) -> Model:
    family = _family(config)
    layers, hidden, heads = config.count("layers"), config.count("hidden"), config.count("heads")
    plain = family in _PLAIN_MLP_FAMILIES
    latent = _latent_attention(config)
    head_dim = latent.v_head_dim if latent else config.count("head_dim", default=hidden // heads)
    if latent is None and not config.has("head_dim") and hidden % heads:
        raise CatalogError(
            f"{config.where}: head_dim is missing and {hidden} does not divide by {heads} heads"
        )
    multi_query = config.flag("multi_query") and not config.flag("new_decoder_architecture")
    kv_heads = config.count("kv_heads", default=1 if multi_query else heads)
    experts = config.count("experts", default=0)
    experts = experts if experts > 1 else 0
    width = config.count("ffn", default=4 * hidden if plain else 0)
    expert_width = config.count("expert_ffn", default=width) if experts else width
    if not (expert_width if experts else width):
        raise CatalogError(f"{config.where}: missing ffn ({' or '.join(_ALIASES['ffn'])})")
    hybrid = _hybrid(config) if family in _HYBRID_FAMILIES else {}
    if hybrid and "E" not in hybrid["layer_pattern"] + hybrid["mtp_pattern"]:
        experts = 0  # the class writes its defaults
        expert_width = width
    dense_layers = _dense_layers(config, experts, layers)
    window, full_every, chunked = _windows(config, family, layers)
    return Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else kv_heads,
        head_dim=head_dim,
        ffn_hidden=expert_width,
        vocab=config.count("vocab"),
        gated_mlp=not plain and not hybrid,
        tied_embeddings=config.flag(*_ALIASES["tied"], default=family in _TIED_BY_DEFAULT),
        experts=experts,
        top_k=config.count("top_k") if experts else 0,
        shared_expert_ffn=_shared_width(config, family, expert_width) if experts else 0,
        dense_layers=dense_layers,
        dense_ffn_hidden=width if dense_layers else 0,
        latent_attention=latent,
        sliding_window=window,
        full_attention_every=full_every,
        chunked_attention=chunked,
        parallel_block=config.flag(
            "parallel_attn", "use_parallel_residual", default=family in _PARALLEL_BY_DEFAULT
        ),
        norm="layer" if plain else "rms",
        biases=plain and family not in ("falcon", "mpt"),
        qkv_biases=config.flag("attention_bias", "qkv_bias", default=family in _QKV_BIAS_BY_DEFAULT),
        qk_norm=family in _QK_NORM_FAMILIES,
        expert_biases=family == "gpt_oss",
        clamped_activation=family == "gpt_oss",
        scaled_rotary=family == "gpt_oss",
        learned_positions=config.count("positions", default=0) if family in _LEARNED_POSITION_FAMILIES else 0,
        mtp_layers=config.count("mtp", default=0),
        **hybrid,
        source=f"{config.where} (Hugging Face, {family})",
    )


def _family(config: _Config) -> str:
    """The family that `model_type` names; one that is not known here may be no such transformer at all."""
    family = config.text("model_type")
    if family not in _FAMILIES:
        what = f"model_type {quoted(family)} is not known here" if family else "model_type is missing"
        raise CatalogError(
            f"{config.where}: {what}; known: {', '.join(sorted(_FAMILIES))}. If the model is built like one of them, "
            "say so with model_type; if not, describe it as YAML (docs/reference/catalog.md)"
        )
    return family


def _dense_layers(config: _Config, experts: int, layers: int) -> int:
    """Dense layers at the start; patterns that mix dense and expert layers otherwise are refused."""
    if not experts:
        return 0
    every = config.raw(*_ALIASES["expert_every"])
    if isinstance(every, list):
        every = config.numbers("moe_layer_freq")
        first = every.index(1) if 1 in every else layers
        if every != [0] * first + [1] * (len(every) - first):
            raise CatalogError(f"{config.where}: moe_layer_freq mixes dense and expert layers; not supported")
        return first
    if every is not None and config.count("expert_every") != 1:
        raise CatalogError(f"{config.where}: only every {every}th layer has experts; not supported")
    only_dense = config.numbers("mlp_only_layers")
    if only_dense != list(range(len(only_dense))):
        raise CatalogError(
            f"{config.where}: mlp_only_layers ({quoted(only_dense)}) are not the first layers; not supported"
        )
    return config.count("dense_layers", default=len(only_dense))


def _shared_width(config: _Config, family: str, expert_width: int) -> int:
    """Width of all shared experts together."""
    if config.has("shared_ffn"):
        return config.count("shared_ffn")
    return config.count("shared_experts", default=int(family == "llama4_text")) * expert_width


def _windows(config: _Config, family: str, layers: int) -> tuple[int | None, float, bool]:
    """(window, one layer in so many attends to everything, window is a chunk); (None, 0, False): no windows."""
    chunk = config.count_or_class_default("attention_chunk_size", _CHUNK_BY_DEFAULT.get(family, 0))
    window = config.count_or_class_default("sliding_window", _WINDOW_BY_DEFAULT.get(family, 0))
    if not config.flag("use_sliding_window", default=family not in _QWEN_WINDOW_FAMILIES):
        window = 0
    kinds = _layer_kinds(config, layers)
    for kind, key, tokens in (
        ("sliding_attention", "sliding_window", window),
        ("chunked_attention", "attention_chunk_size", chunk),
    ):
        if kind in kinds and not tokens:
            raise CatalogError(f"{config.where}: layer_types names {kind}, but {key} is not set or not used")
    chunked = "chunked_attention" in kinds or ("sliding_attention" not in kinds and not window)
    width = chunk if chunked else window
    full = kinds.count("full_attention") if kinds else _full_layers(config, family, layers)
    if not width or full >= layers:
        return None, 0, False
    if not full:
        return width, 0, chunked
    return width, layers / full if layers % full else layers // full, chunked


def _listed(config: _Config, key: str, known: Collection[str]) -> list[str] | None:
    """The texts that the file lists under *key*, all of them *known*; None where it has no such key."""
    texts = config.raw(key)
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise CatalogError(f"{config.where}: {key} must be a list of texts, got {quoted(texts)}")
    unknown = sorted(set(texts) - set(known))
    if unknown:
        raise CatalogError(
            f"{config.where}: {key} has {shortened(', '.join(map(quoted, unknown)), LONGEST_NAME)}; "
            f"supported: {', '.join(known)}"
        )
    return texts


def _layer_kinds(config: _Config, layers: int) -> list[str]:
    """The attention of every layer where the file lists it, else nothing."""
    kinds = _listed(config, "layer_types", _LAYER_KINDS)
    if kinds is None:
        return []
    if kinds and len(kinds) != layers:
        raise CatalogError(f"{config.where}: layer_types lists {len(kinds)} layers of {layers}")
    if {"sliding_attention", "chunked_attention"} <= set(kinds):
        raise CatalogError(f"{config.where}: layer_types mixes sliding and chunked attention; not supported")
    return kinds


def _full_layers(config: _Config, family: str, layers: int) -> int:
    """Layers that attend to everything beside windows when no list says which: what the class of the family does."""
    if family in _QWEN_WINDOW_FAMILIES:
        return min(layers, config.count("max_window_layers", default=_QWEN_FIRST_WINDOW_LAYER))
    every = _FULL_EVERY_BY_DEFAULT.get(family, 0)
    if family == "llama4_text":
        rotary = config.numbers("no_rope_layers")
        if rotary and len(rotary) != layers:
            raise CatalogError(f"{config.where}: no_rope_layers lists {len(rotary)} layers of {layers}")
        every = config.count("no_rope_layer_interval", default=every)
        return rotary.count(0) if rotary else layers // every
    every = config.count("full_every", default=every)
    return layers // every if every else 0


def _with_layers(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the number of layers that a list of blocks or a pattern says, where it says no other."""
    listed = data.get("layers_block_type") or data.get("hybrid_override_pattern")
    stated = any(data.get(key) is not None for key in _ALIASES["layers"])
    return (
        data if stated or not isinstance(listed, list | str) else {**data, "num_hidden_layers": len(listed)}
    )


def _hybrid(config: _Config) -> dict[str, Any]:
    """What a hybrid has besides: its pattern, that of multi-token prediction, and the sizes of Mamba-2 layers."""
    config.raw(*_WITHOUT_EFFECT_IN_HYBRIDS)
    pattern = _pattern(config, "layers_block_type", "hybrid_override_pattern")
    if not pattern:
        raise CatalogError(f"{config.where}: missing layers_block_type or hybrid_override_pattern")
    predicted = _pattern(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    mamba = None
    if "M" in pattern:
        mamba = Mamba(
            heads=config.count("mamba_heads"),
            head_dim=config.count("mamba_head_dim"),
            state=config.count("mamba_state"),
            groups=config.count("mamba_groups", default=1),
            conv=config.count("mamba_conv", default=4),
            chunk=config.count("mamba_chunk", default=128),
        )
    return {
        "layer_pattern": pattern,
        "mtp_pattern": predicted if config.count("mtp", default=0) else "",
        "mamba": mamba,
        "expert_latent": config.count("expert_latent", default=0) if "E" in pattern else 0,
    }


def _pattern(config: _Config, listed: str, written: str) -> str:
    """Letters of a list of blocks, or of a pattern; empty when there is neither."""
    blocks = _listed(config, listed, _BLOCK_LETTERS)
    if blocks is None:
        return config.text(written)
    return "".join(_BLOCK_LETTERS[block] for block in blocks)


def _latent_attention(config: _Config) -> LatentAttention | None:
    """Low-rank attention when its ranks are given."""
    if config.raw("kv_lora_rank") is None:
        return None
    return LatentAttention(
        q_lora_rank=config.count("q_lora_rank", default=0),
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
    )
