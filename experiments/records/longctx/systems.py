"""What the rows of a source do not say about themselves: models, nodes, and how each of its systems was run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.errors import InfeasibleError
from hdpsim.experiments.records.longctx.rows import LongRow
from hdpsim.quoting import quoted
from hdpsim.yaml_loader import load_yaml

_FOLDER = shipped("experiments/data/longctx")
Document = dict[str, Any]
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One of the systems that a source compares.

    Attributes:
        rows: regular expression of the rows' column strategy.
        metrics, datasets: the same of their columns metric and dataset; empty: all.
        name: in tables; empty: what the column says.
        columns: cells that the source's code says otherwise.
        scenario: keys on top of the source's.
        models: regular expressions of the column model -> keys of the first that holds, on top of those.
        choices: further keys, several times where a source tuned its layout: the fastest that fits counts.
        refused: why it cannot be predicted; empty: it can.
    """

    rows: str
    metrics: str = ""
    datasets: str = ""
    name: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    scenario: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    choices: Sequence[Mapping[str, Any]] = ({},)
    refused: str = ""

    def runs(self, row: LongRow) -> bool:
        """Whether a row is one of its."""
        columns = (("strategy", self.rows), ("metric", self.metrics), ("dataset", self.datasets))
        return all(re.search(rows, row.text(column)) for column, rows in columns)

    def keys(self, row: LongRow) -> Document:
        """Keys of a row on top of the source's."""
        matching = (keys for rows, keys in self.models.items() if re.search(rows, row.text("model")))
        return merged(self.scenario, next(matching, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A paper, a repository or a page with a table.

    Attributes:
        source: text that the rows' column source holds.
        shapes: regular expressions of the column model, whose named groups are keys of a model.
        nodes: the rows' GPUs -> nodes, by name or written out; with gpus: all, one that holds all of a row's GPUs.
        gpus: of rows that do not say how many.
        sequences: of a batch of attention alone.
        skip, batches: steps before those that count, and steps to average over.
        scenario: keys that all its steps share.
        systems: the first whose expressions hold counts.
    """

    name: str
    source: str
    shapes: tuple[str, ...]
    nodes: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 0
    sequences: int = 1
    skip: int = 0
    batches: int = 1
    scenario: Mapping[str, Any] = field(default_factory=dict)
    systems: tuple[System, ...]

    def system(self, row: LongRow) -> System:
        """How a row was run.

        Raises:
            InfeasibleError: the source has no such system.
        """
        for system in self.systems:
            if system.runs(row):
                return system
        raise InfeasibleError(f"how {quoted(row.text('strategy'))} was run is not known")

    def node(self, row: LongRow) -> Any:
        """The node of its GPUs.

        Raises:
            InfeasibleError: the source used no such GPU.
        """
        gpu = row.text("gpu")
        if gpu not in self.nodes:
            raise InfeasibleError(f"gpu: nodes of {quoted(gpu)} are not known")
        node = self.nodes[gpu]
        if isinstance(node, Mapping) and node.get("gpus") == ALL:
            count = row.whole_number("gpus") or self.gpus
            return {**node, "gpus": count, "nics": count}
        return node

    def shape(self, row: LongRow) -> Document:
        """What the column model says of the model.

        Raises:
            InfeasibleError: nothing that is understood.
        """
        for shape in self.shapes:
            named = re.search(shape, row.text("model"))
            if named:
                return {key: int(value) for key, value in named.groupdict().items() if value}
        raise InfeasibleError(f"the shape of {quoted(row.text('model'))} is not known")


@cache
def sources() -> tuple[Source, ...]:
    """All sources whose tables are known."""
    return tuple(_source(load_yaml(path)) for path in sorted(_FOLDER.glob("*.yaml")))


def source_of(row: LongRow) -> Source:
    """The source of a row.

    Raises:
        InfeasibleError: none that is known.
    """
    for source in sources():
        if source.source in row.text("source"):
            return source
    known = ", ".join(source.source for source in sources())
    raise InfeasibleError(f"its column `source` names none of those whose systems are known: {known}")


def merged(*documents: Mapping[str, Any]) -> Document:
    """Documents on top of each other, section by section; no section is that of a document."""
    out: Document = {}
    for document in documents:
        for key, value in document.items():
            own = out.get(key)
            if isinstance(value, Mapping):
                out[key] = merged(own if isinstance(own, Mapping) else {}, value)
            else:
                out[key] = value
    return out


def _source(document: Mapping[str, Any]) -> Source:
    known = {item.name: document[item.name] for item in fields(Source) if item.name in document}
    systems = tuple(System(**system) for system in document["systems"])
    return Source(**{**known, "shapes": tuple(document["shapes"]), "systems": systems})
