"""From a record to what the simulator takes: model, cluster, layout, micro-batches, and what had to be assumed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import Calibration, calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Cluster, Node
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout.switches import Schedule
from hdpsim.cost_models.layout.switches import ShardingKind as LayoutSharding
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError, InfeasibleError
from hdpsim.experiments.records.switches import Switches, switches_of
from hdpsim.experiments.software.facts import Run, interleaves
from hdpsim.experiments.software.model_of_run import model_of
from hdpsim.experiments.software.rules import setting_of
from hdpsim.experiments.software.run_config import RunConfig
from hdpsim.ranges import RANGES
from hdpsim.simulator.setup import MemoryOptions, Setup, StrategyOptions

MOST_SEQUENCES = RANGES["batch_sequences"]
BOARD_GPUS = 4  # of a board without NVSwitch; one that holds eight has switches
MOST_OF_A_SERVER = 16  # GPUs of a server with a domain of its own; racks hold more, in trays
BYTES_PER_S_PER_GBPS = 1e9 / 8  # network rates are decimal gigabits

_OF_SHARDING: dict[str, LayoutSharding] = {
    "none": "none", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "fsdp": "zero3", "hsdp": "zero3",
}  # fmt: skip
_OF_A_BOARD = {"tensor_boost": "tensor_boost", "board_w": "tdp_w"}
_OF_A_SERVER = re.compile(r"\b(?:(\d+) ?x ?)?(\d+) ?Gb(?:ps|it/s|/s)?\b[^;,]*\bper node\b")
_GPUS_OF_A_SERVER = 8
_SPLIT = re.compile(r"\b(ZB-?\w+|DualPipe\w*)\b")
_SCHEDULES = {
    "ZB-1p": "zb-h1", "ZB-H1": "zb-h1", "ZB-2p": "zb-h2", "ZB-H2": "zb-h2", "ZB-V": "zb-v", "ZBV": "zb-v",
    "ZBVZeroBubble": "zb-v", "DualPipe": "dualpipe", "DualPipeV": "zb-v",
}  # fmt: skip
Gauge = Literal["device", "reserved", "allocated"]
"""What is read: all of the GPU's memory in use, what PyTorch's allocator holds, or the tensors in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """One record, ready to predict.

    Attributes:
        setup: model, cluster, layout and calibration.
        sequences: sequences of a step.
        seq_len: tokens of each.
        round_tokens: tokens of the documents of one sequence; attention stays inside each.
        gauge: what the source calls peak memory; all of the GPU's when nothing tells.
        first_stage_read: whether it reads the first pipeline stage's instead of the fullest one's.
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
    gauge: Gauge
    first_stage_read: bool
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
    gpus, seq_len = _needed_number(config, "n_gpus"), _needed_number(config, "seq_len")
    cluster = _cluster(run, gpus, assumptions)
    model = _with_switches(model_of(config, seq_len, assumptions), switches)
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
    source = Run(config)  # what a source's figures mean stands, whichever rules are left out
    gauge = setting_of(source, "memory_gauge")
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
        gauge="device" if gauge is None else cast(Gauge, gauge.value),
        first_stage_read=setting_of(source, "memory_stage") is not None,
        round_tokens=_round_tokens(seq_len, documents),
        rule_kinds=switches.kinds,
        assumptions=tuple(assumptions),
        not_modelled=switches.not_modelled,
    )


def _with_switches(model: Model, switches: Switches) -> Model:
    """The model with what no column holds; a hybrid whose record does not have its prediction layers has none."""
    more = dict(switches.model)
    if not more.get("mtp_layers"):
        more |= {"mtp_layers": 0, "mtp_pattern": ""}
    return replace(model, **more)


def layout_cp(layout: Layout) -> int:
    """The context-parallel degree, 1 when the layout leaves it open."""
    return layout.parallel.cp or 1


def _round_tokens(seq_len: int, documents: int) -> tuple[int, ...]:
    """Tokens of so many documents that share a sequence, as equal as whole tokens allow."""
    shorter, longer_ones = divmod(seq_len, documents)
    return (shorter + 1,) * longer_ones + (shorter,) * (documents - longer_ones)


def _needed_number(config: RunConfig, column: str, why: str = "") -> int:
    value = getattr(config, column)
    if value is None:
        raise InfeasibleError(f"{column} is not stated{why}")
    return int(value)


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
    tp, pp = _needed_number(config, "tp", why), _needed_number(config, "pp", why)
    cp = config.cp or 1
    dp, rest = divmod(gpus, config.replica_gpus)
    if rest:
        raise InfeasibleError(f"{gpus} GPUs do not divide by tp x pp x cp = {tp} x {pp} x {cp}")
    if config.dp is not None and config.dp != dp:
        raise InfeasibleError(f"tp x pp x cp x dp = {tp} x {pp} x {cp} x {config.dp} is not {gpus} GPUs")
    if config.cp is None:
        assumptions.append("no context parallelism")
    return {"tp": tp, "pp": pp, "cp": cp, "dp": dp}


def _layout(run: Run, degrees: dict[str, int], switches: Switches, assumptions: list[str]) -> Layout:
    config = run.config
    tp, pp, cp = degrees["tp"], degrees["pp"], degrees["cp"]
    ranks = degrees["dp"] * cp
    dealt = _needed_number(config, "layers") + (2 if switches.layout.get("embedding_layers") else 0)
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


def _of_the_catalog(named: str, node_name: str | None) -> Node:
    """The node of that name, else the usual one, of the GPU that a record names."""
    try:
        gpu = catalog.gpu(named).name
    except CatalogError as error:
        own = "{like: hgx-h100-80gb, gpu: {like: h100-80gb, tdp: 500W}}"
        raise CatalogError(
            f"{error}; column cluster.node may describe one ({own}: docs/reference/catalog.md)"
        ) from None
    node = catalog.node(node_name) if node_name else catalog.node_with(gpu)
    if node.gpu.name != gpu:
        raise InfeasibleError(f"cluster.node {node.name} carries {node.gpu.name}, the record names {gpu}")
    return node


def _cluster(run: Run, gpus: int, assumptions: list[str]) -> Cluster:
    """Nodes of the catalog that carry the GPU, cut to what the run used."""
    config = run.config
    cloud = setting_of(run, "node")
    node = run.own_node or _of_the_catalog(config.gpu, None if cloud is None else str(cloud.value))
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
    # Four of four may be half of a server of eight.
    if config.gpus_per_node == BOARD_GPUS and gpus not in (1, BOARD_GPUS) and node.name.startswith("hgx-"):
        node = replace(node, board_gpus=BOARD_GPUS, nvlink_sharp=False)
        assumptions.append("four GPUs on a board without NVSwitch")
    if domain != node.gpus:
        nics: dict[str, Any] = {"nics": domain, "nic_bytes_per_s": node.nic_bytes_per_s_per_gpu}
        host_bytes = node.host_memory_bytes * domain / node.gpus
        node = replace(node, gpus=domain, host_memory_bytes=host_bytes, **nics)
    if gpus > domain:
        assumptions.append("non-blocking rail-optimised fabric")
    for switch, field in _OF_A_BOARD.items():
        if (setting := setting_of(run, switch)) is not None:
            board: dict[str, Any] = {field: setting.value}
            node = replace(node, gpu=replace(node.gpu, **board))
            assumptions += [setting.words] if setting.words else []
    return catalog.cluster_of(node, gpus)


def _remarks(config: RunConfig, model: Model, layout: Layout, assumptions: list[str]) -> None:
    """Assumptions that follow from the run as a whole."""
    if config.recompute == "selective" and not (layout.recompute.share or layout.recompute.small_kernels):
        assumptions.append("selective recomputation costs nothing (attention kernels keep no scores)")
    if model.latent_attention and not model.mtp_layers:
        assumptions.append("no multi-token prediction")


def schedule_of(config: RunConfig, vpp: int) -> str:
    """The pipeline schedule; a name that Layout does not know blocks the prediction."""
    name = _named(config)
    if name in get_args(Schedule):
        return name
    return "interleaved" if vpp > 1 else "1f1b"


def blocked(config: RunConfig) -> str:
    """Why the time of a record cannot be predicted: its schedule is not modelled. Empty: it can."""
    name = _named(config)
    if name and name not in get_args(Schedule):
        return f"the pipeline schedule {name} is not modelled: only {', '.join(get_args(Schedule))} are"
    return ""


def _named(config: RunConfig) -> str:
    stated = dict(config.switches).get("schedule")
    if stated is not None:
        return str(stated)
    named = _SPLIT.search(config.framework) or _SPLIT.search(config.notes)
    return _SCHEDULES.get(named[1], named[1]) if named else ""


def virtual_stages(run: Run, dealt_layers: int) -> tuple[int, str]:
    """Chunks of a stage and the words of an assumption.

    As printed, by this release or another of the same recipe; where only interleaving is known one of the
    *dealt_layers* to a chunk, as most recipes have it (NeMo's of 13 to 340 billion parameters, Megatron-Core's).
    """
    config = run.config
    pp = config.pp or 1
    if pp > 1 and config.vpp in (None, 1) and _named(config) == "zb-v":
        return 2, "two chunks on every stage (V-shaped schedules)"
    if config.vpp is not None:
        if config.vpp > 1 and pp == 1:
            return 1, f"vpp {config.vpp} ignored: there is no pipeline"
        return config.vpp, ""
    if pp == 1:
        return 1, ""
    of_other_releases = setting_of(run, "chunks")
    if of_other_releases is not None:
        return int(str(of_other_releases.value)), of_other_releases.words
    chunks = max(1, dealt_layers // pp) if interleaves(run) else 1
    return chunks, f"vpp {chunks}"


def calibrated(setup: Setup, own: Calibration | None) -> Setup:
    """The setup with the user's *own* constants, where they are of its GPUs' generation (or of any)."""
    if own is None or own.generation not in ("", setup.cluster.gpu.calibration):
        return setup
    return replace(setup, calibration=own)


def nic_gbps(config: RunConfig) -> float | None:
    """Network of a GPU in Gbit/s: the column, or what the notes say of a server."""
    if config.nic_gbps_per_gpu is not None:
        return config.nic_gbps_per_gpu
    stated = _OF_A_SERVER.search(config.notes)
    if stated is None:
        return None
    return int(stated[1] or 1) * int(stated[2]) / (config.gpus_per_node or _GPUS_OF_A_SERVER)


def collective_share(config: RunConfig) -> float:
    """Share of a server's links that collectives use: of Omni-Path one.

    NCCL's log on four A100 servers with four links has both rings on one of them. All-reduces reached 40 Gbit/s there,
    and 44 to 57 on 16 servers of V100 (bigscience-workshop/bigscience, experiments/bandwidth: "an issue with nccl that
    doesn't fully utilize Intel OPA").
    Inferred: one whole link; send and receive find the link next to their GPU.
    """
    stated = _OF_A_SERVER.search(config.notes)
    if stated is None or not re.search(r"\bOPA\b|Omni-?Path", stated[0]):
        return 1.0
    return 1.0 / int(stated[1] or 1)
