"""Which switches of layout and model a record's framework, year, attention, precision and notes mean.

One rule per switch: a function that reads a record's configuration and returns the switch's value, together with the
words of an assumption where the record does not state it outright; None leaves the switch at its default. A rule may
name a framework and its year (that is what a user's own file has, too), never a record, a paper or a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cost_models.layout import Layout
from cost_models.model import Model
from experiments.record_experts import (
    balanced_experts,
    expert_kernels,
    expert_padding,
    expert_tensor_parallel,
)
from experiments.record_finetune import adapter_rank, adapter_targets
from experiments.record_frameworks import SPLIT_SCHEDULE
from experiments.record_graphs import (
    cuda_graphs,
    deferred_head_gradient,
    expert_dispatch,
    expert_overlap,
    graph_scope,
    graphed_experts,
)
from experiments.record_kernels import (
    architecture_rule,
    attention_kernel,
    blocking_maxima,
    dropout,
    fp8_scaling,
    fused_kernels,
    fused_loss,
    prediction_layers,
    scale_updates,
    scaled_rotary,
    window_rule,
)
from experiments.record_network import (
    bucket_parameters,
    checked_collectives,
    context_kind,
    tensor_asynchronous,
    tensor_batch_first,
    tensor_exchange,
    tensor_overlap,
)
from experiments.record_recompute import (
    recompute_attention,
    recompute_collectives,
    recompute_products,
    recompute_share,
    recompute_small_kernels,
)
from experiments.record_sums import (
    dp_overlap,
    gather_lists,
    gather_overlap,
    gradient_accumulation,
    gradient_all_reduce,
    gradient_bytes,
    owner_broadcasts,
    pp_overlap,
    prefetch_gather,
    shard_copies,
    shard_ranks,
)
from experiments.records import RunConfig

__all__ = [
    "LAYOUT_RULES",
    "MODEL_RULES",
    "Finding",
    "Rule",
    "Switches",
    "blocked",
    "schedule_of",
    "switches_of",
]

Finding = tuple[object, str] | None
"""A switch's value and, where it is not stated, the words of the assumption; None: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one switch is read from a record.

    Attributes:
        field: of Layout or Model.
        read: the value for a record, see Finding.
        without: what is said as not modelled where the simulator has no such switch or value.
        plain: the value that a simulator without the switch stands for.
    """

    field: str
    read: Callable[[RunConfig], Finding]
    without: str
    plain: object = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What a record's words mean for the simulator.

    Attributes:
        layout: fields of Layout beyond degrees, sharding and recomputation.
        model: fields of Model beyond its shape.
        balanced_experts: routing was forced to balance, or tokens beyond the experts' capacity were dropped.
        assumptions: what the source does not say and was filled in.
        not_modelled: what the run did and the prediction does not.
    """

    layout: dict[str, Any]
    model: dict[str, Any]
    balanced_experts: bool
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]


def _stated(pattern: str, value: object = True) -> Callable[[RunConfig], Finding]:
    """A rule: *value* where the notes match."""
    compiled = re.compile(pattern)
    return lambda config: (value, "") if compiled.search(config.notes) else None


def _sequence_parallel(config: RunConfig) -> Finding:
    tp = config.tp or 1
    if config.sp is not None:
        return config.sp, ""
    return tp > 1, "sequence parallelism" if tp > 1 else ""


def _precision(config: RunConfig) -> Finding:
    if config.precision is None:
        return "bf16", "bf16"
    return config.precision.replace("fp16", "bf16"), ""


def _stage_balance(config: RunConfig) -> Finding:
    return ("flop", "") if "nanotron" in config.framework and (config.pp or 1) > 1 else None


def _embedding_layers(config: RunConfig) -> Finding:
    """Frameworks cut layers evenly: where only layers + 2 divide, embedding and head were counted as one each.

    So were layers of multi-token prediction.
    """
    if re.search(r"embedding (?:and loss count|counted) as (?:layers|a pipeline layer)", config.notes):
        return True, ""
    chunks = (config.pp or 1) * (config.vpp or 1)
    prediction = prediction_layers(config)
    more = 2 + int(str(prediction[0])) if prediction else 2
    if chunks == 1 or config.layers is None or config.layers % chunks == 0 or (config.layers + more) % chunks:
        return None
    return True, "embedding and head counted as layers of the pipeline"


