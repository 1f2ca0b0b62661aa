"""What rules of stacks ask about a run that no column holds, and the values that they compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Node
from hdpsim.cost_models.memory.activations import LayerActivations
from hdpsim.cost_models.transformer.layers import Matrix, layer_matrices
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError
from hdpsim.experiments.software.model_of_run import known_model, latent_model, named_model
from hdpsim.experiments.software.run_config import RunConfig

INTERLEAVED_YEAR = 2021  # the schedule's own: arXiv 2104.04473
MICRO_BATCHES_PER_STAGE = 2  # (p - 1) / (m + p - 1) is then a third
_INTERLEAVED = re.compile(r"1F1B-I|(?i:(?<!not )(?<!non-)\binterleav)")
_BUCKET = re.compile(r"DDP bucket (\d+) ?MB")
_MODULES = re.compile(r"recompute[-_]modules(?: from [^:;]*)?[ =:]+\[?([\w', ]+)")
_POLICY = re.compile(r"(?:remat_policy[:=]|checkpoint policy) ?(\w+)")
_LOCAL_BATCH = re.compile(r"(?i)local batch(?: size)?(?: of)?[ =:]*(\d+)")
_BYTES_PER_PARAMETER = 2.0  # torch's DDP counts gradients as the parameters are: 16 bits
_GPUS_OF_A_SERVER = 8
# MaxText, layers/decoders.py (get_remat_policy): products of attention that are kept; others keep all
_PRODUCTS = {"out_proj": {"attention_out"}, "qkv_proj": {"qkv"}, "except_mlp": {"qkv", "attention_out"}}


@dataclass
class Run:
    """A run as the rules see it.

    Attributes:
        config: what was run, column by column.
        without: rules that are not asked: classes, or switches of a stack ("megatron-core.dp_overlap").
        settings: switches that were looked up already.
        cp_is_planned: whether a planner chooses how many ranks share a sequence (cp: auto), so that several may.
    """

    config: RunConfig
    without: frozenset[str] = frozenset()
    cp_is_planned: bool = False
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
        if self.own_node is not None:
            return self.own_node.gpu.calibration
        return catalog.gpu(self.gpu).calibration if self.gpu else ""

    @property
    def own_node(self) -> Node | None:
        """The node of a scenario, or the one that a record describes instead of naming one of the catalog."""
        stated = self.config.node or dict(self.config.switches).get("node")
        return stated if isinstance(stated, Node) else None

    def number(self, column: str) -> float | None:
        """A number of a column; degrees that nobody states are 1, experts 0. A planned cp counts as 2: some share."""
        if column == "sequences_per_replica":
            return _sequences_per_replica(self.config)
        if column == "cp" and self.cp_is_planned:
            return 2
        value: float | None = getattr(self.config, column)
        if value is None and column in ("tp", "pp", "cp", "ep"):
            return 1
        return value or 0 if column == "n_experts" else value


def interleaves(run: Run) -> bool:
    """Whether stages hold several chunks of layers: printed, said, or what the stack does."""
    from hdpsim.experiments.software.rules import setting_of

    config = run.config
    if (config.pp or 1) == 1:
        return False
    if config.vpp is not None:
        return config.vpp > 1
    schedule = setting_of(run, "schedule")
    if schedule is not None:
        return schedule.value == "interleaved"
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
    ranks = max(1, config.n_gpus // config.replica_gpus)
    return config.global_batch_seqs / ranks / (config.micro_batch or 1) <= MICRO_BATCHES_PER_STAGE * (
        config.pp or 1
    )


def _accumulates(run: Run) -> bool:
    """Whether a step is known to have several micro-batches."""
    config = run.config
    sequences = config.grad_accum or _sequences_per_replica(config) / (config.micro_batch or 1)
    return sequences > 1


def _sequences_per_replica(config: RunConfig) -> float:
    return (config.global_batch_seqs or 0) * config.replica_gpus / config.n_gpus if config.n_gpus else 0.0


def _experts_fill_the_stage(run: Run) -> bool:
    """Whether the GPUs of a stage divide by the degrees of experts and of tensors."""
    config = run.config
    stage = (config.n_gpus or 0) // (config.pp or 1)
    return stage % ((config.ep or 1) * (config.tp or 1)) == 0


def _of_known_model(fits: Callable[[Model], bool]) -> Callable[[Run], bool]:
    """Whether the catalog has the run's model, by name and width, and it is such a one."""

    def test(run: Run) -> bool:
        known = known_model(run.config)
        return known is not None and fits(known)

    return test


