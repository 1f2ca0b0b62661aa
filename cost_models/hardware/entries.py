"""From the keys of one catalog file to a Gpu, Node, Cluster or Model.

What a key may be stands in the annotations of the class that it becomes a field of; KEYS says where it is called
otherwise, has a unit or a range of another name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hdpsim.cost_models.hardware.mixed_cluster import NodeGroup, cluster_of_groups
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.reading.checked import ContradictionError
from hdpsim.cost_models.reading.fields import FieldKey, Fields
from hdpsim.cost_models.transformer.model import LatentAttention, Mamba, Model
from hdpsim.ranges import RANGES

Made = TypeVar("Made")
Entry = TypeVar("Entry", Gpu, Node, Fabric, Cluster, LatentAttention, Mamba, Model)

# Each way with both busy over one way, A100 PCIe Gen4 (NVIDIA/nvbandwidth README)
_DUPLEX_SHARE = 18.5 / 25.9


def _rate(name: str) -> FieldKey:
    return FieldKey(name, "bandwidth")


def _like(**names: str) -> dict[str, FieldKey]:
    """The fields of the *names*, whose ranges are called otherwise."""
    return {field: FieldKey(kind=kind) for kind, fields in names.items() for field in fields.split()}


KEYS: dict[type, dict[str, FieldKey]] = {
    Gpu: {
        "bf16_flop_per_s": FieldKey("bf16", "flop_rate"),
        "fp8_flop_per_s": FieldKey("fp8", "flop_rate"),
        "fp4_flop_per_s": FieldKey("fp4", "flop_rate"),
        "hbm_bytes": FieldKey("hbm", "bytes"),
        "hbm_bytes_per_s": _rate("hbm_bandwidth"),
        "nvlink_bytes_per_s": _rate("nvlink"),
        "host_link_bytes_per_s": _rate("host_link"),
        "host_link_duplex_bytes_per_s": _rate("host_link_duplex"),
        "tdp_w": FieldKey("tdp", "power"),
        "idle_w": FieldKey("idle", "power"),
        "usd_per_hour": FieldKey("price", "money"),
        **_like(ratio="exponentials matrix_energy"),
    },
    Node: {
        "nic_bytes_per_s": _rate("nic"),
        "host_memory_bytes": FieldKey("host_memory", "bytes"),
        "ring_step_s": FieldKey("ring_step", "time"),
        **_like(gpus_per_node="gpus", ratio="host_time", server_ratio="server_ratio"),
        **_like(positive_share="nic_efficiency collective_share all_to_all_share"),
    },
    Fabric: {
        "hop_latency_s": FieldKey("hop_latency", "time"),
        **_like(oversubscription="leaf_oversubscription spine_oversubscription"),
    },
    Model: _like(
        heads="kv_heads", layers="dense_layers", ffn_hidden="shared_expert_ffn dense_ffn_hidden",
        window_tokens="sliding_window", positions="learned_positions", lora_rank="adapter_rank expert_latent",
    ),
    Mamba: _like(heads="groups", head_dim="state conv chunk"),
    LatentAttention: _like(
        lora_rank="q_lora_rank kv_lora_rank", head_dim="qk_nope_head_dim qk_rope_head_dim v_head_dim"
    ),
}  # fmt: skip


def read_gpu(fields: Fields, name: str) -> Gpu | None:
    """A GPU; None when something was noted."""
    host_link = fields.quantity("host_link", "bandwidth")
    duplex = fields.quantity("host_link_duplex", "bandwidth", default=host_link * _DUPLEX_SHARE)
    return _built(fields, Gpu, name, host_link_duplex_bytes_per_s=duplex)


def read_node(fields: Fields, name: str, gpu: Gpu | None) -> Node | None:
    """A node around *gpu*; None when something was noted."""
    gpus, board = fields.integer("gpus", kind="gpus_per_node"), fields.integer("board_gpus", default=0)
    if board == 1 or 0 < board < gpus:
        wrong = f"must be at least 2 and the node's {gpus}, got {board}"
        fields.problems.add(fields.dotted("board_gpus"), wrong)
    nics = fields.integer("nics")
    return _built(fields, Node, name, gpu=gpu, gpus=gpus, nics=nics, board_gpus=board or None)


def read_cluster(fields: Fields, name: str, node: Node | None) -> Cluster | None:
    """A cluster of *node*; None when something was noted."""
    nodes = _nodes(fields, node)
    fabric = _built(fields.mapping("fabric"), Fabric)
    most = RANGES["gpus"]
    if node is not None and not most.holds(gpus := nodes * node.gpus):
        wrong = f"{nodes:,} nodes of {node.gpus} GPUs: {most.complaint(gpus)}"
        fields.problems.add(fields.dotted("nodes"), wrong)
    return _built(fields, Cluster, name, node=node, nodes=nodes, fabric=fabric)


def read_mixed_cluster(fields: Fields, name: str, groups: Sequence[NodeGroup | None]) -> Cluster | None:
    """A cluster of *groups* of nodes, the list under `nodes`; None when something was noted."""
    fabric = _built(fields.mapping("fabric"), Fabric)
    for key in ("node", "gpus"):
        fields.take(key)
        if fields.has(key):
            fields.problems.add(fields.dotted(key), "must not be given together with a list of nodes")
    named, source = _name(fields, name), _source(fields)
    fields.finish()
    sound_groups = [group for group in groups if group is not None]
    if not fields.sound or len(sound_groups) < len(groups):
        return None
    most, gpus = RANGES["gpus"], sum(group.nodes * group.node.gpus for group in sound_groups)
    if not most.holds(gpus):
        fields.problems.add(fields.dotted("nodes"), most.complaint(gpus))
        return None
    return _agreeing(fields, lambda: cluster_of_groups(named, sound_groups, fabric, source))


def read_node_group(fields: Fields, node: Node | None) -> NodeGroup | None:
    """So many neighbouring nodes of one kind; None when something was noted."""
    count = fields.integer("count", kind="nodes")
    fields.finish()
    return None if node is None or not fields.sound else NodeGroup(node=node, nodes=count)


def read_model(fields: Fields, name: str) -> Model | None:
    """A model; None when something was noted."""
    heads, hidden = fields.integer("heads"), fields.integer("hidden")
    if not fields.has("head_dim") and hidden % heads:
        wrong = f"is required: hidden {hidden} does not divide by {heads} heads"
        fields.problems.add(fields.dotted("head_dim"), wrong)
    every = fields.number("full_attention_every", default=0)
    return _built(
        fields,
        Model,
        name,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("kv_heads", default=heads, kind="heads"),
        head_dim=fields.integer("head_dim", default=max(1, hidden // heads)),
        full_attention_every=int(every) if every == int(every) else every,  # files show 2, not 2.0
        latent_attention=_latent_attention(fields),
        mamba=_mamba(fields),
    )


def _latent_attention(fields: Fields) -> LatentAttention | None:
    if fields.raw("latent_attention", None) is None:
        return None
    part = fields.mapping("latent_attention")
    query_rank = part.integer("q_lora_rank", minimum=0, default=0, kind="lora_rank")
    return _built(part, LatentAttention, q_lora_rank=query_rank)


def _mamba(fields: Fields) -> Mamba | None:
    return None if fields.raw("mamba", None) is None else _built(fields.mapping("mamba"), Mamba)


def _nodes(fields: Fields, node: Node | None) -> int:
    """The number of nodes, given as `nodes` or as `gpus`."""
    fields.take("nodes", "gpus")
    if fields.has("nodes") and fields.has("gpus"):
        fields.problems.add(fields.dotted("gpus"), "must not be given together with nodes")
        return 1
    if fields.has("nodes"):
        return fields.integer("nodes")
    if not fields.has("gpus"):
        fields.problems.add(fields.dotted("nodes"), "is required (or gpus)")
        return 1
    known = len(fields.problems.found)
    gpus = fields.integer("gpus")
    if len(fields.problems.found) == known and node is not None and gpus % node.gpus:
        fields.problems.add(
            fields.dotted("gpus"),
            f"must be a multiple of the {node.gpus} GPUs of a {node.name} node, got {gpus} (part of a node, "
            f"such as a share of a rack: node: {{like: {node.name}, gpus: N, nics: N}})",
        )
    return max(1, gpus // node.gpus) if node is not None else 1


def _name(fields: Fields, default: str) -> str:
    fields.texts("aliases")
    return fields.text("name", default=default)


def _source(fields: Fields) -> str:
    """The `source` text, or the `sources` of the single figures as one text."""
    text = fields.text("source", default="").strip()
    parts = fields.raw("sources", {})
    if not isinstance(parts, dict):
        fields.problems.add(fields.dotted("sources"), "must be a mapping from key to source")
        return text
    return "; ".join([*([text] if text else []), *(f"{key}: {value}" for key, value in parts.items())])


def _built(fields: Fields, kind: type[Entry], name: str | None = None, **given: Any) -> Entry | None:
    """The entry of *given* values and the other keys; None when something was noted: stand-ins are no entry.

    *name*: of an entry with a name and a source, where its keys say no other.
    """
    if name is not None:
        given |= {"name": _name(fields, name), "source": _source(fields)}
    given |= fields.values_of(kind, KEYS.get(kind, {}), given)
    result = _agreeing(fields, lambda: kind(**given)) if fields.sound else None
    fields.finish()
    return result if fields.sound else None


def _agreeing(fields: Fields, made: Callable[[], Made]) -> Made | None:
    """What is *made*; None after noting what contradicts each other."""
    try:
        return made()
    except ContradictionError as error:
        for key, text in error.problems:
            fields.problems.add(fields.dotted(key), text)
        return None
