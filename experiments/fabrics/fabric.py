"""What the network of a cluster gives its GPUs at every distance, and a drawing of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdpsim.cost_models.network.fabric import SWITCHES_BY_TIER, TIER_NAMES, FabricModel
from hdpsim.errors import UserInputError
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.files import replacing
from hdpsim.quoting import quoted

if TYPE_CHECKING:
    from hdpsim.cost_models.calibration.network import NetworkCalibration
    from hdpsim.cost_models.hardware.parts import Cluster


def fabric_document(
    cluster: Cluster,
    network: NetworkCalibration,
    tiers: list[dict[str, Any]],
    devices: Mapping[str, int],
    drawing: str | None,
) -> Document:
    """What GPUs get at every distance, how many devices there are, and where the drawing is."""
    from hdpsim.experiments.output.plots.fabric import plot_fabric

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
            *(() if drawing is None else (f"{'Graph' if is_graph(drawing) else 'Drawing'}: {drawing}",)),
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
        files=files_of(
            "fabric", {"tiers.csv": lambda: tiers, "fabric": partial(plot_fabric, cluster, network)}
        ),
    )


def tiers_of(cluster: Cluster, network: NetworkCalibration) -> list[dict[str, Any]]:
    """The distances that exist in this cluster, from the node outwards."""
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


def is_graph(path: str) -> bool:
    """Whether a file of that name holds the network as data, not as a picture."""
    return Path(path).suffix.lower() == ".graphml"


def check_drawing(out: str) -> None:
    """Refuse what cannot be drawn or written before any work is done."""
    path = Path(out)
    if path.suffix.lower() not in (".png", ".svg", ".graphml"):
        raise UserInputError(f"--out: expected a file ending in .png, .svg or .graphml, got {quoted(out)}")
    if not path.absolute().parent.is_dir():
        raise UserInputError(f"--out: there is no directory {path.parent}")


def write_graph(cluster: Cluster, network: NetworkCalibration, path: Path) -> None:
    """Write the fabric as a graph of networkx: every device is a node, unless these are too many."""
    import networkx as nx

    from hdpsim.cost_models.network.graph import FULL_GRAPH_LIMIT_GPUS, build_graph

    graph = build_graph(cluster, network, collapse=cluster.gpus > FULL_GRAPH_LIMIT_GPUS)
    with replacing(path) as target:
        nx.write_graphml_xml(graph, target)
