"""The catalog: GPUs, nodes, clusters and models by name, and a user's own in the same YAML.

Shipped entries are files of data/{gpus,nodes,clusters,models}; the file's name is the entry's name, every figure
has its source beside it. A user's entry may start from a shipped one with `like: NAME` and change some keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from hdpsim.cost_models.hardware.entries import (
    read_cluster,
    read_gpu,
    read_mixed_cluster,
    read_model,
    read_node,
    read_node_group,
)
from hdpsim.cost_models.hardware.mixed_cluster import NodeGroup
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.reading.fields import Fields, Problems
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError, InfeasibleError
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.yaml_loader import YamlDocument, load_document

Kind = Literal["gpu", "node", "cluster", "model"]
Entry = TypeVar("Entry")
Build = Callable[[object, Problems, str, str], Entry | None]

_FOLDER = Path(__file__).parents[1] / "data"
_NEVER = re.compile(r"(?!)")
_NOT_OF_THE_NAME: dict[Kind, re.Pattern[str]] = {
    "gpu": re.compile(r"(?i)^NVIDIA\b|\bAC$"),  # as drivers say it; AC: cooled by air
    "model": re.compile(r"(?i)^\w[\w.-]*/(?=[^/]+$)|(?:[-_ ](?:hf|base|chat|instruct|it|v0\.\d))+$"),
    # as hubs do: owner, tuning; more slashes, or a dot before them, are a path
    "node": _NEVER,
    "cluster": _NEVER,
}
"""What spellings of others have before and after the name."""
_READ: dict[tuple[Kind, str], Any] = {}
"""Shipped entries that were asked for before."""
_SXM = re.compile(r"sxm(?:[4-6](?!\dg))?")  # A100SXM480GB, A100SXM80GB


_CHANGED = " (changed)"
"""Behind the name of an entry of which single keys were changed."""


def changed_name(name: str) -> str:
    """What an entry of that name is called once single keys of it were changed."""
    return name + _CHANGED


def original_name(name: str) -> str:
    """The name of the entry that a changed one started from; any other name is its own.

    >>> original_name("h100-80gb (changed)"), original_name("h100-80gb")
    ('h100-80gb', 'h100-80gb')
    """
    return name.removesuffix(_CHANGED)


def names(kind: Kind) -> tuple[str, ...]:
    """All shipped names of a kind, sorted."""
    return tuple(sorted(_files(kind)))


def aliases(kind: Kind) -> dict[str, str]:
    """Every other spelling a kind knows, and the name it stands for."""
    return {alias: name for name in names(kind) for alias in _document(kind, name).data.get("aliases", ())}


def gpu(name: str) -> Gpu:
    """The GPU of that name ("h100", "A100-80GB").

    Raises:
        CatalogError: no such GPU; the message lists those there are.
    """
    return _shipped("gpu", name, gpu_entry)


def node(name: str) -> Node:
    """The node of that name ("hgx-h100", "nvl72-gb200"); raises CatalogError."""
    return _shipped("node", name, node_entry)


def cluster(name: str) -> Cluster:
    """The cluster of that name ("megascale", "superpod-h100"); raises CatalogError."""
    return _shipped("cluster", name, cluster_entry)


def model(name: str) -> Model:
    """The model of that name ("llama-3-70b", "deepseek-v3"); raises CatalogError."""
    return _shipped("model", name, model_entry)


def written(kind: Kind, name: str) -> str:
    """The file of an entry: a YAML document with the source of each figure."""
    return _files(kind)[_resolve(kind, name)].read_text(encoding="utf-8")


def cluster_of(node_or_name: Node | str, gpus: int, fabric: Fabric | None = None) -> Cluster:
    """A cluster of *gpus* GPUs made of one kind of node; raises InfeasibleError when nodes do not come out whole."""
    base = node(node_or_name) if isinstance(node_or_name, str) else node_or_name
    if gpus < 1 or gpus % base.gpus:
        raise InfeasibleError(f"{gpus} GPUs are not a whole number of {base.name} nodes of {base.gpus} GPUs")
    name = f"{gpus} x {base.gpu.name}"
    return Cluster(name=name, node=base, nodes=gpus // base.gpus, fabric=fabric or Fabric())


def node_with(gpu: str, domain: int | None = None) -> Node:
    """The node with that GPU: of that NVLink domain if there is one, reference designs before those of clouds.

    Raises:
        CatalogError: there is none.
    """
    nodes = [node(name) for name in names("node")]
    of_gpu = [one for one in nodes if one.gpu.name == gpu]
    if not of_gpu:
        raise CatalogError(f"no node of the catalog carries the GPU {gpu}")
    reference = ("hgx-", "nvl72-")
    return min(of_gpu, key=lambda one: (domain not in (None, one.gpus), not one.name.startswith(reference)))


def load_cluster(path: str | Path) -> Cluster:
    """A cluster from a user's YAML file; raises YamlError, ScenarioError or CatalogError."""
    return _built(load_document(Path(path)), Path(path).stem, cluster_entry)


