"""The table of checks: what may waste time in a step, what it costs, and what may help.

A check is one entry of CHECKS. Its seconds come from the accounts of the step, or from the difference to the same step
without the waste. Its remedies are candidates only: `check` simulates every one and recommends what gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdpsim.cost_models.transformer.parameters import stage_layers
from hdpsim.experiments.output.plots.style import account_group, format_tokens

from . import remedies
from .observed import halves

if TYPE_CHECKING:
    from .observed import Observed
    from .trials import Changes

HIDDEN_BY_OTHERS = 0.005
"""Share of a step below which a waste is not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One kind of waste.

    Attributes:
        name: of its findings.
        seen: what is lost there, a sentence without its seconds.
        remedies: changes of scenario keys that may help.
        accounts: of the step, whose seconds are lost.
        lost_s: the seconds, where they are not those of accounts.
        needs: whether the check is about this scenario at all.
        of_step: a step alone tells the seconds, no other one has to be simulated for them.
    """

    name: str
    seen: Callable[[Observed], str]
    remedies: Callable[[Observed], Iterable[Changes]]
    accounts: tuple[str, ...] = ()
    lost_s: Callable[[Observed], float] | None = None
    needs: Callable[[Observed], bool] = lambda observed: True
    of_step: bool = True

    def seconds(self, observed: Observed) -> float:
        """What a step loses."""
        if not self.needs(observed):
            return 0.0
        return observed.seconds_in(*self.accounts) if self.lost_s is None else self.lost_s(observed)


def _degrees(observed: Observed) -> str:
    layout = observed.setup.layout
    chunks = f" of {layout.pipeline.vpp} chunks" if layout.pipeline.vpp > 1 else ""
    return f"{layout.parallel.pp} stages{chunks}, schedule {layout.pipeline.schedule}"


def _bubbles(observed: Observed) -> str:
    return (
        f"stages wait for micro-batches and for each other ({_degrees(observed)}; a rank has "
        f"{observed.micro_batches():,.1f} micro-batches to fill the pipeline with)"
    )


def _several_stages(observed: Observed) -> bool:
    return observed.setup.layout.parallel.pp > 1


def _slowest_stage_s(observed: Observed) -> float:
    busy_s = observed.busy_s()
    return float(busy_s.max() - busy_s.mean())


def _head_is_slowest(observed: Observed) -> bool:
    """Whether the last stage is the slowest although it has no more layers than others."""
    if not _several_stages(observed):
        return False
    layers = [sum(chunks) for chunks in stage_layers(observed.setup.model, observed.setup.layout)]
    return int(observed.busy_s().argmax()) == len(layers) - 1 and layers[-1] <= max(layers)


def _vocabulary(observed: Observed) -> str:
    busy_s = observed.busy_s()
    return (
        f"the last stage, which has the output projection of {observed.setup.model.vocab:,} tokens as well, works "
        f"{busy_s[-1]:.3f} s and the mean stage {busy_s.mean():.3f} s: all wait for it"
    )


def _uneven(observed: Observed) -> str:
    layers = [sum(chunks) for chunks in stage_layers(observed.setup.model, observed.setup.layout)]
    counts = f"{min(layers)} to {max(layers)}" if min(layers) < max(layers) else str(layers[0])
    slowest = int(observed.busy_s().argmax())
    return f"stages are uneven ({counts} layers each); stage {slowest} of {len(layers)} works longest, the others wait"


def _tensor_parallel(observed: Observed) -> str:
    tp, node = observed.setup.layout.parallel.tp, observed.node.gpus
    if tp > node:
        return f"tensor parallelism (TP {tp}) leaves the servers of {node} GPUs: every layer waits for the network"
    return f"tensor-parallel collectives of every layer (TP {tp}) that nothing hides"


def _largest_group(observed: Observed) -> tuple[int, bool]:
    """Ranks of the largest context-parallel group, and whether it leaves a server."""
    ranks = max(result.largest_group for result in observed.trials.base.results)
    return ranks, ranks * observed.setup.layout.parallel.tp > observed.node.gpus


def _rings(observed: Observed) -> str:
    ranks, leaves = _largest_group(observed)
    if not leaves:
        return (
            f"keys and values on their way round groups of up to {ranks} ranks that attention does not hide"
        )
    return (
        f"keys and values on their way round groups of up to {ranks} ranks, which leave the servers: a GPU's share of "
        f"the NICs ({observed.node.nic_bytes_per_s_per_gpu / 1e9:,.0f} GB/s) does not bring them as fast as attention "
        f"works on them"
    )


def _experts(observed: Observed) -> str:
    parallel = observed.setup.layout.parallel
    leaves = ", beyond a server" if parallel.expert_gpus > observed.node.gpus else ""
    return f"tokens on their way to their experts and back (EP {parallel.ep}{leaves}) that nothing hides"


def _imbalance(observed: Observed) -> str:
    return (
        f"ranks that are done wait for those that are not ({observed.setup.strategy.name}, "
        f"{observed.setup.ranks:,} ranks)"
    )


_EQUAL_GPUS: Changes = {
    f"execution.{name}": 0
    for name in ("jitter", "node_jitter", "slow_period_share", "slow_node_share", "gpu_spread")
}


def _slow_gpus(observed: Observed) -> str:
    share = observed.value("execution.slow_node_share")
    slow = (
        f"; {share:.1%} of the nodes are {observed.value('execution.slow_node_factor'):g} times as slow"
        if share
        else ""
    )
    return f"GPUs are not equally fast, and all wait for the slowest{slow}"


def _padding_s(observed: Observed) -> float:
    """Compute on padding: its share of all tokens in packs, of the compute.

    Ignored: attention, which padding has less of.
    """
    padded = [result.plan.padding_tokens for result in observed.trials.base.results]
    pad = sum(float(tokens.sum()) for tokens in padded if tokens is not None)
    real = sum(result.tokens for result in observed.trials.base.results)
    compute_s = sum(s for name, s in observed.account_s.items() if account_group(name) == "compute")
    return compute_s * pad / (pad + real)


def _padding(observed: Observed) -> str:
    padded = observed.first.plan.padding_tokens
    pad = 0.0 if padded is None else float(padded.sum())
    return (
        f"{pad / (pad + observed.first.tokens):.1%} of what packs hold is padding up to "
        f"{format_tokens(observed.setup.context_tokens)} tokens ({observed.value('strategy.packing')} packing)"
    )


def _packs_left_over(observed: Observed) -> tuple[int, int]:
    """Packs of a static mesh, and the groups of ranks that share them out."""
    return observed.first.plan_micro_batches, observed.setup.ranks // observed.first.largest_group


def _left_over_s(observed: Observed) -> float:
    """What groups without a pack wait for in the last round: rounds not filled, of the step."""
    packs, groups = _packs_left_over(observed)
    rounds = -(-packs // groups)
    return observed.step_s * (1.0 - packs / (rounds * groups)) if packs % groups else 0.0


def _left_over(observed: Observed) -> str:
    packs, groups = _packs_left_over(observed)
    last = packs % groups
    return (
        f"{packs:,} packs do not divide by {groups:,} data-parallel groups: {last:,} work in the last round"
    )


def _recomputation(observed: Observed) -> str:
    memory = observed.first.memory
    room = (memory.capacity_bytes - memory.total_bytes) / 2**30
    kind = observed.value("layout.recompute")
    return (
        f"the backward computes activations again (recompute: {kind}); {room:.1f} GiB of every GPU are free"
    )


def _kernels(observed: Observed) -> str:
    names = ("attention_kernel", "fused_kernels", "fused_loss", "gradient_accumulation", "expert_kernels")
    slow = [
        f"{name} {str(value).lower()}"
        for name in names
        for value, default in (observed.values[f"layout.{name}"],)
        if value != default
    ]
    return f"kernels that are slower than need be ({', '.join(slow)})"


def _oversubscribed(observed: Observed) -> bool:
    fabric = observed.setup.cluster.fabric
    return max(fabric.leaf_oversubscription, fabric.spine_oversubscription) > 1.0


def _tiers(observed: Observed) -> str:
    fabric = observed.setup.cluster.fabric
    return (
        f"traffic waits at tiers with less bandwidth above than below (oversubscription "
        f"{fabric.leaf_oversubscription:g} at the leaves, {fabric.spine_oversubscription:g} at the spines; nodes are "
        f"{fabric.placement})"
    )


CHECKS = (
    Check(
        name="pipeline-bubbles",
        accounts=("wait_pipeline", "wait_stages"),
        seen=_bubbles,
        remedies=remedies.other_pipelines,
    ),
    Check(
        name="vocabulary-on-last-stage",
        needs=_head_is_slowest,
        lost_s=_slowest_stage_s,
        seen=_vocabulary,
        remedies=remedies.other_stages,
    ),
    Check(
        name="uneven-stages",
        needs=lambda observed: _several_stages(observed) and not _head_is_slowest(observed),
        lost_s=_slowest_stage_s,
        seen=_uneven,
        remedies=remedies.other_stages,
    ),
    Check(
        name="tensor-parallel-communication",
        accounts=("tp_communication",),
        seen=_tensor_parallel,
        remedies=remedies.less_tensor_parallel,
    ),
    Check(
        name="rings-bound-by-nics",
        needs=lambda observed: _largest_group(observed)[1],
        accounts=("ring_wait",),
        seen=_rings,
        remedies=remedies.shorter_rings,
    ),
    Check(
        name="rings-inside-servers",
        needs=lambda observed: not _largest_group(observed)[1],
        accounts=("ring_wait",),
        seen=_rings,
        remedies=remedies.shorter_rings,
    ),
    Check(
        name="expert-all-to-all",
        accounts=("expert_all_to_all",),
        seen=_experts,
        remedies=remedies.experts_elsewhere,
    ),
    Check(
        name="expert-imbalance",
        needs=lambda observed: observed.setup.layout.parallel.ep > 1,
        lost_s=lambda observed: observed.saved_s({"layout.expert_imbalance": 1}),
        of_step=False,
        seen=lambda observed: "the GPU with the busiest experts has more tokens than the mean, and the others wait",
        remedies=lambda observed: remedies.switches("layout.ep", *halves(observed.setup.layout.parallel.ep)),
    ),
    Check(
        name="gradient-synchronisation",
        accounts=("gradient_sync",),
        seen=lambda observed: "gradients are reduced over the ranks after the last backward, when nothing hides it",
        remedies=remedies.cheaper_gradients,
    ),
    Check(
        name="parameter-gather",
        accounts=("parameter_gather",),
        seen=lambda observed: "updated parameters are gathered before the first forward, when nothing hides it",
        remedies=remedies.cheaper_gathers,
    ),
    Check(
        name="layer-gathers",
        accounts=("layer_gather", "layer_reduce"),
        seen=lambda observed: "parameters of layers are gathered and gradients scattered slower than layers compute",
        remedies=remedies.cheaper_layer_gathers,
    ),
    Check(
        name="offloading",
        accounts=("offload_wait",),
        seen=lambda observed: "activations on their way to host memory and back that compute does not hide",
        remedies=lambda observed: [
            {"strategy.activation_offload": 0},
            *({"strategy.selective_offloading": value} for value in (False,) if not observed.is_static),
            *observed.capacities(2),
        ],
    ),
    Check(
        name="imbalance",
        accounts=("wait_gradients", "wait_group"),
        seen=_imbalance,
        remedies=remedies.better_balance,
    ),
    Check(
        name="slow-gpus",
        lost_s=lambda observed: observed.saved_s(_EQUAL_GPUS),
        of_step=False,
        seen=_slow_gpus,
        remedies=lambda observed: remedies.switches("execution.slow_node_share", 0),
    ),
    Check(
        name="garbage-collection",
        needs=lambda observed: observed.value("execution.gc_pause") > 0.0,
        lost_s=lambda observed: observed.saved_s({"execution.gc_pause": "0s"}),
        of_step=False,
        seen=lambda observed: "training processes stop to collect garbage, and all wait for the one that does",
        remedies=lambda observed: remedies.switches("execution.gc_synchronised", True),
    ),
    Check(
        name="padding",
        needs=lambda observed: observed.is_static,
        lost_s=_padding_s,
        seen=_padding,
        remedies=remedies.tighter_packs,
    ),
    Check(
        name="batch-does-not-divide",
        needs=lambda observed: observed.is_static,
        lost_s=_left_over_s,
        seen=_left_over,
        remedies=remedies.other_meshes,
    ),
    Check(name="recomputation", accounts=("recompute",), seen=_recomputation, remedies=remedies.less_recomputation),
    Check(
        name="launch-bound",
        accounts=("host",),
        seen=lambda observed: "GPUs wait for the host to launch kernels: there are many, and they are short",
        remedies=remedies.fewer_launches,
    ),
    Check(
        name="small-micro-batches",
        lost_s=lambda observed: observed.best_saved_s(remedies.larger_micro_batches(observed)),
        of_step=False,
        seen=lambda observed: (
            f"micro-batches of {format_tokens(observed.first.rank_capacity_tokens)} tokens on a rank are too small: "
            f"what every one pays anew is spread over few tokens"
        ),
        remedies=remedies.larger_micro_batches,
    ),
    Check(
        name="slow-kernels",
        lost_s=lambda observed: observed.best_saved_s(remedies.newer_kernels(observed)),
        of_step=False,
        seen=_kernels,
        remedies=remedies.newer_kernels,
    ),
    Check(
        name="optimizer",
        accounts=("optimizer",),
        seen=lambda observed: "the update of the parameters, which nothing hides",
        remedies=remedies.cheaper_optimizer,
    ),
    Check(
        name="data-loading",
        accounts=("data", "planning"),
        seen=lambda observed: "the step waits for its data, or for the plan of who gets which",
        remedies=remedies.earlier_data,
    ),
    Check(
        name="oversubscribed-tiers",
        needs=_oversubscribed,
        lost_s=lambda observed: observed.saved_s(remedies.even_tiers(observed)),
        of_step=False,
        seen=_tiers,
        remedies=remedies.closer_nodes,
    ),
    Check(
        name="hash-collisions",
        needs=lambda observed: observed.setup.cluster.fabric.routing == "ecmp",
        lost_s=lambda observed: observed.saved_s({"cluster.fabric.routing": "ideal"}),
        of_step=False,
        seen=lambda observed: "flows that a hash puts on the same up-link share it while others are idle",
        remedies=remedies.fewer_collisions,
    ),
    Check(
        name="replicated-heads",
        needs=lambda observed: (
            observed.setup.layout.parallel.tp > observed.setup.model.kv_heads
            and observed.setup.model.latent_attention is None
        ),
        lost_s=lambda observed: observed.saved_s({"layout.tp": observed.setup.model.kv_heads}),
        of_step=False,
        seen=lambda observed: (
            f"the {observed.setup.model.kv_heads} key/value heads do not divide by TP "
            f"{observed.setup.layout.parallel.tp}, so GPUs compute copies of the same ones"
        ),
        remedies=lambda observed: remedies.switches("layout.tp", observed.setup.model.kv_heads),
    ),
)  # fmt: skip
"""In no order: findings are sorted by their seconds."""
