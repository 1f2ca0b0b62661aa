"""The catalog: GPUs, nodes, clusters and models by name, and a user's own in the same YAML.

Shipped entries are files of data/{gpus,nodes,clusters,models}; the file's name is the entry's name, every figure
has its source beside it. A user's entry may start from a shipped one with `like: NAME` and change some keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from hdpsim.cost_models.hardware.entries import read_cluster, read_gpu, read_model, read_node
from hdpsim.cost_models.hardware.parts import Cluster, Fabric, Gpu, Node
from hdpsim.cost_models.reading.fields import Fields, Problems, did_you_mean
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import CatalogError, InfeasibleError
from hdpsim.quoting import quoted
from hdpsim.yaml_loader import YamlDocument, load_document

Kind = Literal["gpu", "node", "cluster", "model"]
Entry = TypeVar("Entry")
Where = Callable[[str], str]

_FOLDER = Path(__file__).parents[1] / "data"
_KINDS: tuple[Kind, ...] = ("gpu", "node", "cluster", "model")


def names(kind: Kind) -> tuple[str, ...]:
    """All shipped names of a kind, sorted."""
    return tuple(sorted(_files(kind)))


def aliases(kind: Kind) -> dict[str, str]:
    """Every other spelling a kind knows, and the name it stands for."""
    found: dict[str, str] = {}
    for name in names(kind):
        for alias in _document(kind, name).data.get("aliases", ()):
            found[alias] = name
    return found


def gpu(name: str) -> Gpu:
    """The GPU of that name ("h100", "A100-80GB").

    Raises:
        CatalogError: no such GPU; the message lists those there are.
    """
    return _gpu(_resolve("gpu", name))


def node(name: str) -> Node:
    """The node of that name ("hgx-h100", "nvl72-gb200"); raises CatalogError."""
    return _node(_resolve("node", name))


@cache
def node_with(gpu: str, domain: int | None = None) -> Node:
    """The node with that GPU: of that NVLink domain if there is one, reference designs before those of clouds.

    Raises:
        CatalogError: there is none.
    """
    nodes = [_node(name) for name in names("node")]
    of_gpu = [node for node in nodes if node.gpu.name == gpu]
    if not of_gpu:
        raise CatalogError(f"no node of the catalog carries the GPU {gpu}")
    reference = ("hgx-", "nvl72-")
    return min(
        of_gpu, key=lambda node: (domain not in (None, node.gpus), not node.name.startswith(reference))
    )


def cluster(name: str) -> Cluster:
    """The cluster of that name ("megascale", "superpod-h100"); raises CatalogError."""
    return _cluster(_resolve("cluster", name))


def model(name: str) -> Model:
    """The model of that name ("llama-3-70b", "deepseek-v3"); raises CatalogError."""
    return _model(_resolve("model", name))


def cluster_of(node_or_name: Node | str, gpus: int, fabric: Fabric | None = None) -> Cluster:
    """A cluster of *gpus* GPUs made of one kind of node; raises InfeasibleError when nodes do not come out whole."""
    base = node(node_or_name) if isinstance(node_or_name, str) else node_or_name
    if gpus < 1 or gpus % base.gpus:
        raise InfeasibleError(f"{gpus} GPUs are not a whole number of {base.name} nodes of {base.gpus} GPUs")
    return Cluster(
        name=f"{gpus} x {base.gpu.name}", node=base, nodes=gpus // base.gpus, fabric=fabric or Fabric()
    )


def gpu_from_dict(data: object, where: str = "gpu", locate: Where | None = None) -> Gpu:
    """A GPU from a mapping with the keys of data/gpus; a text is taken as a catalog name.

    Raises:
        ScenarioError: everything that is wrong with the mapping, each with its dotted key below *where*.
        CatalogError: a name that is not in the catalog.
    """
    return _read(data, where, locate, lambda problems: gpu_entry(data, problems, where))


def node_from_dict(data: object, where: str = "node", locate: Where | None = None) -> Node:
    """A node from a mapping (or a name); its `gpu` is a name or a mapping. Raises as gpu_from_dict."""
    return _read(data, where, locate, lambda problems: node_entry(data, problems, where))


def cluster_from_dict(data: object, where: str = "cluster", locate: Where | None = None) -> Cluster:
    """A cluster from a mapping (or a name); size as `nodes` or `gpus`. Raises as gpu_from_dict."""
    return _read(data, where, locate, lambda problems: cluster_entry(data, problems, where))


def model_from_dict(data: object, where: str = "model", locate: Where | None = None) -> Model:
    """A model from a mapping (or a name). Raises as gpu_from_dict."""
    return _read(data, where, locate, lambda problems: model_entry(data, problems, where))


def load_gpu(path: str | Path) -> Gpu:
    """A GPU from a user's YAML file; raises YamlError, ScenarioError or CatalogError."""
    return _load(path, gpu_entry)


def load_node(path: str | Path) -> Node:
    """A node from a user's YAML file; raises as load_gpu."""
    return _load(path, node_entry)


