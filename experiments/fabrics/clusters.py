"""A cluster by its name, its file, or the scenario it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hdpsim.cost_models.calibration.calibration import calibration
from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.documents import cluster_document
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.errors import ScenarioError, UserInputError
from hdpsim.experiments.scenario.overrides import apply_overrides
from hdpsim.experiments.scenario.scenario import Scenario, ScenarioSource, load_scenario, scenario_names
from hdpsim.quoting import did_you_mean
from hdpsim.yaml_loader import load_document

if TYPE_CHECKING:
    from hdpsim.cost_models.calibration.network import NetworkCalibration
    from hdpsim.cost_models.hardware.parts import Cluster


def named_cluster(
    source: ScenarioSource, overrides: tuple[str, ...] = (), *, flows: bool = False
) -> tuple[Cluster, NetworkCalibration]:
    """The cluster of that name or file, or the one of a scenario, with its network's calibration.

    *overrides*: changes of the scenario's keys; of a cluster only those below `cluster`.
    *flows*: keys that need execution.network = flows are welcome, whatever network the scenario has.
    """
    if isinstance(source, Scenario | Mapping):
        scenario = _scenario(source, overrides, flows=flows)
        return scenario.cluster, scenario.calibration.network
    path = Path(source)
    if path.is_file():
        document = load_document(path).data
        is_cluster = isinstance(document, Mapping) and "node" in document and "model" not in document
        if is_cluster:
            cluster = _changed(catalog.load_cluster(path), overrides)
            return cluster, calibration(cluster.gpu.calibration).network
    clusters = (*catalog.names("cluster"), *catalog.aliases("cluster"))
    if source in clusters:
        cluster = _changed(catalog.cluster(str(source)), overrides)
        return cluster, calibration(cluster.gpu.calibration).network
    if path.exists() or source in scenario_names():
        scenario = _scenario(source, overrides, flows=flows)
        return scenario.cluster, scenario.calibration.network
    names = catalog.names("cluster")
    hint = did_you_mean(str(source), (*scenario_names(), *names))
    raise UserInputError(
        f"{source}: no such file, scenario or cluster{hint}; scenarios: {', '.join(scenario_names())}; "
        f"clusters: {', '.join(names)}"
    )


def _scenario(source: ScenarioSource, overrides: tuple[str, ...], *, flows: bool) -> Scenario:
    try:
        return load_scenario(source, overrides)
    except ScenarioError:
        if not flows:
            raise
        return load_scenario(source, (*overrides, "execution.network=flows"))


def _changed(cluster: Cluster, overrides: tuple[str, ...]) -> Cluster:
    if not overrides:
        return cluster
    document = apply_overrides({"cluster": cluster_document(cluster)}, overrides)
    problems = Problems("--set")
    for key in document:
        if key != "cluster":
            problems.add(key, "is no key of a cluster; those begin with cluster.")
    changed = catalog.cluster_entry(document["cluster"], problems, "cluster")
    problems.raise_if_any()
    assert changed is not None
    return changed
