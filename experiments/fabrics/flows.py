"""A pattern of traffic that was played on a cluster's links, and which of them are hottest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.json_data import attributes

if TYPE_CHECKING:
    from hdpsim.arrays import Floats
    from hdpsim.cost_models.hardware.parts import LinkKind
    from hdpsim.cost_models.network.links import Links
    from hdpsim.experiments.studies.links.patterns import Trial


def _kind(links: Links, kind: LinkKind, carried: Floats, end_s: float) -> dict[str, Any]:
    """How busy the links of a kind are that carry anything."""
    numbers = links.of_kind(kind)
    could = links.capacity_bytes_per_s[numbers] * end_s
    busy = np.divide(carried[numbers], could, out=np.zeros(len(could)), where=could > 0)
    return {
        "kind": kind,
        "links": int((busy > 0).sum()),
        "mean_busy_share": float(busy[busy > 0].mean()),
        "busy_share": float(busy.max()),
        "hottest": links.name(numbers.start + int(busy.argmax())),
    }


_Row = dict[str, Any]
_OF_KINDS: tuple[Column[_Row], ...] = (
    Column("kind"),
    Column("links", heading="carry anything", format=","),
    Column("mean_busy_share", heading="mean busy", format=".0%"),
    Column("busy_share", heading="hottest", format=".0%"),
    Column("hottest", heading="which is", left=True),
)
_OF_LINKS: tuple[Column[_Row], ...] = (
    Column("link"),
    Column("busy_share", heading="busy", format=".0%"),
    Column("", lambda row: row["bytes"] / 1e9, heading="GB", format=",.2f"),
    Column("", lambda row: row["capacity_bytes_per_s"] / 1e9, heading="of GB/s", format=",.1f"),
)
_OF_COLLISIONS: tuple[Column[_Row], ...] = (
    Column("link"),
    Column("activity", left=True),
    Column("met", left=True, missing="(nobody: paused, or down)"),
    Column("", lambda row: 1e3 * row["lost_s"], heading="lost ms", format=",.2f"),
)


def flows_document(trial: Trial, top: int) -> Document:
    """How long it took, and the *top* hottest links and worst meetings."""
    record, links = trial.record, trial.record.links
    cluster = links.cluster
    end_s = float(record.end_s.max())
    carried = record.link_bytes()
    hottest: list[dict[str, Any]] = [
        {
            "link": links.name(number),
            "busy_share": float(carried[number] / links.capacity_bytes_per_s[number] / end_s),
            "bytes": float(carried[number]),
            "capacity_bytes_per_s": float(links.capacity_bytes_per_s[number]),
        }
        for number in record.hottest(top).tolist()
    ]
    kinds = [_kind(links, kind, carried, end_s) for kind in links.first if carried[links.of_kind(kind)].any()]
    collisions: list[dict[str, Any]] = [
        {"link": links.name(one.link), "activity": one.label, "met": one.other or None, "lost_s": one.lost_s}
        for one in record.collisions()[:top]
    ]
    times: dict[str, Any] = {
        "activities": len(record.activities),
        "slowest_s": end_s,
        "mean_s": float(trial.took_s.mean()),
        "alone_s": float(trial.alone_s.max()),
        "mean_alone_s": float(trial.alone_s.mean()),
        "slowed_activities": int((record.lost_s > 1e-9 * trial.took_s).sum()),
    }
    fabric = cluster.fabric
    return Document(
        kind="",
        head=f"{cluster.name}: {cluster.gpus:,} x {cluster.gpu.name}, {fabric.kind}, routing {fabric.routing}, "
        f"congestion control {fabric.congestion_control}; {trial.pattern}, {trial.size_bytes / 1e9:g} GB",
        blocks=(
            Table(title="Links by kind", columns=_OF_KINDS, rows=kinds),
            Table(title="Hottest links", columns=_OF_LINKS, rows=hottest),
            *((Table(title="Who met whom", columns=_OF_COLLISIONS, rows=collisions),) if collisions else ()),
        ),
        notes=(
            f"{times['activities']:,} {'groups' if trial.group > 1 else 'flows'}: the slowest takes "
            f"{1e3 * end_s:,.2f} ms, the mean {1e3 * times['mean_s']:,.2f} ms; alone "
            f"{1e3 * times['alone_s']:,.2f} and {1e3 * times['mean_alone_s']:,.2f} ms. "
            f"{times['slowed_activities']:,} are slowed by others.",
            "Time on the wire, without latencies. Busy: share of what the link could have carried until the slowest "
            "ended.",
        ),
        payload={
            "cluster": cluster.name,
            "gpus": cluster.gpus,
            **attributes(trial, "pattern group size_bytes"),
            **times,
            "kinds": kinds,
            "links": hottest,
            "collisions": collisions,
        },
        files=files_of(
            "flows",
            {"links.csv": lambda: hottest, "kinds.csv": lambda: kinds, "collisions.csv": lambda: collisions},
            collisions=("link", "activity", "met", "lost_s"),
        ),
    )
