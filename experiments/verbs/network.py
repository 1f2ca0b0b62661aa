"""Verbs that look at the network of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from hdpsim.cost_models.reading.values import choice, integer, read_at
from hdpsim.errors import InfeasibleError, QuantityError, UserInputError
from hdpsim.experiments.scenario.overrides import GivenOverrides, override_texts
from hdpsim.experiments.verbs.result import Result
from hdpsim.experiments.verbs.values import check_whole_number
from hdpsim.ranges import Range

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import ScenarioSource

Pattern = Literal["permutation", "ring", "all-reduce", "all-to-all", "incast"]


def fabric(
    source: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    gpus: int | None = None,
    drawing: str | Path | None = None,
) -> Result:
    """What does the network give GPUs at every distance?

        hdpsim.fabric("llama3-24k").to_frame()[["name", "bytes_per_s_per_gpu"]]

    *source* is a scenario or a cluster: a shipped name or a YAML file.

    Args:
        source: a scenario, or the name or file of a cluster.
        overrides: keys to change, as `--set` does: `{"cluster.fabric.leaf_oversubscription": 2}`.
        gpus: take so many of its GPUs instead of all.
        drawing: picture to draw (.png, .svg): devices of every kind, how many, and their rates; or the graph of all
            devices and links (.graphml; above 4,096 GPUs equal ones of a block are one node).

    Raises:
        UserInputError: what was given is wrong; the message says what is allowed.
    """
    from hdpsim.cost_models.network.fabric import count_devices
    from hdpsim.experiments.fabrics import fabric as study
    from hdpsim.experiments.fabrics.clusters import named_cluster
    from hdpsim.experiments.scenario.references import cluster_of_size

    check_whole_number("gpus", gpus, "gpus")
    cluster, network = named_cluster(source, override_texts(overrides))
    if gpus is not None:
        cluster = cluster_of_size(cluster, gpus)
    if drawing is not None:
        study.check_drawing(str(drawing))
    tiers = study.tiers_of(cluster, network)
    devices = count_devices(cluster)
    document = study.fabric_document(
        cluster, network, tiers, devices, None if drawing is None else str(drawing)
    )
    if drawing is not None and study.is_graph(str(drawing)):
        study.write_graph(cluster, network, Path(drawing))
    elif drawing is not None:
        from hdpsim.experiments.output.plots.style import write_figure

        write_figure(document.figures()["fabric"](), Path(drawing))
    return Result(document=document, found=cluster)


def flows(
    source: ScenarioSource,
    overrides: GivenOverrides = (),
    *,
    pattern: Pattern = "permutation",
    group: int | None = None,
    size: str = "1GB",
    gpus: int | None = None,
    seed: int = 0,
    top: int = 5,
) -> Result:
    """How fast are transfers that share links, when all GPUs send at once?

        hdpsim.flows("llama-7b-1k-github", pattern="all-to-all", gpus=64).to_dict()["slowest_s"]

    *source* is a scenario or a cluster: a shipped name or a YAML file.

    Args:
        source: a scenario, or the name or file of a cluster.
        overrides: keys to change, as `--set` does: `{"cluster.fabric.routing": "ecmp"}`.
        pattern: who sends to whom: permutation, ring, all-reduce, all-to-all, incast.
        group: GPUs of every group (a permutation has none), or senders of an incast; default: all GPUs for a ring or an
            all-reduce, two nodes for an all-to-all, 8 senders.
        size: what every GPU sends, or holds.
        gpus: take so many of its GPUs instead of all.
        seed: number from which hashes and the permutation are drawn.
        top: how many links, and meetings of transfers, are shown.

    Raises:
        UserInputError: what was given is wrong; the message says what is allowed.
        InfeasibleError: one GPU has nobody to send to.
    """
    from hdpsim.cost_models.network.links import Links
    from hdpsim.cost_models.reading.units import parse_quantity
    from hdpsim.experiments.fabrics.clusters import named_cluster
    from hdpsim.experiments.fabrics.flows import flows_document
    from hdpsim.experiments.scenario.references import cluster_of_size
    from hdpsim.experiments.studies.links.patterns import try_pattern

    read_at("pattern", pattern, choice(get_args(Pattern)))
    for name, value in (("gpus", gpus), ("group", group)):
        check_whole_number(name, value, "gpus")
    if pattern == "permutation" and group is not None:
        raise UserInputError("--group: a permutation has no groups: every GPU sends to one other")
    check_whole_number("seed", seed, "seed")
    read_at("top", top, integer(Range(1, 1000)))
    cluster, network = named_cluster(source, override_texts(overrides), flows=True)
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
    return Result(document=flows_document(trial, top), found=trial)
