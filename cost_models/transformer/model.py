"""What is trained: the shape of a transformer. Counts only, no hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hdpsim.cost_models.reading.checked import Amount, Checked, Count, Number

AdapterTargets = Literal["qkv", "attention", "all"]
NormKind = Literal["rms", "layer"]


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
class Model(Checked):
    """A decoder-only transformer.

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
    adapter_rank: Number = 0
    """Rank of trained adapters beside weights that are all frozen (LoRA); 0 = every weight is trained."""
    adapter_targets: AdapterTargets = "attention"
    """Matrices with an adapter: the one of queries, keys and values; also attention's output; also the MLP's."""
    source: str = ""

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

    def contradictions(self) -> tuple[tuple[str, str], ...]:
        """Counts that do not go together, as (key, what is wrong)."""
        found: list[tuple[str, str]] = []
        if self.heads % self.kv_heads:
            found.append(("kv_heads", f"must divide the {self.heads} heads, got {self.kv_heads}"))
        if self.experts == 1:
            found.append(("experts", "must be 0 (dense) or at least 2"))
        if self.experts and not 1 <= self.top_k <= self.experts:
            found.append(("top_k", f"must be between 1 and the {self.experts} experts, got {self.top_k}"))
        if not self.experts:
            for key in ("top_k", "shared_expert_ffn", "dense_layers", "dense_ffn_hidden"):
                if getattr(self, key):
                    found.append((key, "only makes sense with experts"))
        if 0 < self.full_attention_every < 1:
            found.append(
                ("full_attention_every", f"must be 0 or at least 1, got {self.full_attention_every}")
            )
        if self.adapter_rank > self.hidden:
            found.append(("adapter_rank", f"must not exceed hidden {self.hidden}, got {self.adapter_rank}"))
        if self.dense_layers > self.layers:
            found.append(
                ("dense_layers", f"must not exceed the {self.layers} layers, got {self.dense_layers}")
            )
        if bool(self.dense_layers) != bool(self.dense_ffn_hidden) and self.experts:
            found.append(("dense_ffn_hidden", "and dense_layers must be given together"))
        return tuple(found)


def dense_layer_count(model: Model) -> int:
    """Layers without routed experts."""
    return model.dense_layers if model.experts else model.layers


def dense_width(model: Model) -> int:
    """Width of the MLP of a dense layer."""
    return model.dense_ffn_hidden if model.experts and model.dense_ffn_hidden else model.ffn_hidden
