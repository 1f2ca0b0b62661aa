"""`software:` of a scenario: a stack and a release of it, and the switches that it sets for this model and cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hdpsim.cost_models.hardware.parts import Cluster
from hdpsim.cost_models.layout.layout import Layout
from hdpsim.cost_models.memory.overheads import MemoryOverheads
from hdpsim.cost_models.transformer.model import Model
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import (
    Setting,
    Stack,
    fields_set,
    release_number,
    release_of_year,
    setting_of,
    stacks,
    switches,
)
from hdpsim.experiments.software.seen_columns import SHAPE, RunConfig
from hdpsim.quoting import did_you_mean

_TEXT = re.compile(r"(?P<name>[A-Za-z][\w-]*)(?: +v?(?P<release>\d+(?:\.\d+)*))?(?P<more> +with .+)?")
_YEAR = re.compile(r"20[012]\d")
_NOT_OF_A_SCENARIO = frozenset({"recompute", "adapter_rank", "adapter_targets"})
"""Switches that a scenario always writes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A stack of the catalog in one release.

    Attributes:
        framework: how a record would write it, with what the scenario says after `with`.
        words: what follows `with`.
        year: in which the release came out, or the newest known one that is not newer; or the year that is named.
        known_release: that release; of a year its usual one.
    """

    name: str
    release: str
    framework: str
    words: str
    year: int
    known_release: str

    @property
    def shown(self) -> str:
        """As a scenario writes it."""
        return f"{self.name} {self.release}"


def software_names() -> tuple[str, ...]:
    """Every stack that a scenario may name."""
    return tuple(sorted(name for stack in stacks() for name in stack.frameworks))


def read_software(text: str) -> Software:
    """Read "megatron-core 0.13", "torchtitan 2.8 with torch.compile", "nemo 2024".

    Without a release the newest known one counts. A year stands for a record that states no more than framework and
    year. What follows `with` is matched by the rules as the words of a record's framework are.

    Raises:
        ValueError: an unknown stack, or a release before all known ones.
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected a stack and its release, such as megatron-core 0.13, got {text!r}")
    name = found["name"].lower()
    stack = next((stack for stack in stacks() if name in stack.frameworks), None)
    if stack is None:
        known = software_names()
        raise ValueError(f"unknown software {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")
    release = found["release"] or max(stack.releases, key=release_number)
    of_a_year = _is_year(stack, release)
    counting = release_of_year(stack, int(release)) if of_a_year else _known_release(stack, name, release)
    written, words = stack.frameworks[name], found["more"] or ""
    alone = written.split()[0]
    if of_a_year and alone.lower() == name:
        framework = alone  # rules take the usual release of its year, as they do of a record
    else:
        framework = written.format(release=counting if of_a_year else release)
    return Software(
        name=name,
        release=release,
        framework=framework + words,
        words=words.strip(),
        year=int(release) if of_a_year else stack.releases[counting],
        known_release=counting,
    )


def names_a_release(text: str) -> bool:
    """Whether a scenario's software says which release it is."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or found["release"] is None:
        return False
    return not any(
        found["name"].lower() in stack.frameworks and _is_year(stack, found["release"]) for stack in stacks()
    )


def _is_year(stack: Stack, release: str) -> bool:
    """Whether it is no release of the stack, but a year."""
    return _YEAR.fullmatch(release) is not None and release not in stack.releases


def _known_release(stack: Stack, name: str, release: str) -> str:
    """The newest known release that is not newer."""
    known = sorted(stack.releases, key=release_number)
    before = [other for other in known if release_number(other) <= release_number(release)]
    if not before:
        raise ValueError(f"{name} {release} is older than the releases that are known: {', '.join(known)}")
    return before[-1]


def run_of(
    software: Software, model: Model, cluster: Cluster, layout: Mapping[str, Any], context_tokens: int
) -> Run:
    """The run of a scenario as the rules of stacks see it: the columns that a record of it would have."""
    sharding = layout["sharding"]
    config = RunConfig(
        gpu=cluster.gpu.name,
        n_gpus=cluster.gpus,
        gpus_per_node=cluster.node.gpus,
        year=software.year,
        framework=software.framework,
        notes=software.words,
        model_name=model.name,
        kv_heads=None if model.latent_attention else model.kv_heads,
        seq_len=context_tokens,
        task="lora" if model.frozen else "pretrain",
        sp=layout["sequence_parallel"],
        zero_stage="hsdp" if sharding == "zero3" and layout["shard_ranks"] else sharding,
        **{column: layout[column] for column in ("tp", "pp", "vpp", "cp", "ep", "recompute", "precision")},
        **{column: getattr(model, name) for column, name in SHAPE.items()},
    )
    return Run(config, cp_is_planned=config.cp is None)


def software_notes(software: Software, run: Run) -> tuple[str, ...]:
    """Which release's rules count where the one named is not known, and words after `with` that no rule reads."""
    notes = []
    if software.release == str(software.year):
        notes.append(f"software {software.shown}: of that year {software.known_release} counts")
    elif software.release != software.known_release:
        notes.append(
            f"software {software.shown}: a release that is not known; the rules of {software.known_release} count"
        )
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
    gathered = setting_of(run, "stays_gathered")
    if gathered is not None:
        notes.append(f"software {software.shown}: {gathered.words}: layout.sharding counts as zero1")
    return tuple(notes)


def settings_of(run: Run, written: frozenset[str]) -> tuple[Setting, ...]:
    """What the stack sets of a scenario's layout, model and memory, without the switches that are *written* there."""
    left_alone = written | _NOT_OF_A_SCENARIO
    found = [
        setting
        for setting in fields_set(run, Layout, Model, MemoryOverheads)
        if setting.switch not in left_alone
    ]
    gathered = setting_of(run, "stays_gathered")
    if gathered is not None:
        found.append(replace(gathered, switch="sharding", value="zero1"))
    return tuple(found)


def overheads_of(run: Run) -> MemoryOverheads:
    """What the run's stack keeps in memory: a lean one, but for what its rules say."""
    said: dict[str, Any] = {setting.switch: setting.value for setting in fields_set(run, MemoryOverheads)}
    return MemoryOverheads(**said)
