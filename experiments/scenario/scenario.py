"""A scenario: everything one simulation depends on, read from YAML, checked, and written back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdpsim.cost_models.calibration.calibration import Calibration
from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.hardware.prices import CostOptions
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.layout_checks import layout_notes, reasons_against
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.checked import Checked, Count, Number
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.cost_models.reading.shipped import given_or_shipped, names_in, shipped
from hdpsim.cost_models.step.data_loading import DataPipeline
from hdpsim.cost_models.transformer.model import Model
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.scenario.data_use import Drawn, data_use
from hdpsim.experiments.scenario.overrides import (
    GivenOverrides,
    apply_overrides,
    override_texts,
    parse_override,
)
from hdpsim.experiments.scenario.references import Found, References
from hdpsim.experiments.scenario.schema import KEYS, check_together, read_keys, section_of
from hdpsim.experiments.scenario.setup_document import as_yaml
from hdpsim.experiments.scenario.stack import decided_by_stack
from hdpsim.experiments.scenario.values import Batch
from hdpsim.experiments.software.rules import Setting
from hdpsim.quoting import quoted
from hdpsim.ranges import LIMITS, check
from hdpsim.simulator.many_steps.options import RunOptions
from hdpsim.simulator.setup import ExecutionOptions, MemoryOptions, Setup, StrategyOptions, lacking_flows
from hdpsim.traces import (
    Distribution,
    GlobalBatch,
    LongSequencePolicy,
    RepeatedLengths,
    Trace,
)
from hdpsim.yaml_loader import load_document

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions(Checked):
    """Where the sequence lengths come from and how they become global batches."""

    trace: str | None
    """Name of a shipped trace or path of a file; None when the lengths are drawn from a distribution."""
    column: str | None
    distribution: str | None
    lengths_tokens: tuple[int, ...] | None
    """The lengths of a round of sequences that repeats without end, instead of either."""
    batch: Batch
    context_tokens: Count
    policy: LongSequencePolicy
    """What happens to sequences longer than the context."""
    pipeline: DataPipeline
    """How nodes feed their GPUs."""
    seed: Number | None
    """Shuffles a trace or draws from a distribution; None keeps a trace in the order of its file."""

    @property
    def source_name(self) -> str:
        """Where the lengths come from, in words."""
        if self.lengths_tokens is not None:
            return RepeatedLengths(self.lengths_tokens).name
        return str(self.distribution or self.trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A checked scenario.

    Attributes:
        batch_count: global batches a verb averages over unless told otherwise.
        notes: what is legal but deserves a word in the report.
        resolved_json: every key with its value, defaults filled in, as canonical JSON.
        written_json: the document as it was written, changes of single keys included: what further changes apply to.
        folder: where relative paths of that document start.
        kind_calibrations, software_stated: see Setup.
        settings: switches that the scenario's software stack set, each with who says so.
    """

    name: str
    description: str
    model: Model
    cluster: Cluster
    layout: Layout
    data: DataOptions
    strategy: StrategyOptions
    execution: ExecutionOptions
    memory: MemoryOptions
    calibration: Calibration
    costs: CostOptions
    run: RunOptions
    batch_count: int
    notes: tuple[str, ...]
    resolved_json: str
    written_json: str = field(compare=False, repr=False)
    folder: Path | None = field(compare=False)
    settings: tuple[Setting, ...] = ()
    kind_calibrations: tuple[Calibration, ...] = ()
    software_stated: bool = True

    @property
    def document(self) -> dict[str, Any]:
        """Every key with its value, as a scenario file would hold it."""
        document: dict[str, Any] = json.loads(self.resolved_json)
        return document

    def to_yaml(self) -> str:
        """The scenario with all defaults filled in; reading it back gives the same scenario."""
        return as_yaml(self.document)

    def setup(self, strategy: str | None = None) -> Setup:
        """What the simulator needs besides the batch; *strategy* replaces the scenario's own."""
        options = self.strategy if strategy is None else replace(self.strategy, name=strategy)
        return Setup(
            model=self.model,
            cluster=self.cluster,
            layout=self.layout,
            calibration=self.calibration,
            context_tokens=self.data.context_tokens,
            strategy=options,
            execution=self.execution,
            data_pipeline=self.data.pipeline,
            memory=self.memory,
            kind_calibrations=self.kind_calibrations,
            software_stated=self.software_stated,
            set_by_software=tuple(setting.switch for setting in self.settings),
        )

    def draw(self, count: int | None = None) -> Drawn:
        """The first *count* global batches (default: batch_count), and what they make of their source.

        A recorded trace starts again when it ends.
        """
        if count is not None:
            check("batches", count, "count")
        from hdpsim.traces import global_batches, load_distribution, load_source

        data = self.data
        source: Trace | Distribution | RepeatedLengths
        if data.lengths_tokens is not None:
            source = RepeatedLengths(data.lengths_tokens)
        elif data.distribution is not None:
            source = load_distribution(data.distribution)
        else:
            source = load_source(str(data.trace), column=data.column)
        cut = global_batches(
            source,
            context_tokens=data.context_tokens,
            policy=data.policy,
            budget_tokens=data.batch.tokens,
            sequences=data.batch.sequences,
            seed=None if isinstance(source, RepeatedLengths) else data.seed,
        )
        most, why = LIMITS["batches_pieces"]
        batches: list[GlobalBatch] = []
        pieces = 0
        for batch in islice(cut, self.batch_count if count is None else count):
            pieces += len(batch.lengths)
            if pieces > most:
                raise InfeasibleError(f"the batches hold more than {most:,} sequences: {why}")
            batches.append(batch)
        name = str(data.trace or data.distribution or "data.lengths")
        return Drawn(
            lengths=tuple(batch.lengths for batch in batches),
            use=data_use(name, source, tuple(batches), data.context_tokens, data.policy),
        )

    def batches(self, count: int | None = None) -> tuple[Lengths, ...]:
        """Return the sequence lengths of every batch, cut to the context, without the account of what was cut."""
        return self.draw(count).lengths

    def with_changes(self, overrides: GivenOverrides) -> Scenario:
        """This scenario with some keys changed: what reading its document with these changes gives."""
        return resolve_scenario(
            json.loads(self.written_json),
            overrides=override_texts(overrides),
            source=self.name,
            folder=self.folder,
            default_name=self.name,
        )


