"""What rules of stacks ask about a run that no column holds, and the values that they compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError
from hdpsim.experiments.software.run import RunConfig

INTERLEAVED_YEAR = 2021  # the schedule's own: arXiv 2104.04473
MICRO_BATCHES_PER_STAGE = 2  # (p - 1) / (m + p - 1) is then a third
_INTERLEAVED = re.compile(r"1F1B-I|(?i:(?<!not )(?<!non-)\binterleav)")
_BUCKET = re.compile(r"DDP bucket (\d+) ?MB")
_MODULES = re.compile(r"recompute[-_]modules[ =]+\[?([\w', ]+)")
_POLICY = re.compile(r"remat_policy: (save_\w+)")
_BYTES_PER_PARAMETER = 2.0  # torch's DDP counts gradients as the parameters are: 16 bits
_GPUS_OF_A_SERVER = 8
_KEEPS_OUTPUT = {
    # MaxText, layers/decoders.py (get_remat_policy): whether the output of attention's last matrix is kept, too
    "save_qkv_proj": False,
    "save_dot_except_mlp": True,
    "save_dot_except_mlpwi": True,
}


@dataclass
class Run:
    """A run as the rules see it.

    Attributes:
        config: what was run, column by column.
        without: classes of rules that are not asked.
        settings: switches that were looked up already.
    """

    config: RunConfig
    without: frozenset[str] = frozenset()
    settings: dict[str, object] = field(default_factory=dict)

    @cached_property
    def gpu(self) -> str:
        """The catalog's name of the GPU; empty where it has none."""
        try:
            return catalog.gpu(self.config.gpu).name
        except CatalogError:
            return ""

    @cached_property
    def generation(self) -> str:
        """The calibration of the GPU."""
        return catalog.gpu(self.gpu).calibration if self.gpu else ""

    def number(self, column: str) -> float | None:
        """A number of a column; degrees that nobody states are 1, experts 0."""
        if column == "sequences_per_replica":
            return _sequences_per_replica(self.config)
        value: float | None = getattr(self.config, column)
        if value is None and column in ("tp", "pp", "cp", "ep"):
            return 1
        return value or 0 if column == "n_experts" else value


def known_model(config: RunConfig) -> Model | None:
    """The catalog's model of that name and width."""
    try:
        known = catalog.model(config.model_name)
    except CatalogError:
        return None
    return known if known.hidden == config.hidden else None


def interleaves(run: Run) -> bool:
    """Whether stages hold several chunks of layers: printed, said, or what the stack does."""
    from hdpsim.experiments.software.rules import setting_of

    config = run.config
    if (config.pp or 1) == 1:
        return False
    if config.vpp is not None:
        return config.vpp > 1
    if _INTERLEAVED.search(f"{config.framework} {config.notes}"):
        return True
    return any(setting_of(run, switch) is not None for switch in ("chunks", "interleaves"))