def load_cluster(path: str | Path) -> Cluster:
    """A cluster from a user's YAML file; raises as load_gpu."""
    return _load(path, cluster_entry)


def load_model(path: str | Path) -> Model:
    """A model from a user's YAML file; raises as load_gpu."""
    return _load(path, model_entry)


def gpu_entry(data: object, problems: Problems, key: str, name: str = "") -> Gpu | None:
    """The GPU below *key*, or None after noting in *problems* why there is none."""
    fields, base = _fields("gpu", data, problems, key, name)
    return read_gpu(fields, base) if isinstance(fields, Fields) else gpu(fields) if fields else None


def node_entry(data: object, problems: Problems, key: str, name: str = "") -> Node | None:
    """The node below *key*, or None after noting in *problems* why there is none."""
    fields, base = _fields("node", data, problems, key, name)
    if not isinstance(fields, Fields):
        return node(fields) if fields else None
    part = gpu_entry(fields.raw("gpu", None), problems, fields.dotted("gpu"))
    return read_node(fields, base, part)


def cluster_entry(data: object, problems: Problems, key: str, name: str = "") -> Cluster | None:
    """The cluster below *key*, or None after noting in *problems* why there is none."""
    fields, base = _fields("cluster", data, problems, key, name)
    if not isinstance(fields, Fields):
        return cluster(fields) if fields else None
    part = node_entry(fields.raw("node", None), problems, fields.dotted("node"))
    return read_cluster(fields, base, part)


def model_entry(data: object, problems: Problems, key: str, name: str = "") -> Model | None:
    """The model below *key*, or None after noting in *problems* why there is none."""
    fields, base = _fields("model", data, problems, key, name)
    return read_model(fields, base) if isinstance(fields, Fields) else model(fields) if fields else None


def _fields(
    kind: Kind, data: object, problems: Problems, key: str, name: str
) -> tuple[Fields | str | None, str]:
    """The keys to read with `like` filled in; or the catalog name *data* is; or None when it is neither."""
    if isinstance(data, str):
        try:
            return _resolve(kind, data), data
        except CatalogError as error:
            problems.add(key, str(error))
            return None, ""
    if not isinstance(data, dict):
        what = "is required" if data is None else f"got {quoted(data)}"
        problems.add(key, f"must be the name of a {kind} or a mapping; {what}")
        return None, ""
    merged = dict(data)
    base = name or (f"{data['like']} (changed)" if "like" in data else f"custom {kind}")
    if "like" in data:
        merged.pop("like")
        try:
            original = _document(kind, _resolve(kind, str(data["like"]))).data
        except CatalogError as error:
            problems.add(f"{key}.like" if key else "like", str(error))
            original = {}
        merged = changed_document(kind, original, merged)
    return Fields(merged, problems, key), base


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


def _read(data: object, where: str, locate: Where | None, build: Callable[[Problems], Entry | None]) -> Entry:
    """Run *build*; raise every problem it noted."""
    problems = Problems(where or "scenario", locate)
    entry = build(problems)
    problems.raise_if_any()
    if entry is None:
        raise CatalogError(f"{where}: nothing could be read from {quoted(data)}")
    return entry


def _load(path: str | Path, build: Callable[[object, Problems, str, str], Entry | None]) -> Entry:
    """Read a user's file with *build*."""
    document = load_document(Path(path))
    problems = Problems(document.source, document.where)
    entry = build(document.data, problems, "", Path(path).stem)
    problems.raise_if_any()
    if entry is None:
        raise CatalogError(f"{path}: nothing could be read from it")
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


def _resolve(kind: Kind, name: str) -> str:
    """The shipped name that *name* means; exact names first, aliases only when needed (they read every file)."""
    wanted = _folded(name)
    for known in names(kind):
        if _folded(known) == wanted:
            return known
    spellings = aliases(kind)
    for alias, known in spellings.items():
        if _folded(alias) == wanted:
            return known
    hint = did_you_mean(name, (*names(kind), *spellings))
    raise CatalogError(
        f"there is no {kind} {quoted(name)} in the catalog{hint}; known: {', '.join(names(kind))}"
    )


@cache
def _gpu(name: str) -> Gpu:
    return _shipped("gpu", name, gpu_entry)


@cache
def _node(name: str) -> Node:
    return _shipped("node", name, node_entry)


@cache
def _cluster(name: str) -> Cluster:
    return _shipped("cluster", name, cluster_entry)


@cache
def _model(name: str) -> Model:
    return _shipped("model", name, model_entry)


def _shipped(kind: Kind, name: str, build: Callable[[object, Problems, str, str], Entry | None]) -> Entry:
    """Read a shipped file; a fault in it is ours, but the message is the same as for a user's."""
    document = _document(kind, name)
    problems = Problems(document.source, document.where)
    entry = build(document.data, problems, "", name)
    problems.raise_if_any()
    if entry is None:
        raise CatalogError(f"{document.source}: nothing could be read from it")
    return entry
