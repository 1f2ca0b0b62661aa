"""`hdpsim fabric`: what the network of a cluster gives its GPUs at every distance, and a drawing of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.cli.common import Output, json_option, whole_number
from hdpsim.quoting import quoted

if TYPE_CHECKING:
    from hdpsim.cost_models.calibration.network import NetworkCalibration
    from hdpsim.cost_models.hardware.parts import Cluster
    from hdpsim.experiments.output.document import Document


DRAWING_LIMIT_BLOCKS = 80
"""Blocks side by side that the widest drawing keeps apart."""


@click.command("fabric")
@click.argument("source", metavar="SCENARIO|CLUSTER")
@click.option("--gpus", type=whole_number("gpus"), metavar="N", help="As many GPUs of it instead of all.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Draw the fabric into a .png or .svg file: small clusters device by device, larger ones block by block.",
)
@json_option
def command(source: str, gpus: int | None, out: str | None, as_json: bool) -> None:
    """What does the network give GPUs at every distance?

    SCENARIO|CLUSTER is a scenario or a cluster: a shipped name or a YAML file.
    """
    from hdpsim.cost_models.network.graph import count_devices
    from hdpsim.experiments.scenario.references import cluster_of_size

    cluster, network = named_cluster(source)
    if gpus is not None:
        cluster = cluster_of_size(cluster, gpus)
    if out is not None:
        _check_drawing(cluster, out)
    tiers = _tiers(cluster, network)
    devices = count_devices(cluster)
    if out is not None:
        from hdpsim.experiments.output.fabric_plot import draw_fabric

        draw_fabric(cluster, out, network)
    Output(as_json=as_json).present(_document(cluster, tiers, devices, out))


def _document(
    cluster: Cluster, tiers: list[dict[str, Any]], devices: Mapping[str, int], drawing: str | None
) -> Document:
    from hdpsim.experiments.output.document import Column, Document, Table

    fabric = cluster.fabric
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("name", heading="inside one"),
        Column("gpus", heading="GPUs", format=","),
        Column("", lambda tier: tier["bytes_per_s_per_gpu"] / 1e9, heading="GB/s per GPU", format=".1f"),
        Column("", lambda tier: tier["latency_s"] * 1e6, heading="latency us", format=".1f"),
        Column("switches", lambda tier: tier["switches"] or None, missing="NVLink"),
    )
    return Document(
        kind="",
        head=f"{cluster.name}: {cluster.gpus:,} x {cluster.gpu.name} in {cluster.nodes:,} x {cluster.node.name}, "
        f"{fabric.kind}, oversubscription {fabric.leaf_oversubscription:g}:1 at the leaves, "
        f"{fabric.spine_oversubscription:g}:1 at the spines",
        blocks=(Table(columns=columns, rows=tiers),),
        notes=(
            "GB/s per GPU and direction while all GPUs send; latency of one message between two GPUs.",
            "Devices: " + ", ".join(f"{count:,} {kind}" for kind, count in devices.items()),
            *(() if drawing is None else (f"Drawing: {drawing}",)),
        ),
        payload={
            "cluster": cluster.name,
            "gpus": cluster.gpus,
            "node": cluster.node.name,
            "kind": fabric.kind,
            "leaf_oversubscription": fabric.leaf_oversubscription,
            "spine_oversubscription": fabric.spine_oversubscription,
            "tiers": tiers,
            "devices": devices,
            "drawing": drawing,
        },
    )


def _tiers(cluster: Cluster, network: NetworkCalibration) -> list[dict[str, Any]]:
    """The distances that exist in this cluster, from the node outwards."""
    from hdpsim.cost_models.network.fabric import SWITCHES_BY_TIER, TIER_NAMES, FabricModel

    model, fabric = FabricModel(cluster, network), cluster.fabric
    node = cluster.node.gpus
    block = node * fabric.nodes_per_block
    sizes = (node, block, block * fabric.blocks_per_pod, cluster.gpus)
    tiers: list[dict[str, Any]] = []
    inside = 0
    for tier, size in enumerate(sizes):
        gpus = min(size, cluster.gpus)
        if gpus <= inside:
            continue
        inside = gpus
        tiers.append(
            {
                "tier": tier,
                "name": TIER_NAMES[tier],
                "gpus": gpus,
                "bytes_per_s_per_gpu": float(model.bytes_per_s(tier)),
                "latency_s": float(model.latency_s(tier)),
                "switches": SWITCHES_BY_TIER[tier],
            }
        )
    return tiers


def named_cluster(source: str, overrides: tuple[str, ...] = ()) -> tuple[Cluster, NetworkCalibration]:
    """The cluster of that name or file, or the one of a scenario, with its network's calibration.

    *overrides*: changes of the scenario's keys; of a cluster only those below `cluster`.
    """
    from hdpsim.cost_models.calibration.calibration import calibration
    from hdpsim.cost_models.hardware import catalog
    from hdpsim.cost_models.reading.fields import did_you_mean
    from hdpsim.experiments.scenario.scenario import load_scenario, scenario_names
    from hdpsim.yaml_loader import load_document

    path = Path(source)
    if path.is_file():
        document = load_document(path).data
        is_cluster = isinstance(document, Mapping) and "node" in document and "model" not in document
        if is_cluster:
            cluster = _changed(catalog.load_cluster(path), overrides)
            return cluster, calibration(cluster.gpu.calibration).network
    clusters = (*catalog.names("cluster"), *catalog.aliases("cluster"))
    if source in clusters:
        cluster = _changed(catalog.cluster(source), overrides)
        return cluster, calibration(cluster.gpu.calibration).network
    if path.exists() or source in scenario_names():
        scenario = load_scenario(source, overrides)
        return scenario.cluster, scenario.calibration.network
    names = catalog.names("cluster")
    hint = did_you_mean(source, (*scenario_names(), *names))
    raise UserInputError(
        f"{source}: no such file, scenario or cluster{hint}; scenarios: {', '.join(scenario_names())}; "
        f"clusters: {', '.join(names)}"
    )


def _changed(cluster: Cluster, overrides: tuple[str, ...]) -> Cluster:
    from hdpsim.cost_models.hardware import catalog
    from hdpsim.cost_models.hardware.documents import cluster_document
    from hdpsim.cost_models.reading.fields import Problems
    from hdpsim.experiments.scenario.overrides import apply_overrides

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


def _check_drawing(cluster: Cluster, out: str) -> None:
    """Refuse what cannot be drawn or written before any work is done."""
    path, fabric = Path(out), cluster.fabric
    if path.suffix.lower() not in (".png", ".svg"):
        raise UserInputError(f"--out: expected a file ending in .png or .svg, got {quoted(out)}")
    if not path.absolute().parent.is_dir():
        raise UserInputError(f"--out: there is no directory {path.parent}")
    blocks = -(-cluster.nodes // fabric.nodes_per_block)
    if blocks > DRAWING_LIMIT_BLOCKS:
        most = DRAWING_LIMIT_BLOCKS * fabric.nodes_per_block * cluster.node.gpus
        raise InfeasibleError(
            f"{cluster.name} has {blocks:,} blocks side by side, too many to tell apart in a drawing (limit "
            f"{DRAWING_LIMIT_BLOCKS}); draw a part of it with --gpus, up to {most}"
        )
