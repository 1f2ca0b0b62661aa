"""Models from the `config.json` of a Hugging Face repository, read directly: no transformers, no remote code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hdpsim.cost_models.reading.checked import ContradictionError
from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.cost_models.transformer.model import LatentAttention, Mamba, Model
from hdpsim.errors import CatalogError
from hdpsim.quoting import LONGEST_NAME, quoted, shortened
from hdpsim.ranges import RANGES
from hdpsim.reading import UnreadableError, loads_json, read_text
from hdpsim.yaml_loader import load_yaml

_REQUIRED = ("layers", "hidden", "heads", "vocab")
_BLOCK_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Of `layers_block_type`, as transformers 5 writes a pattern."""
_LAYER_KINDS = ("full_attention", "sliding_attention", "chunked_attention")
_QWEN_FIRST_WINDOW_LAYER = 28


class _Key(NamedTuple):
    """What files call something, its range, and whether 0 says that there is none; see data/hf_configs.yaml."""

    names: tuple[str, ...]
    range: str
    zero: bool


class _Family(NamedTuple):
    """What models of a family do where no key says so; see data/hf_configs.yaml."""

    name: str
    plain: bool = False
    hybrid: bool = False
    biases: bool = False
    qkv_biases: bool = False
    learned: bool = False
    tied: bool = False
    parallel: bool = False
    qk_norm: bool = False
    sinks: bool = False
    layer_norm: bool = False
    shared: int = 0
    window: int = 0
    chunk: int = 0
    full_every: int = 0
    qwen: bool = False


@cache
def _facts() -> dict[str, Any]:
    families: dict[str, Any] = load_yaml(shipped("cost_models/data/hf_configs.yaml"))
    return families


