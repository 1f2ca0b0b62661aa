"""`hdpsim catalog`: the models, GPUs, nodes, clusters and software stacks that are shipped, with their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hdpsim.errors import UserInputError
from hdpsim.experiments.cli.groups import Commands
from hdpsim.experiments.cli.options import json_option
from hdpsim.experiments.cli.printing import Output, say

if TYPE_CHECKING:
    from hdpsim.cost_models.hardware.catalog import Kind
    from hdpsim.experiments.output.document import Column


@click.group("catalog", cls=Commands)
def catalog() -> None:
    """List the shipped models, GPUs, clusters and software stacks."""


_one = click.argument("name", required=False)


@catalog.command("models")
@_one
@json_option
def models(name: str | None, as_json: bool) -> None:
    """Models: the shapes of transformers; with NAME the entry, with its sources."""
    from hdpsim.experiments.output.document import Column

    _show_entries(
        as_json,
        "model",
        name,
        Column("name", heading="model"),
        Column("layers"),
        Column("hidden", format=","),
        Column("", lambda model: f"{model.heads}/{model.kv_heads}", heading="heads/kv"),
        Column("ffn_hidden", heading="ffn", format=","),
        Column("vocab", format=","),
        Column(
            "",
            lambda model: f"{model.experts} top {model.top_k}" if model.experts else None,
            heading="experts",
        ),
        Column("", _hybrid, heading="hybrid"),
    )


@catalog.command("gpus")
@_one
@json_option
def gpus(name: str | None, as_json: bool) -> None:
    """GPUs: dense peak rates, memory, links; with NAME the entry, with its sources."""
    from functools import partial

    from hdpsim.cost_models.reading.units import format_quantity
    from hdpsim.experiments.output.document import Column

    flop_rate, size, rate = (
        partial(format_quantity, dimension=dimension) for dimension in ("flop_rate", "bytes", "bandwidth")
    )
    _show_entries(
        as_json,
        "gpu",
        name,
        Column("name", heading="GPU"),
        Column("bf16_flop_per_s", heading="bf16", format=flop_rate),
        Column("fp8_flop_per_s", heading="fp8", format=flop_rate),
        Column("hbm_bytes", heading="HBM", format=size),
        Column("hbm_bytes_per_s", heading="HBM rate", format=rate),
        Column("nvlink_bytes_per_s", heading="NVLink", format=rate),
        Column("host_link_bytes_per_s", heading="host link", format=rate),
        Column("calibration"),
    )


@catalog.command("nodes")
@_one
@json_option
def nodes(name: str | None, as_json: bool) -> None:
    """Nodes: GPUs of one NVLink domain, their NICs and host memory; with NAME the entry, with its sources."""
    from hdpsim.cost_models.reading.units import format_quantity
    from hdpsim.experiments.output.document import Column

    _show_entries(
        as_json,
        "node",
        name,
        Column("name", heading="node"),
        Column("", lambda node: f"{node.gpus} x {node.gpu.name}", heading="GPUs"),
        Column("", lambda node: f"{node.nics} x {node.nic_bytes_per_s * 8 / 1e9:g} Gbit/s", heading="NICs"),
        Column("", lambda node: format_quantity(node.host_memory_bytes, "bytes"), heading="host memory"),
    )


@catalog.command("clusters")
@_one
@json_option
def clusters(name: str | None, as_json: bool) -> None:
    """Clusters: nodes on a fabric; with NAME the entry, with its sources."""
    from hdpsim.experiments.output.document import Column

    def shape(cluster: Any) -> str:
        return f"{cluster.fabric.nodes_per_block} nodes/block, {cluster.fabric.blocks_per_pod} blocks/pod"

    def oversubscription(cluster: Any) -> str:
        fabric = cluster.fabric
        return f"{fabric.leaf_oversubscription:g}:1, {fabric.spine_oversubscription:g}:1"

    _show_entries(
        as_json,
        "cluster",
        name,
        Column("name", heading="cluster"),
        Column("gpus", heading="GPUs", format=","),
        Column("", lambda cluster: f"{cluster.nodes:,} x {cluster.node.name}", heading="nodes"),
        Column("", lambda cluster: cluster.fabric.kind, heading="fabric"),
        Column("", shape, heading="shape"),
        Column("", oversubscription, heading="oversubscription"),
    )


@catalog.command("software")
@_one
@json_option
def software(name: str | None, as_json: bool) -> None:
    """Software stacks: what each does by default, since when, and who says so.

    Without NAME all stacks that `software:` of a scenario may name; with it the rules of one.
    """
    from hdpsim.experiments.output.document import Column
    from hdpsim.experiments.software.rules import stacks
    from hdpsim.quoting import did_you_mean

    known = {other: stack for stack in stacks() for other in (*stack.frameworks, stack.name)}
    if name is not None and name not in known:
        raise UserInputError(
            f"unknown software {name}{did_you_mean(name, known)}; known: {', '.join(sorted(known))}"
        )
    entries: list[dict[str, Any]] = [
        {
            "stack": stack.name,
            "names": list(stack.frameworks),
            "about": stack.about,
            "releases": dict(stack.releases),
            "rules": [
                {"switch": rule.switch, "value": rule.value, "when": rule.condition, "class": rule.kind,
                 "words": rule.words, "source": rule.source}
                for rule in stack.rules
            ],
        }
        for stack in (stacks() if name is None else (known[name],))
    ]  # fmt: skip
    if name is not None:
        _show(
            as_json,
            entries,
            Column("switch"),
            Column("value", format=_value),
            Column("class"),
            Column("when", lambda rule: _condition(rule["when"])),
            Column("source"),
            rows=entries[0]["rules"],
        )
        return
    _show(
        as_json,
        entries,
        Column("", lambda stack: ", ".join(stack["names"]) or f"({stack['stack']})", heading="software"),
        Column("releases", format=_span),
        Column("rules", format=lambda rules: str(len(rules))),
        Column("about", heading="what it is"),
    )


def _span(releases: dict[str, int]) -> str:
    names = list(releases)
    return f"{names[0]} to {names[-1]}" if names else "-"


def _value(value: object) -> str:
    return f"computed: {value['compute']}" if isinstance(value, Mapping) else str(value).lower()


def _condition(when: object) -> str:
    """A condition in few words."""
    if isinstance(when, dict):
        return "; ".join(f"{key} {_condition(value)}" for key, value in when.items()) or "always"
    if isinstance(when, list):
        return ", ".join(map(_condition, when))
    return "not stated" if when is None else str(when)


def _hybrid(model: Any) -> str | None:
    """Layers of a hybrid by letter."""
    from hdpsim.cost_models.transformer.layers import LETTER_OF, layer_counts

    if not model.layer_pattern:
        return None
    return ", ".join(f"{count} {LETTER_OF[kind]}" for kind, count in layer_counts(model))


def _show_entries(as_json: bool, kind: Kind, name: str | None, *columns: Column[Any]) -> None:
    """All entries of a kind, or the one of that name as it is written."""
    from hdpsim.cost_models.hardware import catalog

    if name is not None and not as_json:
        say(catalog.written(kind, name), nl=False)
        return
    names = catalog.names(kind) if name is None else (name,)
    _show(as_json, [getattr(catalog, kind)(each) for each in names], *columns)


def _show(
    as_json: bool, entries: list[Any], *columns: Column[Any], rows: Sequence[Any] | None = None
) -> None:
    from hdpsim.experiments.output.document import Document, Table

    table = Table(columns=columns, rows=entries if rows is None else rows)
    Output(as_json=as_json).present(Document(kind="", payload={"entries": entries}, blocks=(table,)))
