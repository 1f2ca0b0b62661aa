"""Pictures of what a step did on its links: the hottest over time, the fabric, the hops of a ring."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hdpsim.arrays import Floats, Ints
from hdpsim.experiments.output.document import OutputFile, files_of
from hdpsim.experiments.output.plots.links import Layer, plot_fabric_load, plot_link_load, plot_ring_hops

from .report import SeenLinks, seen_links

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hdpsim.cost_models.hardware.parts import LinkKind
    from hdpsim.experiments.studies.comparing.compare import Outcome
    from hdpsim.simulator.play.flows.rings import RingHops

DRAWN_LINKS = 16  # data/files.yaml says it, too
PERIODS = 400
MOST_COLUMNS = 480
"""Of a layer in the picture: more links side by side are drawn as the hottest of neighbours."""

EQUAL_LOAD = 0.002
"""Loads closer than that count as equal where equal blocks are drawn once."""

_LAYERS: tuple[tuple[LinkKind, str, str], ...] = (
    ("spine-up", "spines to the core", ""),
    ("spine-down", "core to the spines", ""),
    ("leaf-up", "leaves to the spines", "leaf"),
    ("leaf-down", "spines to the leaves", "leaf"),
    ("nic-out", "NICs to the leaves", "NIC"),
    ("nic-in", "leaves to the NICs", "NIC"),
)
"""From the core down: kind, words, and what a row is."""

_KINDS: dict[str, tuple[LinkKind, LinkKind]] = {
    "spine": ("spine-up", "spine-down"),
    "leaf": ("leaf-up", "leaf-down"),
    "nic": ("nic-out", "nic-in"),
}


def link_pictures(outcomes: Iterable[Outcome]) -> tuple[OutputFile, ...]:
    """Figures of the strategies whose links were recorded, and carry anything."""
    return tuple(
        file for outcome in outcomes for seen in seen_links([outcome]) for file in _pictures(seen, outcome)
    )


def _pictures(seen: SeenLinks, outcome: Outcome) -> tuple[OutputFile, ...]:
    if not (seen.carried_bytes > 0).any():
        return ()
    contents: dict[str, Callable[[], object]] = {
        "link_load": partial(draw_link_load, seen),
        "fabric_load": partial(draw_fabric_load, seen),
    }
    network = outcome.results[0].network
    if network is not None and network.ring is not None:
        contents["ring_hops"] = partial(draw_ring, network.ring, seen.strategy)
    return files_of("links", contents, of=seen.strategy)


def draw_link_load(seen: SeenLinks) -> Figure:
    """The hottest links over time."""
    record, edges_s = seen.record, np.linspace(0.0, seen.step_s, PERIODS + 1)
    hottest = np.array(seen.hottest_links(DRAWN_LINKS), dtype=np.int64)
    equal = record.equal_links()
    names = [
        record.links.name(number) + (f" (x{equal[number]:,})" if equal[number] > 1 else "")
        for number in hottest.tolist()
    ]
    title = f"{seen.strategy}: the hottest links of the step"
    return plot_link_load(names, edges_s, record.load(edges_s, hottest), title=title)


def draw_ring(ring: RingHops, strategy: str) -> Figure:
    """Hop by hop."""
    hops = [f"{a}→{b}" for a, b in zip(ring.source.tolist(), ring.target.tolist(), strict=True)]
    return plot_ring_hops(
        hops, ring.alone_s, ring.shared_s, took_alone_s=ring.took_alone_s, took_s=ring.took_s,
        title=f"{strategy}: hops of the busiest ring ({ring.name})",
    )  # fmt: skip


def draw_fabric_load(seen: SeenLinks) -> Figure:
    """Layer by layer, block by block."""
    layers, blocks = fabric_layers(seen)
    cluster = seen.record.links.cluster
    title = f"{seen.strategy}: mean load of the fabric, {cluster.gpus:,} GPUs on {cluster.name}"
    return plot_fabric_load(layers, blocks, title=title)


def fabric_layers(seen: SeenLinks) -> tuple[list[Layer], list[str]]:
    """Mean loads of every layer ([rows, links side by side]), and the blocks they show: equal ones once."""
    links = seen.record.links
    load = np.where(links.capacity_bytes_per_s > 0, seen.mean_load, np.nan)
    fabric, node = links.cluster.fabric, links.cluster.node
    blocks = -(-links.cluster.nodes // fabric.nodes_per_block)
    spread: dict[LinkKind, Floats] = {}
    for kind in _KINDS["nic"]:
        wide = min(fabric.nodes_per_block, links.cluster.nodes)
        spread[kind] = np.full((node.nics, blocks, wide), np.nan)
        place = np.divmod(links.place_of_node, fabric.nodes_per_block)
        spread[kind][:, place[0], place[1]] = load[links.of_kind(kind)].reshape(-1, node.nics).T
    for kind in _KINDS["leaf"]:
        if links.count[kind]:
            spread[kind] = load[links.of_kind(kind)].reshape(blocks, -1, links.leaf.bins).transpose(1, 0, 2)
    shown, names = _distinct(spread)
    shown_of = dict.fromkeys(spread, shown)
    for kind in _KINDS["spine"]:
        if links.count[kind]:
            spread[kind] = load[links.of_kind(kind)].reshape(1, links.spine.switches, -1)
            shown_of[kind] = np.arange(links.spine.switches)
    layers = []
    for kind, words, row in _LAYERS:
        if kind in spread and spread[kind].size:
            pods_shown = shown_of[kind]
            title = words + (f", {len(pods_shown)} pods side by side" if kind.startswith("spine") else "")
            layers.append(
                Layer(name=title, load=_columns(spread[kind][:, pods_shown]), row=row, groups=len(pods_shown))
            )
    return layers, names


def _distinct(spread: dict[LinkKind, Floats]) -> tuple[Ints, list[str]]:
    """The first block of each set of equal ones, and what it is called."""
    every = np.hstack([values.transpose(1, 0, 2).reshape(values.shape[1], -1) for values in spread.values()])
    rounded = np.round(np.nan_to_num(every, nan=-1.0) / EQUAL_LOAD)
    _, first, counts = np.unique(rounded, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    names = [f"{first[one]}" + (f" (x{counts[one]})" if counts[one] > 1 else "") for one in order.tolist()]
    return first[order], names


def _columns(values: Floats) -> Floats:
    """[rows, blocks x columns of a block]: links side by side, the hottest of neighbours where there are too many."""
    rows, blocks, wide = values.shape
    most = max(1, MOST_COLUMNS // blocks)
    together = -(-wide // most)
    groups = -(-wide // together)
    padded = np.full((rows, blocks, groups * together), -np.inf)
    padded[:, :, :wide] = np.where(np.isnan(values), -np.inf, values)
    hottest = padded.reshape(rows, blocks * groups, together).max(axis=2)
    return np.where(np.isneginf(hottest), np.nan, hottest)
