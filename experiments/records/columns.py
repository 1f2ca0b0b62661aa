"""Published training runs as data: a strict reader of the columns that docs/explanation/validation.md lists.

A record has two halves that never meet before an error is computed: what was run (`RunConfig`, all a prediction may
see) and what was measured (`Measured`).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from hdpsim.cost_models.hardware import catalog
from hdpsim.cost_models.hardware.parts import Node
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.cost_models.reading.shipped import shipped
from hdpsim.cost_models.reading.values import choice, integer, number, shown
from hdpsim.errors import HdpSimError, UserInputError
from hdpsim.experiments.output.files.csv import read_cell, read_rows
from hdpsim.experiments.scenario.schema import KEYS, now_called
from hdpsim.experiments.software.model_of_run import is_model_file, model_of_file
from hdpsim.experiments.software.run_config import (
    Precision,
    Recompute,
    RematPolicy,
    RunConfig,
    Sharding,
    Task,
)
from hdpsim.quoting import did_you_mean, quoted
from hdpsim.ranges import RANGES
from hdpsim.simulator.settings import FIELDS
from hdpsim.yaml_loader import load_yaml

MemoryOutcome = Literal["oom", "ran"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured. None: the source does not say."""

    measured_step_s: float | None = None
    measured_tokens_per_s_per_gpu: float | None = None
    measured_tflops_per_gpu: float | None = None
    measured_mfu_pct: float | None = None
    peak_mem_gb: float | None = None
    outcome: MemoryOutcome | None = None

    @property
    def ran(self) -> bool | None:
        """Whether the run fitted into memory: said so, or something of it was measured; None when unknown."""
        if self.outcome is not None:
            return self.outcome == "ran"
        measured = (getattr(self, field.name) for field in fields(self))
        return True if any(value is not None for value in measured) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of a file.

    Attributes:
        name: its id, or its row.
        config: what was run.
        measured: what was measured.
        complete: the source states the whole configuration.
        suspect: the source or the reader of it has doubts; empty for none.
        columns: every column of the file as it was read, for reports only.
    """

    name: str
    config: RunConfig
    measured: Measured
    complete: bool
    suspect: str
    columns: Mapping[str, object]

    @property
    def counts(self) -> bool:
        """Whether it is a complete, undoubted pretraining run: what accuracy is stated on."""
        return self.complete and not self.suspect and self.config.task in (None, "pretrain")


REQUIRED_COLUMNS = (
    "gpu", "n_gpus", "gpus_per_node", "model_name", "seq_len", "micro_batch", "tp", "pp", "dp", "zero_stage",
    "recompute",
)  # fmt: skip
SHAPE_COLUMNS = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab")
"""Of the model; they may be missing where `model_name` says it: a model of the catalog, or a file of one."""
MEASURED_COLUMNS = tuple(field.name for field in fields(Measured))

_WHOLE = {
    **{name: name for name in ("gpus_per_node", "year", "layers", "hidden", "ffn_hidden", "heads", "head_dim")},
    "vocab": "vocab",
    **{name: name for name in ("tp", "pp", "vpp", "cp", "ep", "dp")},
    "n_gpus": "gpus", "kv_heads": "heads", "n_experts": "experts", "topk": "top_k", "shared_expert_ffn": "ffn_hidden",
    "seq_len": "context_tokens", "global_batch_seqs": "sequences", "grad_accum": "micro_batches",
    "micro_batch": "sequences",
}  # fmt: skip
"""Columns of whole numbers, and the range of each."""
_MAY_BE_ZERO = ("n_experts", "topk", "shared_expert_ffn")  # 0 and nothing both mean a dense model
_POSITIVE = {
    "nic_gbps_per_gpu": "network_gbps",
    "measured_step_s": "step_s",
    "measured_tokens_per_s_per_gpu": "tokens_per_s",
    "measured_tflops_per_gpu": "tflops",
    "measured_mfu_pct": "percent",
    "peak_mem_gb": "memory_gb",
}
"""Columns of positive numbers, and the range of each."""
_FLAGS = ("gated_mlp", "sp", "complete")
_CHOICES: dict[str, tuple[str, ...]] = {
    "task": get_args(Task), "zero_stage": get_args(Sharding), "recompute": get_args(Recompute),
    "remat_policy": get_args(RematPolicy), "precision": get_args(Precision), "outcome": get_args(MemoryOutcome),
}  # fmt: skip


def _flag(value: object) -> bool:
    """A truth value, as 0 and 1 or as tables of pandas have it."""
    truth = {"0.0": False, "1.0": True, "false": False, "true": True}.get(str(value).lower())
    if truth is None:
        raise ValueError(f"expected 0 or 1, got {shown(value)}")
    return truth


_PARSERS: Mapping[str, Callable[[object], Any]] = {
    **{
        name: integer(RANGES[kind].from_least(0 if name in _MAY_BE_ZERO else 1))
        for name, kind in _WHOLE.items()
    },
    **{name: number(RANGES[kind]) for name, kind in _POSITIVE.items()},
    **dict.fromkeys(_FLAGS, _flag),
    **{name: choice(known) for name, known in _CHOICES.items()},
}
_ZERO_NUMBERS = {"0": "none", "1": "zero1", "2": "zero2", "3": "zero3"}
_CONFIG = tuple(field.name for field in fields(RunConfig) if field.name not in ("switches", "model", "node"))
_MARKS = ("id", "source", "family", "suspect", "complete", "notes")
"""Columns that say something of the record, and nothing of the run."""
_SECTIONS = re.compile(r"(?:layout|memory|cluster|model)\..+")
"""Columns that can only be meant as keys of a scenario, well spelled or not."""
_SWITCHES = (*(key for key in KEYS if key.startswith(("layout.", "memory."))), "cluster.node")
_OWN_COLUMN = {
    **{name: name for name in _CONFIG}, "gpus": "n_gpus", "name": "model_name",
    "micro_batch_size": "micro_batch", "rank_capacity": "micro_batch", "sharding": "zero_stage",
    "sequence_parallel": "sp", "must_fit": "outcome",
}  # fmt: skip
"""Keys that are no columns, and the columns that say it."""


def shipped_records() -> Path:
    """The project's own copy of the curated runs."""
    return shipped("experiments/data/records/runs.csv")