_SHIPPED = shipped("experiments/scenarios")


def scenario_names() -> tuple[str, ...]:
    """The shipped scenarios."""
    return names_in(_SHIPPED)


def scenario_path(source: str | Path) -> Path:
    """The file of a scenario given by path or by the name of a shipped one.

    Raises:
        UserInputError: neither; the message lists the shipped names.
    """
    return given_or_shipped(source, _SHIPPED, "scenario")


ScenarioSource = str | Path | Mapping[str, object] | Scenario
"""What a scenario may be given as: the name of a shipped one, a path, a document (`{"model": ...}`), a scenario."""


def load_scenario(source: ScenarioSource, overrides: GivenOverrides = ()) -> Scenario:
    """Read, change and check a scenario: a file, a shipped one by its name, a document, or one that was read before.

    Args:
        source: name, path, document as a dictionary, or Scenario.
        overrides: keys to change, as `{"layout.tp": 4}` or `["layout.tp=4"]`.

    Raises:
        UserInputError: unreadable, or a ScenarioError with every problem of the document.
        InfeasibleError: well-formed, but the degrees do not fit the model or the cluster.
    """
    changes = override_texts(overrides)
    if isinstance(source, Scenario):
        return source.with_changes(changes) if changes else source
    if isinstance(source, Mapping):
        return resolve_scenario(source, overrides=changes)
    if not isinstance(source, str | Path):
        raise UserInputError(
            "a scenario is the name of a shipped one, a path, a dictionary of its keys or a Scenario; got "
            f"{quoted(repr(source))}"
        )
    path = scenario_path(source)
    document = load_document(path)
    return resolve_scenario(
        document.data,
        overrides=changes,
        source=str(path),
        folder=path.parent,
        where=document.where,
        default_name=path.stem,
    )


def written_document(source: ScenarioSource) -> Mapping[str, object]:
    """The keys that somebody wrote, before defaults are filled in; empty where it is no document."""
    if isinstance(source, Scenario):
        written: object = json.loads(source.written_json)
    else:
        written = source if isinstance(source, Mapping) else load_document(scenario_path(source)).data
    return written if isinstance(written, Mapping) else {}


