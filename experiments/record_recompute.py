"""What a record says of selective recomputation: which part of a layer its stack runs again."""

from __future__ import annotations

import re

from experiments.records import RunConfig

__all__ = ["recompute_share", "recompute_small_kernels"]


def recompute_share(config: RunConfig) -> tuple[object, str] | None:
    """Share of a layer that "selective" of a stack repeats: half the blocks or products, or what a policy drops."""
    if config.recompute != "selective":
        return None
    if any(name in config.framework for name in ("torchtitan", "fms-fsdp")):
        return 0.5, "selective recomputation of every other layer or matrix product"
    policy = re.search(r"remat_policy: (save_\w+)", config.notes)
    sizes = config.hidden, config.ffn_hidden, config.heads
    if policy is None or None in sizes:
        return None
    hidden, ffn, heads = (float(size or 0) for size in sizes)
    head_dim = config.head_dim or hidden / heads
    projections = hidden * head_dim * (heads + 2.0 * (config.kv_heads or heads))
    output, up, down = (
        hidden * head_dim * heads,
        (2.0 if config.gated_mlp else 1.0) * hidden * ffn,
        hidden * ffn,
    )
    repeated = {
        "save_qkv_proj": output + up + down,
        "save_dot_except_mlp": up + down,
        "save_dot_except_mlpwi": up,
    }.get(policy[1])
    if repeated is None:
        return None
    return repeated / (
        projections + output + up + down
    ), f"{policy[1]}: the other matrix products are repeated"


def recompute_small_kernels(config: RunConfig) -> tuple[object, str] | None:
    """Whether norms and the experts' activation are among the modules that a recipe of Megatron-Core repeats."""
    modules = re.search(r"recompute_modules=\[([^\]]*)\]", config.notes)
    if config.recompute != "selective" or modules is None:
        return None
    return (True, "") if "layernorm" in modules[1] and "moe_act" in modules[1] else None
