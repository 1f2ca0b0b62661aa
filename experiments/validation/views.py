"""Three ways to look at published runs: as they are, as a user would write them down, as if never seen before.

`published`: everything that the source says.

`plain`: what a user's own record has. The first word of the framework stays, its name, without release, schedule or
brackets; of the notes stay the clauses about the model's shape and about what the measured columns mean; who published
the run is gone, and with it what is known of that source. Columns and year stay.

`unseen`: a run is predicted without what was made with the runs of its family in view, as far as that can be told:
rules about software that decide something in this family alone, but for those that only read what a record states;
facts about its source; and its family's residuals, on which its band rests. Constants of calibrations stay: most are
measured on kernels, and `docs/explanation/calibration.md` says which of them runs decided.

How a source counts FLOP and what it calls peak memory are no part of a prediction: they say how to read a measurement,
and are the same in every view.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hdpsim.experiments.records.columns import Record
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.rules import deciding_rules, name_of_stack, setting_of, switches
from hdpsim.experiments.software.run_config import RunConfig

_OF_THE_MODEL = re.compile(
    r"(?i)\blayers?\b.*\bdense\b|\bdense_layers=|\bdense\b.*\bffn\b|\bMoE every\b|\bchunked attention\b|\bsliding\b|"
    r"\bwindow|\btied embeddings\b|\bMLA\b|\bMTP\b|\bmamba\b|\bshared expert|\bffn_hidden is per expert|\brank \d+"
)
_OF_THE_MEASUREMENT = re.compile(r"(?i)peak_mem_gb =|nvidia-smi")
_READINGS = frozenset({"flop_convention", "memory_gauge", "memory_stage"})
"""Switches that say how to read a measurement."""
_OF_THE_SERVER = "node"
_OF_SOURCES = "sources"
"""The file of facts about single sources."""


def plain(config: RunConfig) -> RunConfig:
    """The run as a user would write it down."""
    clauses = (clause.strip() for clause in config.notes.split(";"))
    kept = (one for one in clauses if _OF_THE_MODEL.search(one) or _OF_THE_MEASUREMENT.search(one))
    return replace(config, framework=name_of_stack(config.framework), family="", notes="; ".join(kept))


def is_plain(config: RunConfig) -> bool:
    """Whether the name of its software is all that a run says of it: no column, words or notes change a switch.

    The column `cluster.node` is of the server, not of software.
    """
    bare = plain(config)
    of_software = any(switch != _OF_THE_SERVER for switch, _ in config.switches)
    return config.framework == bare.framework and not of_software and _decided(config) == _decided(bare)


def _decided(config: RunConfig) -> dict[str, object]:
    """The values of all switches that rules decide."""
    run = Run(config)
    settings = {switch: setting_of(run, switch) for switch in switches() if switch not in _READINGS}
    return {switch: setting and setting.value for switch, setting in settings.items()}


def rules_of_families(records: Iterable[Record]) -> Mapping[str, frozenset[str]]:
    """Family -> names of the rules that decide a switch in its runs and in no other family's.

    Rules that only read what a record states stay: they are about language. Facts about single sources never do.
    """
    families: dict[str, set[str]] = defaultdict(set)
    for record in records:
        for rule in deciding_rules(Run(record.config)):
            if rule.switch not in _READINGS and (rule.kind != "stated" or rule.stack == _OF_SOURCES):
                families[rule.name].add(record.config.family)
    by_family: dict[str, set[str]] = defaultdict(set)
    for name, met in families.items():
        if len(met) == 1:
            by_family[next(iter(met))].add(name)
    return {family: frozenset(names) for family, names in by_family.items()}