def resolve_scenario(
    document: Mapping[str, object] | None,
    *,
    overrides: tuple[str, ...] = (),
    source: str = "scenario",
    folder: Path | None = None,
    where: Callable[[str], str] | None = None,
    default_name: str = "scenario",
) -> Scenario:
    """Check a scenario document and look up everything it names; see load_scenario."""
    if isinstance(document, Mapping):
        document = apply_overrides(document, overrides)
    problems = Problems(source, _place(where, overrides))
    values, found = _looked_up(document, folder, problems)
    assert document is not None  # its required keys were found
    stack = decided_by_stack(document, values, found, problems)
    problems.raise_if_any()
    of_stack = stack.values
    model = replace(
        found.model, **{name: value for name, value in of_stack.items() if hasattr(found.model, name)}
    )
    of_layout = {name: value for name, value in of_stack.items() if f"layout.{name}" in KEYS}
    layout = Layout(**{**section_of(values, "layout"), **of_layout})
    execution = section_of(values, "execution")
    batch_count = execution.pop("batches")
    executed = ExecutionOptions(**execution)
    for key, reason in lacking_flows(executed, found.cluster):
        problems.add(key, reason)
    problems.raise_if_any()
    name = str(values["name"] or default_name)
    data = _data_options(values, found)
    _refuse_what_cannot_run(name, model, found.cluster, layout, data)
    return Scenario(
        name=name,
        description=str(values["description"]),
        model=model,
        cluster=found.cluster,
        layout=layout,
        data=data,
        strategy=StrategyOptions(**section_of(values, "strategy")),
        execution=executed,
        memory=_memory(values, of_stack),
        calibration=found.calibration,
        kind_calibrations=found.kind_calibrations,
        costs=CostOptions(**{**section_of(values, "costs"), "prices": found.prices}),
        run=_run_options(values),
        batch_count=batch_count,
        notes=(*found.notes, *layout_notes(model, found.cluster, layout), *stack.notes),
        resolved_json=_resolved_json({**values, **found.written, "name": name}, stack.left_open),
        written_json=json.dumps(document),
        folder=folder,
        settings=stack.settings,
        software_stated=stack.stated,
    )


def _looked_up(
    document: Mapping[str, object] | None, folder: Path | None, problems: Problems
) -> tuple[dict[str, Any], Found]:
    """The values of all keys, and what they name."""
    values = read_keys(document if document is not None else {}, problems)
    check_together(values, problems)
    found = References(folder, problems).resolve(values)
    if found is None:
        problems.raise_if_any()
        raise AssertionError("references are missing without a problem")
    return values, found


def _data_options(values: Mapping[str, Any], found: Found) -> DataOptions:
    """The keys `data.*`."""
    data = section_of(values, "data")
    return DataOptions(
        trace=found.trace,
        column=found.column,
        distribution=found.distribution,
        lengths_tokens=data["lengths"],
        batch=data["batch"],
        context_tokens=data["context"],
        policy=data["policy"],
        pipeline=DataPipeline(
            loader=data["loader"],
            asynchronous=data["asynchronous"],
            prefetch_steps=data["prefetch_steps"],
        ),
        seed=data["seed"],
    )


def _refuse_what_cannot_run(
    name: str, model: Model, cluster: Cluster, layout: Layout, data: DataOptions
) -> None:
    """Refuse a scenario whose model, cluster, layout and longest sequence do not go together."""
    longest = data.context_tokens if data.lengths_tokens is None else max(data.lengths_tokens)
    against = reasons_against(model, cluster, layout, longest)
    if against:
        raise InfeasibleError(f"{name} cannot run:\n" + "\n".join(f"  {reason}" for reason in against))


def _run_options(values: Mapping[str, Any]) -> RunOptions:
    """The keys `run.*`, and what runs share with campaigns: storage and checkpoints."""
    return RunOptions(
        **section_of(values, "run"),
        storage_bytes_per_s=values["campaign.storage_bandwidth"],
        checkpoint_block_s=values["campaign.checkpoint_block"],
        checkpoint_upload_s=values["campaign.checkpoint_upload"],
    )


def _memory(values: Mapping[str, object], own: Mapping[str, Any]) -> MemoryOptions:
    """The keys `memory.*`, and of what the software stack sets its *own* ones."""
    keys = section_of(values, "memory")
    must_fit = keys.pop("must_fit")
    of_stack = {name: own[name] for name in keys.keys() & own.keys()}
    return MemoryOptions(overheads=MemoryOverheads(**{**keys, **of_stack}), must_fit=must_fit)


def _place(where: Callable[[str], str] | None, overrides: tuple[str, ...]) -> Callable[[str], str] | None:
    """Say where a key is written; keys that came from the command line have no place."""
    if where is None:
        return None
    changed = frozenset(parse_override(text)[0] for text in overrides)
    return lambda key: "" if key in changed else where(key)


def _resolved_json(values: Mapping[str, object], left_out: frozenset[str]) -> str:
    document: dict[str, Any] = {}
    for dotted, key in KEYS.items():
        if dotted in left_out:
            continue
        value = values[dotted]
        written = key.dump(value)
        if written is None or written == "":
            continue  # an alternative that was not chosen, or a text that was not given
        section, dot, leaf = dotted.rpartition(".")
        keys = document.setdefault(section, {}) if dot else document
        keys[leaf] = written
    return json.dumps(document, separators=(",", ":"), allow_nan=False)
