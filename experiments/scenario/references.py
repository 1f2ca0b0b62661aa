"""What a scenario names: model, cluster, trace, calibration. By catalog name, by path, or inline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from hdpsim.cost_models.calibration.calibration import Calibration, calibration, load_calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.documents import model_document
from hdpsim.cost_models.hardware.hf_config import model_from_hf_config
from hdpsim.cost_models.hardware.mixed_cluster import MixedCluster
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.hardware.prices import price_list
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError, ScenarioError, UserInputError
from hdpsim.quoting import did_you_mean, quoted

Entry = TypeVar("Entry")

_YAML = (".yaml", ".yml")
_MODEL_FILES = (".json", *_YAML)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything a scenario names, looked up.

    Attributes:
        calibration: of a cluster that mixes nodes, that of its first kind.
        kind_calibrations: of a cluster that mixes nodes, that of every kind; else none.
        trace: name of a shipped trace or absolute path; None with a distribution.
        written: values for the resolved document, paths made absolute, so that it can be read from anywhere.
        notes: what the user should know about a file.
    """

    model: Model
    cluster: Cluster
    calibration: Calibration
    kind_calibrations: tuple[Calibration, ...]
    prices: str
    trace: str | None
    column: str | None
    distribution: str | None
    written: dict[str, object]
    notes: tuple[str, ...]


