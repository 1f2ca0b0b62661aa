"""A model as other tools describe it, and such a description as a model."""

from __future__ import annotations

from dataclasses import fields, replace
from math import gcd
from pathlib import Path
from typing import Any

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.hf_config import model_from_hf_config
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.cost_models.transformer.model import LatentAttention, Model
from hdpsim.cost_models.transformer.parameters import parameters
from hdpsim.errors import UserInputError
from hdpsim.experiments.other_tools.translate import Read
from hdpsim.experiments.output.amounts import large_amount

_NEEDED = ("layers", "hidden", "heads", "vocab", "ffn_hidden")
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENT_DEFAULTS = {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""Of MLATransformerConfig (megatron/core/transformer/transformer_config.py)."""
_PLAIN = (
    "gated_mlp", "tied_embeddings", "norm", "biases", "qkv_biases", "qk_norm", "dropout", "clamped_activation",
    "mtp_layers", "sliding_window", "full_attention_every",
)  # fmt: skip
_MULTIPLE = 128
_GATED_WIDTH = 64
"""Megatron-LM rounds the width of a gated MLP that nobody states, 8/3 of the hidden size, down to a multiple of it."""


def read_model(
    read: Read, base: Model | None, complete: bool, where: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """The keys of a model that the facts describe, and what they do not say of it.

    Args:
        read: the facts.
        base: what counts where they say nothing; where they do, it must be the same.
        complete: whether what they do not say has the tool's default.
        where: the file.

    Raises:
        UserInputError: a fact contradicts *base*, or another.
    """
    facts = read.facts
    if complete and base is None and "run.ffn" not in facts and "model.hidden" in facts:
        width = 4 * read.whole_number("model.hidden")
        gated = int(width * 2 / 3 / _GATED_WIDTH) * _GATED_WIDTH
        read.set("run.ffn", gated if facts.get("model.gated_mlp") else width, "default")
    known = _described(read, where)
    if base is not None:
        _check_same(base, known, read, where)
    missing = [name for name in _NEEDED if name not in known]
    return (None, missing) if missing else (known, [])


def _described(read: Read, where: str) -> dict[str, Any]:
    """The keys of a catalog entry that follow from the facts."""
    facts = read.facts
    known: dict[str, Any] = {}
    for name in ("layers", "hidden", "heads"):
        if f"model.{name}" in facts:
            known[name] = facts[f"model.{name}"]
    latent = bool(facts.get("run.latent"))
    if latent:
        part = {key: facts.get(f"run.{key}", _LATENT_DEFAULTS.get(key, 0)) for key in _LATENT}
        part["qk_nope_head_dim"] = part.pop("qk_head_dim")
        known["latent_attention"], known["head_dim"] = part, part["v_head_dim"]
        known["kv_heads"] = known.get("heads")
    elif "run.head_dim" in facts:
        known["head_dim"] = facts["run.head_dim"]
    if not latent and facts.get("run.grouped", "run.kv_groups" in facts):
        known["kv_heads"] = facts.get("run.kv_groups", 1)
    experts = read.whole_number("model.experts", 0)
    if experts:
        known |= {"experts": experts, "top_k": facts.get("model.top_k", 2)}
        known["ffn_hidden"] = facts.get("run.expert_ffn", facts.get("run.ffn"))
        if facts.get("model.shared_expert_ffn"):
            known["shared_expert_ffn"] = facts["model.shared_expert_ffn"]
        dense = _dense_layers(facts.get("run.expert_layers"), known.get("layers"), read, where)
        if dense:
            known |= {"dense_layers": dense, "dense_ffn_hidden": facts.get("run.ffn")}
    elif "run.ffn" in facts:
        known["ffn_hidden"] = facts["run.ffn"]
    vocab = _vocabulary(read)
    if vocab is not None:
        known["vocab"] = vocab
    if facts.get("run.learned") and "run.positions" in facts:
        known["learned_positions"] = facts["run.positions"]
    known |= {name: facts[f"model.{name}"] for name in _PLAIN if facts.get(f"model.{name}") is not None}
    return {key: value for key, value in known.items() if value is not None}


def _dense_layers(pattern: object, layers: object, read: Read, where: str) -> int:
    """Layers without experts, which must be the first ones."""
    if not isinstance(pattern, list) or pattern == [1]:
        return 0
    name = read.origins["run.expert_layers"]
    if pattern[0] != -1:
        raise UserInputError(f"{where}: {name}: only every {pattern[0]}th layer has experts; not supported")
    own = pattern[1:]
    first = own.index(1) if 1 in own else len(own)
    if own != [0] * first + [1] * (len(own) - first):
        raise UserInputError(f"{where}: {name}: dense layers are not the first ones; not supported")
    if isinstance(layers, int) and len(own) != layers:
        raise UserInputError(f"{where}: {name} lists {len(own)} layers of {layers}")
    return first


def _vocabulary(read: Read) -> int | None:
    """Rows of the embedding: padded to a multiple for every GPU of a tensor-parallel group."""
    facts = read.facts
    if "run.padded_vocab" in facts:
        return read.whole_number("run.padded_vocab")
    if "run.vocab" not in facts:
        return None
    vocab = read.whole_number("run.vocab")
    if facts.get("run.pad_vocab", "run.vocab_multiple" in facts):
        multiple = read.whole_number("run.vocab_multiple", _MULTIPLE) * read.whole_number("layout.tp")
        vocab = -(-vocab // max(1, multiple)) * multiple
    return vocab


def _check_same(base: Model, known: dict[str, Any], read: Read, where: str) -> None:
    """Raise UserInputError where the file says otherwise of the model than *base*."""
    sources = {"ffn_hidden": "run.ffn", "kv_heads": "run.kv_groups", "head_dim": "run.head_dim"}
    for name, value in known.items():
        origin = read.origins.get(f"model.{name}", read.origins.get(sources.get(name, ""), ""))
        if not origin or origin.startswith("default") or name in ("latent_attention", "vocab", "dropout"):
            continue
        default = getattr(base, name)
        if default != value:
            raise UserInputError(f"{where}: {origin}: {name} {value} contradicts {default} of {base.name}")


def catalog_name(document: dict[str, Any], name: str, where: str) -> tuple[str | None, Model]:
    """The shipped model of exactly that shape, or None; and the model.

    Raises:
        ScenarioError: the keys are no model.
    """
    problems = Problems(where)
    model = catalog.model_entry({**document, "name": name}, problems, "model")
    problems.raise_if_any()
    assert model is not None
    return named_alike(model), model


def named_model(name: str) -> Model:
    """The model that a user names: a shipped one, or that of a file."""
    if not name.lower().endswith((".json", ".yaml", ".yml")):
        return catalog.model(name)
    path = Path(name)
    return model_from_hf_config(path)[0] if path.suffix.lower() == ".json" else catalog.load_model(path)


def named_alike(model: Model) -> str | None:
    """The shipped model of the same shape, whatever its name."""
    for name in catalog.names("model"):
        if replace(catalog.model(name), name=model.name, source=model.source) == model:
            return name
    return None


def model_facts(model: Model, tp: int) -> dict[str, object]:
    """What tables know of a model."""
    latent = model.latent_attention
    facts: dict[str, object] = {f"model.{item.name}": getattr(model, item.name) for item in fields(Model)}
    for name in ("name", "source", "latent_attention", "head_dim", "kv_heads", "ffn_hidden", "vocab", "dense_layers",
                 "dense_ffn_hidden", "learned_positions"):  # fmt: skip
        del facts[f"model.{name}"]
    dense = model.dense_layers if model.experts else 0
    facts |= {
        "run.latent": latent is not None,
        "run.grouped": latent is None and model.kv_heads != model.heads,
        "run.ffn": model.dense_ffn_hidden if dense else model.ffn_hidden,
        "run.learned": model.learned_positions > 0,
        "model.full_attention_every": model.full_attention_every or None,
        "model.experts": model.experts or None,
        "model.mtp_layers": model.mtp_layers or None,
        "model.shared_expert_ffn": model.shared_expert_ffn or None,
        "run.vocab": model.vocab,
        "run.vocab_multiple": gcd(model.vocab // tp, _MULTIPLE) if model.vocab % tp == 0 else 1,
    }
    if model.learned_positions:
        facts["run.positions"] = model.learned_positions
    if latent is None:
        facts["run.head_dim"] = model.head_dim
        if model.kv_heads != model.heads:
            facts["run.kv_groups"] = model.kv_heads
    else:
        facts |= {f"run.{item.name}": getattr(latent, item.name) for item in fields(LatentAttention)}
        facts["run.qk_head_dim"] = facts.pop("run.qk_nope_head_dim")
        if not latent.q_lora_rank:
            facts["run.q_lora_rank"] = None
    if model.experts:
        facts["run.expert_ffn"] = model.ffn_hidden
        if dense:
            facts["run.expert_layers"] = f"[0]*{dense}+[1]*{model.layers - dense}"
    return facts


def size_words(model: Model) -> str:
    """How many parameters, to compare with what is published: `8.03B parameters`.

    Files of weights may hold a shared matrix twice, and layers of multi-token prediction.
    """
    shared = ", the head is the embedding" if model.tied_embeddings else ""
    predicting = ", without multi-token prediction" if model.mtp_layers else ""
    return f"{large_amount(parameters(model).total)} parameters{shared}{predicting}"
