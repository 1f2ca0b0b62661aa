"""From a record to what the simulator takes: model, cluster, layout, micro-batches, and what had to be assumed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import ShardingKind as LayoutSharding
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.records.machine import calibrated, collective_share, nic_gbps
from hdpsim.experiments.records.pipeline import blocked, schedule_of, virtual_stages
from hdpsim.experiments.records.switches import Switches, switches_of
from hdpsim.experiments.software.facts import (
    Run,
    hybrid_model,
    known_model,
    latent_model,
    named_model,
    other_sizes,
)
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.seen_columns import RunConfig
from hdpsim.quoting import quoted
from hdpsim.ranges import RANGES
from hdpsim.simulator.setup import MemoryOptions, Setup, StrategyOptions

GPT2_VOCABULARY = 51_200  # 50,257 tokens of GPT-2, padded as Megatron-LM does for tp 8
_SHAPE = ("layers", "hidden", "heads", "ffn_hidden")
MOST_SEQUENCES = RANGES["batch_sequences"]
BOARD_GPUS = 4  # of a board without NVSwitch; one that holds eight has switches
MOST_OF_A_SERVER = 16  # GPUs of a server with a domain of its own; racks hold more, in trays
BYTES_PER_S_PER_GBPS = 1e9 / 8  # network rates are decimal gigabits

_OF_SHARDING: dict[str, LayoutSharding] = {
    "none": "none", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "fsdp": "zero3", "hsdp": "zero3",
}  # fmt: skip
# Statements about a model that the schema has no column for, as the notes of the records word them.
_FIRST_DENSE = re.compile(r"first (\d+) layers? dense ffn (\d+)")
_DENSE_LAYERS = re.compile(r"\bdense_layers=(\d+)")
_MOE_EVERY = re.compile(r"MoE every (\d+)(?:st|nd|rd|th) layer.*?dense layers ffn (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """One record, ready to predict.

    Attributes:
        setup: model, cluster, layout and calibration.
        sequences: sequences of a step.
        seq_len: tokens of each.
        round_tokens: tokens of the documents of one sequence; attention stays inside each.
        micro_batch: sequences of a micro-batch.
        micro_batches: micro-batches of a step on one data-parallel rank.
        blocked: why no time can be predicted; empty when it can. Memory can be.
        rule_kinds: classes of the software rules that were applied.
        assumptions: what the source does not say and was filled in.
        not_modelled: what the run did and the prediction does not.
    """

    setup: Setup
    sequences: int
    seq_len: int
    micro_batch: int
    micro_batches: int
    blocked: str
    round_tokens: tuple[int, ...]
    rule_kinds: frozenset[str]
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The step's batch: the documents of every sequence."""
        return np.tile(np.asarray(self.round_tokens, dtype=np.int64), self.sequences)