def _layer(config: RunConfig, *, moe: bool) -> dict[str, Matrix] | None:
    """Matrices of a layer without latent attention, by name; None where the shape is not stated."""
    hidden, ffn, heads = config.hidden, config.ffn_hidden, config.heads
    if hidden is None or ffn is None or heads is None or heads % (config.kv_heads or heads):
        return None
    model = Model(
        name=config.model_name,
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=config.kv_heads or heads,
        head_dim=config.head_dim or hidden // heads,
        ffn_hidden=ffn,
        vocab=1,
        gated_mlp=config.gated_mlp is not False if moe else bool(config.gated_mlp),
        experts=max(config.topk or 0, 2) if moe else 0,
        top_k=config.topk or 0 if moe else 0,
        shared_expert_ffn=config.shared_expert_ffn or 0 if moe else 0,
    )
    return {matrix.name: matrix for matrix in layer_matrices(model, moe=moe)}


def _dense_layer(config: RunConfig) -> dict[str, Matrix] | None:
    return None if config.n_experts or _is_hybrid(config) else _layer(config, moe=False)


def _shares(layer: dict[str, Matrix]) -> dict[str, tuple[float, ...]]:
    """Of the FLOP of a dense layer's products the share of each part: queries, keys and values; gate and up."""
    total = sum(matrix.weights for matrix in layer.values())
    return {
        name: tuple(matrix.inputs * part / total for part in matrix.parts) for name, matrix in layer.items()
    }


def _all_but_the_last(config: RunConfig) -> float | None:
    """Compilers never repeat the layer's last product: no gradient reads what it puts out."""
    layer = _dense_layer(config)
    return None if layer is None else 1.0 - sum(_shares(layer)["mlp_down"])


def _between_the_kept(config: RunConfig) -> float | None:
    """The policy by operation of torchtitan keeps every other output of aten.mm, counted from the first.

    So queries, values, up and down stay, in 8 bits as in 16: torchao's narrow operands are a subclass of tensors whose
    product is aten.mm to the policy, which sees it before the subclass makes it a scaled one (float8_ops.py).
    """
    layer = _dense_layer(config)
    if layer is None:
        return None
    share = _shares(layer)
    gate = sum(share["mlp_up"][:-1])
    return share["qkv"][1] + sum(share["attention_out"]) + gate


def _not_kept_by_policy(config: RunConfig) -> float | None:
    """What the policy of MaxText or Paxml does not name is repeated, but the last product."""
    layer, policy = _dense_layer(config), _POLICY.search(config.words)
    if layer is None or policy is None:
        return None
    kept = next((names for word, names in _PRODUCTS.items() if word in policy[1]), layer.keys()) | {
        "mlp_down"
    }
    return float(sum(sum(parts) for name, parts in _shares(layer).items() if name not in kept))


def _latent_up_projections(config: RunConfig) -> float | None:
    """Share of a layer's matrix products that unfolds latent queries, keys and values."""
    met = None if latent_model(config) is None else _weights_of_a_token(config)
    return None if met is None else met["up"] / (met["attention"] + met["experts"])


def _weights_of_a_token(config: RunConfig) -> dict[str, float] | None:
    """Weights that a token meets in a mixture's layer: of attention, of what unfolds latent heads there, of experts."""
    layer = _layer(config, moe=True)
    if layer is None:
        return None
    latent = latent_model(config)
    attention = layer if latent is None else {m.name: m for m in layer_matrices(latent, moe=False)}
    return {
        "attention": float(sum(m.weights for m in attention.values() if m.block == "attention")),
        "up": float(sum(attention[name].weights for name in ("query_up", "kv_up") if name in attention)),
        "experts": sum(
            m.weights * m.experts_per_token for m in layer.values() if m.block in ("experts", "shared")
        ),
    }


def _kept_beside_up_projections(config: RunConfig) -> tuple[str, ...] | None:
    """What a latent-attention layer keeps where its up-projections are repeated: all but what they put out."""
    names = (field.name for field in fields(LayerActivations))
    if latent_model(config) is None:
        return None
    return tuple(name for name in names if name != "queries_keys_values")


