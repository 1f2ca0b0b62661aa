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


_ENTRIES: dict[Kind, str] = {
    "model": "Models: the shapes of transformers",
    "gpu": "GPUs: dense peak rates, memory, links",
    "node": "Nodes: GPUs of one NVLink domain, their NICs and host memory",
    "cluster": "Clusters: nodes on a fabric",
}
"""What the commands of the hardware and of the models list."""


def _columns(kind: Kind) -> tuple[Column[Any], ...]:
    from hdpsim.cost_models.reading.units import format_quantity
    from hdpsim.experiments.output.document import Column

    def quantity(name: str, heading: str, dimension: str) -> Column[Any]:
        return Column(name, heading=heading, format=lambda value: format_quantity(value, dimension))

    def of_fabric(heading: str, words: str) -> Column[Any]:
        return Column("", lambda cluster: words.format(cluster.fabric), heading=heading)

    columns: dict[Kind, tuple[Column[Any], ...]] = {
        "model": (
            Column("layers"), Column("hidden", format=","),
            Column("", lambda model: f"{model.heads}/{model.kv_heads}", heading="heads/kv"),
            Column("ffn_hidden", heading="ffn", format=","), Column("vocab", format=","),
            Column("", lambda model: f"{model.experts} top {model.top_k}" if model.experts else None,
                   heading="experts"),
            Column("", _hybrid, heading="hybrid"),
        ),
        "gpu": (
            quantity("bf16_flop_per_s", "bf16", "flop_rate"), quantity("fp8_flop_per_s", "fp8", "flop_rate"),
            quantity("hbm_bytes", "HBM", "bytes"), quantity("hbm_bytes_per_s", "HBM rate", "bandwidth"),
            quantity("nvlink_bytes_per_s", "NVLink", "bandwidth"),
            quantity("host_link_bytes_per_s", "host link", "bandwidth"), Column("calibration"),
        ),
        "node": (
            Column("", lambda node: f"{node.gpus} x {node.gpu.name}", heading="GPUs"),
            Column("", lambda node: f"{node.nics} x {node.nic_bytes_per_s * 8 / 1e9:g} Gbit/s", heading="NICs"),
            quantity("host_memory_bytes", "host memory", "bytes"),
        ),
        "cluster": (
            Column("gpus", heading="GPUs", format=","),
            Column("", lambda cluster: f"{cluster.nodes:,} x {cluster.node.name}", heading="nodes"),
            of_fabric("fabric", "{0.kind}"),
            of_fabric("shape", "{0.nodes_per_block} nodes/block, {0.blocks_per_pod} blocks/pod"),
            of_fabric("oversubscription", "{0.leaf_oversubscription:g}:1, {0.spine_oversubscription:g}:1"),
        ),
    }  # fmt: skip
    return (Column("name", heading="GPU" if kind == "gpu" else kind), *columns[kind])


def _command(kind: Kind) -> None:
    @catalog.command(f"{kind}s", help=f"{_ENTRIES[kind]}; with NAME the entry, with its sources.")
    @click.argument("name", required=False)
    @json_option
    def shown(name: str | None, as_json: bool) -> None:
        from hdpsim.cost_models.hardware import catalog as entries

        if name is not None and not as_json:
            say(entries.written(kind, name), nl=False)
            return
        names = entries.names(kind) if name is None else (name,)
        _show(as_json, [getattr(entries, kind)(each) for each in names], *_columns(kind))


for _kind in _ENTRIES:
    _command(_kind)


@catalog.command("software")
@click.argument("name", required=False)
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


def _show(
    as_json: bool, entries: list[Any], *columns: Column[Any], rows: Sequence[Any] | None = None
) -> None:
    from hdpsim.experiments.output.document import Document, Table

    table = Table(columns=columns, rows=entries if rows is None else rows)
    Output(as_json=as_json).present(Document(kind="", payload={"entries": entries}, blocks=(table,)))
