"""From the keys of one catalog file to a Gpu, Node, Cluster or Model: names, units and limits of every key."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from hdpsim.cost_models.hardware.parts import (
    Cluster,
    CongestionControl,
    Fabric,
    FabricKind,
    Gpu,
    Node,
    Placement,
    Routing,
)
from hdpsim.cost_models.reading.checked import ContradictionError
from hdpsim.cost_models.reading.fields import Fields
from hdpsim.cost_models.transformer.model import AdapterTargets, LatentAttention, Model, NormKind
from hdpsim.ranges import RANGES

Entry = TypeVar("Entry")

_DUPLEX_SHARE = (
    18.5 / 25.9
)  # each way with both busy over one way, A100 PCIe Gen4 (NVIDIA/nvbandwidth README)


def read_gpu(fields: Fields, name: str) -> Gpu | None:
    """A GPU; None when something was noted."""
    before = len(fields.problems.found)
    host_link = fields.quantity("host_link", "bandwidth")
    exponentials = fields.number("exponentials", default=1.0, kind="ratio")
    return _built(
        fields,
        before,
        Gpu,
        name=_name(fields, name),
        bf16_flop_per_s=fields.quantity("bf16", "flop_rate"),
        fp8_flop_per_s=fields.quantity("fp8", "flop_rate", default=None),
        fp4_flop_per_s=fields.quantity("fp4", "flop_rate", default=None),
        hbm_bytes=fields.quantity("hbm", "bytes"),
        hbm_bytes_per_s=fields.quantity("hbm_bandwidth", "bandwidth"),
        sm_count=fields.integer("sm_count"),
        nvlink_bytes_per_s=fields.quantity("nvlink", "bandwidth"),
        host_link_bytes_per_s=host_link,
        host_link_duplex_bytes_per_s=fields.quantity(
            "host_link_duplex", "bandwidth", default=host_link * _DUPLEX_SHARE
        ),
        tdp_w=fields.quantity("tdp", "power"),
        calibration=fields.text("calibration"),
        tensor_boost=fields.boolean("tensor_boost", default=False),
        exponentials=exponentials,
        usd_per_hour=fields.quantity("price", "money", default=None),
        price_source=_source_of(fields, "price"),
        source=_source(fields),
    )


def read_node(fields: Fields, name: str, gpu: Gpu | None) -> Node | None:
    """A node around *gpu*; None when something was noted."""
    before = len(fields.problems.found)
    node_name, source = _name(fields, name), _source(fields)
    gpus, nics = fields.integer("gpus", kind="gpus_per_node"), fields.integer("nics")
    nic = fields.quantity("nic", "bandwidth")
    host_memory = fields.quantity("host_memory", "bytes")
    sharp = fields.boolean("nvlink_sharp", default=False)
    board = fields.integer("board_gpus", default=0)
    if board == 1 or 0 < board < gpus:
        fields.problems.add(
            fields.dotted("board_gpus"), f"must be at least 2 and the node's {gpus}, got {board}"
        )
    efficiency = fields.number("nic_efficiency", default=0.0, kind="positive_share")
    share = fields.number("collective_share", default=1.0, kind="positive_share")
    ring_step_s = fields.quantity("ring_step", "time", default=0.0, zero=True)
    host_time = fields.number("host_time", default=1.0, kind="ratio")
    if gpu is None:
        fields.finish()
        return None
    return _built(
        fields,
        before,
        Node,
        name=node_name,
        gpu=gpu,
        gpus=gpus,
        nics=nics,
        nic_bytes_per_s=nic,
        host_memory_bytes=host_memory,
        nvlink_sharp=sharp,
        board_gpus=board or None,
        nic_efficiency=efficiency or None,
        collective_share=share,
        ring_step_s=ring_step_s,
        host_time=host_time,
        source=source,
    )


def read_cluster(fields: Fields, name: str, node: Node | None) -> Cluster | None:
    """A cluster of *node*; None when something was noted."""
    before = len(fields.problems.found)
    cluster_name, source = _name(fields, name), _source(fields)
    nodes = _nodes(fields, node)
    fabric = _fabric(fields.mapping("fabric"))
    most = RANGES["gpus"]
    if node is not None and not most.holds(nodes * node.gpus):
        fields.problems.add(
            fields.dotted("nodes"),
            f"{nodes:,} nodes of {node.gpus} GPUs: {most.complaint(nodes * node.gpus)}",
        )
    if node is None:
        fields.finish()
        return None
    return _built(
        fields, before, Cluster, name=cluster_name, node=node, nodes=nodes, fabric=fabric, source=source
    )


def read_model(fields: Fields, name: str) -> Model | None:
    """A model; None when something was noted."""
    before = len(fields.problems.found)
    heads, hidden = fields.integer("heads"), fields.integer("hidden")
    if not fields.has("head_dim") and hidden % heads:
        fields.problems.add(
            fields.dotted("head_dim"),
            f"is required: hidden {hidden} does not divide by {heads} heads",
        )
    experts = fields.integer("experts", minimum=0, default=0)
    window = fields.integer("sliding_window", default=0, kind="window_tokens")
    return _built(
        fields,
        before,
        Model,
        name=_name(fields, name),
        layers=fields.integer("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("kv_heads", default=heads, kind="heads"),
        head_dim=fields.integer("head_dim", default=max(1, hidden // heads)),
        ffn_hidden=fields.integer("ffn_hidden"),
        vocab=fields.integer("vocab"),
        gated_mlp=fields.boolean("gated_mlp", default=True),
        tied_embeddings=fields.boolean("tied_embeddings", default=False),
        experts=experts,
        top_k=fields.integer("top_k", minimum=0, default=0),
        shared_expert_ffn=fields.integer("shared_expert_ffn", minimum=0, default=0, kind="ffn_hidden"),
        dense_layers=fields.integer("dense_layers", minimum=0, default=0, kind="layers"),
        dense_ffn_hidden=fields.integer("dense_ffn_hidden", minimum=0, default=0, kind="ffn_hidden"),
        latent_attention=_latent_attention(fields),
        sliding_window=window or None,
        full_attention_every=_whole_if_it_is(fields.number("full_attention_every", default=0)),
        chunked_attention=fields.boolean("chunked_attention", default=False),
        parallel_block=fields.boolean("parallel_block", default=False),
        norm="layer" if fields.choice("norm", get_args(NormKind), default="rms") == "layer" else "rms",
        biases=fields.boolean("biases", default=False),
        qkv_biases=fields.boolean("qkv_biases", default=False),
        qk_norm=fields.boolean("qk_norm", default=False),
        expert_biases=fields.boolean("expert_biases", default=False),
        clamped_activation=fields.boolean("clamped_activation", default=False),
        scaled_rotary=fields.boolean("scaled_rotary", default=False),
        dropout=fields.boolean("dropout", default=False),
        learned_positions=fields.integer("learned_positions", minimum=0, default=0, kind="positions"),
        mtp_layers=fields.integer("mtp_layers", minimum=0, default=0),
        adapter_rank=fields.integer("adapter_rank", minimum=0, default=0, kind="lora_rank"),
        adapter_targets=_word(fields, "adapter_targets", AdapterTargets, "attention"),
        source=_source(fields),
    )


def _whole_if_it_is(value: float) -> float:
    """The same number without a fraction where it has none: files show 2, not 2.0."""
    return int(value) if value == int(value) else value


def _latent_attention(fields: Fields) -> LatentAttention | None:
    if not fields.has("latent_attention"):
        fields.raw("latent_attention", None)
        return None
    part = fields.mapping("latent_attention")
    result = LatentAttention(
        q_lora_rank=part.integer("q_lora_rank", minimum=0, default=0, kind="lora_rank"),
        kv_lora_rank=part.integer("kv_lora_rank", kind="lora_rank"),
        qk_nope_head_dim=part.integer("qk_nope_head_dim", kind="head_dim"),
        qk_rope_head_dim=part.integer("qk_rope_head_dim", minimum=0, kind="head_dim"),
        v_head_dim=part.integer("v_head_dim", kind="head_dim"),
    )
    part.finish()
    return result


def _nodes(fields: Fields, node: Node | None) -> int:
    """The number of nodes, given as `nodes` or as `gpus`."""
    if fields.has("nodes") and fields.has("gpus"):
        fields.raw("nodes")
        fields.raw("gpus")
        fields.problems.add(fields.dotted("gpus"), "must not be given together with nodes")
        return 1
    if not fields.has("gpus"):
        fields.raw("gpus", None)
        if not fields.has("nodes"):
            fields.raw("nodes", None)
            fields.problems.add(fields.dotted("nodes"), "is required (or gpus)")
            return 1
        return fields.integer("nodes")
    fields.raw("nodes", None)
    known = len(fields.problems.found)
    gpus = fields.integer("gpus")
    if len(fields.problems.found) == known and node is not None and gpus % node.gpus:
        fields.problems.add(
            fields.dotted("gpus"),
            f"must be a multiple of the {node.gpus} GPUs of a {node.name} node, got {gpus}",
        )
    return max(1, gpus // node.gpus) if node is not None else 1


def _fabric(fields: Fields) -> Fabric:
    default = Fabric()
    result = Fabric(
        kind=_word(fields, "kind", FabricKind, default.kind),
        nodes_per_block=fields.integer("nodes_per_block", default=default.nodes_per_block),
        blocks_per_pod=fields.integer("blocks_per_pod", default=default.blocks_per_pod),
        leaf_oversubscription=fields.number(
            "leaf_oversubscription",
            minimum=1.0,
            default=default.leaf_oversubscription,
            kind="oversubscription",
        ),
        spine_oversubscription=fields.number(
            "spine_oversubscription",
            minimum=1.0,
            default=default.spine_oversubscription,
            kind="oversubscription",
        ),
        hop_latency_s=fields.quantity("hop_latency", "time", default=default.hop_latency_s, zero=True),
        routing=_word(fields, "routing", Routing, default.routing),
        uplinks=fields.integer("uplinks", default=default.uplinks),
        port_split=fields.integer("port_split", default=default.port_split),
        flows_per_connection=fields.integer("flows_per_connection", default=default.flows_per_connection),
        congestion_control=_word(fields, "congestion_control", CongestionControl, default.congestion_control),
        placement=_word(fields, "placement", Placement, default.placement),
    )
    fields.finish()
    return result


def _word(fields: Fields, name: str, kind: Any, default: str) -> Any:
    """One of the words of the Literal *kind*."""
    return fields.choice(name, get_args(kind), default=default)


def _name(fields: Fields, default: str) -> str:
    fields.texts("aliases")
    return fields.text("name", default=default)


def _source(fields: Fields) -> str:
    """The `source` text, or the `sources` of the single figures as one text."""
    text = fields.text("source", default="").strip()
    if not fields.has("sources"):
        fields.raw("sources", None)
        return text
    parts = fields.raw("sources")
    if not isinstance(parts, dict):
        fields.problems.add(fields.dotted("sources"), "must be a mapping from key to source")
        return text
    return "; ".join([*([text] if text else []), *(f"{key}: {value}" for key, value in parts.items())])


def _source_of(fields: Fields, figure: str) -> str:
    """Where one figure comes from; empty when nobody says."""
    sources = fields.raw("sources", None)
    return str(sources.get(figure, "")) if isinstance(sources, dict) else ""


def _built(fields: Fields, before: int, kind: type[Entry], **values: Any) -> Entry | None:
    """The entry that *values* make, unless more problems than *before* are noted: stand-ins are no entry."""
    result: Entry | None = None
    if len(fields.problems.found) == before:
        try:
            result = kind(**values)
        except ContradictionError as error:
            for key, text in error.problems:
                fields.problems.add(fields.dotted(key), text)
    fields.finish()
    return result if len(fields.problems.found) == before else None