LAYOUT_RULES = (
    Rule(field="precision", read=_precision, without="8- and 4-bit block formats: as fp8"),
    Rule(field="sequence_parallel", read=_sequence_parallel, without=""),
    Rule(
        field="attention_kernel",
        read=attention_kernel,
        without="attention scores kept in memory (no flash attention): flash attention",
        plain="flash",
    ),
    Rule(field="fused_loss", read=fused_loss, without="cross-entropy of separate kernels", plain=True),
    Rule(field="fused_kernels", read=fused_kernels, without="separate small kernels", plain=True),
    Rule(field="tp_overlap", read=tensor_overlap, without="overlap of tensor-parallel communication"),
    Rule(field="tp_exchange", read=tensor_exchange, without="", plain="none"),
    Rule(field="fp8_scaling", read=fp8_scaling, without="", plain="delayed"),
    Rule(field="separate_scale_updates", read=scale_updates, without=""),
    Rule(field="blocking_maxima", read=blocking_maxima, without=""),
    Rule(field="tp_batch_first", read=tensor_batch_first, without=""),
    Rule(field="tp_asynchronous", read=tensor_asynchronous, without=""),
    Rule(field="checked_collectives", read=checked_collectives, without=""),
    Rule(field="bucket_parameters", read=bucket_parameters, without=""),
    Rule(
        field="ep_overlap",
        read=expert_overlap,
        without="overlap of the expert all-to-all",
    ),
    Rule(
        field="expert_dispatch",
        read=expert_dispatch,
        without="fused expert dispatch: plain all-to-all",
    ),
    Rule(
        field="cuda_graphs",
        read=cuda_graphs,
        without="CUDA graphs: every kernel is launched by the host",
    ),
    Rule(field="cuda_graph_scope", read=graph_scope, without="", plain="layers"),
    Rule(
        field="cuda_graph_experts",
        read=graphed_experts,
        without="experts outside CUDA graphs: inside",
        plain=True,
    ),
    Rule(
        field="expert_kernels",
        read=expert_kernels,
        without="a product per expert: one for all",
        plain="grouped",
    ),
    Rule(field="expert_padding", read=expert_padding, without=""),
    Rule(
        field="etp",
        read=expert_tensor_parallel,
        without="experts cut by tensor parallelism: whole experts over max(tp, ep) neighbouring GPUs",
    ),
    Rule(field="cp_kind", read=context_kind, without="context parallelism other than a ring: a ring"),
    Rule(
        field="dp_overlap",
        read=dp_overlap,
        without="gradient sync after the last backward: overlapped with it",
        plain=True,
    ),
    Rule(field="gather_lists", read=gather_lists, without=""),
    Rule(field="shard_copies", read=shard_copies, without=""),
    Rule(field="deferred_head_gradient", read=deferred_head_gradient, without=""),
    Rule(field="prefetch_gather", read=prefetch_gather, without="", plain=True),
    Rule(field="gather_overlap", read=gather_overlap, without="", plain=True),
    Rule(field="owner_broadcasts", read=owner_broadcasts, without=""),
    Rule(field="gradient_all_reduce", read=gradient_all_reduce, without=""),
    Rule(
        field="recompute_share",
        read=recompute_share,
        without="selective recomputation of parts of a layer: it costs nothing",
        plain=0.0,
    ),
    Rule(field="recompute_products", read=recompute_products, without=""),
    Rule(field="recompute_attention", read=recompute_attention, without=""),
    Rule(field="recompute_collectives", read=recompute_collectives, without=""),
    Rule(
        field="recompute_small_kernels",
        read=recompute_small_kernels,
        without="norms and activations run again: they cost nothing",
    ),
    Rule(field="gradient_bytes", read=gradient_bytes, without="gradients summed in 16 bits: in 32"),
    Rule(
        field="gradient_accumulation",
        read=gradient_accumulation,
        without="gradients added in kernels of their own",
        plain="fused",
    ),
    Rule(field="pp_overlap", read=pp_overlap, without="blocking pipeline transfers", plain=True),
    Rule(
        field="launch_blocking", read=_stated(r"CUDA_LAUNCH_BLOCKING=1"), without="waiting for every kernel"
    ),
    Rule(
        field="shard_ranks",
        read=shard_ranks,
        without="replicas of shards (HSDP): sharded over all ranks",
    ),
    Rule(
        field="optimizer_offload",
        read=_stated(r"CPU Adam|(?i:optimizer offload)"),
        without="optimizer states and update on the CPU",
    ),
    Rule(field="stage_balance", read=_stage_balance, without=""),
    Rule(
        field="embedding_layers",
        read=_embedding_layers,
        without="embedding and head counted as layers of the pipeline",
    ),
)
"""Order matters only for the order in which assumptions are listed."""


def _tied_embeddings(config: RunConfig) -> Finding:
    stated = re.search(r"tied embeddings (True|False)", config.notes)
    return (stated[1] == "True", "") if stated else None