class References:
    """Looks up what a scenario names; notes a problem for everything that cannot be found."""

    def __init__(self, folder: Path | None, problems: Problems) -> None:
        """*folder* is where relative paths start (then the current directory)."""
        self._folder = folder
        self._problems = problems
        self._written: dict[str, object] = {}
        self._notes: list[str] = []

    def resolve(self, values: Mapping[str, object]) -> Found | None:
        """Look up everything; None after a problem was noted (here or before)."""
        model = self._model(values.get("model"))
        gpus = values.get("gpus")
        cluster = self._cluster(values.get("cluster"), gpus)
        trace, column = self._trace(values.get("data.trace"))
        distribution = self._distribution(values.get("data.distribution"))
        kinds = cluster.kinds if isinstance(cluster, MixedCluster) else (cluster,)
        fitted = [self._calibration(values.get("calibration"), kind) for kind in kinds]
        if len(kinds) > 1 and values.get("calibration") != "default":
            text = "a cluster that mixes nodes takes the calibration of each GPU's generation: default"
            self._problems.add("calibration", text)
        prices = self._prices(values.get("costs.prices"))
        self._failures(values.get("campaign.failures"))
        if self._problems.found or model is None or cluster is None:
            return None
        fitting = [kind_calibration for kind_calibration in fitted if kind_calibration is not None]
        if len(fitting) < len(kinds):
            return None
        node = part.get("node") if isinstance(part := values.get("cluster"), Mapping) else None
        if isinstance(node, Mapping) and "gpus" in node and "nics" not in node:
            kept = cluster.kinds[0].node
            self._notes.append(
                f"cluster.node.gpus: nodes of {kept.gpus} GPUs keep the {kept.nics} NICs of the node they are like; "
                "cluster.node.nics changes them"
            )
        if isinstance(gpus, int):
            cluster = cluster_of_size(cluster, gpus)
        for kind, kind_calibration in zip(cluster.kinds, fitting, strict=True):
            doubt = kind_calibration.why_not_of(kind.gpu)
            if doubt:
                self._notes.append(doubt)
        return Found(
            model=model,
            cluster=cluster,
            calibration=fitting[0],
            kind_calibrations=tuple(fitting) if len(fitting) > 1 else (),
            prices=prices,
            trace=trace,
            column=column,
            distribution=distribution,
            written=dict(self._written),
            notes=tuple(self._notes),
        )

    def _model(self, value: object) -> Model | None:
        if value is None:
            return None
        path = self._path(value, _MODEL_FILES)
        if path is not None:
            return self._loaded("model", path, self._model_file)
        file = self._path(value.get("like"), _MODEL_FILES) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and file is not None:
            return self._changed_model(file, value)
        return catalog.model_entry(value, self._problems, "model")

    def _changed_model(self, file: Path, changes: Mapping[str, object]) -> Model | None:
        """The model of *file* with the keys beside `like` on top."""
        original = self._loaded("model.like", file, self._model_file)
        self._written.pop("model.like", None)
        if original is None:
            return None
        self._written["model"] = {**changes, "like": str(file)}
        given = {key: value for key, value in changes.items() if key != "like"}
        document = {**model_document(original), "name": catalog.changed_name(original.name)}
        merged = catalog.changed_document("model", document, given)
        model = catalog.model_entry(merged, self._problems, "model")
        return model and replace(model, source=model.source or original.source)

    def _model_file(self, path: Path) -> Model:
        return self._hugging_face(path) if path.suffix.lower() == ".json" else catalog.load_model(path)

    def _hugging_face(self, path: Path) -> Model:
        model, ignored = model_from_hf_config(path)
        if ignored:
            self._notes.append(f"{path.name}: keys without influence: {', '.join(ignored)}")
        return replace(model, name=path.parent.name) if model.name == "config" else model

    def _cluster(self, value: object, gpus: object) -> Cluster | None:
        """The cluster; *gpus* is the size that replaces its own, or None."""
        if value is None:
            return None
        path = self._path(value, _YAML)
        if path is not None:
            return self._loaded("cluster", path, catalog.load_cluster)
        if not isinstance(value, Mapping) or gpus is None:
            return catalog.cluster_entry(value, self._problems, "cluster")
        sized = [key for key in ("gpus", "nodes") if value.get(key) is not None]
        if not sized and "like" not in value:
            value = {**value, "nodes": 1}  # of any size: `gpus` says which
        cluster = catalog.cluster_entry(value, self._problems, "cluster")
        if isinstance(cluster, MixedCluster):
            return cluster
        if sized and cluster is not None and cluster.gpus != gpus:
            given = f"cluster.{sized[0]}: {value[sized[0]]}"
            self._problems.add("gpus", f"{gpus} contradicts {given}; give one of them")
        return cluster

    def _calibration(self, value: object, cluster: Cluster | None) -> Calibration | None:
        if not isinstance(value, str):
            return None
        if value != "default":
            return self._looked_up("calibration", value, calibration, load_calibration)
        if cluster is None:
            return None
        return self._shipped("calibration", cluster.gpu.calibration, calibration, whose=cluster.gpu.name)

    def _prices(self, value: object) -> str:
        """The list of prices, read once so that its faults are found now."""
        if not isinstance(value, str):
            return ""
        self._looked_up("costs.prices", value, price_list, lambda path: price_list(str(path)))
        return str(self._path(value, _YAML) or value)

    def _trace(self, value: object) -> tuple[str | None, str | None]:
        from hdpsim.traces import shipped_distributions, shipped_traces

        column: str | None = None
        name = value
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in ("file", "column")]
            if unknown or not isinstance(value.get("file"), str):
                self._problems.add("data.trace", "expected a name, a path, or {file: PATH, column: NAME}")
                return None, None
            name, column = value["file"], value.get("column")
            if column is not None and not isinstance(column, str):
                self._problems.add(
                    "data.trace.column", f"expected the name of a column, got {quoted(column)}"
                )
        if not isinstance(name, str):
            return None, None
        known = (*shipped_traces(), *shipped_distributions())
        if name in known:
            if column is not None:
                self._problems.add("data.trace.column", f"{name} is a shipped trace; only a file has columns")
            return name, None
        path = self._existing(name)
        if path is None:
            hint = did_you_mean(name, known)
            self._problems.add(
                "data.trace",
                f"{quoted(name)} is no file and no shipped trace{hint}; shipped: {', '.join(known)}",
            )
            return None, None
        self._written["data.trace"] = str(path) if column is None else {"file": str(path), "column": column}
        return str(path), column

    def _distribution(self, value: object) -> str | None:
        from hdpsim.traces import load_distribution

        if not isinstance(value, str):
            return None
        distribution = self._looked_up("data.distribution", value, load_distribution, load_distribution)
        return None if distribution is None else str(self._path(value, _YAML) or value)

    def _failures(self, value: object) -> None:
        """Note where the file of a failure profile lies; it is read when a campaign needs it."""
        path = self._path(value, _YAML)
        if path is not None and path.is_file():
            self._written["campaign.failures"] = str(path)

    def _path(self, value: object, endings: tuple[str, ...]) -> Path | None:
        """The absolute path when *value* is written like a path to such a file."""
        if not isinstance(value, str) or not value.lower().endswith(endings):
            return None
        return self._existing(value) or Path(value).absolute()

    def _existing(self, text: str) -> Path | None:
        """The file, looked for beside the scenario, then in the current directory."""
        for folder in (self._folder, Path()):
            if folder is not None and (folder / text).is_file():
                return (folder / text).resolve()
        return None

    def _looked_up(
        self, key: str, value: str, shipped: Callable[[str], Entry], from_file: Callable[[Path], Entry]
    ) -> Entry | None:
        """What the value of *key* is the shipped name of, or the file of."""
        path = self._path(value, _YAML)
        return self._shipped(key, value, shipped) if path is None else self._loaded(key, path, from_file)

    def _shipped(self, key: str, name: str, find: Callable[[str], Entry], whose: str = "") -> Entry | None:
        """What *find* finds under that name; where it finds nothing, what it says becomes our problem."""
        try:
            return find(name)
        except UserInputError as error:
            self._problems.add(key, f"{whose}: {error}" if whose else str(error))
            return None

    def _loaded(self, key: str, path: Path, load: Callable[[Path], Entry]) -> Entry | None:
        """What *load* makes of the file; its problems become ours."""
        try:
            entry = load(path)
        except ScenarioError as error:
            for inner, text in error.problems:
                self._problems.add(f"{key}.{inner}" if inner else key, f"{text} (in {path})")
            return None
        except UserInputError as error:
            self._problems.add(key, str(error))
            return None
        self._written[key] = str(path)
        return entry


