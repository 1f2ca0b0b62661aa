"""Draw the fabric of a cluster: one device of every kind inside its node, block and pod, counts and rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hdpsim.cost_models.calibration.network import NetworkCalibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.network.fabric import FabricModel, count_devices

from .style import INK, SOFT, figure_and_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "GPU": "#76b900", "NVSwitch": "#3d6b00", "NIC": "#f2a900", "leaf": "#2a6fbb", "spine": "#7a3fa0", "core": "#b3261e",
}  # fmt: skip
_FRAMES = ("#F7F9F2", "#EEF4FA", "#F5EFFA")
_WIDE, _HIGH, _STEP = 2.3, 0.62, 1.75


class _Frame(NamedTuple):
    """A node, block or pod: what is inside, how many there are, and what a GPU gets within it."""

    words: str
    times: int
    bytes_per_s: float
    latency_s: float


def plot_fabric(cluster: Cluster, calibration: NetworkCalibration | None = None) -> Figure:
    """Equal devices are drawn once and counted, so clusters of any size look alike.

    The rate of a frame is what each GPU gets in one direction while all GPUs send to others inside of it.
    """
    counts, frames = count_devices(cluster), _frames(cluster, calibration)
    top = ["NIC", "leaf", "spine", "core"][: len(frames)]
    with figure_and_axes(9.0, 1.1 + 0.82 * len(frames) * _STEP) as (figure, (axes,)):
        levels = {kind: (level + 1) * _STEP for level, kind in enumerate(top)}
        _frames_drawn(axes, frames)
        _link(axes, (1.5, 0.0), (1.5, _STEP))
        _device(axes, 1.5, 0.0, "GPU", f"{cluster.node.gpus} a node")
        _device(axes, 1.5, _STEP, "NVSwitch", "")
        nvlink = cluster.gpu.nvlink_bytes_per_s
        _rate(axes, 1.5, 0.5 * _STEP, f"NVLink {nvlink / 1e9:,.4g} GB/s\na GPU")
        if "nic" in counts:
            _link(axes, (2.2, 0.0), (4.4, levels["NIC"]))
            _device(axes, 4.4, levels["NIC"], "NIC", f"{cluster.node.nics} a node")
        below = "NIC"
        for kind in top[1:]:
            _link(axes, (4.4, levels[below]), (4.4, levels[kind]))
            _device(axes, 4.4, levels[kind], kind, f"{counts[kind]:,} in all")
            _rate(axes, 4.4, 0.5 * (levels[below] + levels[kind]), _uplink(cluster, kind))
            below = kind
        axes.set(
            xlim=(-0.35, 10.6), ylim=(-0.6, levels[below] + 0.75),
            title=f"{cluster.name}: {cluster.gpus:,} GPUs, {cluster.fabric.kind}",
        )  # fmt: skip
        axes.set_axis_off()
    return figure


def _frames(cluster: Cluster, calibration: NetworkCalibration | None) -> Sequence[_Frame]:
    """Node, block, pod and cluster, without those that hold no more than the one inside of them."""
    fabric, model = cluster.fabric, FabricModel(cluster, calibration or NetworkCalibration())
    blocks = -(-cluster.nodes // fabric.nodes_per_block)
    pods = -(-blocks // fabric.blocks_per_pod)
    inside = min(fabric.nodes_per_block, cluster.nodes)
    several = (
        (f"node: {cluster.node.gpus} x {cluster.gpu.name}", cluster.nodes, cluster.node.gpus > 1),
        (f"block: {inside:,} nodes, {inside * cluster.node.gpus:,} GPUs", blocks, cluster.nodes > 1),
        (f"pod: {min(fabric.blocks_per_pod, blocks):,} blocks", pods, blocks > 1),
        (f"cluster: {pods:,} pods", 1, pods > 1),
    )
    return [
        _Frame(words, count, float(model.bytes_per_s(tier)), float(model.latency_s(tier)))
        for tier, (words, count, exists) in enumerate(several)
        if exists or tier == 0
    ]


def _uplink(cluster: Cluster, kind: str) -> str:
    fabric = cluster.fabric
    if kind == "leaf":
        rate = 8.0 * cluster.node.nic_bytes_per_s / 1e9
        return f"{rate:,.4g} Gbit/s a NIC"
    ratio = fabric.leaf_oversubscription if kind == "spine" else fabric.spine_oversubscription
    return "as much up as down" if ratio == 1.0 else f"{ratio:g} times less up than down"


def _frames_drawn(axes: Axes, frames: Sequence[_Frame]) -> None:
    """The outermost first, so that the inner ones lie on it; what a GPU gets stands at the right."""
    from matplotlib.patches import FancyBboxPatch

    for level in reversed(range(len(frames))):
        frame, top = frames[level], (level + 1) * _STEP + 0.55
        if level < len(_FRAMES):
            wide = 6.0 + 0.25 * level
            for card in reversed(range(3 if frame.times > 1 else 1)):
                axes.add_patch(FancyBboxPatch(
                    (-0.1 - 0.08 * level + 0.1 * card, -0.5 - 0.06 * level + 0.07 * card), wide, top + 0.4,
                    boxstyle="round,pad=0,rounding_size=0.1", facecolor=_FRAMES[level], edgecolor="#B5B5B5",
                    linewidth=0.8,
                ))  # fmt: skip
        times = f"{frame.times:,} x " if frame.times > 1 else ""
        axes.text(6.9, (level + 1) * _STEP + 0.14, times + frame.words, fontweight="bold", va="center")
        rates = f"{frame.bytes_per_s / 1e9:,.3g} GB/s a GPU inside, {frame.latency_s * 1e6:.3g} us"
        axes.text(6.9, (level + 1) * _STEP - 0.2, rates, color=SOFT, va="center")


def _device(axes: Axes, x: float, y: float, kind: str, words: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(FancyBboxPatch(
        (x - _WIDE / 2, y - _HIGH / 2), _WIDE, _HIGH, boxstyle="round,pad=0,rounding_size=0.08", linewidth=0,
        facecolor=_COLOURS[kind], zorder=3,
    ))  # fmt: skip
    ink = INK if kind in ("GPU", "NIC") else "white"
    text = f"{kind}\n{words}" if words else kind
    axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=8.5, zorder=4)


def _link(axes: Axes, low: tuple[float, float], high: tuple[float, float]) -> None:
    axes.plot((low[0], high[0]), (low[1], high[1]), color="#777777", linewidth=1.6, zorder=2)


def _rate(axes: Axes, x: float, y: float, words: str) -> None:
    axes.text(x - 0.1, y, words, fontsize=8, color=INK, va="center", ha="right", zorder=4)
