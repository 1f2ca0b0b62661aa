"""What `hdpsim explain` says to people: the step as a table, one term as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hdpsim.experiments.output.tables import Table

Document = Mapping[str, Any]

_WIDTH = 110
_OF_SCENARIO = ("model.", "layout.", "cluster.", "fabric.")
_SHOWN_SOURCE = 160  # longer sources end in dots; JSON has all of them


def step_table(document: Document) -> Table:
    """All accounts that are not zero, largest first within the order of the step."""
    rows = [term for term in document["terms"] if term["seconds"] > 0]
    return Table(
        title="Where the step goes: mean over ranks and stages",
        columns=("term", "time", "share", "largest", "what it is"),
        rows=tuple(
            (
                term["term"],
                seconds(term["seconds"]),
                f"{100 * term['share']:.1f} %",
                seconds(term["largest"]["seconds"]),
                term["meaning"],
            )
            for term in rows
        ),
        left=frozenset({0, 4}),
    )


def software_table(document: Document) -> Table:
    """Switches that the scenario's software stack set, and who says so."""
    return Table(
        title="What the software does unless the scenario says otherwise",
        columns=("switch", "value", "class", "source"),
        rows=tuple(
            (row["switch"], str(row["value"]).lower(), row["class"], _short(row["source"]))
            for row in document["software"]
        ),
        left=frozenset({0, 1, 2, 3}),
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_SOURCE else text[: _SHOWN_SOURCE - 3] + "..."


def product_table(term: Document) -> Table:
    """The matrix products of a layer."""
    return Table(
        title="Matrix products of one layer and micro-batch on one GPU",
        columns=("product", "side", "m", "n", "k", "groups", "times", "time", "TFLOP/s"),
        rows=tuple(
            (
                row["product"],
                row["side"],
                *(f"{row[axis]:,.0f}" for axis in "mnk"),
                str(row["groups"]),
                str(row["per_layer"]),
                seconds(row["seconds_per_layer"]),
                f"{row['flop_per_s'] / 1e12:.0f}",
            )
            for row in term["products"]
        ),
        left=frozenset({0, 1}),
    )


def term_lines(document: Document, term: Document) -> Iterator[str]:
    """One account: its time, how often it happens, and the functions that priced it."""
    counts, largest = document["counts"], term["largest"]
    yield f"{term['term']}: {term['meaning']}"
    yield (
        f"{seconds(term['seconds'])} of a step of {seconds(document['step_s'])} ({100 * term['share']:.2f} %), "
        f"mean over {counts['ranks']} ranks x {counts['stages']} stages; "
        f"most on rank {largest['rank']}, stage {largest['stage']}: {seconds(largest['seconds'])}"
    )
    yield (
        f"a stage has {counts['layers_per_stage']:g} layers, a rank runs {counts['micro_batches_per_rank']:g} "
        f"micro-batches a step"
    )
    for call in term["calls"]:
        yield ""
        yield from part_lines(call)


def part_lines(part: Document, indent: str = "") -> Iterator[str]:
    """One priced function: result, formula, numbers, constants with their sources, and what it called."""
    if "product" in part:
        shape = " x ".join(f"{axis} {part[axis]:,.0f}" for axis in "mnk")
        yield (
            f"{indent}{part['product']}, {part['side']}: {seconds(part['seconds_per_layer'])} a layer; {shape}, "
            f"{part['groups']} group(s), {part['flop_per_s'] / 1e12:.0f} TFLOP/s"
        )
        return
    direction = f", {part['direction']}" if part["direction"] else ""
    shown = "" if part["result"] is None else f": {_result(part)}"
    yield f"{indent}{part['name']}{direction}{shown}"
    inner = indent + "  "
    if not indent:
        yield from _wrapped(part["summary"], inner)
    yield from (f"{inner}    {line}" for line in part["formula"].splitlines())
    for label in ("counted", "ignored", "source"):
        if part[label]:
            yield from _wrapped(f"{label}: {part[label]}", inner)
    numbers = [
        f"{name} = {number(value, name)}" for name, value in part["inputs"].items() if name != "products"
    ]
    if numbers:
        yield from _wrapped("numbers: " + "; ".join(numbers), inner)
    asked = [name for name in part["constants"] if name.startswith(_OF_SCENARIO)]
    if asked:
        values = (f"{name} = {number(part['constants'][name]['value'], name)}" for name in asked)
        yield from _wrapped("of the scenario: " + "; ".join(values), inner)
    for name, constant in part["constants"].items():
        if name in asked:
            continue
        source = textwrap.shorten(constant["source"], _SHOWN_SOURCE, placeholder=" ...")
        yield f"{inner}{name} = {number(constant['value'], name)}  [{source}]"
    for call in part["calls"]:
        yield from part_lines(call, inner)


def _result(part: Document) -> str:
    result, unit = part["result"], part["unit"]
    if isinstance(result, list):
        names = ("forward", "backward") if len(result) == 2 else ("",) * len(result)
        return ", ".join(
            f"{name} {number(one, '_' + unit)}".strip() for name, one in zip(names, result, strict=True)
        )
    return number(result, "_flop_per_s" if unit == "FLOP/s" else "_s")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)


def seconds(value: float) -> str:
    """A duration in a fitting unit."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value > 0 else "0 s"


def number(value: object, name: str) -> str:
    """A number with the unit that its name ends in; summaries of many as a range."""
    if isinstance(value, Mapping) and "mean" in value:
        span = " to ".join(number(value[key], name) for key in ("min", "max"))
        return f"{span} (mean {number(value['mean'], name)} of {value['count']})"
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {number(item, key)}" for key, item in value.items()) + ")"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(number(item, name) for item in value) + "]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("flop_per_s"):
        return f"{value / 1e12:.4g} TFLOP/s"
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:.4g} GB/s"
    if name.endswith("_s"):
        return seconds(value)
    if "bytes" in name and value >= 1e4:
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,.6g}"