def load_model(path: str | Path) -> Model:
    """A model from a user's YAML file; raises as load_cluster."""
    return _built(load_document(Path(path)), Path(path).stem, model_entry)


def gpu_entry(data: object, problems: Problems, key: str, name: str = "") -> Gpu | None:
    """The GPU that the value of *key* names or describes, or None after noting in *problems* why there is none."""
    return _entry("gpu", gpu, read_gpu, data, problems, key, name)


def node_entry(data: object, problems: Problems, key: str, name: str = "") -> Node | None:
    """The node, as gpu_entry; its `gpu` is a name or a mapping."""

    def read(fields: Fields, base: str) -> Node | None:
        return read_node(fields, base, gpu_entry(fields.raw("gpu", None), problems, fields.dotted("gpu")))

    return _entry("node", node, read, data, problems, key, name)


def cluster_entry(data: object, problems: Problems, key: str, name: str = "") -> Cluster | None:
    """The cluster, as gpu_entry; its `node` is a name or a mapping, its size `nodes` or `gpus`.

    A list under `nodes` (each with `node` and `count`) makes it a cluster of several kinds of nodes.
    """
    return _entry("cluster", cluster, _cluster, data, problems, key, name)


def model_entry(data: object, problems: Problems, key: str, name: str = "") -> Model | None:
    """The model, as gpu_entry."""
    return _entry("model", model, read_model, data, problems, key, name)


def _cluster(fields: Fields, base: str) -> Cluster | None:
    problems = fields.problems
    if fields.has("nodes") and isinstance(listed := fields.raw("nodes"), list):
        key = fields.dotted("nodes")
        groups = [_node_group(item, problems, f"{key}[{place}]") for place, item in enumerate(listed)]
        if not groups:
            problems.add(key, "needs at least one group of nodes (node: NAME, count: NUMBER)")
            return None
        return read_mixed_cluster(fields, base, groups)
    return read_cluster(fields, base, node_entry(fields.raw("node", None), problems, fields.dotted("node")))


def _node_group(data: object, problems: Problems, key: str) -> NodeGroup | None:
    fields = Fields(data, problems, key)
    kind = fields.raw("node") if isinstance(data, dict) else None
    node = None if kind is None else node_entry(kind, problems, fields.dotted("node"))
    return read_node_group(fields, node)


def _entry(
    kind: Kind,
    named: Callable[[str], Entry],
    read: Callable[[Fields, str], Entry | None],
    data: object,
    problems: Problems,
    key: str,
    name: str,
) -> Entry | None:
    """The entry *named* by a text, or *read* from the keys of a mapping, `like` filled in, and a name for it."""
    if isinstance(data, str):
        try:
            return named(data)
        except CatalogError as error:
            own = f"; a {kind} of your own is a mapping, {{like: NAME, ...}}: docs/reference/catalog.md"
            problems.add(key, f"{error}{own if kind in ('gpu', 'node') else ''}")
            return None
    if not isinstance(data, dict):
        what = "is required" if data is None else f"got {quoted(data)}"
        problems.add(key, f"must be the name of a {kind} or a mapping; {what}")
        return None
    if "like" in data:
        changes = {k: v for k, v in data.items() if k != "like"}
        try:
            original = _document(kind, _resolve(kind, str(data["like"]))).data
        except CatalogError as error:
            problems.add(f"{key}.like" if key else "like", str(error))
            return None
        name = name or changed_name(str(data["like"]))
        data = changed_document(kind, original, changes)
    return read(Fields(data, problems, key), name or f"custom {kind}")


