"""What the software stack that a scenario names decides of it, and what the scenario leaves to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from hdpsim.cost_models.hardware.catalog import original_name
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.reading.fields import Problems
from hdpsim.cost_models.transformer.model import Model
from hdpsim.experiments.scenario.references import Found
from hdpsim.experiments.scenario.schema import KEYS, section_of
from hdpsim.experiments.software.choice import Software, read_software
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import Setting, fields_set, setting_of, switches
from hdpsim.experiments.software.run_config import SHAPE, RunConfig
from hdpsim.simulator.settings import FIELDS

_CHANGES_NOTHING = "changes nothing: the scenario writes every key that it sets"
_DECIDED_SECTIONS = ("layout", "memory")
_NOT_OF_A_SCENARIO = frozenset({"recompute", "adapter_rank", "adapter_targets", "adapter_dropout"})
"""Switches that a scenario always writes itself."""
_SHAPES_OF_A_RUN = frozenset({"recompute", "shard_ranks", "embedding_layers", "pipeline_layout"})
"""Keys that stacks set too, but that say how a run is cut, not what its software does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDecisions:
    """What the software of a scenario decides.

    Attributes:
        settings: switches that it sets, each with who says so; none without a stack.
        left_open: keys that stay unwritten in the resolved document, so that another stack still decides them.
        notes: what the user should know of it.
        stated: whether a release is named, or a switch of the stack has a value that is not the default. A switch at
            its default says nothing: files with all defaults filled in have every switch.
    """

    settings: tuple[Setting, ...] = ()
    left_open: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    stated: bool = True

    @property
    def values(self) -> dict[str, Any]:
        """The value of every switch that it sets."""
        return {setting.switch: setting.value for setting in self.settings}


def decided_by_stack(
    document: Mapping[str, object], values: Mapping[str, Any], found: Found, problems: Problems
) -> StackDecisions:
    """What `software` decides of a *document*, whose checked *values* name what was *found*."""
    switched = any(values[key] != KEYS[key].default for key in _switches_of_stacks())
    if not values["software"]:
        return StackDecisions(stated=switched)
    try:
        software = read_software(values["software"])
    except ValueError as error:
        problems.add("software", str(error))
        return StackDecisions()
    written = _keys_written(document)
    names = {key.partition(".")[2] for key in written}
    names |= {FIELDS.get(name, name) for name in names}

    def run_with(stack: Software) -> Run:
        return _run_of(stack, found, section_of(values, "layout"), values)

    run = run_with(software)
    settings = _settings_of(run, frozenset(names))
    others = {
        release: _settings_of(run_with(software.of_release(release)), frozenset(names))
        for release in software.others
    }
    return StackDecisions(
        settings=settings,
        left_open=_keys_of_stacks() - written,
        notes=(
            *_memory_notes(settings),
            *_software_notes(software, run),
            *_release_notes(software, settings, others),
            *(() if settings else (f"software = {values['software']} {_CHANGES_NOTHING}",)),
        ),
        stated=software.release_said or switched,
    )


def _run_of(software: Software, found: Found, layout: Mapping[str, Any], values: Mapping[str, Any]) -> Run:
    """The run of a scenario as the rules of stacks see it: the columns that a record of it would have."""
    model, cluster, sharding = found.model, found.cluster, layout["sharding"]
    config = RunConfig(
        gpu=original_name(cluster.gpu.name),
        n_gpus=cluster.gpus,
        gpus_per_node=cluster.node.gpus,
        year=software.year,
        framework=software.framework,
        notes=software.words,
        model_name=original_name(model.name),
        model=model,
        node=cluster.node,
        kv_heads=None if model.latent_attention else model.kv_heads,
        seq_len=int(values["data.context"]),
        grad_accum=_micro_batches(found.cluster.gpus, layout, values),
        task="lora" if model.frozen else "pretrain",
        sp=layout["sequence_parallel"],
        zero_stage="hsdp" if sharding == "zero3" and layout["shard_ranks"] else sharding,
        **{column: layout[column] for column in ("tp", "pp", "vpp", "cp", "ep", "recompute", "precision")},
        **{column: getattr(model, name) for column, name in SHAPE.items()},
    )
    return Run(config, cp_is_planned=config.cp is None)


