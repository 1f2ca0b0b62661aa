"""What a record says of recomputation: which part of a layer its stack runs again.

A policy keeps whole layers, or the outputs of named operations. What a repeated forward computes last nobody reads
(the output of the MLP's last matrix is no input of any gradient), and compilers drop it: XLA, torch.compile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cost_models import catalog
from experiments.record_frameworks import is_pytorch, states_compile
from experiments.records import RunConfig
from hdpsim.errors import CatalogError

__all__ = [
    "recompute_attention",
    "recompute_collectives",
    "recompute_mode",
    "recompute_products",
    "recompute_share",
    "recompute_small_kernels",
]

Finding = tuple[object, str] | None

_WHOLE_LAYERS = re.compile(r"selective layer")
_KEPT_PRODUCTS = {
    # MaxText, layers/decoders.py (get_remat_policy): names of the outputs that are kept
    "save_qkv_proj": ("projections",),
    "save_dot_except_mlp": ("projections", "output"),
    "save_dot_except_mlpwi": ("projections", "output"),
}


@dataclass(frozen=True, slots=True)
class _Products:
    """FLOP of a dense layer's matrix products, any unit."""

    queries: float
    keys: float
    values: float
    output: float
    gate: float
    up: float
    down: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.queries + self.keys + self.values + self.output + self.gate + self.up + self.down


def _products(config: RunConfig) -> _Products | None:
    if config.hidden is None or config.ffn_hidden is None or config.heads is None or config.n_experts:
        return None
    hidden, ffn = float(config.hidden), float(config.ffn_hidden)
    width = (config.head_dim or hidden / config.heads) * config.heads
    of_keys = hidden * width * (config.kv_heads or config.heads) / config.heads
    return _Products(
        queries=hidden * width,
        keys=of_keys,
        values=of_keys,
        output=hidden * width,
        gate=hidden * ffn if config.gated_mlp else 0.0,
        up=hidden * ffn,
        down=hidden * ffn,
    )


def recompute_mode(config: RunConfig) -> Finding:
    """`recompute` where its column is empty.

    Paxml keeps nothing of a large language model's layer (tasks/lm/params/c4.py, C4SpmdGpt3Adam: CHECKPOINT_POLICY =
    SAVE_NOTHING); the others: nothing is repeated.
    """
    if config.recompute is not None:
        return None
    if "Paxml" in config.framework:
        return "full", "full recomputation (the framework's configuration)"
    return "none", "no recomputation"


def recompute_share(config: RunConfig) -> Finding:
    """Share of a layer that "selective" of a stack repeats: half the blocks, or all but what a policy keeps."""
    if config.recompute != "selective":
        return None
    if _by_operation(config):
        return 1.0, "selective recomputation of operations, the next matrix product but one kept"
    if _experts_again(config) is not None:
        return 1.0, ""
    if any(name in config.framework for name in ("torchtitan", "fms-fsdp")):
        return 0.5, "selective recomputation of every other layer"
    policy = _remat_policy(config)
    return (1.0, f"{policy}: everything else is repeated") if policy and _products(config) else None


def recompute_products(config: RunConfig) -> Finding:
    """Share of the matrix products that runs again.

    torchtitan's policy by operation keeps every other output of aten.mm, counted from the first (queries, values, up,
    down), and none of the products of narrow numbers, which are other operations; what is compiled never repeats the
    last. Source: torchtitan, distributed/activation_checkpoint.py (_save_list, _custom_policy);
    functorch.compile, min_cut_rematerialization_partition (dead code of the backward is dropped). JAX: what MaxText's
    policy does not name, but the last. Megatron-Core's mla_up_proj: what unfolds latent queries, keys and values.
    """
    unfolded = _latent_up_projections(config)
    if unfolded is not None:
        return unfolded, ""
    experts = _experts_again(config)
    if experts is not None:
        return experts, ""
    products = _products(config)
    if products is None:
        return None
    last = products.down / products.total
    if _by_operation(config):
        if config.precision not in (None, "bf16", "fp16"):
            return 1.0 - last, ""
        return (products.keys + products.output + products.gate) / products.total, ""
    policy = _remat_policy(config)
    if policy:
        kept = products.queries + products.keys + products.values
        kept += products.output if "output" in _KEPT_PRODUCTS[policy] else 0.0
        return 1.0 - last - kept / products.total, ""
    mode = config.recompute or (recompute_mode(config) or ("none",))[0]
    compiled = re.search(r"Paxml|MaxText", config.framework) or (
        is_pytorch(config) and states_compile(config)
    )
    return (1.0 - last, "") if compiled and mode == "full" else None