def _short_pipeline(run: Run) -> bool:
    """Whether so few sequences pass a pipeline that without chunks it would idle for a third of the step and more."""
    config = run.config
    if config.year is None or config.year <= INTERLEAVED_YEAR:
        return False
    if not config.global_batch_seqs or not config.n_gpus:
        return False
    pp = config.pp or 1
    ranks = max(1, config.n_gpus // ((config.tp or 1) * pp * (config.cp or 1)))
    return config.global_batch_seqs / ranks / (config.micro_batch or 1) <= MICRO_BATCHES_PER_STAGE * pp


def _sequences_per_replica(config: RunConfig) -> float:
    replica = (config.tp or 1) * (config.pp or 1) * (config.cp or 1)
    return (config.global_batch_seqs or 0) * replica / config.n_gpus if config.n_gpus else 0.0


def _experts_fill_the_stage(run: Run) -> bool:
    """Whether the GPUs of a stage divide by the degrees of experts and of tensors."""
    config = run.config
    stage = (config.n_gpus or 0) // (config.pp or 1)
    return stage % ((config.ep or 1) * (config.tp or 1)) == 0


def _latent_attention(run: Run) -> bool:
    known = known_model(run.config)
    return known is not None and known.latent_attention is not None


def _known_without_biases(run: Run) -> bool:
    known = known_model(run.config)
    return known is not None and not known.biases


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


def _all_but_the_last(config: RunConfig) -> float | None:
    """Compilers never repeat the layer's last product: no gradient reads what it puts out."""
    products = _products(config)
    return None if products is None else 1.0 - products.down / products.total


def _between_the_kept(config: RunConfig) -> float | None:
    """The policy by operation of torchtitan keeps every other output of aten.mm, counted from the first.

    So queries, values, up and down stay. Products of narrow numbers are other operations: none of them stays, but what
    is compiled never repeats the last.
    """
    products = _products(config)
    if products is None:
        return None
    if config.precision not in (None, "bf16", "fp16"):
        return 1.0 - products.down / products.total
    return (products.keys + products.output + products.gate) / products.total


def _not_kept_by_policy(config: RunConfig) -> float | None:
    """What MaxText's policy does not name is repeated, but the last product."""
    products, policy = _products(config), _POLICY.search(config.notes)
    if products is None or policy is None:
        return None
    kept = products.queries + products.keys + products.values
    kept += products.output if _KEEPS_OUTPUT[policy[1]] else 0.0
    return 1.0 - products.down / products.total - kept / products.total


def _latent_up_projections(config: RunConfig) -> float | None:
    """Share of a layer's matrix products that unfolds latent queries, keys and values."""
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


def repeated_modules(config: RunConfig) -> set[str]:
    """Modules of a layer that a recipe of Megatron-Core repeats (--recompute-modules)."""
    stated = _MODULES.search(config.notes)
    return set(re.findall(r"\w+", stated[1])) if config.recompute == "selective" and stated else set()


def _repeated_experts(config: RunConfig) -> float | None:
    """Share of a layer's matrix products in its experts, where the whole mixture-of-experts module is repeated.

    So are its all-to-alls and, nearly all in a layer, its small kernels.
    """
    known = config.hidden and config.heads and config.kv_heads and config.ffn_hidden and config.topk
    if "moe" not in repeated_modules(config) or not known:
        return None
    hidden, heads, kv_heads = (float(size or 0) for size in (config.hidden, config.heads, config.kv_heads))
    attention = hidden * (config.head_dim or hidden / heads) * (2.0 * heads + 2.0 * kv_heads)
    width = float((config.topk or 0) * (config.ffn_hidden or 0) + (config.shared_expert_ffn or 0))
    experts = (2.0 if config.gated_mlp is False else 3.0) * hidden * width
    return experts / (attention + experts)


def _stated_bucket(config: RunConfig) -> float | None:
    stated = _BUCKET.search(config.notes)
    return float(stated[1]) * 2**20 / _BYTES_PER_PARAMETER if stated else None


def _ranks_of_a_server(config: RunConfig) -> int:
    return max(1, (config.gpus_per_node or _GPUS_OF_A_SERVER) // (config.tp or 1))


FACTS: dict[str, Callable[[Run], bool]] = {
    "dense_shape": lambda run: _products(run.config) is not None,
    "experts_fill_the_stage": _experts_fill_the_stage,
    "experts_repeated": lambda run: _repeated_experts(run.config) is not None,
    "interleaves": interleaves,
    "known_without_biases": _known_without_biases,
    "latent_attention": _latent_attention,
    "one_expert_per_gpu": lambda run: run.config.n_experts == (run.config.ep or 1),
    "short_pipeline": _short_pipeline,
}
"""Facts that conditions may ask for with `is`."""

COMPUTED: dict[str, Callable[[RunConfig], object]] = {
    "all_but_the_last_product": _all_but_the_last,
    "latent_up_projections": _latent_up_projections,
    "products_between_the_kept": _between_the_kept,
    "products_no_policy_keeps": _not_kept_by_policy,
    "ranks_of_a_server": _ranks_of_a_server,
    "repeated_experts": _repeated_experts,
    "stated_bucket": _stated_bucket,
}
"""Values that rules compute; None: the rule does not apply."""