def _micro_batches(gpus: int, layout: Mapping[str, Any], values: Mapping[str, Any]) -> int | None:
    """Micro-batches of a step on one rank, where batch and micro-batch are said; None: nobody knows before planning."""
    batch, lengths, capacity = values["data.batch"], values["data.lengths"], layout["rank_capacity_tokens"]
    tokens = batch.tokens
    if tokens is None and batch.sequences and lengths and len(lengths) == 1:
        tokens = batch.sequences * lengths[0]
    if not tokens or not capacity:
        return None
    ranks = max(1, gpus // (layout["tp"] * layout["pp"]))
    return max(1, int(tokens / (ranks * capacity)))


def _software_notes(software: Software, run: Run) -> tuple[str, ...]:
    """Which release's rules count where the one named is not known, and words after `with` that no rule reads."""
    notes = []
    counting = software.known_release
    if software.release != counting:
        why = "a release that is not known"
        if software.release == str(software.year):
            of_year = software.of_release(counting).year == software.year
            why = "of that year the usual one" if of_year else "no release of that year is known"
        notes.append(f"software {software.shown}: {why}; the rules of {counting} count")
    framework = run.config.framework.removesuffix(f" {software.words}")
    plain = Run(replace(run.config, framework=framework, notes=""), cp_is_planned=run.cp_is_planned)
    if software.words and all(setting_of(run, switch) == setting_of(plain, switch) for switch in switches()):
        notes.append(
            f"software: {software.words!r} changes nothing: no rule reads these words here; "
            "what the stack was told to do is said by keys of layout"
        )
    policies = setting_of(run, "usual_policies")
    if policies is not None and isinstance(policies.value, tuple):
        named = f"{software.shown} with remat_policy: "
        notes.append(
            f"software {software.shown}: layout.recompute: selective counts as attention alone; there it is one of "
            f"{', '.join(policies.value)}: say which (software: '{named}{policies.value[-1]}')"
        )
    unknown = setting_of(run, "unknown_policy")
    if unknown is not None:
        notes.append(f"software: {unknown.words}")
    gathered = setting_of(run, "stays_gathered")
    if gathered is not None:
        notes.append(f"software {software.shown}: {gathered.words}: layout.sharding counts as zero1")
    return tuple(notes)


def _release_notes(
    software: Software, settings: tuple[Setting, ...], others: Mapping[str, tuple[Setting, ...]]
) -> tuple[str, ...]:
    """Where no release is said: the one of its year that decides most otherwise, and what."""
    chosen = {setting.switch: setting.value for setting in settings}
    most_different = ("", frozenset[str]())
    for release, decided in others.items():
        of_release = {setting.switch: setting.value for setting in decided}
        switched = frozenset(
            name for name in chosen.keys() | of_release.keys() if chosen.get(name) != of_release.get(name)
        )
        most_different = max(most_different, (release, switched), key=lambda each: len(each[1]))
    release, switched = most_different
    if not switched:
        return ()
    said = f"{software.name} {release}"
    return (
        f"software {software.shown}: no release is said; {said} decides otherwise: {', '.join(sorted(switched))} "
        f"(hdpsim whatif SCENARIO --set 'software={said}' says what that makes)",
    )


def _settings_of(run: Run, written: frozenset[str]) -> tuple[Setting, ...]:
    """What the stack sets of a scenario's layout, model and memory, without the switches that are *written* there."""
    left_alone = written | _NOT_OF_A_SCENARIO
    settings = [
        setting
        for setting in fields_set(run, Layout, Model, MemoryOverheads)
        if setting.switch not in left_alone
    ]
    gathered = setting_of(run, "stays_gathered")
    if gathered is not None:
        settings.append(replace(gathered, switch="sharding", value="zero1"))
    return tuple(settings)


def _keys_written(document: Mapping[str, object]) -> frozenset[str]:
    """Dotted keys that the scenario writes itself where a stack might set them."""
    sections = {section: document.get(section) for section in ("model", *_DECIDED_SECTIONS)}
    return frozenset(
        f"{section}.{key}" for section, keys in sections.items() if isinstance(keys, Mapping) for key in keys
    )


def _memory_notes(settings: tuple[Setting, ...]) -> tuple[str, ...]:
    """What a software stack keeps in memory that a lean one does not."""
    known = {item.name for item in fields(MemoryOverheads)}
    names = {field: key for key, field in FIELDS.items()}
    changed = [
        f"memory.{names.get(setting.switch, setting.switch)} = {str(setting.value).lower()}"
        for setting in settings
        if setting.switch in known
    ]
    return ("set by software: " + ", ".join(changed),) if changed else ()


@cache
def _keys_of_stacks() -> frozenset[str]:
    """Keys that a stack may decide."""
    return frozenset(
        key for key in KEYS if key.partition(".")[0] in _DECIDED_SECTIONS and key != "memory.must_fit"
    )


@cache
def _switches_of_stacks() -> tuple[str, ...]:
    """Keys of the layout that say what a stack does."""
    decided = frozenset(switches()) - _SHAPES_OF_A_RUN
    prefix = "layout."
    leaves = {key: key.removeprefix(prefix) for key in KEYS if key.startswith(prefix)}
    return tuple(key for key, leaf in leaves.items() if FIELDS.get(leaf, leaf) in decided)