def repeated_modules(config: RunConfig) -> set[str]:
    """Modules of a layer that a recipe of Megatron-Core repeats (--recompute-modules)."""
    stated = _MODULES.search(config.notes)
    return set(re.findall(r"\w+", stated[1])) if config.recompute == "selective" and stated else set()


def _repeated_experts(config: RunConfig) -> float | None:
    """Share of a layer's matrix products in its experts, where the whole mixture-of-experts module is repeated.

    Up-projections of latent attention are added where they are repeated, too. So are the experts' all-to-alls and,
    nearly all in a layer, its small kernels.
    """
    repeated = repeated_modules(config)
    known = config.hidden and config.heads and config.ffn_hidden and config.topk
    if "moe" not in repeated or not known or not (config.kv_heads or latent_model(config)):
        return None
    if _is_hybrid(config):
        return 1.0  # of the layers that have experts, and nothing else
    met = _weights_of_a_token(config)
    if met is None:
        return None
    up = met["up"] if repeated & {"mla_up_proj", "up_proj"} else 0.0
    return (met["experts"] + up) / (met["attention"] + met["experts"])


def _is_hybrid(config: RunConfig, mtp_layers: int = 0) -> bool:
    """Whether the model named has layers of several kinds, and so many of multi-token prediction."""
    known = named_model(config)
    return known is not None and bool(known.layer_pattern) and known.mtp_layers >= mtp_layers


def _stated_bucket(config: RunConfig) -> float | None:
    stated = _BUCKET.search(config.notes)
    return float(stated[1]) * 2**20 / _BYTES_PER_PARAMETER if stated else None


def _full_stages_first(config: RunConfig) -> str | None:
    """As many layers on every stage as divided and rounded up, the last one with what is left.

    None where the last stages would be without layers.
    """
    if config.layers is None or config.pp is None or config.vpp is None:
        return None
    stages = config.pp * config.vpp
    layers_of_stage = -(-config.layers // stages)
    rest = config.layers - layers_of_stage * (stages - 1)
    if stages == 1 or rest < 1:
        return None
    return f"Et*{layers_of_stage}|{f't*{layers_of_stage}|' * (stages - 2)}t*{rest}L"


def _micro_batches_of_a_local_batch(config: RunConfig) -> int | None:
    """Micro-batches that one call of a pipeline's schedule has, where a step may have several."""
    stated = _LOCAL_BATCH.search(config.words)
    return max(1, int(stated[1]) // (config.micro_batch or 1)) if stated else None


def _ranks_of_a_server(config: RunConfig) -> int:
    return max(1, (config.gpus_per_node or _GPUS_OF_A_SERVER) // (config.tp or 1))


FACTS: dict[str, Callable[[Run], bool]] = {
    "accumulates": _accumulates,
    "dense_shape": lambda run: _dense_layer(run.config) is not None,
    "experts_fill_the_stage": _experts_fill_the_stage,
    "experts_repeated": lambda run: _repeated_experts(run.config) is not None,
    "hybrid": lambda run: _is_hybrid(run.config),
    "interleaves": interleaves,
    "hybrid_predicting_tokens": lambda run: _is_hybrid(run.config, mtp_layers=1),
    "known_without_biases": _of_known_model(lambda model: not model.biases),
    "latent_attention": _of_known_model(lambda model: model.latent_attention is not None),
    "one_expert_per_gpu": lambda run: run.config.n_experts == (run.config.ep or 1),
    "short_pipeline": _short_pipeline,
}
"""Facts that conditions may ask for with `is`."""

COMPUTED: dict[str, Callable[[RunConfig], object]] = {
    "all_but_the_last_product": _all_but_the_last,
    "full_stages_first": _full_stages_first,
    "kept_beside_up_projections": _kept_beside_up_projections,
    "latent_up_projections": _latent_up_projections,
    "micro_batches_of_a_local_batch": _micro_batches_of_a_local_batch,
    "products_between_the_kept": _between_the_kept,
    "products_no_policy_keeps": _not_kept_by_policy,
    "ranks_of_a_server": _ranks_of_a_server,
    "repeated_experts": _repeated_experts,
    "stated_bucket": _stated_bucket,
}
"""Values that rules compute; None: the rule does not apply."""