MODEL_RULES = (
    Rule(field="dropout", read=dropout, without="dropout"),
    Rule(field="tied_embeddings", read=_tied_embeddings, without=""),
    *(
        Rule(field=field, read=partial(window_rule, field=field), without="")
        for field in ("sliding_window", "full_attention_every", "chunked_attention")
    ),
    Rule(field="adapter_rank", read=adapter_rank, without="", plain=0),
    Rule(field="adapter_targets", read=adapter_targets, without="", plain="attention"),
    Rule(field="mtp_layers", read=prediction_layers, without="multi-token prediction", plain=0),
    *(
        Rule(field=field, read=partial(architecture_rule, field=field), without="")
        for field in ("qk_norm", "expert_biases", "clamped_activation")
    ),
    Rule(field="scaled_rotary", read=scaled_rotary, without=""),
)

# What has no switch yet, as notes and attention column word it; a mechanism that gets one moves up.
_NOT_MODELLED = (
    (re.compile(r"activation.*offload"), "activation offload of a static mesh"),
    (re.compile(r"[Mm]amba"), "Mamba layers"),
    (re.compile(r"performance regression"), "a slow release of a library, which the source mentions"),
    (
        re.compile(r"after_pp_fix=False"),
        "pipeline transfers that hold a stage for a quarter of a second across nodes",
    ),
)
_SCHEDULES = {
    "ZB-1p": "zb-h1",
    "ZB-2p": "zb-h2",
    "ZB-H2": "zb-h2",
    "ZB-H1": "zb-h1",
    "ZB-V": "zb-v",
    "ZBV": "zb-v",
    "ZBVZeroBubble": "zb-v",
    "DualPipe": "dualpipe",
    "DualPipeV": "zb-v",
}
"""Names of schedules as frameworks write them -> of Layout. ZB-1p keeps 1F1B's memory, as ZB-H1 does,
ZB-2p twice as much, as ZB-H2 does. DualPipeV is ZB-V with forwards and backwards paired, where experts' traffic hides
("DualPipe could be better without the Dual", Sea AI Lab)."""


def schedule_of(config: RunConfig, vpp: int) -> str:
    """The pipeline schedule; a name that Layout does not know blocks the prediction."""
    named = SPLIT_SCHEDULE.search(config.framework) or SPLIT_SCHEDULE.search(config.notes)
    if named:
        name = _SCHEDULES.get(named[1], named[1])
        if _takes(Layout, "schedule", name):
            return name
    return "interleaved" if vpp > 1 else "1f1b"


def blocked(config: RunConfig) -> str:
    """Why the time of a record cannot be predicted by the mechanisms there are.

    What the cost model itself refuses (a sharding or a precision without a modelled speed) is not listed.
    """
    if re.search(r"CPU Adam|(?i:optimizer offload)", config.notes) and not _takes(
        Layout, "optimizer_offload", True
    ):
        return "optimizer states and update on the CPU are not modelled"
    named = SPLIT_SCHEDULE.search(config.framework) or SPLIT_SCHEDULE.search(config.notes)
    if named and schedule_of(config, 1) == "1f1b":
        return f"the pipeline schedule {named[1]} is not modelled: only {', '.join(_allowed(Layout, 'schedule'))} are"
    return ""


def switches_of(config: RunConfig) -> Switches:
    """Read every rule; what the simulator cannot do is listed as not modelled."""
    found: dict[type, dict[str, Any]] = {Layout: {}, Model: {}}
    assumptions: list[str] = []
    not_modelled: list[str] = []
    for owner, rules in ((Layout, LAYOUT_RULES), (Model, MODEL_RULES)):
        for rule in rules:
            finding = rule.read(config)
            if finding is None:
                continue
            value, assumption = finding
            if _takes(owner, rule.field, value):
                found[owner][rule.field] = value
            elif rule.without and value != rule.plain:
                not_modelled.append(rule.without)
                continue
            if assumption:
                assumptions.append(assumption)
    if re.search(r"\bDualPipeV\b", f"{config.framework} {config.notes}"):
        not_modelled.append("pairs of a forward and a backward in DualPipeV: as ZB-V")
    text = f"{config.notes} {config.attention}"
    not_modelled += [words for pattern, words in _NOT_MODELLED if pattern.search(text)]
    if "sliding_window" not in found[Model] and re.search(r"sliding|window", text):
        not_modelled.append("sliding-window attention in some layers: every layer attends to all")
    return Switches(
        layout=found[Layout],
        model=found[Model],
        balanced_experts=balanced_experts(config),
        assumptions=tuple(assumptions),
        not_modelled=tuple(not_modelled),
    )


@cache
def _types(owner: type) -> dict[str, Any]:
    known = {field.name for field in fields(owner)}
    return {name: hint for name, hint in get_type_hints(owner).items() if name in known}


def _allowed(owner: type, name: str) -> tuple[str, ...]:
    """The names a Literal field takes."""
    return tuple(map(str, get_args(_types(owner)[name])))


def _takes(owner: type, name: str, value: object) -> bool:
    """Whether the simulator has the switch and, for named choices, the value."""
    hint = _types(owner).get(name)
    if hint is None:
        return False
    return get_origin(hint) is not Literal or value in get_args(hint)
