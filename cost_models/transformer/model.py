"""What is trained: the shape of a transformer. Counts only, no hardware."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hdpsim.cost_models.reading.checked import Amount, Checked, Count, Number

AdapterTargets = Literal["qkv", "attention", "all"]
NormKind = Literal["rms", "layer"]
LETTERS = {"M": "Mamba-2", "*": "attention", "-": "MLP", "E": "mixture of experts"}
"""Megatron-Core's: Symbols in megatron/core/ssm/mamba_hybrid_layer_allocation.py."""
MOST_LAYERS = 10_000  # of a pattern written out
_TOKEN = re.compile(r"(\d*)([M*E(-])|(\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Checked):
    """Multi-head latent attention (DeepSeek-V2/V3): low-rank queries and keys/values."""

    q_lora_rank: Number
    """0 = queries are projected directly."""
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Number
    v_head_dim: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba(Checked):
    """A Mamba-2 layer: heads that each carry a state of head_dim x state from token to token (arXiv 2405.21060)."""

    heads: Count
    head_dim: Count
    state: Count
    """Width of the state that every element of a head has (N)."""
    groups: Count = 1
    """Groups of heads that share what writes to the state and what reads it (B and C)."""
    conv: Count = 4
    """Tokens that the convolution before the scan sees."""
    chunk: Count = 128
    """Tokens that the scan takes at once as matrix products."""

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Width of what passes the convolution: the input of the heads, B and C."""
        return self.inner + 2 * self.groups * self.state

    def contradictions(self) -> tuple[tuple[str, str], ...]:
        """Groups must divide the heads."""
        if self.heads % self.groups:
            return (("groups", f"must divide the {self.heads} heads, got {self.groups}"),)
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Checked):
    """A decoder-only transformer, or a hybrid of such layers' parts and Mamba-2 (layer_pattern).

    `ffn_hidden` is the width of one expert in mixture-of-experts layers. With `dense_layers` > 0 the first
    that many layers are dense, of width `dense_ffn_hidden` (DeepSeek-V3: 3 of 61).
    """

    name: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn_hidden: Count
    vocab: Count
    gated_mlp: bool = True
    """SwiGLU-like MLP of three matrices; False: two."""
    tied_embeddings: bool = False
    experts: Number = 0
    """Experts of an MoE layer; 0 = dense model."""
    top_k: Number = 0
    shared_expert_ffn: Number = 0
    """Width of the always-active expert(s) beside the routed ones; 0 = none."""
    dense_layers: Number = 0
    dense_ffn_hidden: Number = 0
    latent_attention: LatentAttention | None = None
    sliding_window: Count | None = None
    """Attention reaches this many tokens back; None = all."""
    full_attention_every: Amount = 0
    """With a window: every so many layers one attends to everything (2: every second; 4/3: three of four); 0 = none."""
    chunked_attention: bool = False
    """The window is a fixed chunk of the sequence: attention never leaves it."""
    parallel_block: bool = False
    """Attention and MLP read the same normalised input (one norm, one TP all-gather/reduce-scatter pair)."""
    norm: NormKind = "rms"
    biases: bool = False
    """Linear layers and norms carry biases (GPT family)."""
    qkv_biases: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised, head by head (Qwen3)."""
    expert_biases: bool = False
    """The routed experts' matrices carry biases (gpt-oss)."""
    clamped_activation: bool = False
    """Gate and up projection are limited to a range before they are multiplied (gpt-oss)."""
    scaled_rotary: bool = False
    """No fused kernel does the rotary embedding: it also scales attention (YaRN's concentration), or is that of latent
    attention in a stack without such a kernel."""
    dropout: bool = False
    """Trained with dropout on attention weights and on the outputs of attention and MLP (GPT-2 and GPT-3 recipes)."""
    learned_positions: Number = 0
    """Rows of a learned position table; 0 = rotary."""
    mtp_layers: Number = 0
    """Multi-token-prediction layers (DeepSeek-V3: 1); 0 = none."""
    layer_pattern: str = ""
    """Of a hybrid the one part of every layer: M Mamba-2, * attention, - MLP, E experts; "3(ME)*" becomes "MEMEME*"."""
    mtp_pattern: str = ""
    """Of a hybrid the layers of one multi-token-prediction layer, in the same letters."""
    mamba: Mamba | None = None
    """Sizes of the Mamba-2 layers."""
    expert_latent: Number = 0
    """Width to which tokens are projected before they go to the routed experts (latent experts); 0 = none."""
    adapter_rank: Number = 0
    """Rank of trained adapters beside weights that are all frozen (LoRA); 0 = every weight is trained."""
    adapter_targets: AdapterTargets = "attention"
    """Matrices with an adapter: the one of queries, keys and values; also attention's output; also the MLP's."""
    adapter_dropout: bool = False
    """Adapters are trained with dropout on what they read."""
    source: str = ""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for key in ("layer_pattern", "mtp_pattern"):
            object.__setattr__(self, key, written_out(getattr(self, key)))

    @property
    def frozen(self) -> bool:
        """Whether only adapters are trained."""
        return self.adapter_rank > 0

    @property
    def query_dim(self) -> int:
        """Width of a head's queries and keys."""
        latent = self.latent_attention
        return latent.qk_nope_head_dim + latent.qk_rope_head_dim if latent else self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of a head's values."""
        return self.latent_attention.v_head_dim if self.latent_attention else self.head_dim

    @property
    def routed_hidden(self) -> int:
        """Width of a token on its way to the routed experts and back."""
        return self.expert_latent or self.hidden

    def contradictions(self) -> tuple[tuple[str, str], ...]:
        """Counts that do not go together, as (key, what is wrong)."""
        faults: list[tuple[str, str]] = []
        if self.heads % self.kv_heads:
            faults.append(("kv_heads", f"must divide the {self.heads} heads, got {self.kv_heads}"))
        if self.experts == 1:
            faults.append(("experts", "must be 0 (dense) or at least 2"))
        if self.experts and not 1 <= self.top_k <= self.experts:
            faults.append(("top_k", f"must be between 1 and the {self.experts} experts, got {self.top_k}"))
        if not self.experts:
            for key in ("top_k", "shared_expert_ffn", "dense_layers", "dense_ffn_hidden", "expert_latent"):
                if getattr(self, key):
                    faults.append((key, "only makes sense with experts"))
        if 0 < (every := self.full_attention_every) < 1:
            faults.append(("full_attention_every", f"must be 0 or at least 1, got {every}"))
        if self.adapter_rank > self.hidden:
            faults.append(("adapter_rank", f"must not exceed hidden {self.hidden}, got {self.adapter_rank}"))
        if (dense := self.dense_layers) > self.layers:
            faults.append(("dense_layers", f"must not exceed the {self.layers} layers, got {dense}"))
        if bool(self.dense_layers) != bool(self.dense_ffn_hidden) and self.experts:
            faults.append(("dense_ffn_hidden", "and dense_layers must be given together"))
        return (*faults, *_of_patterns(self))


def _of_patterns(model: Model) -> tuple[tuple[str, str], ...]:
    """What is wrong with the patterns of a hybrid, and with what the letters need."""
    faults: list[tuple[str, str]] = []
    letters: dict[str, str] = {}
    for key in ("layer_pattern", "mtp_pattern"):
        try:
            letters[key] = written_out(getattr(model, key))
        except ValueError as error:
            faults.append((key, str(error)))
    if faults:
        return tuple(faults)
    if not letters["layer_pattern"]:
        return tuple((key, "only makes sense with layer_pattern") for key in ("mtp_pattern", "mamba")
                     if getattr(model, key))  # fmt: skip
    if (held := len(letters["layer_pattern"])) != model.layers:
        faults.append(("layer_pattern", f"has {held} layers, layers says {model.layers}"))
    if bool(letters["mtp_pattern"]) != bool(model.mtp_layers):
        faults.append(("mtp_pattern", "and mtp_layers must be given together in a hybrid"))
    used = set("".join(letters.values()))
    for letter, key, size in (("M", "mamba", model.mamba), ("E", "experts", model.experts)):
        if letter in used and not size:
            faults.append((key, f"is required: the pattern has layers {letter}"))
        elif size and letter not in used:
            faults.append((key, f"only makes sense with layers {letter} in the pattern"))
    for key in ("dense_layers", "parallel_block", "adapter_rank"):
        if getattr(model, key):
            faults.append((key, "is not modelled in a hybrid (layer_pattern)"))
    return tuple(faults)


def dense_layer_count(model: Model) -> int:
    """Layers without routed experts."""
    return model.dense_layers if model.experts else model.layers


def dense_width(model: Model) -> int:
    """Width of the MLP of a dense layer."""
    return model.dense_ffn_hidden if model.experts and model.dense_ffn_hidden else model.ffn_hidden


def written_out(pattern: str) -> str:
    """The letters of *pattern*, one for every layer: "3(ME)2M*" is "MEMEMEMM*".

    Raises:
        ValueError: an unknown letter, a bracket without its partner, or more than MOST_LAYERS layers.
    """
    open_parts: list[tuple[int, str]] = []
    letters, place = "", 0
    while place < len(pattern):
        token = _TOKEN.match(pattern, place)
        if token is None:
            known = ", ".join(f"{letter} {what}" for letter, what in LETTERS.items())
            raise ValueError(
                f"has {pattern[place]!r} at place {place + 1}; letters are {known}; a number before a letter or before "
                "(...) repeats it"
            )
        times = min(int(token[1][:9]), MOST_LAYERS + 1) if token[1] else 1
        if token[3]:
            if not open_parts:
                raise ValueError(f"closes a bracket at place {place + 1} that was not opened")
            outer_times, outer = open_parts.pop()
            letters = _repeated(outer, letters, outer_times)
        elif token[2] == "(":
            open_parts.append((times, letters))
            letters = ""
        else:
            letters = _repeated(letters, token[2], times)
        place = token.end()
    if open_parts:
        raise ValueError("opens a bracket that is not closed")
    return letters


def _repeated(before: str, part: str, times: int) -> str:
    if len(before) + len(part) * times > MOST_LAYERS:
        raise ValueError(f"has more than {MOST_LAYERS:,} layers")
    return before + part * times
