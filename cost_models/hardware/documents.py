"""A model or a cluster as the mapping that the catalog reads back: shipped parts by name, and only what differs."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from hdpsim.cost_models.hardware.entries import KEYS
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.reading.fields import FieldKey
from hdpsim.cost_models.reading.units import written_quantity
from hdpsim.cost_models.reading.values import QUANTITIES
from hdpsim.cost_models.transformer.model import Model

from . import catalog

Document = dict[str, Any]

_PARTS = ("latent_attention", "mamba")
"""Sizes of a model that have a mapping of their own."""


def model_document(model: Model) -> Document:
    """Every property of *model* that is not the default."""
    document = _differences(model, None)
    for key in _PARTS:
        part = getattr(model, key)
        if part is not None:
            document[key] = {item.name: getattr(part, item.name) for item in fields(part)}
    return document


def cluster_document(cluster: Cluster) -> Document:
    """Name, node, number of nodes, and what differs from the default fabric."""
    document: Document = {"name": cluster.name}
    if isinstance(cluster, MixedCluster):
        document["nodes"] = [{"node": _node(group.node), "count": group.nodes} for group in cluster.groups]
    else:
        document |= {"node": _node(cluster.node), "nodes": cluster.nodes}
    fabric = _differences(cluster.fabric, Fabric())
    return {**document, "fabric": fabric} if fabric else document


def _node(node: Node) -> Document | str:
    known = _base(node, catalog.node(node.name) if node.name in catalog.names("node") else None)
    changed = _differences(node, known)
    changed.pop("gpu", None)
    if known is None or node.gpu != known.gpu:
        changed["gpu"] = _gpu(node.gpu)
    return _like(node.name, known, changed)


def _gpu(gpu: Gpu) -> Document | str:
    known = _base(gpu, catalog.gpu(gpu.name) if gpu.name in catalog.names("gpu") else None)
    return _like(gpu.name, known, _differences(gpu, known))


def _like(name: str, known: object, changed: Document) -> Document | str:
    """What is *known* by its name, with what is *changed* of it."""
    if known is None:
        return changed
    return {"like": name, "name": name, **changed} if changed else name


def _base(value: Any, known: Any) -> Any:
    """*known*, unless it has something that *value* has none of: a file cannot take away what it is like."""
    if known is None:
        return None
    pairs = ((getattr(value, item.name), getattr(known, item.name)) for item in fields(value))
    return None if any(own is None and other is not None for own, other in pairs) else known


def _differences(value: Any, known: Any) -> Document:
    """The fields of *value* that differ from *known* (None: from the defaults), as they are written.

    Words about sources are left out, and so is what there is none of.
    """
    document: Document = {}
    for item in fields(value):
        current = getattr(value, item.name)
        usual = item.default if known is None else getattr(known, item.name)
        same = usual is not MISSING and current == usual
        if same or current is None or item.name in ("source", *_PARTS):
            continue
        way = KEYS.get(type(value), {}).get(item.name, FieldKey())
        written = written_quantity(current, way.kind) if way.kind in QUANTITIES else current
        document[way.name or item.name] = written
    return document
