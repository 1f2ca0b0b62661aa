"""What `hdpsim explain` says to people: the step as a table, one term as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hdpsim.experiments.explaining.explain import find_term, term_names
from hdpsim.experiments.output.document import Column, Document, Table, files_of
from hdpsim.experiments.output.plots.time import plot_time_breakdown
from hdpsim.experiments.studies.step_report import headline

if TYPE_CHECKING:
    from hdpsim.experiments.scenario.scenario import Scenario


Explanation = dict[str, Any]

_WIDTH = 110
_OF_SCENARIO = ("model.", "layout.", "cluster.", "fabric.")
_SHOWN_SOURCE = 160  # longer sources end in dots; JSON has all of them


def explain_document(scenario: Scenario, explanation: Explanation, term: str | None = None) -> Document:
    """The whole step, or one of its terms (or parts of terms) with what went into it."""
    head = f"{headline(scenario)}\nstrategy {explanation['strategy']}: step {seconds(explanation['step_s'])}"
    if term is None:
        software = (software_table(explanation),) if explanation["software"] else ()
        seconds_of = {one["term"]: one["seconds"] for one in explanation["terms"]}
        return Document(
            kind="",
            payload=explanation,
            head=head,
            blocks=(step_table(explanation), *software),
            notes=(*explanation["notes"], f"parts for --term: {', '.join(term_names(explanation))}"),
            files=files_of(
                "explain",
                {"time_breakdown": partial(plot_time_breakdown, {explanation["strategy"]: seconds_of})},
            ),
        )
    contents: dict[str, Callable[[], object]] = {}
    term_parts = find_term(explanation, term)
    total = term_parts["term"]
    blocks: list[Table[Any] | str] = ["\n".join(term_lines(explanation, total))]
    if term_parts["part"] is not None:
        lines = [f"{term_parts['part']}, a part of {total['term']}"]
        blocks = ["\n".join([*lines, *(line for part in term_parts["parts"] for line in part_lines(part))])]
    elif total["products"]:
        blocks.append(product_table(total))
        contents["products.csv"] = partial(product_table, total)
    contents["inputs.csv"] = lambda: list(
        input_rows(total["calls"] if term_parts["part"] is None else term_parts["parts"])
    )
    return Document(
        kind="",
        payload={**explanation, "terms": [total], "parts": term_parts["parts"]},
        head=head,
        blocks=tuple(blocks),
        files=files_of("explain", contents, inputs=_INPUT),
    )


_INPUT = ("function", "what", "name", "value", "least", "most", "source")


def input_rows(parts: Sequence[Explanation], caller: str = "") -> Iterator[dict[str, Any]]:
    """A row for every number, constant and result of *parts* and of what they called; of several values the mean.

    Names end in their unit, as in the formulas.
    """
    for part in parts:
        if "product" in part:
            names = ("m", "n", "k", "groups", "per_layer", "seconds_per_layer", "flop_per_s")
            of = f"{part['product']}, {part['side']}"
            yield from (_input_row(of, "number", name, part[name]) for name in names)
            continue
        of = f"{caller}{part['name']}" + (f", {part['direction']}" if part["direction"] else "")
        for name, value in part["inputs"].items():
            yield _input_row(of, "number", name, value)
        for name, constant in part["constants"].items():
            yield _input_row(of, "constant", name, constant["value"], constant["source"])
        if part["result"] is not None:
            unit = "result_s" if part["unit"] == "s" else f"result ({part['unit']})"
            yield _input_row(of, "result", unit, part["result"])
        yield from input_rows(part["calls"], f"{of}: ")


def _input_row(of: str, what: str, name: str, value: Any, source: str = "") -> dict[str, Any]:
    least = most = None
    if isinstance(value, Mapping) and "mean" in value:
        least, value, most = value["min"], value["mean"], value["max"]
    elif isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        value = number(value, name).strip("()[]")
    return dict(zip(_INPUT, (of, what, name, value, least, most, source), strict=True))


def step_table(explanation: Explanation) -> Table[Explanation]:
    """All accounts that are not zero, largest first within the order of the step."""
    columns: tuple[Column[Explanation], ...] = (
        Column("term"),
        Column("seconds", heading="time", format=seconds),
        Column("share", format=_percent),
        Column("largest_s", lambda row: row["largest"]["seconds"], heading="largest", format=seconds),
        Column("meaning", heading="what it is", left=True),
    )
    rows = [term for term in explanation["terms"] if term["seconds"] > 0]
    return Table(title="Where the step goes: mean over ranks and stages", columns=columns, rows=rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def software_table(explanation: Explanation) -> Table[Explanation]:
    """Switches that the scenario's software stack set, and who says so."""
    columns: tuple[Column[Explanation], ...] = (
        Column("switch"),
        Column("value", lambda row: str(row["value"]).lower(), left=True),
        Column("class", left=True),
        Column("source", format=_short, left=True),
    )
    title = "What the software does unless the scenario says otherwise"
    return Table(title=title, columns=columns, rows=explanation["software"])


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_SOURCE else text[: _SHOWN_SOURCE - 3] + "..."


def product_table(term: Explanation) -> Table[Explanation]:
    """The matrix products of a layer."""
    columns: tuple[Column[Explanation], ...] = (
        Column("product"),
        Column("side", left=True),
        Column("m", format=",.0f"),
        Column("n", format=",.0f"),
        Column("k", format=",.0f"),
        Column("groups"),
        Column("per_layer", heading="times"),
        Column("seconds_per_layer", heading="time", format=seconds),
        Column("flop_per_s", heading="TFLOP/s", format=lambda rate: f"{rate / 1e12:.0f}"),
    )
    title = "Matrix products of one layer and micro-batch on one GPU"
    return Table(title=title, columns=columns, rows=term["products"])


def term_lines(document: Explanation, term: Explanation) -> Iterator[str]:
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


def part_lines(part: Explanation, indent: str = "") -> Iterator[str]:
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


def _result(part: Explanation) -> str:
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