def _key(name: str) -> _Key:
    said = _facts()["keys"].get(name, {})
    return _Key(tuple(said.get("names", (name,))), said.get("range", name), said.get("zero", False))


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
        key = _key(name)
        value = self.raw(*key.names)
        if value is None:
            value = default
        allowed = RANGES[key.range].from_least(0 if key.zero else 1)
        if not allowed.holds(value):
            raise CatalogError(f"{self.where}: {' / '.join(key.names)} {allowed.complaint(value)}")
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
            wanted = f"must be a list of whole numbers from {allowed}"
            raise CatalogError(f"{self.where}: {key} {wanted}, got {quoted(value)}")
        return value

    def has(self, name: str) -> bool:
        """Whether any alias of *name* is set."""
        return self.raw(*_key(name).names) is not None

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A true/false value, spelled so."""
        value = self.raw(*keys)
        if value is not None and not isinstance(value, bool):
            raise CatalogError(f"{self.where}: {' / '.join(keys)} must be true or false, got {quoted(value)}")
        return default if value is None else value

    def ignored(self) -> tuple[str, ...]:
        """Keys that were set, were not taken, and might have mattered."""
        return tuple(sorted(set(self._data) - self._taken - set(_facts()["without_effect"])))


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
    missing = [f"{what} ({' or '.join(_key(what).names)})" for what in _REQUIRED if not config.has(what)]
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
    latent = _latent_attention(config)
    head_dim = latent.v_head_dim if latent else config.count("head_dim", default=hidden // heads)
    if latent is None and not config.has("head_dim") and hidden % heads:
        wrong = f"head_dim is missing and {hidden} does not divide by {heads} heads"
        raise CatalogError(f"{config.where}: {wrong}")
    multi_query = config.flag("multi_query") and not config.flag("new_decoder_architecture")
    kv_heads = config.count("kv_heads", default=1 if multi_query else heads)
    experts = config.count("experts", default=0)
    experts = experts if experts > 1 else 0
    width = config.count("ffn", default=4 * hidden if family.plain else 0)
    expert_width = config.count("expert_ffn", default=width) if experts else width
    if not (expert_width if experts else width):
        raise CatalogError(f"{config.where}: missing ffn ({' or '.join(_key('ffn').names)})")
    hybrid = _hybrid(config) if family.hybrid else {}
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
        gated_mlp=not family.plain and not hybrid,
        tied_embeddings=config.flag(*_key("tied").names, default=family.tied),
        experts=experts,
        top_k=config.count("top_k") if experts else 0,
        shared_expert_ffn=_shared_width(config, family, expert_width) if experts else 0,
        dense_layers=dense_layers,
        dense_ffn_hidden=width if dense_layers else 0,
        latent_attention=latent,
        sliding_window=window,
        full_attention_every=full_every,
        chunked_attention=chunked,
        parallel_block=config.flag("parallel_attn", "use_parallel_residual", default=family.parallel),
        norm="layer" if family.plain or family.layer_norm else "rms",
        biases=family.biases if hybrid else config.flag("use_bias", default=family.biases),
        qkv_biases=config.flag("attention_bias", "qkv_bias", "use_qkv_bias", default=family.qkv_biases),
        qk_norm=config.flag("use_qk_norm", "qk_layernorm", default=family.qk_norm),
        expert_biases=family.sinks,
        clamped_activation=family.sinks,
        scaled_rotary=family.sinks,
        learned_positions=config.count("positions", default=0) if family.learned else 0,
        mtp_layers=config.count("mtp", default=0),
        **hybrid,
        source=f"{config.where} (Hugging Face, {family.name})",
    )


def _family(config: _Config) -> _Family:
    """The family that `model_type` names; one that is not known here may be no such transformer at all."""
    name, known = config.text("model_type"), _facts()["families"]
    if name not in known:
        what = f"model_type {quoted(name)} is not known here" if name else "model_type is missing"
        raise CatalogError(
            f"{config.where}: {what}; known: {', '.join(sorted(known))}. If the model is built like one of them, "
            "say so with model_type; if not, describe it as YAML (docs/reference/catalog.md)"
        )
    return _Family(name, **known[name])


def _dense_layers(config: _Config, experts: int, layers: int) -> int:
    """Dense layers at the start; patterns that mix dense and expert layers otherwise are refused."""
    if not experts:
        return 0
    every = config.raw(*_key("expert_every").names)
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
        wrong = f"mlp_only_layers ({quoted(only_dense)}) are not the first layers"
        raise CatalogError(f"{config.where}: {wrong}; not supported")
    return config.count("dense_layers", default=len(only_dense))


def _shared_width(config: _Config, family: _Family, expert_width: int) -> int:
    """Width of all shared experts together."""
    if config.has("shared_ffn"):
        return config.count("shared_ffn")
    return config.count("shared_experts", default=family.shared) * expert_width


def _windows(config: _Config, family: _Family, layers: int) -> tuple[int | None, float, bool]:
    """(window, one layer in so many attends to everything, window is a chunk); (None, 0, False): no windows."""
    chunk = config.count_or_class_default("attention_chunk_size", family.chunk)
    window = config.count_or_class_default("sliding_window", family.window)
    if not config.flag("use_sliding_window", default=not family.qwen):
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


def _full_layers(config: _Config, family: _Family, layers: int) -> int:
    """Layers that attend to everything beside windows when no list says which: what the class of the family does."""
    if family.qwen:
        return min(layers, config.count("max_window_layers", default=_QWEN_FIRST_WINDOW_LAYER))
    every = family.full_every
    if family.chunk:  # Llama 4: chunks, but for layers without rotary embedding
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
    stated = any(data.get(key) is not None for key in _key("layers").names)
    if stated or not isinstance(listed, list | str):
        return data
    return {**data, "num_hidden_layers": len(listed)}


def _hybrid(config: _Config) -> dict[str, Any]:
    """What a hybrid has besides: its pattern, that of multi-token prediction, and the sizes of Mamba-2 layers."""
    config.raw(*_facts()["without_effect_in_hybrids"])
    pattern = _pattern(config, "layers_block_type", "hybrid_override_pattern")
    if not pattern:
        raise CatalogError(f"{config.where}: missing layers_block_type or hybrid_override_pattern")
    predicted = _pattern(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    mamba = None
    if "M" in pattern:
        usual = {"heads": None, "head_dim": None, "state": None, "groups": 1, "conv": 4, "chunk": 128}
        mamba = Mamba(**{name: config.count(f"mamba_{name}", default) for name, default in usual.items()})
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
    others = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    queries = config.count("q_lora_rank", default=0)
    return LatentAttention(q_lora_rank=queries, **{name: config.count(name) for name in others})