def cluster_of_size(cluster: Cluster, gpus: int) -> Cluster:
    """*cluster* with *gpus* GPUs: as many nodes as that takes, or a part of one node.

    Raises:
        InfeasibleError: more than a node, but nodes do not come out whole.
    """
    if isinstance(cluster, MixedCluster):
        if gpus == cluster.gpus:
            return cluster
        raise InfeasibleError(
            f"gpus: cluster {cluster.name} mixes nodes ({cluster.gpu_words}) and has the size that its list of nodes "
            f"says, {cluster.gpus} GPUs; change cluster.nodes instead of asking for {gpus}"
        )
    node = cluster.node
    if gpus < node.gpus:
        share = gpus / node.gpus
        part = replace(
            node,
            gpus=gpus,
            nics=max(1, round(node.nics * share)),
            host_memory_bytes=node.host_memory_bytes * share,
        )
        return replace(cluster, node=part, nodes=1)
    if gpus % node.gpus:
        used = max(some for some in range(1, node.gpus) if gpus % some == 0)
        nics = max(1, round(node.nics * used / node.gpus))
        cut = f"; or use {used} GPUs of each: cluster.node.gpus={used} and cluster.node.nics={nics}"
        below = gpus // node.gpus * node.gpus
        raise InfeasibleError(
            f"gpus: {gpus} GPUs are not a whole number of {node.name} nodes of {node.gpus} GPUs; "
            f"nearest: {below} or {below + node.gpus}{cut if 2 * used >= node.gpus else ''}"
        )
    return replace(cluster, nodes=gpus // node.gpus)