def changed_document(kind: Kind, original: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """*original* with *changes* on top; nested mappings are merged, a cluster's new size replaces the old one."""
    merged = {k: v for k, v in original.items() if k not in ("aliases", "sources")}
    sizes = ("gpus", "nodes")
    if kind == "cluster" and any(changes.get(size) is not None for size in sizes):
        merged = {k: v for k, v in merged.items() if k not in sizes}
    for key, value in changes.items():
        old = merged.get(key)
        nested = isinstance(value, dict) and isinstance(old, dict)
        merged[key] = {**old, **value} if nested and isinstance(old, dict) else value
    return merged


def _shipped(kind: Kind, name: str, build: Build[Entry]) -> Entry:
    """The shipped entry that *name* means, read once; a fault in its file is ours, but reads as a user's."""
    known = _resolve(kind, name)
    if (kind, known) not in _READ:
        _READ[kind, known] = _built(_document(kind, known), known, build)
    entry: Entry = _READ[kind, known]
    return entry


def _built(document: YamlDocument, name: str, build: Build[Entry]) -> Entry:
    """What *build* makes of a file; raise every problem it noted."""
    problems = Problems(document.source, document.where)
    entry = build(document.data, problems, "", name)
    problems.raise_if_any()
    if entry is None:
        raise CatalogError(f"{document.source}: nothing could be read from it")
    return entry


@cache
def _files(kind: Kind) -> dict[str, Path]:
    """Name to file of every shipped entry."""
    return {path.stem: path for path in (_FOLDER / f"{kind}s").glob("*.yaml")}


@cache
def _document(kind: Kind, name: str) -> YamlDocument:
    """The file of a shipped entry, read once."""
    return load_document(_files(kind)[name])


def _folded(name: str) -> str:
    """A spelling without case and separators, by which names are compared."""
    return re.sub(r"[^a-z0-9.]", "", name.casefold())


def _in_any_order(name: str) -> str:
    """The words of a GPU, which sources put in any order: A100 80 GB SXM4, A100-SXM4-80GB.

    Boards are SXM where no other form is said.
    """
    words = _SXM.sub(" ", re.sub(r"(\d) ?gi?b\b", r"\1g", name.casefold()))
    return " ".join(sorted(re.findall(r"[a-z0-9.]+", words)))


def _resolve(kind: Kind, name: str) -> str:
    """The shipped name that *name* means; raises CatalogError."""
    known, unknown = _looked_up(kind, name)
    if known is None:
        raise CatalogError(unknown)
    return known


@lru_cache(maxsize=1024)
def _looked_up(kind: Kind, name: str) -> tuple[str | None, str]:
    """The shipped name that *name* means, or None and what to say. Records ask many times for models not shipped.

    Exact names first, aliases only when needed (they read every file).
    """
    wanted_words = (name, _NOT_OF_THE_NAME[kind].sub("", name))
    wanted = {_folded(spelling) for spelling in wanted_words}
    spellings = {**{known: known for known in names(kind)}, **aliases(kind)}
    for spelling, known in spellings.items():
        if _folded(spelling) in wanted:
            return known, ""
    for spelling, known in spellings.items() if kind == "gpu" else ():
        if _in_any_order(spelling) in {_in_any_order(asked) for asked in wanted_words}:
            return known, ""
    hint = did_you_mean(name, tuple(spellings))
    if name.endswith((".yaml", ".yml")):
        hint = f" (files are read for models and clusters; write the {kind} as a mapping)"
    return None, f"there is no {kind} {quoted(name)} in the catalog{hint}; known: {', '.join(names(kind))}"