def _latent_up_projections(config: RunConfig) -> float | None:
    """Share of a layer's matrix products that unfolds latent queries, keys and values, where those are repeated.

    Source: Megatron-Core, TransformerConfig.recompute_modules.
    """
    if config.recompute != "selective" or not re.search(r"recompute[^;]*\b(?:mla_)?up_proj\b", config.notes):
        return None
    try:
        model = catalog.model(config.model_name)
    except CatalogError:
        return None
    latent, heads, hidden = model.latent_attention, model.heads, model.hidden
    if latent is None or (config.hidden, config.heads) != (hidden, heads):
        return None
    queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    up = latent.q_lora_rank * queries
    up += latent.kv_lora_rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    down = hidden * (latent.q_lora_rank + latent.kv_lora_rank + latent.qk_rope_head_dim)
    down += hidden * (queries if not latent.q_lora_rank else 0) + heads * latent.v_head_dim * hidden
    width = (config.topk or 0) * (config.ffn_hidden or 0) + (config.shared_expert_ffn or 0)
    return up / (up + down + 3.0 * hidden * width)


def recompute_attention(config: RunConfig) -> Finding:
    """The policy by operation of torchtitan keeps the output of flash attention; experts have none."""
    return (0.0, "") if _by_operation(config) or _experts_again(config) is not None else None


def recompute_collectives(config: RunConfig) -> Finding:
    """The same policy keeps what reduce-scatters put out, not what all-gathers do: half of the forward's."""
    if _experts_again(config) is not None:
        return 0.0, ""
    return (0.5, "") if _by_operation(config) else None


def _modules(config: RunConfig) -> set[str]:
    """Modules of a layer that a recipe of Megatron-Core repeats (--recompute-modules)."""
    stated = re.search(r"recompute[-_]modules[ =]+\[?([\w', ]+)", config.notes)
    selective = config.recompute == "selective" and stated is not None
    return set(re.findall(r"\w+", stated[1])) if selective and stated else set()


def _experts_again(config: RunConfig) -> float | None:
    """Share of a layer's matrix products in its experts, where the whole mixture-of-experts module is repeated.

    So are its all-to-alls and, nearly all in a layer, its small kernels.
    Source: Megatron-Core, TransformerConfig.recompute_modules ("moe").
    """
    known = config.hidden and config.heads and config.kv_heads and config.ffn_hidden and config.topk
    if "moe" not in _modules(config) or not known:
        return None
    hidden, heads, kv_heads = (float(size or 0) for size in (config.hidden, config.heads, config.kv_heads))
    attention = hidden * (config.head_dim or hidden / heads) * (2.0 * heads + 2.0 * kv_heads)
    width = float((config.topk or 0) * (config.ffn_hidden or 0) + (config.shared_expert_ffn or 0))
    experts = (2.0 if config.gated_mlp is False else 3.0) * hidden * width
    return experts / (attention + experts)


def _by_operation(config: RunConfig) -> bool:
    """The default of torchtitan's selective recomputation (selective_ac_option = "op")."""
    selective = config.recompute == "selective" and "torchtitan" in config.framework
    return selective and not _WHOLE_LAYERS.search(config.notes) and _products(config) is not None


def _remat_policy(config: RunConfig) -> str | None:
    """MaxText's policy, where it is a known one."""
    policy = re.search(r"remat_policy: (save_\w+)", config.notes)
    return policy[1] if policy and config.recompute == "selective" and policy[1] in _KEPT_PRODUCTS else None


def recompute_small_kernels(config: RunConfig) -> Finding:
    """Whether norms and the experts' activation are among the modules that a recipe of Megatron-Core repeats."""
    modules = _modules(config)
    return (True, "") if {"layernorm", "moe_act"} <= modules and _experts_again(config) is None else None