@cache
def _spellings() -> dict[str, dict[str, str]]:
    """Other spellings of a choice: column -> spelling without hyphens and blanks -> the word."""
    columns = load_yaml(shipped("experiments/data/records/spellings.yaml"))
    return {
        column: {other: word for word, others in words.items() for other in others}
        for column, words in columns.items()
    }


def template() -> str:
    """A table of records to fill in: the columns, and the first published run as an example."""
    with shipped_records().open(newline="", encoding="utf-8") as file:
        example = next(csv.DictReader(file))
    optional = ("global_batch_seqs", "precision", "sp", "vpp", "cp", "ep", "framework", "year", "id", "notes")
    written = io.StringIO()
    columns = (*REQUIRED_COLUMNS, *SHAPE_COLUMNS, "gated_mlp", *optional, *MEASURED_COLUMNS)
    table = csv.DictWriter(written, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerow({**example, "notes": ""})
    return written.getvalue()


def read_records(path: str | Path) -> tuple[Record, ...]:
    """Read a CSV of records (gzip too): the REQUIRED_COLUMNS in any order, others of the schema where there are any.

    An empty cell means that the source does not say; only `gpu` must be filled in. `model_name` may be a file beside
    the records.

    Raises:
        UserInputError: unreadable, no rows, missing columns, or a cell that is not allowed, with file and row.
    """
    rows = read_rows(path, REQUIRED_COLUMNS, "records", _other_verb)
    return tuple(_record(where, _with_model_file(where, cells, Path(path).parent)) for where, cells in rows)


def misspelt_columns(names: Iterable[str]) -> tuple[str, ...]:
    """A sentence for every unread column that is spelled nearly as a missing one; another if nothing was measured."""
    present = set(names)
    read = {*_CONFIG, *MEASURED_COLUMNS, *_MARKS}
    hints = ((name, did_you_mean(name, sorted(read - present), 0.8)) for name in names if name not in read)
    said = tuple(f"column {quoted(name)} is not read{hint}" for name, hint in hints if hint)
    if present.isdisjoint(MEASURED_COLUMNS):
        said += (f"no column says what was measured; those that do: {', '.join(MEASURED_COLUMNS)}",)
    return said


def _with_model_file(where: str, cells: Mapping[str, str], folder: Path) -> Mapping[str, str]:
    """The cells with the model's file, which stands beside the records, as a path from here."""
    name = cells["model_name"]
    if not is_model_file(name):
        return cells
    try:
        model_of_file(str(folder / name))
    except HdpSimError as error:
        raise UserInputError(f"{where}: model_name: {error}") from None
    return {**cells, "model_name": str(folder / name)}


def _other_verb(head: set[str]) -> str:
    """Which verb takes a file with these columns: one of kernels, or of a paper's cells; empty: none."""
    verbs = [(("kind", "time_us"), "validate --kernels")]
    for path in sorted(shipped("experiments/data/papers").glob("*/setup.yaml")):
        verbs.append((load_yaml(path)["cells"]["columns"], f"reproduce {path.parent.name} --cells"))
    words = "holds no training runs in the columns of validate; use `hdpsim {} FILE`"
    return next((words.format(verb) for columns, verb in verbs if head.issuperset(columns)), "")


def _record(where: str, cells: Mapping[str, str]) -> Record:
    values = {name: _value(where, name, text) for name, text in cells.items()}
    if not values["gpu"]:
        raise UserInputError(f"{where}: gpu: is empty; every record needs the name of its GPU")
    known: dict[str, Any] = {name: values[name] for name in _CONFIG if values.get(name) is not None}
    if "framework" not in cells and values.get("source"):
        known["framework"] = values["source"]  # a file of one stack names it as its source
    if known.get("remat_policy") and known.get("recompute") in ("none", "full"):
        raise UserInputError(
            f"{where}: remat_policy: goes with recompute selective, not {known['recompute']}"
        )
    stated = {
        name: text
        for name, text in cells.items()
        if text and (_SECTIONS.fullmatch(name) or ("." in name and name in KEYS))
    }
    known["switches"] = tuple(_switch(where, name, text) for name, text in stated.items())
    seen: dict[str, Any] = {name: values[name] for name in MEASURED_COLUMNS if values.get(name) is not None}
    return Record(
        name=str(values.get("id") or where.rpartition(", ")[2]),
        config=RunConfig(**known),
        measured=Measured(**seen),
        complete=values.get("complete") is not False,
        suspect=str(values.get("suspect") or ""),
        columns=values,
    )


def _value(where: str, column: str, text: str) -> object:
    """The cell as its column's type; None when it is empty."""
    if not text:
        return None
    if column in _CHOICES:
        text = _plain(column, text)
    try:
        return read_cell(where, column, text, _PARSERS[column]) if column in _PARSERS else text
    except UserInputError as error:
        raise UserInputError(f"{error}; or an empty cell") from None


def _plain(column: str, text: str) -> str:
    """The word of a choice, in whatever spelling."""
    word = text.lower()
    if column == "zero_stage":
        word = _ZERO_NUMBERS.get(word.removesuffix(".0"), word)
    return _spellings().get(column, {}).get(re.sub(r"[-_ ]", "", word), word)


def _switch(where: str, column: str, text: str) -> tuple[str, object]:
    """The switch that a column of a scenario's key means, and its value, as a scenario has it."""
    name = column.partition(".")[2]
    own = _OWN_COLUMN.get(name)
    if own or column not in _SWITCHES:
        near = f"; the column is {own}" if own else did_you_mean(column, _SWITCHES)
        hint = now_called(column) or near
        raise UserInputError(f"{where}: {column}: is no switch of a record{hint}")
    try:
        if column == "cluster.node":
            return name, _node(text)
        return FIELDS.get(name, name), KEYS[column].parse(load_yaml(text))
    except (ValueError, HdpSimError) as error:
        raise UserInputError(f"{where}: {column}: {error}") from None


def _node(text: str) -> str | Node:
    """The catalog's name of a node, or the node that a mapping describes."""
    data, problems = load_yaml(text), Problems("")
    if isinstance(data, str):
        return catalog.node(data).name
    described = catalog.node_entry(data, problems, "")
    if described is None or problems.found:
        raise ValueError("; ".join(": ".join(filter(None, problem)) for problem in problems.found))
    return described
