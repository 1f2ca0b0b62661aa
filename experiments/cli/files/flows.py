"""`hdpsim flows`: a pattern of traffic played on a cluster's links, and which of them are hottest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hdpsim.errors import InfeasibleError, QuantityError, UserInputError
from hdpsim.experiments.cli.common import Output, json_option, whole_number

if TYPE_CHECKING:
    from hdpsim.arrays import Floats
    from hdpsim.cost_models.network.links import LinkKind, Links
    from hdpsim.experiments.output.document import Document
    from hdpsim.experiments.studies.traffic_patterns import Trial

PATTERNS = ("permutation", "ring", "all-reduce", "all-to-all", "incast")


@click.command("flows")
@click.argument("source", metavar="SCENARIO|CLUSTER")
@click.option(
    "--pattern",
    type=click.Choice(PATTERNS),
    default="permutation",
    show_default=True,
    help="Who sends to whom.",
)
@click.option(
    "--group",
    type=whole_number("gpus"),
    metavar="N",
    help="GPUs of every group, or senders of an incast. Default: all GPUs for a ring or an all-reduce, two nodes for "
    "an all-to-all, 8 senders.",
)
@click.option(
    "--size", metavar="BYTES", default="1GB", show_default=True, help="What every GPU sends, or holds."
)
@click.option(
    "--gpus", type=whole_number("gpus"), metavar="N", help="As many GPUs of the cluster instead of all."
)
@click.option(
    "--seed", type=whole_number("seed"), metavar="N", default=0, help="Of the hashes and the permutation."
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=5,
    show_default=True,
    help="Links, and meetings, shown.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the cluster (cluster.fabric.routing=ecmp); repeatable.",
)
@json_option
def command(
    source: str,
    pattern: Any,
    group: int | None,
    size: str,
    gpus: int | None,
    seed: int,
    top: int,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """What do flows that meet leave each other?

    SCENARIO|CLUSTER is a scenario or a cluster: a shipped name or a YAML file. All GPUs send at once.
    """
    from hdpsim.cost_models.network.links import Links
    from hdpsim.cost_models.reading.units import parse_quantity
    from hdpsim.experiments.cli.files.fabric import named_cluster
    from hdpsim.experiments.scenario.references import cluster_of_size
    from hdpsim.experiments.studies.traffic_patterns import try_pattern

    cluster, network = named_cluster(source, overrides)
    if gpus is not None:
        cluster = cluster_of_size(cluster, gpus)
    try:
        size_bytes = parse_quantity(size, "bytes")
    except QuantityError as error:
        raise UserInputError(f"--size: expected bytes such as 64MB: {error}") from None
    if cluster.gpus < 2:
        raise InfeasibleError("one GPU has nobody to send to")
    if group is None:
        usual = {"all-to-all": 2 * cluster.node.gpus, "incast": min(8, cluster.gpus - 1)}
        group = min(usual.get(pattern, cluster.gpus), cluster.gpus)
    links = Links.of(cluster, network, seed=seed)
    trial = try_pattern(links, pattern, group=group, size_bytes=size_bytes, seed=seed)
    Output(as_json=as_json).present(_document(trial, top))


def _kind(links: Links, kind: LinkKind, carried: Floats, end_s: float) -> dict[str, Any]:
    """How busy the links of a kind are that carry anything."""
    import numpy as np

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


def _document(trial: Trial, top: int) -> Document:
    from hdpsim.experiments.output.document import Column, Document, Table

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
    milliseconds = 1e3
    return Document(
        kind="",
        head=f"{cluster.name}: {cluster.gpus:,} x {cluster.gpu.name}, {fabric.kind}, routing {fabric.routing}, "
        f"congestion control {fabric.congestion_control}; {trial.pattern}, {trial.size_bytes / 1e9:g} GB",
        blocks=(
            Table(
                title="Links by kind",
                columns=(
                    Column("kind"),
                    Column("links", heading="carry anything", format=","),
                    Column("mean_busy_share", heading="mean busy", format=".0%"),
                    Column("busy_share", heading="hottest", format=".0%"),
                    Column("hottest", heading="which is", left=True),
                ),
                rows=kinds,
            ),
            Table(
                title="Hottest links",
                columns=(
                    Column("link"),
                    Column("busy_share", heading="busy", format=".0%"),
                    Column("", lambda row: row["bytes"] / 1e9, heading="GB", format=",.2f"),
                    Column(
                        "", lambda row: row["capacity_bytes_per_s"] / 1e9, heading="of GB/s", format=",.1f"
                    ),
                ),
                rows=hottest,
            ),
            *(
                (
                    Table(
                        title="Who met whom",
                        columns=(
                            Column("link"),
                            Column("activity", left=True),
                            Column("met", left=True, missing="(nobody: paused, or down)"),
                            Column(
                                "", lambda row: row["lost_s"] * milliseconds, heading="lost ms", format=",.2f"
                            ),
                        ),
                        rows=collisions,
                    ),
                )
                if collisions
                else ()
            ),
        ),
        notes=(
            f"{times['activities']:,} {'groups' if trial.group > 1 else 'flows'}: the slowest takes "
            f"{end_s * milliseconds:,.2f} ms, the mean {times['mean_s'] * milliseconds:,.2f} ms; alone "
            f"{times['alone_s'] * milliseconds:,.2f} and {times['mean_alone_s'] * milliseconds:,.2f} ms. "
            f"{times['slowed_activities']:,} are slowed by others.",
            "Time on the wire, without latencies. Busy: share of what the link could have carried until the slowest "
            "ended.",
        ),
        payload={
            "cluster": cluster.name,
            "gpus": cluster.gpus,
            "pattern": trial.pattern,
            "group": trial.group,
            "size_bytes": trial.size_bytes,
            **times,
            "kinds": kinds,
            "links": hottest,
            "collisions": collisions,
        },
    )