def prepare(
    config: RunConfig, own: Calibration | None = None, without: frozenset[str] = frozenset()
) -> PreparedRun:
    """What the simulator needs to predict a record.

    Args:
        config: what was run.
        own: constants for GPUs of its generation (of any, where it names none) instead of the shipped ones.
        without: classes of software rules that are not asked.

    Raises:
        InfeasibleError: the record lacks something that cannot be assumed, or contradicts itself.
        CatalogError: its GPU is not in the catalog.
    """
    run = Run(config, without)
    switches = switches_of(run)
    assumptions: list[str] = []
    gpus, seq_len = _needed(config, "n_gpus"), _needed(config, "seq_len")
    cluster = _cluster(run, gpus, assumptions)
    model = _with_switches(_model(config, seq_len, assumptions), switches)
    degrees = _degrees(config, gpus, assumptions)
    sequences, micro_batch, micro_batches = _batch(config, degrees["dp"], assumptions)
    layout = _layout(run, degrees, switches, assumptions)
    context = micro_batch * seq_len
    if context % layout_cp(layout):
        raise InfeasibleError(f"{context} tokens of a micro-batch do not divide by cp = {layout.parallel.cp}")
    documents, packed = _documents(run, seq_len)
    assumptions += [packed] if packed else []
    _remarks(config, model, layout, assumptions)
    offload = setting_of(run, "activation_offload")
    setup = Setup(
        model=model,
        cluster=cluster,
        layout=layout.changed(rank_capacity_tokens=context // layout_cp(layout)),
        calibration=calibration(cluster.gpu.calibration),
        context_tokens=context,
        strategy=StrategyOptions(name="static", activation_offload=1.0 if offload else 0.0),
        memory=MemoryOptions(overheads=switches.memory, must_fit=False),
    )
    return PreparedRun(
        setup=calibrated(setup, own),
        sequences=sequences,
        seq_len=seq_len,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        blocked=blocked(config),
        round_tokens=_round_tokens(seq_len, documents),
        rule_kinds=switches.kinds,
        assumptions=tuple(assumptions),
        not_modelled=switches.not_modelled,
    )


def _with_switches(model: Model, switches: Switches) -> Model:
    """The model with what no column holds; a hybrid's prediction layers come with their pattern."""
    more = dict(switches.model)
    if model.layer_pattern and more.get("mtp_layers"):
        more["mtp_pattern"] = catalog.model(model.name).mtp_pattern
    return replace(model, **more)


def layout_cp(layout: Layout) -> int:
    """The context-parallel degree, 1 when the layout leaves it open."""
    return layout.parallel.cp or 1


def _round_tokens(seq_len: int, documents: int) -> tuple[int, ...]:
    """Tokens of so many documents that share a sequence, as equal as whole tokens allow."""
    whole, rest = divmod(seq_len, documents)
    return (whole + 1,) * rest + (whole,) * (documents - rest)


def _needed(config: RunConfig, column: str, why: str = "") -> int:
    value = getattr(config, column)
    if value is None:
        raise InfeasibleError(f"{column} is not stated{why}")
    return int(value)


def _needed_shape(config: RunConfig, column: str) -> int:
    """A size of the model, which no model of that name tells."""
    if getattr(config, column) is not None:
        return _needed(config, column)
    missing = [each for each in _SHAPE if getattr(config, each) is None]
    known = named_model(config)
    if known is not None:
        why = f"and {known.name} has other {', '.join(other_sizes(config, known))} than the record"
    elif config.model_name:
        why = f"and the catalog has no model {quoted(config.model_name)} (`hdpsim catalog models`)"
    else:
        why = "and no model is named"
    raise InfeasibleError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not stated, {why}")


def _batch(config: RunConfig, dp: int, assumptions: list[str]) -> tuple[int, int, int]:
    """Sequences of a step; sequences of a micro-batch and micro-batches on the busiest data-parallel rank."""
    sequences, micro_batch = config.global_batch_seqs, config.micro_batch
    if micro_batch is None:
        micro_batch = 1
        assumptions.append("micro-batches of 1 sequence")
    if sequences is None:
        if config.grad_accum is None:
            raise InfeasibleError("global_batch_seqs is not stated")
        sequences = config.grad_accum * dp * micro_batch
    most = -(-sequences // dp)
    if sequences % (dp * micro_batch):
        assumptions.append(
            f"{sequences} sequences do not divide by dp x micro_batch = {dp} x {micro_batch}: "
            f"the busiest rank has {most}"
        )
    micro_batch = min(micro_batch, most)
    if sequences > MOST_SEQUENCES.high:
        raise InfeasibleError(f"global_batch_seqs {MOST_SEQUENCES.complaint(sequences)}")
    return sequences, micro_batch, -(-most // micro_batch)


def _documents(run: Run, seq_len: int) -> tuple[int, str]:
    """Documents in a sequence, which attention never leaves, and the words of an assumption."""
    short = setting_of(run, "document_tokens")
    if short is None:
        return 1, "every sequence packed to its full length" if run.config.task == "sft" else ""
    documents = max(1, round(seq_len / float(str(short.value))))
    return documents, short.words.replace("short documents", f"{documents} short documents")


def _degrees(config: RunConfig, gpus: int, assumptions: list[str]) -> dict[str, int]:
    """tp, pp, cp, dp, checked against the number of GPUs."""
    why = f", and on {gpus} GPUs none was found with which a replica fits into memory"
    tp, pp = _needed(config, "tp", why), _needed(config, "pp", why)
    cp = config.cp or 1
    if gpus % (tp * pp * cp):
        raise InfeasibleError(f"{gpus} GPUs do not divide by tp x pp x cp = {tp} x {pp} x {cp}")
    dp = gpus // (tp * pp * cp)
    if config.dp is not None and config.dp != dp:
        raise InfeasibleError(f"tp x pp x cp x dp = {tp} x {pp} x {cp} x {config.dp} is not {gpus} GPUs")
    if config.cp is None:
        assumptions.append("no context parallelism")
    return {"tp": tp, "pp": pp, "cp": cp, "dp": dp}


def _layout(run: Run, degrees: dict[str, int], switches: Switches, assumptions: list[str]) -> Layout:
    config = run.config
    tp, pp, cp = degrees["tp"], degrees["pp"], degrees["cp"]
    ranks = degrees["dp"] * cp
    dealt = _needed(config, "layers") + (2 if switches.layout.get("embedding_layers") else 0)
    vpp, assumption = virtual_stages(run, dealt)
    assumptions += [assumption] if assumption else []
    sharding = config.zero_stage
    if sharding is None:
        sharding = "none"
        assumptions.append("optimizer states not sharded")
    elif (gathered := setting_of(run, "stays_gathered")) is not None:
        sharding = "zero1"
        assumptions.append(gathered.words)
    recompute: Any = config.recompute
    unstated = setting_of(run, "recompute")
    if recompute is None:
        recompute = unstated.value if unstated else "none"
        assumptions.append(unstated.words if unstated else "no recomputation")
    assumptions += switches.assumptions
    if config.ep is not None and config.ep > 1 and tp > 1 and "etp" not in switches.layout:
        assumptions.append("each expert whole on one GPU (no expert tensor parallelism) when ep >= tp")
    settings: dict[str, Any] = {"precision": "fp8", "schedule": schedule_of(config, vpp), **switches.layout}
    kind = "none" if ranks == 1 else _OF_SHARDING[sharding]
    return Layout(
        tp=tp, pp=pp, vpp=vpp, cp=cp, ep=config.ep or 1, sharding=kind, recompute=recompute, **settings
    )


def _model(config: RunConfig, seq_len: int, assumptions: list[str]) -> Model:
    """The model of the shape columns; GPT conventions where the MLP has no gate, Llama's where it has.

    No column holds the pattern of a hybrid: the catalog's model of that name and shape is the whole answer.
    """
    hybrid = hybrid_model(config)
    if hybrid is not None:
        assumptions.append(f"layers of {hybrid.name}")
        return replace(hybrid, mtp_layers=0, mtp_pattern="")
    layers, hidden, heads, ffn_hidden = (_needed_shape(config, column) for column in _SHAPE)
    gated = config.gated_mlp
    if gated is None:
        gated = True
        assumptions.append("gated MLP")
    vocab = config.vocab
    if vocab is None:
        vocab = GPT2_VOCABULARY
        assumptions.append(f"vocabulary of {vocab:,} tokens")
    experts, top_k = config.n_experts or 0, config.topk or 0
    if experts and not top_k:
        raise InfeasibleError("topk is not stated, but n_experts is")
    of_latent = latent_model(config) if config.kv_heads is None else None
    latent = None if of_latent is None else of_latent.latent_attention
    if of_latent is not None:
        assumptions.append(f"latent attention of {of_latent.name}")
    if latent is None and config.kv_heads is None:
        raise InfeasibleError("kv_heads is not stated")
    if latent is None and config.heads and config.kv_heads and config.heads % config.kv_heads:
        raise InfeasibleError(f"kv_heads = {config.kv_heads} does not divide the {config.heads} heads")
    head_dim = config.head_dim or (latent.v_head_dim if latent else hidden // heads)
    if config.head_dim is None and latent is None:
        assumptions.append(f"head_dim {head_dim}")
    dense_layers, dense_ffn = _dense_layers(config, layers) if experts else (0, 0)
    known = None if gated else known_model(config)
    of_gpt = not gated and (known is None or known.biases)
    if known is not None and not known.biases:
        assumptions.append(f"no biases, positions or tied embeddings, as {known.name}")
    return Model(
        name=config.model_name or "model", layers=layers, hidden=hidden, heads=heads,
        kv_heads=config.kv_heads or heads, head_dim=head_dim, ffn_hidden=ffn_hidden, vocab=vocab, gated_mlp=gated,
        experts=experts, top_k=top_k, shared_expert_ffn=config.shared_expert_ffn or 0, dense_layers=dense_layers,
        dense_ffn_hidden=dense_ffn, latent_attention=latent, norm="rms" if gated else "layer", biases=of_gpt,
        tied_embeddings=of_gpt, learned_positions=seq_len if of_gpt else 0,
    )  # fmt: skip


def _dense_layers(config: RunConfig, layers: int) -> tuple[int, int]:
    """Dense layers of a mixture-of-experts model and their width, as far as the notes tell."""
    every = _MOE_EVERY.search(config.notes)
    if every:
        return layers - layers // int(every[1]), int(every[2])
    first, stated = _FIRST_DENSE.search(config.notes), _DENSE_LAYERS.search(config.notes)
    if not first:
        return 0, 0
    return min(layers, int((stated or first)[1])), int(first[2])


def _cluster(run: Run, gpus: int, assumptions: list[str]) -> Cluster:
    """Nodes of the catalog that carry the GPU, cut to what the run used."""
    config = run.config
    cloud = setting_of(run, "node")
    gpu = catalog.gpu(config.gpu).name
    node = catalog.node(str(cloud.value)) if cloud else catalog.node_with(gpu)
    if node.gpu.name != gpu:
        raise InfeasibleError(f"cluster.node {node.name} carries {node.gpu.name}, the record names {gpu}")
    assumptions += [cloud.words] if cloud and cloud.words else []
    domain = node.gpus
    if domain <= MOST_OF_A_SERVER and config.gpus_per_node:
        domain = min(domain, config.gpus_per_node)
    if gpus < domain:
        domain = gpus
    elif gpus % domain:
        # A rack of 72 is rarely used whole: runs take the largest share of it that divides their GPUs.
        tray = config.gpus_per_node or 1
        shares = [n for n in range(tray, domain + 1, tray) if gpus % n == 0]
        if node.gpus <= (config.gpus_per_node or node.gpus) or not shares:
            raise InfeasibleError(f"{gpus} GPUs are not whole nodes of {node.gpus}")
        domain = shares[-1]
        assumptions.append(f"{domain} GPUs of each NVLink domain of {node.gpus} used")
    stated = nic_gbps(config)
    if stated is not None:
        node = replace(node, nics=node.gpus, nic_bytes_per_s=stated * BYTES_PER_S_PER_GBPS)
        share = collective_share(config)
        if share < 1.0:
            node = replace(node, collective_share=share)
            assumptions.append("collectives use one of a server's links (Omni-Path)")
    elif gpus > domain:
        rate = node.nic_bytes_per_s_per_gpu / BYTES_PER_S_PER_GBPS
        assumptions.append(f"network of {rate:g} Gbit/s per GPU")
    if config.gpus_per_node == BOARD_GPUS < gpus and node.name.startswith("hgx-"):
        node = replace(node, board_gpus=BOARD_GPUS, nvlink_sharp=False)
        assumptions.append("four GPUs on a board without NVSwitch")
    if domain != node.gpus:
        nics: dict[str, Any] = {"nics": domain, "nic_bytes_per_s": node.nic_bytes_per_s_per_gpu}
        host_bytes = node.host_memory_bytes * domain / node.gpus
        node = replace(node, gpus=domain, host_memory_bytes=host_bytes, **nics)
    if gpus > domain:
        assumptions.append("non-blocking rail-optimised fabric")
    boost = setting_of(run, "tensor_boost")
    if boost is not None:
        node = replace(node, gpu=replace(node.gpu, tensor_boost=True))
        assumptions += [boost.words] if boost.words else []
    return catalog.cluster_of(node, gpus)


def _remarks(config: RunConfig, model: Model, layout: Layout, assumptions: list[str]) -> None:
    """Assumptions that follow from the run as a whole."""
    if config.recompute == "selective" and not (layout.recompute.share or layout.recompute.small_kernels):
        assumptions.append("selective recomputation costs nothing (attention kernels keep no scores)")
    if model.latent_attention and not model.mtp_layers:
        assumptions.append("no multi-token prediction")
