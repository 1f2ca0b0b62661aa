"""Which model a run trained: the catalog's of that name, that of a file, or the one its columns describe."""

from __future__ import annotations

import re
from functools import lru_cache

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.hf_config import model_from_hf_config
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError, InfeasibleError
from hdpsim.experiments.software.run_config import SHAPE, RunConfig
from hdpsim.quoting import quoted

GPT2_VOCABULARY = 51_200  # 50,257 tokens of GPT-2, padded as Megatron-LM does for tp 8
_SHAPE = ("layers", "hidden", "heads", "ffn_hidden")
# Statements about a model that the schema has no column for, as the notes of the records word them.
_FIRST_DENSE = re.compile(r"first (\d+) layers? dense ffn (\d+)")
_DENSE_LAYERS = re.compile(r"\bdense_layers=(\d+)")
_MOE_EVERY = re.compile(r"MoE every (\d+)(?:st|nd|rd|th) layer.*?dense layers ffn (\d+)")


def is_model_file(name: str) -> bool:
    """Whether the name of a model is that of a file: a `config.json`, or one of hdpsim's own."""
    return name.endswith((".json", ".yaml", ".yml"))


@lru_cache(maxsize=64)
def model_of_file(path: str) -> Model:
    """The model of a file; raises CatalogError and what reading of YAML raises."""
    return model_from_hf_config(path)[0] if path.endswith(".json") else catalog.load_model(path)


def named_model(config: RunConfig) -> Model | None:
    """A scenario's model; of a record the catalog's of that name, or that of the file."""
    if config.model is not None:
        return config.model
    name = config.model_name
    try:
        return (model_of_file(name) if is_model_file(name) else catalog.model(name)) if name else None
    except CatalogError:
        return None


def known_model(config: RunConfig) -> Model | None:
    """The catalog's model of that name and width."""
    known = named_model(config)
    return known if known is not None and known.hidden == config.hidden else None


def latent_model(config: RunConfig) -> Model | None:
    """The catalog's model of that name, width and heads, if it has latent attention."""
    known = known_model(config)
    return known if known is not None and known.latent_attention and known.heads == config.heads else None


def other_sizes(config: RunConfig, known: Model) -> list[str]:
    """The columns of a shape that state something else than a model has."""
    stated = ((column, getattr(config, column), getattr(known, name)) for column, name in SHAPE.items())
    return [column for column, value, own in stated if value is not None and value != own]


def hybrid_model(config: RunConfig) -> Model | None:
    """The catalog's model of that name, if it is a hybrid.

    Raises:
        InfeasibleError: the record has another shape.
    """
    known = named_model(config)
    if known is None or not known.layer_pattern:
        return None
    others = other_sizes(config, known)
    if others:
        raise InfeasibleError(
            f"{known.name} is a hybrid whose {', '.join(others)} the record states otherwise: the pattern of its "
            "layers is not known then"
        )
    return known


def model_of(config: RunConfig, seq_len: int, assumptions: list[str]) -> Model:
    """The model of the shape columns; GPT conventions where the MLP has no gate, Llama's where it has.

    No column holds the pattern of a hybrid: the catalog's model of that name and shape is the whole answer.
    """
    hybrid = hybrid_model(config)
    if hybrid is not None:
        assumptions.append(f"layers of {hybrid.name}")
        return hybrid
    layers, hidden, heads, ffn_hidden = (_needed_shape(config, column) for column in _SHAPE)
    gated = config.gated_mlp
    if gated is None:
        gated = True
        assumptions.append("gated MLP")
    vocab = config.vocab
    if vocab is None:
        vocab = GPT2_VOCABULARY
        assumptions.append(f"vocabulary of {vocab:,} tokens")
    experts, top_k = config.n_experts or 0, config.topk or 0
    if experts and not top_k:
        raise InfeasibleError("topk is not stated, but n_experts is")
    of_latent = latent_model(config) if config.kv_heads is None else None
    latent = None if of_latent is None else of_latent.latent_attention
    if of_latent is not None:
        assumptions.append(f"latent attention of {of_latent.name}")
    if latent is None and config.kv_heads is None:
        raise InfeasibleError("kv_heads is not stated")
    if latent is None and config.heads and config.kv_heads and config.heads % config.kv_heads:
        raise InfeasibleError(f"kv_heads = {config.kv_heads} does not divide the {config.heads} heads")
    head_dim = config.head_dim or (latent.v_head_dim if latent else hidden // heads)
    if config.head_dim is None and latent is None:
        assumptions.append(f"head_dim {head_dim}")
    dense_layers, dense_ffn = _dense_layers(config, layers) if experts else (0, 0)
    known = None if gated else known_model(config)
    of_gpt = not gated and (known is None or known.biases)
    if known is not None and not known.biases:
        assumptions.append(f"no biases, positions or tied embeddings, as {known.name}")
    return Model(
        name=config.model_name or "model", layers=layers, hidden=hidden, heads=heads,
        kv_heads=config.kv_heads or heads, head_dim=head_dim, ffn_hidden=ffn_hidden, vocab=vocab, gated_mlp=gated,
        experts=experts, top_k=top_k, shared_expert_ffn=config.shared_expert_ffn or 0, dense_layers=dense_layers,
        dense_ffn_hidden=dense_ffn, latent_attention=latent, norm="rms" if gated else "layer", biases=of_gpt,
        tied_embeddings=of_gpt, learned_positions=seq_len if of_gpt else 0,
    )  # fmt: skip


def _needed_shape(config: RunConfig, column: str) -> int:
    """A size of the model, which no model of that name tells."""
    stated = getattr(config, column)
    if stated is not None:
        return int(stated)
    missing = [each for each in _SHAPE if getattr(config, each) is None]
    known = named_model(config)
    if known is not None:
        why = f"and {known.name} has other {', '.join(other_sizes(config, known))} than the record"
    elif config.model_name:
        why = f"and the catalog has no model {quoted(config.model_name)} (`hdpsim catalog models`)"
    else:
        why = "and no model is named"
    raise InfeasibleError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not stated, {why}")


def _dense_layers(config: RunConfig, layers: int) -> tuple[int, int]:
    """Dense layers of a mixture-of-experts model and their width, as far as the notes tell."""
    every = _MOE_EVERY.search(config.notes)
    if every:
        return layers - layers // int(every[1]), int(every[2])
    first, stated = _FIRST_DENSE.search(config.notes), _DENSE_LAYERS.search(config.notes)
    if not first:
        return 0, 0
    return min(layers, int((stated or first)[1])), int(first[2])
