"""The facts about a step that sentences, conditions and seconds of the table of checks name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hdpsim.experiments.output.plots.style import account_group, format_tokens

if TYPE_CHECKING:
    from .observed import Observed


class Facts(dict[str, Any]):
    """Facts by their names; what is none of them is an attribute of what was observed."""

    def __init__(self, now: Observed) -> None:
        super().__init__()
        self._now = now

    def __missing__(self, name: str) -> Any:
        return _FACTS[name](self._now) if name in _FACTS else getattr(self._now, name)


def _degrees(now: Observed) -> str:
    parallel, pipeline = now.setup.layout.parallel, now.setup.layout.pipeline
    chunks = f" of {pipeline.vpp} chunks" if pipeline.vpp > 1 else ""
    return f"{parallel.pp} stages{chunks}, schedule {pipeline.schedule}"


def _layer_counts(now: Observed) -> str:
    fewest, most = min(now.layers), max(now.layers)
    return f"{fewest} to {most}" if fewest < most else str(most)


def _head_is_slowest(now: Observed) -> bool:
    """Whether the last stage is the slowest, and layers are not the reason."""
    layers, slowest = now.layers, int(now.busy_s.argmax())
    return len(layers) > 1 and slowest == len(layers) - 1 and layers[-1] <= max(layers)


def _tensor_parallel(now: Observed) -> str:
    if now.tp > now.node.gpus:
        return (
            f"tensor parallelism (TP {now.tp}) leaves the servers of {now.node.gpus} GPUs: every layer waits for "
            f"the network"
        )
    return f"tensor-parallel collectives of every layer (TP {now.tp}) that nothing hides"


def _expert_degree(now: Observed) -> str:
    parallel = now.setup.layout.parallel
    return f"EP {parallel.ep}{', beyond a server' if parallel.expert_gpus > now.node.gpus else ''}"


def _slow_nodes(now: Observed) -> str:
    share, factor = (now.value(f"execution.slow_node_{what}") for what in ("share", "factor"))
    return f"; {share:.1%} of the nodes are {factor:g} times as slow" if share else ""


def _padding_s(now: Observed) -> float:
    """Seconds of computing that padding takes: its share of the tokens."""
    results = now.trials.base.results
    padded = [result.plan.padding_tokens for result in results]
    pad = sum(float(tokens.sum()) for tokens in padded if tokens is not None)
    compute_s = sum(s for name, s in now.account_s.items() if account_group(name) == "compute")
    return compute_s * pad / (pad + sum(result.tokens for result in results))


def _padded_share(now: Observed) -> float:
    padded = now.first.plan.padding_tokens
    pad = 0.0 if padded is None else float(padded.sum())
    return pad / (pad + now.first.tokens)


def _left_over_s(now: Observed) -> float:
    """Seconds that groups without a pack in the last round wait."""
    packs, groups = now.first.plan_micro_batches, _groups(now)
    return now.step_s * (1.0 - packs / (-(-packs // groups) * groups))


def _groups(now: Observed) -> int:
    return now.setup.ranks // now.first.largest_group


def _micro_batches(now: Observed) -> float:
    """Micro-batches of a rank between two drains of its pipeline."""
    of_step = len(now.first.plan.member_ranks) / now.first.plan.ranks
    return min(of_step, now.setup.layout.pipeline.call or of_step)


def _slow_kernels(now: Observed) -> str:
    names = ("attention_kernel", "fused_kernels", "fused_loss", "gradient_accumulation", "expert_kernels")
    known = {name: now.values[f"layout.{name}"] for name in names}
    changed = {name: value for name, (value, default) in known.items() if value != default}
    return ", ".join(f"{name} {str(value).lower()}" for name, value in changed.items())


def _replicates_heads(now: Observed) -> bool:
    model = now.setup.model
    return now.tp > model.kv_heads and model.latent_attention is None


_FACTS: Mapping[str, Callable[[Observed], Any]] = {
    "capacity": lambda now: format_tokens(now.first.rank_capacity_tokens),
    "collects_garbage": lambda now: now.value("execution.gc_pause") > 0.0,
    "context": lambda now: format_tokens(now.setup.context_tokens),
    "degrees": _degrees,
    "expert_degree": _expert_degree,
    "free_gib": lambda now: (now.first.memory.capacity_bytes - now.first.memory.total_bytes) / 2**30,
    "groups": _groups,
    "has_expert_parallelism": lambda now: now.setup.layout.parallel.ep > 1,
    "hashes_flows": lambda now: now.fabric.routing == "ecmp",
    "head_is_slowest": _head_is_slowest,
    "is_oversubscribed": lambda now: (
        max(now.fabric.leaf_oversubscription, now.fabric.spine_oversubscription) > 1.0
    ),
    "last_stage_s": lambda now: now.busy_s[-1],
    "layer_counts": _layer_counts,
    "layers_are_uneven": lambda now: len(now.layers) > 1 and not _head_is_slowest(now),
    "left_over": lambda now: now.first.plan_micro_batches % _groups(now),
    "left_over_s": _left_over_s,
    "mean_stage_s": lambda now: now.busy_s.mean(),
    "micro_batches": _micro_batches,
    "nic_gb_per_s": lambda now: now.node.nic_bytes_per_s_per_gpu / 1e9,
    "padded_share": _padded_share,
    "padding_s": _padding_s,
    "replicates_heads": _replicates_heads,
    "rings_leave_servers": lambda now: now.largest_group * now.tp > now.node.gpus,
    "slow_kernels": _slow_kernels,
    "slow_nodes": _slow_nodes,
    "slowest_stage": lambda now: now.busy_s.argmax(),
    "slowest_stage_s": lambda now: now.busy_s.max() - now.busy_s.mean(),
    "stages": lambda now: len(now.layers),
    "tensor_parallel": _tensor_parallel,
}
