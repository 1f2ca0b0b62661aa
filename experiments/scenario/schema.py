"""The keys of a scenario file: what each one accepts, its default, and how it is written back.

One table, `KEYS`, from dotted key to `Key`. `read_keys` checks a whole document against it and reports every
problem at once, so that a user repairs a file in one go. Meaning that spans several keys (degrees that must
divide, a context longer than the batch) is checked by `hdpsim.experiments.scenario.scenario`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_args

from hdpsim.cost_models.layout.groups import (
    AttentionKernel,
    ContextParallelKind,
    ExpertDispatch,
    ExpertKernels,
    Fp8Scaling,
    GradientAccumulation,
    GraphScope,
    ProductPrecision,
    RankOrder,
    RecomputeKind,
    Schedule,
    ShardCopies,
    ShardingKind,
    StageBalance,
    TensorExchange,
)
from hdpsim.cost_models.memory.activations import LayerActivations
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.fields import Problems, did_you_mean
from hdpsim.cost_models.reading.units import DAY_S
from hdpsim.cost_models.reliability.checkpoint import Readers
from hdpsim.cost_models.reliability.startup import StartupMethod
from hdpsim.cost_models.step.loading import Loader
from hdpsim.experiments.scenario.values import REQUIRED, Key
from hdpsim.experiments.scenario.values import auto_time_key as _auto_time_key
from hdpsim.experiments.scenario.values import batch as _batch
from hdpsim.experiments.scenario.values import boolean as _boolean
from hdpsim.experiments.scenario.values import choice as _choice
from hdpsim.experiments.scenario.values import dump_bandwidth as _dump_bandwidth
from hdpsim.experiments.scenario.values import dump_bytes as _dump_bytes
from hdpsim.experiments.scenario.values import dump_interval as _dump_interval
from hdpsim.experiments.scenario.values import dump_lengths as _dump_lengths
from hdpsim.experiments.scenario.values import dump_time as _dump_time
from hdpsim.experiments.scenario.values import dump_tokens as _dump_tokens
from hdpsim.experiments.scenario.values import integer as _integer
from hdpsim.experiments.scenario.values import interval as _interval
from hdpsim.experiments.scenario.values import lengths as _lengths
from hdpsim.experiments.scenario.values import number as _number
from hdpsim.experiments.scenario.values import one_of as _one_of
from hdpsim.experiments.scenario.values import or_word as _or_word
from hdpsim.experiments.scenario.values import quantity as _quantity
from hdpsim.experiments.scenario.values import reference as _reference
from hdpsim.experiments.scenario.values import shown as _shown
from hdpsim.experiments.scenario.values import some_of as _some_of
from hdpsim.experiments.scenario.values import text as _text
from hdpsim.experiments.scenario.values import time_key as _time_key
from hdpsim.experiments.scenario.values import tokens as _tokens
from hdpsim.experiments.scenario.values import word_or as _word_or
from hdpsim.quoting import quoted
from hdpsim.simulator.setup import Packing, StrategyName
from hdpsim.traces import LongSequencePolicy


def strategy_names() -> tuple[str, ...]:
    """Every strategy a scenario may ask for."""
    return get_args(StrategyName)


def _share_or_rest() -> Key:
    """A share of one kind of operations, or the same as of everything else."""
    return Key(parse=_or_word("rest", _number("share")), default=None, dump=_word_or("rest"))


_LEAN = MemoryOverheads()


def _kept_bytes(default: float) -> Key:
    """Bytes of a buffer, whatever the model."""
    return Key(parse=_quantity("bytes", zero=True), default=default, dump=_dump_bytes)


def _names(value: object) -> object:
    """A tuple as YAML has it."""
    return "share" if value is None else list(value)  # type: ignore[call-overload]


KEYS: Mapping[str, Key] = {
    "name": Key(parse=_text, default=""),
    "description": Key(parse=_text, default=""),
    "model": Key(parse=_reference),
    "cluster": Key(parse=_reference),
    "gpus": Key(parse=_or_word("auto", _integer("gpus")), default=None, dump=_word_or("auto")),
    "software": Key(parse=_text, default=""),
    "layout.tp": Key(parse=_integer("tp"), default=1),
    "layout.pp": Key(parse=_integer("pp"), default=1),
    "layout.vpp": Key(parse=_integer("vpp"), default=1),
    "layout.cp": Key(parse=_or_word("auto", _integer("cp")), default=None, dump=_word_or("auto")),
    "layout.cp_kind": Key(parse=_choice(get_args(ContextParallelKind)), default="ring"),
    "layout.ep": Key(parse=_integer("ep"), default=1),
    "layout.sequence_parallel": Key(parse=_boolean, default=True),
    "layout.stage_balance": Key(parse=_choice(get_args(StageBalance)), default="layers"),
    "layout.schedule": Key(parse=_choice(get_args(Schedule)), default="1f1b"),
    "layout.pp_overlap": Key(parse=_boolean, default=True),
    "layout.embedding_layers": Key(parse=_boolean, default=False),
    "layout.sharding": Key(parse=_choice(get_args(ShardingKind)), default="zero1"),
    "layout.shard_ranks": Key(
        parse=_or_word("all", _integer("shard_ranks")), default=None, dump=_word_or("all")
    ),
    "layout.gather_lists": Key(parse=_boolean, default=False),
    "layout.shard_copies": Key(parse=_choice(get_args(ShardCopies)), default="both"),
    "layout.gradient_bytes": Key(parse=_one_of(2, 4), default=4),
    "layout.gradient_accumulation": Key(parse=_choice(get_args(GradientAccumulation)), default="fused"),
    "layout.deferred_head_gradient": Key(parse=_boolean, default=False),
    "layout.optimizer_offload": Key(parse=_boolean, default=False),
    "layout.dp_overlap": Key(parse=_boolean, default=True),
    "layout.prefetch_gather": Key(parse=_boolean, default=True),
    "layout.gather_overlap": Key(parse=_boolean, default=True),
    "layout.owner_broadcasts": Key(parse=_boolean, default=False),
    "layout.gradient_all_reduce": Key(parse=_boolean, default=False),
    "layout.recompute": Key(parse=_choice(get_args(RecomputeKind)), default="none"),
    "layout.recompute_share": Key(parse=_number("share"), default=0.0),
    "layout.recompute_products": _share_or_rest(),
    "layout.recompute_attention": _share_or_rest(),
    "layout.recompute_collectives": _share_or_rest(),
    "layout.recompute_small_kernels": Key(parse=_boolean, default=False),
    "layout.precision": Key(parse=_choice(get_args(ProductPrecision)), default="bf16"),
    "layout.fp8_scaling": Key(parse=_choice(get_args(Fp8Scaling)), default="delayed"),
    "layout.separate_scale_updates": Key(parse=_boolean, default=False),
    "layout.blocking_maxima": Key(parse=_boolean, default=False),
    "layout.tp_batch_first": Key(parse=_boolean, default=False),
    "layout.tp_overlap": Key(parse=_boolean, default=False),
    "layout.tp_exchange": Key(parse=_choice(get_args(TensorExchange)), default="none"),
    "layout.tp_asynchronous": Key(parse=_boolean, default=False),
    "layout.checked_collectives": Key(parse=_boolean, default=False),
    "layout.bucket_parameters": Key(
        parse=_or_word("auto", _number("bucket_parameters")), default=None, dump=_word_or("auto")
    ),
    "layout.etp": Key(parse=_or_word("auto", _integer("tp")), default=None, dump=_word_or("auto")),
    "layout.ep_overlap": Key(parse=_boolean, default=False),
    "layout.expert_dispatch": Key(parse=_choice(get_args(ExpertDispatch)), default="all-to-all"),
    "layout.expert_kernels": Key(parse=_choice(get_args(ExpertKernels)), default="grouped"),
    "layout.expert_imbalance": Key(
        parse=_or_word("auto", _number("expert_imbalance")), default=None, dump=_word_or("auto")
    ),
    "layout.expert_padding": Key(parse=_boolean, default=False),
    "layout.attention_kernel": Key(parse=_choice(get_args(AttentionKernel)), default="flash"),
    "layout.fused_kernels": Key(parse=_boolean, default=True),
    "layout.fused_loss": Key(parse=_boolean, default=True),
    "layout.cuda_graphs": Key(parse=_boolean, default=False),
    "layout.cuda_graph_scope": Key(parse=_choice(get_args(GraphScope)), default="layers"),
    "layout.launch_blocking": Key(parse=_boolean, default=False),
    "layout.cuda_graph_experts": Key(parse=_boolean, default=True),
    "layout.order": Key(parse=_choice(get_args(RankOrder)), default="tp-dp-pp"),
    "layout.rank_capacity": Key(
        parse=_or_word("auto", _tokens("rank_capacity_tokens")),
        default=None,
        dump=_word_or("auto", _dump_tokens),
    ),
    "data.trace": Key(parse=_reference, default=None),
    "data.distribution": Key(parse=_text, default=None),
    "data.lengths": Key(parse=_lengths, default=None, dump=_dump_lengths),
    "data.batch": Key(parse=_batch, dump=str),
    "data.context": Key(parse=_tokens("context_tokens"), dump=_dump_tokens),
    "data.policy": Key(parse=_choice(get_args(LongSequencePolicy)), default="chunk"),
    "data.seed": Key(parse=_or_word("none", _integer("seed")), default=0, dump=_word_or("none")),
    "data.loader": Key(parse=_choice(get_args(Loader)), default="shared"),
    "data.asynchronous_loading": Key(parse=_boolean, default=True),
    "data.prefetch_steps": Key(parse=_integer("prefetch_steps"), default=1),
    "strategy.name": Key(parse=_choice(get_args(StrategyName)), default="hdp-balance"),
    "strategy.packing": Key(parse=_choice(get_args(Packing)), default="in-order"),
    "strategy.padding": Key(parse=_boolean, default=True),
    "strategy.activation_offload": Key(parse=_number("share"), default=0.0),
    "strategy.dynamic_groups": Key(parse=_boolean, default=True),
    "strategy.selective_offloading": Key(parse=_boolean, default=True),
    "strategy.balancing": Key(parse=_boolean, default=True),
    "strategy.remote_data_loading": Key(parse=_boolean, default=True),
    "memory.must_fit": Key(parse=_boolean, default=True),
    "memory.cuda_context": _kept_bytes(_LEAN.cuda_context_bytes),
    "memory.libraries": _kept_bytes(_LEAN.library_bytes),
    "memory.nccl_per_group": _kept_bytes(_LEAN.nccl_bytes_per_group),
    "memory.fragmentation": Key(parse=_number("share"), default=_LEAN.fragmentation_share),
    "memory.activation_factor": Key(parse=_number("activation_factor"), default=_LEAN.activation_factor),
    "memory.logit_bytes": Key(parse=_number("stack_bytes"), default=_LEAN.logit_bytes),
    "memory.selective_share": Key(
        parse=_or_word("layout", _number("share")), default=None, dump=_word_or("layout")
    ),
    "memory.selective_keeps": Key(
        parse=_or_word("share", _some_of(tuple(field.name for field in fields(LayerActivations)))),
        default=None,
        dump=_names,
    ),
    "memory.unfused_copies": Key(parse=_boolean, default=_LEAN.unfused_copies),
    "memory.bucket_bytes": Key(parse=_number("stack_bytes"), default=_LEAN.bucket_bytes),
    "memory.loose_gradient_bytes": Key(parse=_number("stack_bytes"), default=_LEAN.loose_gradient_bytes),
    "memory.gather_buffer_bytes": Key(parse=_number("stack_bytes"), default=_LEAN.gather_buffer_bytes),
    "memory.eight_bit_copy_bytes": Key(parse=_number("stack_bytes"), default=_LEAN.eight_bit_copy_bytes),
    "memory.host_run_ahead": Key(parse=_boolean, default=_LEAN.host_run_ahead),
    "execution.executor": Key(parse=_choice(("replay", "engine")), default="replay"),
    "execution.seed": Key(parse=_integer("seed"), default=0),
    "execution.jitter": Key(parse=_number("jitter"), default=0.0),
    "execution.slow_node_share": Key(parse=_number("share"), default=0.0),
    "execution.slow_node_factor": Key(parse=_number("slow_factor"), default=1.1),
    "execution.gpu_spread": Key(
        parse=_or_word("auto", _number("gpu_spread")), default=None, dump=_word_or("auto")
    ),
    "execution.gc_pause": _time_key(0.0, zero=True),
    "execution.gc_period_steps": Key(parse=_integer("period_steps"), default=10),
    "execution.gc_synchronised": Key(parse=_boolean, default=False),
    "execution.batches": Key(parse=_integer("batches"), default=8),
    "calibration": Key(parse=_text, default="default"),
    "campaign.duration": _time_key(30 * DAY_S),
    "campaign.seeds": Key(parse=_integer("seeds"), default=8),
    "campaign.seed": Key(parse=_integer("seed"), default=0),
    "campaign.step": _auto_time_key(),
    "campaign.jitter": Key(parse=_number("jitter"), default=0.0),
    "campaign.drift_per_day": Key(parse=_number("share"), default=0.0),
    "campaign.failures": Key(parse=_text, default="llama3"),
    "campaign.failure_scale": Key(parse=_number("failure_scale"), default=1.0),
    "campaign.heartbeat": _time_key(10.0),
    "campaign.heartbeat_misses": Key(parse=_integer("misses"), default=3),
    "campaign.hang_timeout": _time_key(600.0),
    "campaign.diagnosis": _time_key(300.0, zero=True),
    "campaign.link_flaps_per_day": Key(parse=_number("per_day"), default=0.0),
    "campaign.link_flap_mean": _time_key(5.0),
    "campaign.nccl_timeout": Key(parse=_integer("nccl_timeout"), default=20),
    "campaign.nccl_retries": Key(parse=_integer("misses", 0), default=7),
    "campaign.adaptive_retransmission": Key(parse=_boolean, default=False),
    "campaign.manual_share": Key(parse=_number("share"), default=0.0),
    "campaign.manual": _time_key(3600.0, zero=True),
    "campaign.spares": Key(parse=_or_word("auto", _integer("spares")), default=None, dump=_word_or("auto")),
    "campaign.repair": _time_key(DAY_S),
    "campaign.scheduling": _time_key(60.0, zero=True),
    "campaign.startup": Key(parse=_choice(get_args(StartupMethod)), default="ordered"),
    "campaign.group_initialisation": _auto_time_key(zero=True),
    "campaign.checkpoint_interval": Key(parse=_interval, default="daly", dump=_dump_interval),
    "campaign.checkpoint_block": _auto_time_key(zero=True),
    "campaign.checkpoint_upload": _auto_time_key(zero=True),
    "campaign.checkpoint_load": _auto_time_key(zero=True),
    "campaign.storage_bandwidth": Key(parse=_quantity("bandwidth"), default=100e9, dump=_dump_bandwidth),
    "campaign.readers": Key(parse=_choice(get_args(Readers)), default="one-per-group"),
    "campaign.straggler_share": Key(parse=_number("share"), default=0.0),
    "campaign.straggler_factor": Key(parse=_number("slow_factor"), default=1.1),
    "campaign.straggler_detection": _time_key(3600.0),
    "campaign.straggler_mttf": Key(
        parse=_or_word("never", _quantity("time")), default=None, dump=_word_or("never", _dump_time)
    ),
}

SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in KEYS if "." in key))
"""The parts of a scenario that hold keys of their own."""


def read_keys(document: object, problems: Problems) -> dict[str, object]:
    """Check *document* against KEYS and note every problem.

    Returns:
        Our value of every dotted key that is fine; absent ones have their default.
    """
    if not isinstance(document, Mapping):
        problems.add("", f"a scenario is a mapping of keys, got {_shown(document)}")
        return {}
    flat, spoiled = _flatten(document, problems)
    values: dict[str, object] = {}
    for name, key in KEYS.items():
        if name in flat:
            try:
                values[name] = key.parse(flat[name])
            except ValueError as error:
                problems.add(name, str(error))
        elif name.partition(".")[0] in spoiled:
            continue
        elif key.default is not REQUIRED:
            values[name] = key.default
        else:
            problems.add(name, "is required")
    return values


def _flatten(document: Mapping[str, object], problems: Problems) -> tuple[dict[str, object], set[str]]:
    """Dotted keys and their values, and the sections that are not mappings."""
    flat: dict[str, object] = {}
    spoiled: set[str] = set()
    for top, value in document.items():
        if top in KEYS:
            flat[top] = value
        elif top not in SECTIONS:
            problems.add(top, _unknown(top))
        elif isinstance(value, Mapping):
            for leaf, inner in value.items():
                dotted = f"{top}.{leaf}"
                if dotted in KEYS:
                    flat[dotted] = inner
                else:
                    problems.add(dotted, _unknown(dotted))
        elif value is not None:  # null: a section whose keys are all commented out
            problems.add(top, f"expected a mapping of keys, got {_shown(value)}")
            spoiled.add(top)
    return flat, spoiled


def _unknown(dotted: str) -> str:
    section, dot, leaf = dotted.rpartition(".")
    if dot and section not in SECTIONS:
        return f"is not a known key: there is no section {quoted(section)}; sections: {', '.join(SECTIONS)}"
    known = [key.rpartition(".")[2] for key in KEYS if key.rpartition(".")[0] == section]
    if not dot:
        known += SECTIONS
    homes = [key for key in KEYS if key.rpartition(".")[2] == leaf]
    hint = f" (did you mean {' or '.join(homes)}?)" if homes else did_you_mean(leaf, known)
    return f"is not a known key{hint}; allowed: {', '.join(known)}"
