"""From a setup to the options of another tool, to paste."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hdpsim import __version__
from hdpsim.cost_models.reading.values import choice, read_at
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.other_tools.setups import is_dynamic, setup_facts, shown_facts, usual_facts
from hdpsim.experiments.other_tools.table import Tool, tool
from hdpsim.experiments.other_tools.translate import spelled, write_options
from hdpsim.experiments.output.document import Document
from hdpsim.experiments.scenario.scenario import Scenario
from hdpsim.experiments.scenario.setup_document import as_yaml
from hdpsim.experiments.scenario.values import Batch
from hdpsim.quoting import quoted
from hdpsim.simulator.setup import Setup

TARGETS = ("megatron-core", "megatron-bridge", "torchtitan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Options of another tool for one setup.

    Attributes:
        target: the tool.
        options: name -> value.
        yours: what a run needs besides -> in words.
        cannot: keys of the scenario that the tool cannot say -> the value they have.
        without_effect: keys that mean nothing in this layout.
        text: all of it as the tool reads it.
    """

    target: str
    title: str
    options: Mapping[str, object]
    yours: Mapping[str, str]
    cannot: Mapping[str, str]
    without_effect: tuple[str, ...]
    text: str


def flags(
    setup: Setup,
    target: str,
    *,
    batch: Batch | None = None,
    length_tokens: int | None = None,
    spelling: str = "",
) -> Exported:
    """The options with which *target* runs what is simulated.

    Args:
        setup: what is simulated.
        target: one of TARGETS.
        batch: a step's; None: not known, and listed.
        length_tokens: of every sequence, where all are equal.
        spelling: the release whose options are called otherwise (`main-2026-08` of Megatron-Core).

    Raises:
        UserInputError: no such target or spelling.
        InfeasibleError: the model is a hybrid.
    """
    table = tool(read_at("target", target, choice(TARGETS)))
    if spelling and spelling not in table.spellings:
        known = ", ".join(table.spellings) or "none"
        raise UserInputError(f"{target} has no other spelling {quoted(spelling)}; known: {known}")
    if setup.model.layer_pattern:
        raise InfeasibleError(
            f"{setup.model.name} is a hybrid (layer_pattern): its layers are not written as options of {table.title}"
        )
    facts = setup_facts(setup, table, batch, length_tokens)
    written = write_options(facts, usual_facts(), table, spelling)
    cannot = shown_facts(facts, written.cannot) | _strategy(setup, table, spelling)
    yours = {spelled(name, table): words for name, words in table.yours.items()}
    yours = _open(setup, facts, table) | yours
    head = _head(setup, table, yours, cannot)
    text = _FORMS[table.style](written.options, [f"# {line}" for line in head], setup, table)
    return Exported(
        target=target,
        title=table.title,
        options=written.options,
        yours=yours,
        cannot=cannot,
        without_effect=tuple(written.idle),
        text=text,
    )


def _strategy(setup: Setup, table: Tool, spelling: str) -> dict[str, str]:
    """What becomes of a strategy that forms groups anew for every batch."""
    if not is_dynamic(setup):
        return {}
    name = setup.strategy.name
    if "run.dynamic" not in table.keys:
        return {"strategy.name": f"{name}: {table.title} has a static mesh"}
    if spelling and setup.layout.parallel.pp > 1:
        return {"strategy.name": f"{name}: {table.title} {spelling} has it without a pipeline only"}
    return {"strategy.name": f"{name}: {table.title} forms groups by a planner of its own, in powers of two"}


def _open(setup: Setup, facts: Mapping[str, object], table: Tool) -> dict[str, str]:
    """What the scenario itself leaves open."""
    names = {number.key: spelled(number.option, table) for number in table.numbers}
    left_open = {}
    if setup.layout.parallel.cp is None and not is_dynamic(setup):
        left_open[names["layout.cp"]] = "layout.cp is auto; hdpsim simulate says which degree was taken"
    if facts.get("run.global_batch") is None:
        words = "sequences of a step; the scenario counts tokens of sequences of any length"
        left_open[names["run.global_batch"]] = words
    return left_open


def _head(setup: Setup, table: Tool, yours: Mapping[str, str], cannot: Mapping[str, str]) -> list[str]:
    cluster = setup.cluster
    lines = [
        f"{table.title}, by hdpsim {__version__}: {setup.model.name} on {cluster.gpus:,} x {cluster.gpu.name} "
        f"({cluster.nodes:,} nodes of {cluster.node.gpus})"
    ]
    for what, said in (
        ("The scenario has, and these options cannot say:", cannot),
        ("For you to say:", yours),
    ):
        lines += [what, *(f"  {name}: {words}" for name, words in said.items())] if said else []
    return lines


def _as_flags(options: Mapping[str, object], head: list[str], setup: Setup, table: Tool) -> str:
    cluster = setup.cluster
    run = f"torchrun --nnodes {cluster.nodes} --nproc-per-node {cluster.node.gpus} pretrain_gpt.py"
    lines = [*head, f'# {run} "${{MEGATRON_ARGS[@]}}" ...']
    lines += [f"export {name[1:]}={value}" for name, value in options.items() if name.startswith("$")]
    lines.append("MEGATRON_ARGS=(")
    for name, value in options.items():
        if not name.startswith("$"):
            words = "" if value is True else f" {' '.join(map(shlex.quote, str(value).split()))}"
            lines.append(f"    --{name}{words}")
    return "\n".join([*lines, ")"]) + "\n"


def _nested(options: Mapping[str, object], table: Tool) -> dict[str, Any]:
    """The options by sections."""
    sections: dict[str, Any] = {}
    for name, value in options.items():
        *above, leaf = name.split(".")
        inner = sections
        for section in above:
            inner = inner.setdefault(section, {})
        inner[leaf] = _list_or(value, name, table)
    return sections


def _list_or(value: object, name: str, table: Tool) -> object:
    return str(value).split() if name in table.lists else value


def _as_yaml(options: Mapping[str, object], head: list[str], _setup: Setup, table: Tool) -> str:
    return "\n".join([*head, as_yaml(_nested(options, table))])


def _as_toml(options: Mapping[str, object], head: list[str], _setup: Setup, table: Tool) -> str:
    lines = head
    sections: dict[str, list[str]] = {}
    for name, value in options.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {json.dumps(_list_or(value, name, table))}")
    for section, keys in sections.items():
        lines += ["", f"[{section}]", *keys]
    return "\n".join(lines) + "\n"


_FORMS = {"flags": _as_flags, "yaml": _as_yaml, "toml": _as_toml}


def export_scenario(scenario: Scenario, target: str, spelling: str = "") -> Exported:
    """Write a scenario as options of another tool (see flags)."""
    lengths = set(scenario.data.lengths_tokens or ())
    length = lengths.pop() if len(lengths) == 1 else None
    return flags(scenario.setup(), target, batch=scenario.data.batch, length_tokens=length, spelling=spelling)


def export_document(scenario: Scenario, exported: Exported, written: str | None) -> Document:
    """What `hdpsim export` shows."""
    options = {
        field.name: getattr(exported, field.name) for field in fields(exported) if field.name != "title"
    }
    said = (
        f"wrote {written}: options of {exported.title} for {scenario.name}"
        if written
        else exported.text.rstrip("\n")
    )
    payload = {**options, "scenario": scenario.name, "output": written}
    return Document(kind="export", payload=payload, blocks=(said,))
