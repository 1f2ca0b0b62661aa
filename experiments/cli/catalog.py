"""`hdpsim catalog`: the models, GPUs, nodes, clusters and software stacks that are shipped, with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hdpsim.experiments.cli.common import emit_json, json_option, show_table


@click.group("catalog")
def command() -> None:
    """List the shipped models, GPUs, clusters and software stacks."""


@command.command("models")
@json_option
def models(as_json: bool) -> None:
    """Models: the shapes of transformers."""
    from hdpsim.cost_models.hardware import catalog

    entries = [catalog.model(name) for name in catalog.names("model")]
    rows = [
        (
            name,
            f"{m.layers}",
            f"{m.hidden:,}",
            f"{m.heads}/{m.kv_heads}",
            f"{m.ffn_hidden:,}",
            f"{m.vocab:,}",
            f"{m.experts} top {m.top_k}" if m.experts else "-",
        )
        for name, m in zip(catalog.names("model"), entries, strict=True)
    ]
    _show(as_json, entries, ("model", "layers", "hidden", "heads/kv", "ffn", "vocab", "experts"), rows)


@command.command("gpus")
@json_option
def gpus(as_json: bool) -> None:
    """GPUs: dense peak rates, memory, links."""
    from hdpsim.cost_models.hardware import catalog
    from hdpsim.cost_models.reading.units import format_quantity as shown

    entries = [catalog.gpu(name) for name in catalog.names("gpu")]
    rows = [
        (
            g.name,
            shown(g.bf16_flop_per_s, "flop_rate"),
            "-" if g.fp8_flop_per_s is None else shown(g.fp8_flop_per_s, "flop_rate"),
            shown(g.hbm_bytes, "bytes"),
            shown(g.hbm_bytes_per_s, "bandwidth"),
            shown(g.nvlink_bytes_per_s, "bandwidth"),
            shown(g.host_link_bytes_per_s, "bandwidth"),
            g.calibration,
        )
        for g in entries
    ]
    heads = ("GPU", "bf16", "fp8", "HBM", "HBM rate", "NVLink", "host link", "calibration")
    _show(as_json, entries, heads, rows)


@command.command("nodes")
@json_option
def nodes(as_json: bool) -> None:
    """Nodes: GPUs of one NVLink domain, their NICs and host memory."""
    from hdpsim.cost_models.hardware import catalog
    from hdpsim.cost_models.reading.units import format_quantity as shown

    entries = [catalog.node(name) for name in catalog.names("node")]
    rows = [
        (
            n.name,
            f"{n.gpus} x {n.gpu.name}",
            f"{n.nics} x {n.nic_bytes_per_s * 8 / 1e9:g} Gbit/s",
            shown(n.host_memory_bytes, "bytes"),
        )
        for n in entries
    ]
    _show(as_json, entries, ("node", "GPUs", "NICs", "host memory"), rows)


@command.command("clusters")
@json_option
def clusters(as_json: bool) -> None:
    """Clusters: nodes on a fabric."""
    from hdpsim.cost_models.hardware import catalog

    entries = [catalog.cluster(name) for name in catalog.names("cluster")]
    rows = [
        (
            c.name,
            f"{c.gpus:,}",
            f"{c.nodes:,} x {c.node.name}",
            c.fabric.kind,
            f"{c.fabric.nodes_per_block} nodes/block, {c.fabric.blocks_per_pod} blocks/pod",
            f"{c.fabric.leaf_oversubscription:g}:1, {c.fabric.spine_oversubscription:g}:1",
        )
        for c in entries
    ]
    _show(as_json, entries, ("cluster", "GPUs", "nodes", "fabric", "shape", "oversubscription"), rows)


@command.command("software")
@click.argument("name", required=False)
@json_option
def software(name: str | None, as_json: bool) -> None:
    """Software stacks: what each does by default, since when, and who says so.

    Without NAME all stacks that `software:` of a scenario may name; with it the rules of one.
    """
    from hdpsim.cost_models.reading.fields import did_you_mean
    from hdpsim.errors import UserInputError
    from hdpsim.experiments.software.rules import stacks

    known = {other: stack for stack in stacks() for other in (*stack.frameworks, stack.name)}
    if name is not None and name not in known:
        raise UserInputError(
            f"unknown software {name}{did_you_mean(name, known)}; known: {', '.join(sorted(known))}"
        )
    chosen = stacks() if name is None else (known[name],)
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
        for stack in chosen
    ]  # fmt: skip
    if name is None:
        rows = [
            (
                ", ".join(entry["names"]) or f"({entry['stack']})",
                _span(entry["releases"]),
                str(len(entry["rules"])),
                entry["about"],
            )
            for entry in entries
        ]
        _show(as_json, entries, ("software", "releases", "rules", "what it is"), rows)
        return
    rules = [
        (
            str(rule["switch"]),
            _value(rule["value"]),
            str(rule["class"]),
            _condition(rule["when"]),
            str(rule["source"]),
        )
        for rule in entries[0]["rules"]
    ]
    _show(as_json, entries, ("switch", "value", "class", "when", "source"), rules)


def _span(releases: dict[str, int]) -> str:
    names = list(releases)
    return f"{names[0]} to {names[-1]}" if names else "-"


def _value(value: object) -> str:
    return f"computed: {value['compute']}" if isinstance(value, dict) else str(value).lower()


def _condition(when: object) -> str:
    """A condition in few words."""
    if isinstance(when, dict):
        return "; ".join(f"{key} {_condition(value)}" for key, value in when.items()) or "always"
    if isinstance(when, list):
        return ", ".join(map(_condition, when))
    return "not stated" if when is None else str(when)


def _show(
    as_json: bool, entries: list[Any], columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> None:
    from hdpsim.experiments.output.finite import plain
    from hdpsim.experiments.output.tables import Table

    if as_json:
        emit_json({"entries": plain(entries)})
        return
    table = Table(title="", columns=columns, rows=tuple(rows))
    show_table(table)
