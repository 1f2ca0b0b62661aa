"""Draw the fabric of a cluster: layers from GPUs to core, line width by bandwidth."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.network.graph import KINDS, build_graph, layout_positions
from hdpsim.experiments.output.files.asked import replacing

FULL_DRAWING_LIMIT_GPUS = 128
"""More GPUs than this are drawn collapsed: single dots would no longer be seen."""

_COLOURS = {
    "gpu": "#76b900",
    "nvswitch": "#3d6b00",
    "nic": "#f2a900",
    "leaf": "#2a6fbb",
    "spine": "#7a3fa0",
    "core": "#b3261e",
}


def draw_fabric(cluster: Cluster, path: Path | str, calibration: NetworkCalibration | None = None) -> None:
    """Write a drawing of *cluster*'s fabric to *path* (.png or .svg).

    Small clusters are drawn device by device; larger ones block by block, with the number of devices a symbol
    stands for beside it. The same cluster gives the same file.
    """
    full = cluster.gpus <= FULL_DRAWING_LIMIT_GPUS
    graph = build_graph(cluster, calibration, collapse=not full)
    positions = layout_positions(graph)
    rows = {kind: [name for name in graph if graph.nodes[name]["kind"] == kind] for kind in KINDS}
    rows = {kind: names for kind, names in rows.items() if names}
    columns = max(len(names) for names in rows.values())
    figure = Figure(figsize=(min(24.0, max(7.0, columns * 0.3)), 6.0), layout="constrained")
    axes = figure.add_subplot()
    widest = max((float(link["capacity"]) for _, _, link in graph.edges(data=True)), default=1.0)
    for a, b, link in graph.edges(data=True):
        (xa, ya), (xb, yb) = positions[a], positions[b]
        width = 0.3 + 2.2 * float(link["capacity"]) / widest
        axes.plot((xa, xb), (ya, yb), color="#888888", linewidth=width, alpha=0.6, zorder=1)
    for kind, names in rows.items():
        xs, ys = zip(*(positions[name] for name in names), strict=True)
        axes.scatter(xs, ys, s=36, color=_COLOURS[kind], zorder=2)
        if not full and len(names) <= 32:
            for name in names:
                text, place = f"x{graph.nodes[name]['count']}", positions[name]
                axes.annotate(text, place, xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_title(f"{cluster.name}: {cluster.gpus:,} GPUs, {cluster.fabric.kind}")
    axes.set_axis_off()
    totals = {kind: sum(graph.nodes[name]["count"] for name in names) for kind, names in rows.items()}
    handles = [
        Line2D([], [], linestyle="", marker="o", color=_COLOURS[kind], label=f"{kind} ({totals[kind]:,})")
        for kind in reversed(rows)
    ]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    target = Path(path)
    metadata = {"Date": None} if target.suffix == ".svg" else {"Software": None}
    with replacing(target, "plot") as file:
        figure.savefig(file, format=target.suffix[1:].lower(), dpi=150, metadata=metadata)
